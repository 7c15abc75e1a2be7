#!/usr/bin/env python3
"""The same attention in PyTorch on the CPU, as a share of its own matmul rate.

Prints rows beside bench.sh: scaled_dot_product_attention over segments of
2048 keys with its gradients (counted at 10 D a pair), and LongNet 1-2-4 by gather, attention, scatter and mixing by the
softmax denominators. Skipped with a word where torch is not installed.
"""
import time

try:
    import torch
except ImportError:
    print("peer torch: skipped, not installed")
    raise SystemExit(0)

N, H, W = 8192, 8, 2048


def median_seconds(work, repeats=7):
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


def matmul_rate(dtype):
    a = torch.randn(2048, 2048).to(dtype)
    return 2 * 2048 ** 3 / median_seconds(lambda: a @ a)


def attend(q, k, v):
    """Output and log of the denominator, [.., rows, D]."""
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    return torch.softmax(scores, -1) @ v, torch.logsumexp(scores.float(), -1)


def one_branch(q, k, v):
    cut = [x.view(H, N // W, W, -1) for x in (q, k, v)]
    return torch.nn.functional.scaled_dot_product_attention(*cut)


def longnet(q, k, v):
    total = torch.full((H, N), float("-inf"))
    parts = []
    for r in (1, 2, 4):
        rows = torch.stack([torch.arange(h % r, N, r) for h in range(H)])
        pick = rows[:, :, None].expand(-1, -1, q.shape[-1])
        cut = [x.gather(1, pick).view(H, -1, W, q.shape[-1])
               for x in (q, k, v)]
        o, lse = attend(*cut)
        full = torch.full((H, N), float("-inf"))
        full.scatter_(1, rows, lse.reshape(H, -1))
        out = torch.zeros_like(q)
        out.scatter_(1, pick, o.reshape(H, -1, q.shape[-1]))
        parts.append((out, full))
        total = torch.logaddexp(total, full)
    return sum(o * (lse - total).exp()[..., None].to(o.dtype)
               for o, lse in parts)


def gradients(q, k, v):
    """Work that computes dQ, dK and dV of one_branch, its forward done."""
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        o = one_branch(*leaves)
    d_o = torch.randn_like(o)
    return lambda: torch.autograd.grad(o, leaves, d_o, retain_graph=True)


def report(name, work, pairs, d, peak, products=2):
    seconds = median_seconds(work)
    rate = 2 * products * d * pairs / seconds
    print(f"{name:<30} {seconds * 1e3:10.3f} {rate / 1e9:9.1f} "
          f"{100 * rate / peak:7.1f}")


def main():
    torch.set_num_threads(1)
    print(f"peer torch {torch.__version__}, 1 thread; % of its own matmul")
    for dtype, word in ((torch.float32, "f32"), (torch.bfloat16, "bf16")):
        peak = matmul_rate(dtype)
        for d in (64, 128):
            q, k, v = (torch.randn(H, N, d).to(dtype) for _ in range(3))
            report(f"torch-{word}-{d}", lambda: one_branch(q, k, v),
                   H * N * W, d, peak)
            report(f"torch-{word}-{d}-backward", gradients(q, k, v),
                   H * N * W, d, peak, products=5)
        q, k, v = (torch.randn(H, N, 64).to(dtype) for _ in range(3))
        pairs = sum(H * N // r * W for r in (1, 2, 4))
        report(f"torch-longnet-{word}", lambda: longnet(q, k, v), pairs, 64,
               peak)


with torch.no_grad():
    main()
