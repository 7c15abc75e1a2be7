#!/usr/bin/env python3
"""Speeds on a GPU beside PyTorch's: one table, every case in one run.

Each case is a pattern; `turns` (turns.c) runs it and hands the GPU back after
every few calls, so that ours and the peers' runs alternate. Times are medians
of single calls between two events, inputs random, nothing flushed; `rested` is
the speed of ten calls after a pause and three calls, before the chip is as hot
as its power lets it be. Rows that `turns` draws are checked against the oracle,
the peers' against float64.

  gpu.py [WORD...]   cases whose names begin so (longnet, longnet-8192); none: all
  BENCH_COMPILE=0    leaves torch.compile out, which takes most of the time
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass, replace

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "peers"))
try:
    import torch
    import torch_dense
    import torch_flex
    import torch_longnet
    import torch_masks
    import torch_packed
except ImportError as reason:
    torch = None
    missing = reason

ROUNDS = 5            # turns of each
TURN = 0.03           # seconds a turn should take
TURN_RUNS = 3, 20     # at least, at most
RESTS = 3             # pauses, in seconds as long as:
REST = 1


@dataclass
class Case:
    name: str
    queries: int
    heads: int
    width: int                    # head_dim
    segments: tuple
    dilations: tuple
    causal: bool = False
    combine: str = "softmax"
    mask: str = ""                # in place of the branches
    keep: str = ""                # blocks of keys, before the branches
    kernel: str = ""              # of patterns.dil, or of an example
    file: str = "tests/bench/patterns.dil"
    backward: bool = False        # its gradients are timed
    training: bool = False        # forward and gradients, one after the other
    unordered: bool = False       # gradients by `gradient_order any`
    batch: int = 1
    keys: int = 0                 # 0: as many as queries
    kv_heads: int = 0
    documents: str = ""           # of a packed call, in torch_packed.py
    peers: object = None          # module of peers/

    def text(self):
        """The case as a .dil file."""
        if self.kernel:
            with open(self.file) as file:
                return file.read()
        ways = "".join(f" branch {{ segment {s}; dilation {r}; }}"
                       for s, r in zip(self.segments, self.dilations))
        if self.keep:
            ways = f" {self.keep} branch {{ }}"
        if self.mask:
            ways = f" branch {{ mask {self.mask}; }}"
        order = ("schedule any { gradient_order any; }"
                 " kernel timed = bench with any;\n") * self.unordered
        return (f"pattern bench {{ heads {self.heads}; head_dim {self.width};"
                f" dtype bf16;{' causal;' if self.causal else ''}"
                f" combine {self.combine};{ways} }}\n{order}")


def mask_of(segments, dilations):
    """The union of the branches as one condition."""
    def one(s, r):
        near = f"i / {s} == j / {s}"
        if r == 1:
            return f"({near})"
        return f"({near} && i % {s} % {r} == h % {r} && j % {s} % {r} == h % {r})"
    return " || ".join(map(one, segments, dilations))


def all_cases():
    three = (2048, 4096, 8192), (1, 2, 4)
    five = (2048, 4096, 8192, 16384, 32768), (1, 2, 4, 6, 12)
    peers = lambda name: sys.modules.get(name)
    longnet = peers("torch_longnet")
    cases = []
    for name, n, h, d in (("8192", 8192, 8, 64), ("131072", 131072, 12, 64),
                          ("1048576", 1 << 20, 12, 64),
                          ("d128", 131072, 16, 128)):
        for causal in (False, True):
            cases.append(Case(f"longnet-{name}{'-causal' * causal}", n, h, d,
                              *three, causal=causal, peers=longnet))
    cases.append(Case("paper-132072", 132072, 12, 64, *five, peers=longnet))
    cases.append(Case("flex-branches", 32768, 12, 64, *three, combine="union",
                      peers=peers("torch_flex")))
    cases.append(Case("flex-mask", 32768, 12, 64, *three,
                      mask=mask_of(*three), peers=peers("torch_flex")))
    for d in (64, 128, 256):
        for r in (1, 4, 16) if d < 256 else (1, 4):
            cases.append(Case(f"branch-d{d}-r{r}", 32768 * r, 16, d,
                              (2048 * r,), (r,), peers=peers("torch_dense")))
    for name, n, h, d in (("131072", 131072, 12, 64), ("d128", 131072, 16, 128),
                          ("8192", 8192, 8, 64)):
        for causal in (False, True):
            cases.append(Case(f"training-{name}{'-causal' * causal}", n, h, d,
                              *three, causal=causal, training=True,
                              peers=longnet))
    for d in (64, 128):
        for keys in (2048, 16384):
            cases.append(Case(f"gradients-d{d}-{keys}", 32768, 16, d, (keys,),
                              (1,), backward=True, peers=peers("torch_dense")))
    cases += [replace(case, name=case.name + "-any", unordered=True, peers=None)
              for case in cases if case.training or case.backward]
    return (cases + chosen_cases() + pattern_cases(peers("torch_masks")) +
            packed_cases(peers("torch_packed")))


def chosen_cases():
    """A tenth of the blocks: by numbers of the call, for which nothing is estimated,
    and by scores. What these take longer is the time of means and estimates."""
    gate = "input gate : f32[B, H, nbq, nb];"
    kept = {"gate": f"{gate} block 64; keep top 26 by gate;",
            "mean": "block 64; keep top 26 by mean;",
            "each": "block 64; keep top 26 by mean each;",
            "mass": "block 64; keep mass 0.9, 26 by mean;",
            "moba": "block 1, 512; keep top 4 by mean each;"}
    cases = [Case(f"chosen-{name}{'-causal' * causal}", 16384, 16, 128, (), (),
                  keep=keep, causal=causal)
             for name, keep in kept.items() for causal in (False, True)]
    return cases + [replace(case, name=f"backward-{case.name}", backward=True)
                    for case in cases if "gate" in case.name or "moba" in case.name]


def pattern_cases(peers):
    """What attends to what besides LongNet, and decoding."""
    lengths = {"sinks": 32768, "sliding": 32768}
    cases = [Case(f"pattern-{name}", lengths.get(name, 16384), 16, 64, (), (),
                  kernel=name, peers=peers)
             for name in ("past", "sliding", "sinks", "prefix", "dilated",
                          "strided", "longformer", "neighborhood", "documents",
                          "blocks128", "blocks64", "alibi", "softcap", "drops")]
    cases += [Case("pattern-blocks128-d128", 16384, 16, 128, (), (),
                   kernel="blocks128", peers=peers)]
    cases += [Case(f"backward-{name}", 16384, 16, 64, (), (), kernel=name,
                   backward=True, peers=peers)
              for name in ("past", "sinks", "alibi", "documents", "blocks128",
                           "neighborhood")]
    cases += [Case(f"decode-{batch}-{keys}", 1, heads, width, (), (),
                   kernel="decode_gqa", file="examples/decode_gqa.dil",
                   batch=batch, keys=keys, kv_heads=8, peers=peers)
              for batch, keys, heads, width in
              ((1, 131072, 32, 128), (8, 8192, 32, 128), (64, 32768, 32, 128),
               (128, 4096, 64, 64))]
    return cases


def packed_cases(peers):
    """Packed calls, whose documents are of like and of unlike lengths."""
    cases = [Case(f"packed-{name}{'-d128' * (d == 128)}", n, 16, d, (), (),
                  kernel="past", documents=name, peers=peers)
             for name, n in (("twelve", 16384), ("uneven", 16384), ("mixed", 65536))
             for d in (64, 128)]
    return cases + [replace(case, name=f"backward-{case.name}", backward=True)
                    for case in cases]


def options_of(case, folder):
    """What `turns` is told of a case, besides its length."""
    if not case.kernel:
        return (["--backward"] * case.backward +
                ["--input", "gate=random"] * ("input gate" in case.keep))
    words = ["--heads", str(case.heads), "--kv-heads",
             str(case.kv_heads or case.heads), "--head-dim", str(case.width),
             "--batch", str(case.batch)]
    words += ["-k", case.kernel] * (case.file == Case.file)
    words += ["--keys", str(case.keys)] * bool(case.keys)
    words += ["--backward"] * case.backward
    if case.documents:
        return words + torch_packed.offsets_of(case, folder)
    return words + (torch_masks.inputs_of(case, folder) if torch else [])


# ---- ours -------------------------------------------------------------------

class Ours:
    """A `turns` process: its kernel is made, and it waits for its turns."""

    def __init__(self, path, cache, queries, options, **more):
        build = os.environ.get("BUILD", "build")
        self.process = subprocess.Popen(
            [build + "/tests/bench/turns", path, "--device", "cuda", "--random",
             "1", "--seq", str(queries), *options],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"DIL_MODULE_DIR": build, "DIL_CACHE_DIR": cache}
            | more)
        self.times = []
        self.good = self.process.stdout.readline().strip() == "ready"

    def turn(self, runs):
        """Seconds of each run, the first one left out."""
        self.process.stdin.write(f"{runs + 1}\n")
        self.process.stdin.flush()
        times = self.process.stdout.readline().split()
        self.good = self.good and len(times) == runs + 1
        return [float(t) for t in times[1:]]

    def finish(self):
        self.process.stdin.close()
        line = self.process.stdout.read()
        self.good = self.process.wait() == 0 and self.good
        return json.loads(line) if self.good else {}


class Both:
    """Two processes, whose times add up: a training step has both calls."""

    def __init__(self, forward, backward):
        self.sides = forward, backward
        self.times = []

    @property
    def good(self):
        return all(side.good for side in self.sides)

    def turn(self, runs):
        return [sum(both) for both in zip(*(s.turn(runs) for s in self.sides))]

    def finish(self):
        reports = [side.finish() for side in self.sides]
        if not self.good:
            return {}
        added = {key: sum(report[key] for report in reports)
                 for key in ("flops", "workspace_bytes", "compile_seconds")}
        return reports[1] | added


def training_of(case, folder):
    forward, cold = ours_of(replace(case, training=False), folder)
    backward, more = ours_of(replace(case, name=case.name + "-gradients",
                                     training=False, backward=True), folder)
    return Both(forward, backward), (cold or 0) + (more or 0)


def ours_of(case, folder):
    """A process with a short call, which compiles, without the cache that NVRTC
    has of its own; then one that finds the same code on disk. Also how long it
    took the first to have its code, in seconds."""
    if case.training:
        return training_of(case, folder)
    path = os.path.join(folder, case.name + ".dil")
    cache = os.path.join(folder, case.name)
    with open(path, "w") as out:
        out.write(case.text())
    options = options_of(case, folder)
    # A call that brings an input has its length already.
    few = case.queries if case.kernel else 256
    first = Ours(path, cache, few, options, CUDA_CACHE_DISABLE="1")
    if first.good:
        first.turn(1)
    cold = first.finish().get("compile_seconds")
    return Ours(path, cache, case.queries, options), cold


# ---- turns ------------------------------------------------------------------

class Peer:
    """One way to do the same in PyTorch; `first` is what its first call took."""

    def __init__(self, name, run, first, extra, error):
        self.name, self.run, self.first = name, run, first
        self.extra, self.error, self.times = extra, error, []

    def turn(self, runs):
        """All are queued at once: gaps between its launches do not count."""
        events = [torch.cuda.Event(enable_timing=True)
                  for _ in range(2 * runs + 2)]
        for begin, end in zip(events[::2], events[1::2]):
            begin.record()
            self.run()
            end.record()
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) / 1e3
                for begin, end in zip(events[2::2], events[3::2])]


def runs_for(seconds):
    low, high = TURN_RUNS
    return int(min(max(TURN / max(seconds, 1e-6), low), high))


def take_turns(sides):
    counts = [runs_for(statistics.median(side.turn(2) or [1])) for side in sides]
    for _ in range(ROUNDS):
        for side, count in zip(sides, counts):
            side.times += side.turn(count)


def rested(ours):
    """Seconds of a call that comes soon after a pause."""
    times = []
    for _ in range(RESTS):
        time.sleep(REST)
        times += ours.turn(12)[2:]
    return statistics.median(times or [1])


def made_peers(case):
    """The peers that work here; a word on those that do not."""
    if torch is None or case.peers is None:
        return []
    made = []
    compiled = os.environ.get("BENCH_COMPILE", "1") != "0"
    for name, make in case.peers.ways(case, compiled):
        try:
            made.append(Peer(name, *make()))
        except Exception as reason:        # of torch, or of a library below it
            text = str(reason).strip().split("\n")[0][:100]
            print(f"# {case.name}: peer {name} cannot: {text}")
    return made


# ---- the table --------------------------------------------------------------

HEAD = (f"{'case':<28} {'ms':>8} {'TFLOP/s':>8} {'rested':>7} {'error':>8} "
        f"{'MiB':>5} {'cold s':>6} {'warm ms':>7} | {'peer ms':>8} {'ratio':>6} "
        f"{'error':>8} {'MiB':>6}  peers, ms (first call, s)")


def number(value, form):
    return "-" if value is None else format(value, form)


def row(case, ours, rest, cold, report, peers):
    ms = statistics.median(ours.times) * 1e3
    room = report["workspace_bytes"]   # of packed calls nothing is said
    room = room and room / 2**20
    text = (f"{case.name:<28} {ms:8.3f} {report['flops'] / ms / 1e9:8.1f} "
            f"{report['flops'] / rest / 1e12:7.1f} "
            f"{number(report['rel_error'], '8.1e'):>8} "
            f"{number(room, '5.1f'):>5} "
            f"{number(cold, '6.2f'):>6} "
            f"{number(1e3 * report['compile_seconds'], '7.1f'):>7} |")
    if not peers:
        return text + "        -      -"
    for peer in peers:
        peer.ms = statistics.median(peer.times) * 1e3
    best = min(peers, key=lambda peer: peer.ms)
    said = ", ".join(f"{p.name} {p.ms:.3f} ({p.first:.1f})" for p in peers)
    return (f"{text} {best.ms:8.3f} {best.ms / ms:6.2f} "
            f"{number(best.error, '8.1e'):>8} {best.extra / 2**20:6.0f}  {said}")


def measure(case, folder):
    ours, cold = ours_of(case, folder)
    peers = made_peers(case) if ours.good else []
    if ours.good:
        take_turns([ours] + peers)
        rest = rested(ours)
    report = ours.finish()
    if not ours.good:
        print(f"{case.name:<28} cannot be measured: see above", flush=True)
    else:
        print(row(case, ours, rest, cold, report, peers), flush=True)
    for peer in peers:
        peer.run = None
    if torch is not None:
        torch.cuda.empty_cache()


def main(words):
    warnings.simplefilter("ignore")    # of what the peers compile
    cases = [case for case in all_cases()
             if not words or any(map((case.name + "-").startswith,
                                     (word + "-" for word in words)))]
    if not cases:
        names = ", ".join(case.name for case in all_cases())
        sys.exit(f"bench-gpu: no case begins with {' or '.join(words)}: {names}")
    if torch is None:
        print(f"peers and packed calls: skipped, no PyTorch ({missing})")
        cases = [case for case in cases if not case.documents]
    else:
        print(f"peers: PyTorch {torch.__version__} on "
              f"{torch.cuda.get_device_name()}")
    print(HEAD, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            measure(case, folder)


main(sys.argv[1:])
