"""The union of the branches as FlexAttention writes it: one mask function, from
which a table of blocks is built for this length, then a compiled kernel."""
import time

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from torch_shared import error_of, first_call, random_inputs


def mask_of(case):
    def mask(b, h, i, j):
        kept = None
        for s, r in zip(case.segments, case.dilations):
            here = (i // s == j // s) & (i % s % r == h % r) & (j % s % r == h % r)
            kept = here if kept is None else kept | here
        return kept
    return mask


def ways(case, compiled):
    if not compiled:
        print("# FlexAttention is nothing without torch.compile: left out")
        return
    q, k, v = random_inputs(1, case.heads, case.queries, case.width)

    def make():
        start = time.perf_counter()
        blocks = torch.compile(create_block_mask)(
            mask_of(case), 1, case.heads, case.queries, case.queries)
        torch.cuda.synchronize()
        built = time.perf_counter() - start
        attend = torch.compile(flex_attention)
        run, first, extra, error = first_call(
            lambda: attend(q, k, v, block_mask=blocks),
            lambda o: error_of(case, *(x[0].transpose(0, 1)
                                       for x in (o, q, k, v)), True))
        print(f"# {case.name}: block mask built in {built:.1f} s, "
              f"kernel compiled in {first:.1f} s")
        return run, built + first, extra, error

    yield "flex", make
