"""LongNet as PyTorch users write it: for each branch the rows that it selects
are gathered, attended, scattered back, and mixed by the softmax denominators.

Segments are padded to whole ones and to whole rounds of the dilation, as
torchscale does; there zero keys take part, so no error is given."""
import torch
import torch.nn.functional as F

from torch_shared import (attend, error_of, first_call, random_inputs,
                          training_call)

NEVER = -1e30                      # log-denominator of a row not selected


def pad_rows(x, count):
    return F.pad(x, (0, 0, 0, 0, 0, count)) if count else x


def cut(x, segment, length):
    """[B, N, H, D] to padded segments [B n, length, H, D]."""
    N, H, D = x.shape[1:]
    x = pad_rows(x, -N % segment).reshape(-1, segment, H, D)
    return pad_rows(x, length - segment)


def whole(x, N, segment):
    """The padded segments back to [N, H, ...] of one batch row."""
    return x[:, :segment].flatten(0, 1)[:N]


def branch(q, k, v, segment, dilation, causal, backend):
    N, H, D = q.shape[1:]
    segment = min(segment, N)
    length = segment + -segment % dilation
    rows = (torch.arange(0, length, dilation, device=q.device)[:, None]
            + torch.arange(H, device=q.device) % dilation)
    heads = torch.arange(H, device=q.device).expand_as(rows)
    parts = [cut(x, segment, length) for x in (q, k, v)]
    if dilation > 1:
        parts = [x[:, rows, heads] for x in parts]
    o, lse = attend(*(x.transpose(1, 2) for x in parts), causal, backend)
    o, lse = o.transpose(1, 2), lse.transpose(1, 2)
    if dilation > 1:
        full = o.new_zeros(o.shape[0], length, H, D)
        logs = lse.new_full((o.shape[0], length, H), NEVER)
        full[:, rows, heads], logs[:, rows, heads] = o, lse
        o, lse = full, logs
    return whole(o, N, segment), whole(lse, N, segment)


def longnet(q, k, v, segments, dilations, causal, backend):
    parts = [branch(q, k, v, s, r, causal, backend)
             for s, r in zip(segments, dilations)]
    weights = torch.softmax(torch.stack([lse for _, lse in parts]), 0)
    return sum(w[..., None].to(q.dtype) * o
               for w, (o, _) in zip(weights, parts))


def ways(case, compiled):
    q, k, v = random_inputs(1, case.queries, case.heads, case.width)
    padded = any(case.queries % s or s % r
                 for s, r in zip(case.segments, case.dilations))

    def check(output):
        return None if padded else error_of(case, output, q[0], k[0], v[0])

    torch.compiler.reset()

    def way(function, backend):
        def forward(q, k, v):
            return function(q, k, v, case.segments, case.dilations, case.causal,
                            backend)
        if case.training:
            return lambda: training_call(forward, (q, k, v))
        return lambda: first_call(lambda: forward(q, k, v), check)

    for backend in ("flash", "cudnn"):
        yield backend, way(longnet, backend)
        if compiled:
            yield (backend + "+compile",
                   way(torch.compile(longnet, dynamic=False), backend))
