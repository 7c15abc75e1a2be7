"""LongNet over the activations of a real text, checked in NumPy.

    python3 examples/python/longnet.py
"""

import os
import sys
import time

import numpy

import dil

root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")


def load(name):
    """[N, H, D] as a batch of one, in float32."""
    array = numpy.load(os.path.join(root, "data", name + ".npy"))
    return numpy.ascontiguousarray(array[None], "float32")


def expected(q, k, v, t, h, branches):
    """Row t of head h by the definition: one softmax over all branches' keys."""
    keys = [numpy.arange(t // s * s + h % r, t + 1, r)
            for s, r in branches if (t % s) % r == h % r]
    if not keys:
        return numpy.zeros(v.shape[-1])
    keys = numpy.concatenate(keys)
    scores = k[0, keys, h].astype("float64") @ q[0, t, h] / q.shape[-1] ** 0.5
    weights = numpy.exp(scores - scores.max())
    return weights / weights.sum() @ v[0, keys, h]


def main():
    q, k, v = load("q"), load("k"), load("v")
    branches = [(512, 1), (1024, 2), (2048, 4)]
    kernel = dil.attention(heads=q.shape[2], head_dim=q.shape[3], dtype="f32",
                           causal=True, segments=[s for s, _ in branches],
                           dilations=[r for _, r in branches])
    kernel(q, k, v)  # compiles
    began = time.perf_counter()
    o, lse = kernel(q, k, v, lse=True)
    seconds = time.perf_counter() - began
    rows = numpy.random.default_rng(1).integers(0, q.shape[1], 200)
    worst = max(abs(o[0, t, h] - expected(q, k, v, t, h, branches)).max()
                for t in rows for h in (0, 5, 11))
    print(f"{kernel.name} on {kernel.device} ({kernel.target}): {q.shape[1]} "
          f"tokens, {q.shape[2]} heads, {seconds * 1e3:.1f} ms")
    print(f"largest difference from the definition on 600 rows: {worst:.1e}")
    return 0 if worst < 2e-5 and numpy.isfinite(lse).all() else 4


if __name__ == "__main__":
    sys.exit(main())
