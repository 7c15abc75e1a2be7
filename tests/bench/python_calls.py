"""python_calls.py - microseconds of the host for one small call from Python, by
ways to call, beside PyTorch's own attention in the same run.

    python_calls.py [cpu | cuda]

The least of many short lots counts, since other work on the machine only adds.
On a GPU its own time does not count: a lot ends before the GPU has done it.
"""

import os
import sys
import time

import numpy
import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "..", "..", "examples", "python"))
import dil
import dil.torch

TEXT = "pattern p { heads 1; head_dim 16; dtype f32; branch { } }"
DEVICE = (sys.argv[1:] or ["cpu"])[0]
LOT, LOTS = 100, 300


def took(name, call, at_most=None):
    for _ in range(LOT):
        call()
    best = float("inf")
    for _ in range(LOTS):
        began = time.perf_counter()
        for _ in range(LOT):
            call()
        best = min(best, (time.perf_counter() - began) / LOT * 1e6)
        if DEVICE != "cpu":
            torch.cuda.synchronize()
    bound = f"   (at most {at_most})" if at_most else ""
    print(f"{best:8.2f} us  {name}{bound}", flush=True)


def main():
    torch.set_num_threads(1)
    context = dil.Context(DEVICE, threads=0 if DEVICE == "cuda" else 1)
    kernel = dil.Program(TEXT, context=context).kernel()
    plan = dil.torch.Plan(TEXT)
    q, k, v = (torch.randn(1, 1, 1, 16, device=DEVICE) for _ in range(3))
    o, wants = torch.empty_like(q), q.clone().requires_grad_()
    rows = [x.transpose(1, 2) for x in (q, k, v)]
    arrays = [x.cpu().numpy() for x in (q, k, v, o)]
    op, attention = torch.ops.dil.attention.default, dil.torch.attention
    print(f"PyTorch {torch.__version__}, dil {dil.version}")
    took("PyTorch's scaled_dot_product_attention",
         lambda: torch.nn.functional.scaled_dot_product_attention(*rows))
    quick = dil._quick
    run, by_ctypes = quick.run, quick.run_by_ctypes
    for name, way, most in (("extension", run, 3), ("ctypes", by_ctypes, 6)):
        if way is by_ctypes and name == "extension":
            print("             the extension is not built: `make python`")
            continue
        quick.run = way
        took(f"kernel(q, k, v, out=o), by {name}", lambda: kernel(q, k, v, out=o),
             most)
    quick.run = run
    took("kernel(q, k, v)", lambda: kernel(q, k, v))
    if DEVICE == "cpu":
        took("the same of NumPy arrays, out given",
             lambda: kernel(*arrays[:3], out=arrays[3]))
    took("attention(q, k, v, plan)", lambda: attention(q, k, v, plan))
    took("the op dil::attention", lambda: op(q, k, v, [], plan.name), 5.5)
    took("the same by the dispatcher",
         lambda: dil.torch.ops.dispatched(q, k, v, [], plan.name))
    took("attention where q wants a gradient",
         lambda: attention(wants, k, v, plan), 10)
    made = attention(wants, k, v, plan)
    above = torch.ones_like(made)
    took("its backward", lambda: torch.autograd.grad(made, wants, above,
                                                     retain_graph=True))


if __name__ == "__main__":
    main()
