"""decode_turns.py - two calls with one row each, in turn, many times: a call has the
bits of its first time. Where a copy comes too early, or a read, some row has others.

    decode_turns.py [cuda | cpu] [TURNS]

A line of ok or not ok for each shape; 1 where a call had other bits.
"""

import sys

import torch

import dil

SHAPES = [  # heads, of keys, head_dim, batch, keys
    (64, 8, 64, 128, 4096), (32, 8, 128, 8, 8192), (16, 4, 256, 16, 3000)]
TEXT = ("pattern p {{ heads {} kv {}; head_dim {}; dtype bf16; causal; "
        "branch {{ }} }}")


def inputs(shape, device):
    heads, kv, width, batch, keys = shape
    return [torch.randn(size, device=device, dtype=torch.bfloat16)
            for size in ((batch, 1, heads, width), (batch, keys, kv, width),
                         (batch, keys, kv, width))]


def try_shape(shape, device, turns):
    """How many of the calls had other bits than the first one with their inputs."""
    kernel = dil.Program(TEXT.format(*shape[:3]),
                         context=dil.Context(device)).kernel()
    calls = [inputs(shape, device) for _ in range(2)]
    first = [kernel(*call).clone() for call in calls]
    lost = sum(not torch.equal(kernel(*calls[turn % 2]), first[turn % 2])
               for turn in range(turns))
    print("not ok" if lost else "ok", "decode in turn, heads %d on %d of %d, "
          "batch %d, %d keys:" % shape, lost, "of", turns, "calls differ")
    return lost


def main():
    device = (sys.argv[1:] or ["cuda"])[0]
    turns = int((sys.argv[2:] or ["1500"])[0])
    torch.manual_seed(1)
    return int(sum(try_shape(shape, device, turns) for shape in SHAPES) > 0)


if __name__ == "__main__":
    sys.exit(main())
