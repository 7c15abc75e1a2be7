"""Packed calls by PyTorch's `varlen_attn`, documents in one row by their offsets.
A row's error is that of some rows against float64 over the keys of its document."""
import math
import os

import numpy
import torch

from torch_masks import document_of
from torch_shared import first_call, gradients_call, random_inputs


def lengths_of(case):
    """The rows of each document, as numbers that follow from the case alone."""
    n = case.queries
    if case.documents == "twelve":
        return numpy.bincount(document_of(n).numpy())
    random = numpy.random.default_rng(5)
    if case.documents == "uneven":          # a long one, and sixty that share the rest
        cuts = numpy.sort(random.choice(n - 5000 - 1, 59, replace=False) + 1)
        rest = numpy.diff([0, *cuts, n - 5000])
        return random.permutation([5000, *rest])
    shares = random.lognormal(0, 1, 64)     # as the texts of a corpus
    ends = numpy.round(numpy.cumsum(shares) / shares.sum() * n)
    return numpy.diff([0, *ends]).astype(int)


def offsets(case):
    return numpy.concatenate([[0], numpy.cumsum(lengths_of(case))]).astype("int32")


def offsets_of(case, folder):
    """Words for the command line."""
    path = os.path.join(folder, f"{case.documents}-{case.queries}.npy")
    numpy.save(path, offsets(case))
    return ["--offsets", path]


def error_of(case, output, q, k, v):
    """Relative L2 distance to float64 on some rows; all are [N, H, D]."""
    at, wrong, size = offsets(case), 0.0, 0.0
    for n in range(16):
        row, head = n * 7919 * 31 % case.queries, n * 5 % case.heads
        first = int(at[numpy.searchsorted(at, row, "right") - 1])
        keys = slice(first, row + 1)
        scores = (k[keys, head].double() @ q[row, head].double()
                  / math.sqrt(case.width))
        want = torch.softmax(scores, 0) @ v[keys, head].double()
        wrong += (output[row, head].double() - want).square().sum().item()
        size += want.square().sum().item()
    return math.sqrt(wrong / size)


def varlen(case):
    from torch.nn.attention.varlen import varlen_attn
    q, k, v = random_inputs(case.queries, case.heads, case.width)
    at = torch.from_numpy(offsets(case)).cuda()
    longest = int(lengths_of(case).max())

    def forward():
        return varlen_attn(q, k, v, at, at, longest, longest, window_size=(-1, 0))

    if not case.backward:
        return first_call(forward, lambda o: error_of(case, o, q, k, v))
    return gradients_call(forward, (q, k, v))


def ways(case, compiled):
    yield "varlen", lambda: varlen(case)
