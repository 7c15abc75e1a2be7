"""The patterns of ../patterns.dil as FlexAttention writes them: a function of
pairs, a function of scores, or both; and decoding by SDPA. A row's error is that
of some rows against float64 over the keys that its function keeps."""
import math
import os

import numpy
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from torch_shared import first_call, gradients_call, random_inputs

DOCUMENTS = 12


def document_of(n):
    """The document of each position: lengths as 1 to 12, in turn."""
    bounds = torch.tensor([i * (i + 1) / 2 for i in range(1, DOCUMENTS + 1)])
    bounds = (bounds / bounds[-1] * n).long()
    return torch.searchsorted(bounds, torch.arange(n), right=True).int()


def inputs_of(case, folder):
    """Words for the command line: the inputs of a pattern that has some."""
    if case.kernel != "documents":
        return []
    path = os.path.join(folder, "documents.npy")
    numpy.save(path, document_of(case.queries).numpy()[None])
    return ["--input", f"doc={path}"]


def kept_of(case):
    """(b, h, i, j) to whether the pair is kept; None: all are."""
    doc = document_of(case.queries).to("cuda")
    past = lambda i, j: j <= i
    return {
        "past": lambda b, h, i, j: past(i, j),
        "sliding": lambda b, h, i, j: past(i, j) & (i - j < 1024),
        "sinks": lambda b, h, i, j: past(i, j) & ((i - j < 1024) | (j < 4)),
        "prefix": lambda b, h, i, j: past(i, j) | (j < 2048),
        "dilated": lambda b, h, i, j: (i % 4 == j % 4) & past(i, j) &
                                      (i - j < 2048),
        "strided": lambda b, h, i, j: past(i, j) &
                                      ((i - j < 128) | ((i - j) % 128 == 0)),
        "longformer": lambda b, h, i, j: ((i - j).abs() <= 256) | (i < 64) |
                                         (j < 64),
        "neighborhood": lambda b, h, i, j:
            ((i // 128 - j // 128).abs() <= 6) &
            ((i % 128 - j % 128).abs() <= 6),
        "documents": lambda b, h, i, j: past(i, j) & (doc[i] == doc[j]),
        "alibi": lambda b, h, i, j: past(i, j),
        "softcap": lambda b, h, i, j: past(i, j),
        "drops": lambda b, h, i, j: past(i, j),
        "decode_gqa": None,
    }[case.kernel]


def score_of(case):
    """(s, b, h, i, j) to the changed score; None: scores stay."""
    return {
        "alibi": lambda s, b, h, i, j:
            s - torch.exp(-0.34657359 * (h + 1)) * (i - j),
        "softcap": lambda s, b, h, i, j: 30 * torch.tanh(s / 30),
    }.get(case.kernel)


def error_of(case, kept, changed, output, q, k, v):
    """Relative L2 distance to float64 on some rows; all are [1, H, N, D]."""
    wrong = size = 0.0
    j = torch.arange(case.queries, device="cuda")
    for n in range(16):
        row, head = n * 7919 * 31 % case.queries, n * 5 % case.heads
        i, h = (torch.tensor(x, device="cuda") for x in (row, head))
        scores = (k[0, head].double() @ q[0, head, row].double()
                  / math.sqrt(case.width))
        if changed:
            scores = changed(scores, 0, h, i, j)
        if kept:
            scores = scores.masked_fill(~kept(0, h, i, j), -math.inf)
        want = torch.softmax(scores, 0) @ v[0, head].double()
        wrong += (output[0, head, row].double() - want).square().sum().item()
        size += want.square().sum().item()
    return math.sqrt(wrong / size)


def flex(case):
    q, k, v = random_inputs(1, case.heads, case.queries, case.width)
    kept, changed = kept_of(case), score_of(case)
    blocks = torch.compile(create_block_mask)(kept, 1, case.heads, case.queries,
                                              case.queries)
    attend = torch.compile(flex_attention)

    def forward():
        return attend(q, k, v, score_mod=changed, block_mask=blocks)

    if not case.backward:
        return first_call(forward, lambda o: error_of(case, kept, changed, o, q,
                                                      k, v))
    return gradients_call(forward, (q, k, v))


def flash(case):
    """Decoding, or a causal call with dropout: no other peer has them."""
    decodes = case.kernel == "decode_gqa"
    rows = 1 if decodes else case.queries
    q, _, _ = random_inputs(case.batch, case.heads, rows, case.width)
    _, k, v = random_inputs(case.batch, case.kv_heads or case.heads,
                            case.keys or case.queries, case.width)

    def run():
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(
                q, k, v, is_causal=not decodes, enable_gqa=decodes,
                dropout_p=0.1 if case.kernel == "drops" else 0.0)
    if not decodes:
        return first_call(run)
    graph = torch.cuda.CUDAGraph()
    first_call(run)
    with torch.cuda.graph(graph):
        run()
    graph.replay()
    return graph.replay, 0.0, 0, None


def ways(case, compiled):
    if case.kernel in ("decode_gqa", "drops"):
        yield "flash", lambda: flash(case)
    elif case.kernel.startswith("blocks"):
        return  # its blocks are drawn by a hash that the peers do not have
    elif compiled:
        yield "flex", lambda: flex(case)
    else:
        print("# FlexAttention is nothing without torch.compile: left out")
