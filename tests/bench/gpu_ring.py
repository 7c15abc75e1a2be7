#!/usr/bin/env python3
"""Rings of GPUs: LongNet beside PyTorch's all-gather version, weak scaling, a
dense ring, gradients, and one long sequence. Ranks are threads whose GPUs copy from each
other, and with NCCL; times are medians of whole calls on the host's clock.

  gpu_ring.py [WORD...]   parts by the beginnings of their names; none: all
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile

BUILD = os.environ.get("BUILD", "build")
HERE = os.path.dirname(os.path.abspath(__file__))
MI = int(os.environ.get("BENCH_ROWS", 1 << 20))  # rows of a GPU
LONGNET = ((2048, 1), (16384, 8), (131072, 64), (1048576, 512),
           (4194304, 2048))
ROUNDS = 9


def gpus():
    said = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True,
                          text=True).stdout
    return said.count("GPU ")


def pattern(heads, branches, exchange, more="", layout="contiguous"):
    ways = "".join(f" branch {{ segment {s}; dilation {r}; }}"
                   for s, r in branches) or " branch { }"
    return (f"pattern longnet {{ heads {heads}; head_dim 64; dtype bf16;{more}"
            f"{ways} }}\n" + "".join(f"topology {link}{n} {{ devices {n}; ring {n};"
                      f" link {link}; layout {layout}; exchange {exchange};"
                      " timeout 30s; }\n"
                      for link in ("thread", "nccl") for n in (1, 2, 3, 4, 8)))


def ours(folder, text, ranks, seq, *more, link="thread", rounds=ROUNDS):
    """Facts of a run; None with the reason printed."""
    path = os.path.join(folder, f"{abs(hash(text))}.dil")
    with open(path, "w") as out:
        out.write(text)
    made = subprocess.run(
        [BUILD + "/dil", "run", path, "--topology", f"{link}{ranks}",
         "--device", "cuda", "--random", "7", "--seq", str(seq), "--repeat",
         str(rounds), "--json", *more], capture_output=True, text=True,
        env=os.environ | {"DIL_MODULE_DIR": BUILD, "DIL_CACHE_DIR": folder})
    if made.returncode:
        print(f"  failed: {made.stderr.strip()[-300:]}")
        return None
    return json.loads(made.stdout)


def torch_times(ranks, rows, heads, *words):
    """Milliseconds and bytes of PyTorch's version; None where it is missing."""
    branches = ",".join(f"{s}:{r}" for s, r in LONGNET)
    made = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone",
         "--nproc-per-node", str(ranks), HERE + "/peers/torch_ring.py",
         str(rows), str(heads), "64", str(ROUNDS), branches, *words],
        capture_output=True, text=True,
        env=os.environ | {"NCCL_NVLS_ENABLE": "0", "OMP_NUM_THREADS": "1"})
    lines = [l for l in made.stdout.splitlines() if l.startswith("{")]
    if not lines:
        print(f"  no PyTorch here: {made.stderr.strip()[-300:]}")
        return None
    facts = json.loads(lines[-1])
    return statistics.median(facts["ms"]), facts["bytes"]


def line(*columns):
    print("  ".join(f"{c:>16}" for c in columns), flush=True)


def told(run):
    error = run["rel_error"]
    return "" if error is None else f"{error:.1e} of {run['checked_rows']}"


def longnet(folder, counts):
    print("LongNet, 1 Mi tokens a GPU, 12 heads of 64, bf16")
    line("GPUs", "link", "ms", "tokens/s", "scaling", "moved MiB", "GiB a GPU",
         "PyTorch ms", "GiB", "faster", "error")
    one = None
    for ranks in counts:
        peer = torch_times(ranks, MI, 12)
        for link in ("thread", "nccl") if ranks > 1 else ("thread",):
            run = ours(folder, pattern(12, LONGNET, "gather"), ranks, ranks * MI,
                       "--check", link=link)
            if not run:
                continue
            ms = run["seconds"] * 1e3
            one = one or ms
            line(ranks, link, f"{ms:.2f}", f"{ranks * MI / ms * 1e3:.3g}",
                 f"{one / ms:.1%}", f"{run.get('bytes_moved', 0) / MI:.1f}",
                 f"{run.get('rank_bytes', 0) / (1 << 30):.2f}",
                 f"{peer[0]:.2f}" if peer else "-",
                 f"{peer[1] / (1 << 30):.2f}" if peer else "-",
                 f"{peer[0] / ms:.2f}x" if peer else "-", told(run))


def dense(folder, counts):
    rows = MI // 8
    print("dense, 128 Ki tokens a GPU, 12 heads of 64, bf16")
    line("GPUs", "link", "ms", "TFLOP/s a GPU", "of one GPU")
    one = None
    for ranks in counts:
        for link in ("thread", "nccl") if ranks > 1 else ("thread",):
            run = ours(folder, pattern(12, (), "ring"), ranks, ranks * rows, link=link,
                       rounds=3)
            if not run:
                continue
            rate = run["flops"] / run["seconds"] / ranks / 1e12
            one = one or rate
            line(ranks, link, f"{run['seconds'] * 1e3:.1f}", f"{rate:.0f}",
                 f"{rate / one:.1%}")


def backward(folder, counts):
    print("gradients alone, 12 heads of 64: LongNet, 1 Mi tokens a GPU; dense, "
          "128 Ki")
    line("pattern", "GPUs", "link", "ms", "of one GPU", "GiB a GPU", "PyTorch ms",
         "faster")
    cases = (("longnet", MI, pattern(12, LONGNET, "gather")),
             ("dense", MI // 8, pattern(12, (), "ring")),
             ("causal zigzag", MI // 8,
              pattern(12, (), "ring", " causal;", "zigzag")))
    for name, rows, text in cases:
        one = None
        for ranks in counts:
            peer = (torch_times(ranks, rows, 12, "backward")
                    if name == "longnet" else None)
            for link in ("thread", "nccl") if ranks > 1 else ("thread",):
                run = ours(folder, text, ranks, ranks * rows, "--backward", link=link,
                           rounds=3)
                if not run:
                    continue
                ms = run["seconds"] * 1e3
                rate = run["flops"] / ms / ranks
                one = one or rate
                line(name, ranks, link, f"{ms:.2f}", f"{rate / one:.1%}",
                     f"{run.get('rank_bytes', 0) / (1 << 30):.2f}",
                     f"{peer[0]:.2f}" if peer else "-",
                     f"{peer[0] / ms:.2f}x" if peer else "-")


def long(folder, counts):
    ranks = counts[-1]
    seq = ranks * 128 * MI
    print(f"LongNet, {seq} tokens on {ranks} GPUs, 1 head of 64, bf16")
    line("seconds", "tokens/s", "GiB a GPU", "error")
    run = ours(folder, pattern(1, LONGNET, "gather"), ranks, seq, "--check", rounds=3)
    if run:
        line(f"{run['seconds']:.3f}", f"{seq / run['seconds']:.3g}",
             f"{run.get('rank_bytes', 0) / (1 << 30):.1f}", told(run))


def main():
    here = gpus()
    counts = [n for n in (1, 2, 4, 8) if n <= here]
    if not counts:
        sys.exit("bench-gpu-ring: skipped, no GPU here")
    with tempfile.TemporaryDirectory() as folder:
        for part in (longnet, dense, backward, long):
            if len(sys.argv) < 2 or any(part.__name__.startswith(w)
                                        for w in sys.argv[1:]):
                part(folder, counts)


if __name__ == "__main__":
    main()
