"""torch_ring.py - rings of processes in PyTorch. Without words it starts two
processes of itself for each test, and prints `ok NAME` or `not ok NAME`; with
RANK set it is one of them."""

import os
import subprocess
import sys
import tempfile

import cases  # noqa: F401  the folder of the examples
import torch

from cases import run_tests

GQA = """pattern p { heads 4 kv 2; head_dim 16; dtype f32; causal;
  input t : f32[H] gradient; score s - t[h] * abs(i - j);
  branch { segment 32; } branch { dilation 3; } }
  topology pair { devices 2; layout striped; exchange gather; }
  topology three { devices 3; }"""
MEAN = """pattern p { heads 2; head_dim 8; dtype f32; combine mean;
  branch { segment 16; } branch { dilation 2; } }"""


def tensors(heads=4, kv=2, dim=16, length=101):
    dice = torch.Generator().manual_seed(3)
    return [torch.randn(2, length, h, dim, generator=dice)
            for h in (heads, kv, kv, heads)]


def expect(one, other, what):
    gap = (one - other).abs().max() / other.abs().max()
    assert gap < 1e-5, (what, float(gap))


# ---- in each process ----------------------------------------------------------


def agrees(ring, text, inputs, **sizes):
    """Output and gradients are those of one process, for this one's rows."""
    import dil.torch
    q, k, v, d = tensors(**sizes)
    whole = [x.clone().requires_grad_() for x in (q, k, v, *inputs.values())]
    names = list(inputs)
    o = dil.torch.attention(*whole[:3], text,
                            inputs=dict(zip(names, whole[3:])) or None)
    right = torch.autograd.grad(o, whole, d)
    own = [ring.shard(x).requires_grad_() for x in (q, k, v)]
    own += [x.clone().requires_grad_() for x in inputs.values()]
    mine = ring.attention(*own[:3], inputs=dict(zip(names, own[3:])) or None)
    made = torch.autograd.grad(mine, own, ring.shard(d))
    expect(mine, ring.shard(o), "o")
    for i, (x, y) in enumerate(zip(made, right)):
        expect(x, ring.shard(y) if i < 3 else y, i)


def layouts():
    from dil.torch import Ring
    slopes = {"t": torch.tensor([0.1, 0.2, 0.3, 0.4])}
    for layout in ("contiguous", "zigzag", "striped"):
        for exchange in ("ring", "gather"):
            agrees(Ring(GQA, layout=layout, exchange=exchange), GQA, slopes)
    agrees(Ring(GQA, topology="pair"), GQA, slopes)
    agrees(Ring(MEAN), MEAN, {}, heads=2, kv=2, dim=8)


def same_bits():
    from dil.torch import Ring
    ring, seen = Ring(GQA, layout="zigzag"), []
    for _ in range(3):
        own = [ring.shard(x).requires_grad_() for x in tensors()[:3]]
        t = torch.tensor([0.1, 0.2, 0.3, 0.4], requires_grad=True)
        o = ring.attention(*own, inputs={"t": t})
        seen.append((o, *torch.autograd.grad(o.square().sum(), [*own, t])))
    assert all(torch.equal(x, y) for one in seen for x, y in zip(one, seen[0]))


def refusals():
    """Each process hears of what one of them does wrong."""
    from dil.torch import Error, Ring
    t = {"t": torch.zeros(4)}
    rank = torch.distributed.get_rank()

    def hears(words, make, call):
        ring = make()
        q, k, v, _ = tensors()
        try:
            call(ring, [ring.shard(x) for x in (q, k, v)])
        except Error as error:
            assert any(word in str(error) for word in words), error
        else:
            raise AssertionError(f"nothing was refused: {words}")

    hears(["has a ring of 3, and the group has 2"],
          lambda: Ring(GQA, topology="pair"),
          lambda ring, own: Ring(GQA, topology="three"))
    hears(["another number of queries", "this rank has"], lambda: Ring(GQA),
          lambda ring, own: ring.attention(*own, inputs=t,
                                           length=101 + 2 * rank))
    hears(["and q has 49", "failed"], lambda: Ring(GQA, timeout=20),
          lambda ring, own: ring.attention(
              own[0][:, rank:], *own[1:], inputs=t))
    hears(["needs a seed"], lambda: Ring(GQA.replace("causal;", "causal; dropout "
                                                     "0.5;")),
          lambda ring, own: ring.attention(*own, inputs=t, train=True))
    hears(["is silent", "another direction", "failed"],
          lambda: Ring(GQA, timeout=2),
          lambda ring, own: wants_alone(ring, own, t))


def wants_alone(ring, own, inputs):
    """Gradients on one process alone; the other goes on."""
    rank = torch.distributed.get_rank()
    o = ring.attention(*(x.requires_grad_() for x in own), inputs=inputs)
    if rank == 0:
        o.sum().backward()
    else:
        ring.attention(*(x.detach() for x in own), inputs=inputs)


def trains():
    import train_longnet as example
    small = ["--layers", "2", "--width", "64", "--length", "200", "--segments",
             "32", "64", "128", "--batch", "2", "--quiet", "--warmup", "5",
             "--steps", "12"]
    ours = example.train(example.options(small + ["--ring", "2"])).losses
    alone = example.train(example.options(small)).losses
    gap = max(abs(a - b) for a, b in zip(ours, alone))
    assert gap < 1e-4, gap


# ---- beside them --------------------------------------------------------------


def start(name):
    """Two processes that run a function of this file."""
    with tempfile.TemporaryDirectory() as folder:
        made = [subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), name],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2",
                 "MASTER_ADDR": "127.0.0.1", "DIL_CACHE_DIR": folder,
                 "MASTER_PORT": str(20000 + os.getpid() % 12000),
                 "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True) for rank in range(2)]
        said = [x.communicate(timeout=240)[0] for x in made]
    assert all(x.returncode == 0 for x in made), "\n".join(said)[-3000:]


def test_layouts_and_exchanges_agree_with_one_process():
    start("layouts")


def test_the_same_bits_each_time():
    start("same_bits")


def test_each_process_hears_of_a_mistake():
    start("refusals")


def test_training_follows_one_process():
    start("trains")


if __name__ == "__main__":
    if len(sys.argv) > 1 and "RANK" in os.environ:
        torch.set_num_threads(1)
        if sys.argv[1] != "trains":  # the example makes the group itself
            torch.distributed.init_process_group("gloo")
        globals()[sys.argv[1]]()
        os._exit(0)
    sys.exit(run_tests(globals()))
