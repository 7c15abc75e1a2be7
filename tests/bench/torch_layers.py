"""torch_layers.py - dil.torch on a GPU beside PyTorch's own kernels in the same
run: LongNet's attention by gathers, and a layer of GigaPath, forward and forward
with backward, milliseconds and memory.

    torch_layers.py [N...]     lengths; none: 10000 100000

Runs of both alternate; a time is the median of theirs by the GPU's events.
"""

import copy
import functools
import gc
import os
import statistics
import sys

import torch

here = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(here, "peers"),
                os.path.join(here, "..", "..", "examples", "python")]
import dil
import dil.torch
import gigapath
import torch_longnet

SEGMENTS, DILATIONS = (2048, 4096, 8192), (1, 2, 4)
TURNS = 7


def passed(run):
    """Milliseconds and bytes beyond what was there."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    run()
    last.record()
    torch.cuda.synchronize()
    return (first.elapsed_time(last),
            torch.cuda.max_memory_allocated() - before)


def row(name, theirs, ours):
    """One line of the table: the peers in turn."""
    times, memory = ([], []), [0, 0]
    for turn in range(TURNS + 2):
        for at, run in enumerate((theirs, ours)):
            took, bytes_ = passed(run)
            if turn > 1:
                times[at].append(took)
                memory[at] = bytes_
    a, b = map(statistics.median, times)
    print(f"{name:44} {a:9.3f} {b:9.3f} {a / b:6.2f} {memory[0] / 2 ** 20:9.0f} "
          f"{memory[1] / 2 ** 20:9.0f}", flush=True)


def longnet(n, dtype):
    pairs = f"""pattern longnet {{ heads 12; head_dim 64; dtype f16;
      segments {', '.join(map(str, SEGMENTS))};
      dilations {', '.join(map(str, DILATIONS))}; }}"""
    x = [torch.randn(1, n, 12, 64, device="cuda", dtype=dtype)
         for _ in range(3)]
    along = torch.randn_like(x[0][0])
    ways = (lambda *y: torch_longnet.longnet(*y, SEGMENTS, DILATIONS, False,
                                             "flash"),
            lambda *y: dil.torch.attention(*y, pairs)[0])

    def forward(way):
        with torch.no_grad():
            way(*x)

    def both(way):
        y = [z.requires_grad_() for z in map(torch.Tensor.detach, x)]
        torch.autograd.grad(way(*y), y, along)

    for what, step in (("forward", forward), ("forward, backward", both)):
        row(f"longnet {n}, {what}", *(lambda way=way: step(way)
                                      for way in ways))


def giga(n, whole):
    """A layer under autocast f16, or its attention alone."""
    torch.manual_seed(1)
    models = [gigapath.Layer(768, 16).cuda().eval()]
    models.append(copy.deepcopy(models[0]))
    dil.torch.patch(models[1])
    x = torch.randn(1, n, 768, device="cuda", dtype=torch.float16)

    def call(model):
        if whole:
            return model(x)
        return model.self_attn(x, x, x)[0]

    def forward(model):
        with torch.no_grad(), torch.autocast("cuda", torch.float16):
            return call(model)

    def both(model):
        with torch.autocast("cuda", torch.float16):
            y = call(model)
        part = model if whole else model.self_attn
        torch.autograd.grad(y.float().sum(), list(part.parameters()))

    plain, found = (forward(model).float() for model in models)
    print(f"# off {float((found - plain).norm() / plain.norm()):.1e}")
    del plain, found
    name = f"gigapath {'layer' if whole else 'attention'} {n}"
    for what, step in (("forward", forward), ("forward, backward", both)):
        row(f"{name}, {what}", *(functools.partial(step, model)
                                 for model in models))


def main():
    print(f"PyTorch {torch.__version__} on {torch.cuda.get_device_name()}, dil "
          f"{dil.version}\n{'':44} {'PyTorch':>9} {'dil, ms':>9} {'ratio':>6} "
          f"{'MiB':>9} {'MiB':>9}")
    for n in map(int, sys.argv[1:] or ("10000", "100000")):
        for make, *rest in ((longnet, torch.float16), (giga, False),
                            (giga, True)):
            try:
                make(n, *rest)
            except torch.OutOfMemoryError as error:
                print(f"{make.__name__} {n}: {str(error)[:80]}")
            gc.collect()
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
