"""torch_ring_gpu.py - rings of processes in PyTorch whose tensors are on GPUs, one
a process. Without words it starts two processes of itself for each test, and prints
`ok NAME` or `not ok NAME`; with RANK set it is one of them.

Without a GPU PyTorch has tensors of the processor alone: `Away` says of these that
they are on a GPU, and copies them to an emulated one (tests/emulator) round each
call of dil. What PyTorch itself does on a GPU is not tested then."""

import ctypes
import os
import subprocess
import sys
import tempfile
import time
import types

import cases  # noqa: F401  the folder of the examples
import torch
import torch.distributed as dist

import dil
from cases import Skipped, fails, run_tests
from gathers import gathered, near

REAL = torch.cuda.is_available()
LONGNET = """pattern p { heads 4; head_dim 64; dtype bf16; causal;
  segments 64, 128, 256; dilations 1, 2, 4; }"""
PAIRS = (64, 1), (128, 2), (256, 4)
CAUSAL = "pattern p { heads 2; head_dim 64; dtype bf16; causal; branch { } }"
GQA = """pattern p { heads 4 kv 2; head_dim 16; dtype f32; causal;
  input t : f32[H] gradient; score s - t[h] * abs(i - j);
  branch { segment 32; } branch { dilation 3; } }
  topology pair { devices 2; layout striped; exchange gather; }"""
# Of o and of gradients, by what 8 and 24 bits of a mantissa hold.
BOUNDS = {torch.bfloat16: (6e-3, 1.2e-2), torch.float32: (1e-5, 2e-5)}


# ---- tensors on a GPU that PyTorch does not know ------------------------------


class Away(torch.Tensor):
    """A tensor that is on the emulated GPU `number`, as it says."""
    number = 0
    is_cuda = property(lambda self: True)
    device = property(lambda self: torch.device("cuda", Away.number))


class _Copies:
    """Copies on the emulated GPU, of the tensors of one call."""

    def __init__(self):
        self.made, self.alive = [], []

    def view(self, seen, x):
        """The view `seen` of x, moved to the GPU."""
        from dil.torch.plan import _context
        at, size = x.data_ptr(), x.element_size()
        count = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride()))
        if not x.numel():
            return seen
        context, memory = _context(x.device)._pointer, ctypes.c_void_p()
        bytes_ = ctypes.c_int64(count * size)
        dil._c.must(dil._c.library.dil_memory_take(context, bytes_,
                                                   ctypes.byref(memory)))
        self.copy("write", context, memory, at, bytes_)
        self.made.append((context, memory, at, bytes_))
        self.alive.append(x)  # also where the call is refused
        seen.data = memory
        return seen

    def copy(self, way, context, to, at, bytes_):
        function = getattr(dil._c.library, f"dil_memory_{way}")
        pair = (to, ctypes.c_void_p(at))
        dil._c.must(function(context, *(pair if way == "write" else pair[::-1]),
                             bytes_))

    def back(self):
        for one in self.made:
            self.copy("read", *one)
            dil._c.library.dil_memory_give(*one[:2])
        self.made.clear()
        self.alive.clear()


def emulate(rank):
    """dil.torch.Ring with tensors of Away."""
    from dil.torch import ring
    copies, view = _Copies(), ring._view
    Away.number = rank
    ring._view = lambda x: copies.view(view(x.as_subclass(Away)),
                                       x.as_subclass(Away))
    ring._stream = lambda q: None
    torch.cuda.get_device_properties = lambda device: types.SimpleNamespace(
        uuid=f"emulated {device.index}")
    for kind in (ring._Forward, ring._Backward):
        run = kind.run

        def run_and_fetch(self, rank, run=run):
            try:
                run(self, rank)
            finally:
                copies.back()
        kind.run = run_and_fetch


def put(x):
    """x on this process's GPU."""
    return x.cuda() if REAL else x.as_subclass(Away)


def here(x):
    return x.detach().cpu() if REAL else x.detach().as_subclass(torch.Tensor)


# ---- in each process ----------------------------------------------------------


def tensors(heads, kv, dim, dtype, length=301):
    dice = torch.Generator().manual_seed(3)
    return [torch.randn(2, length, h, dim, generator=dice).to(dtype)
            for h in (heads, kv, kv, heads)]


def ring_of(ring, given, inputs, **options):
    """o and all gradients of this process's rows, on the processor."""
    q, k, v, d = given
    own = [put(ring.shard(x)).requires_grad_() for x in (q, k, v)]
    own += [put(x.clone()).requires_grad_() for x in inputs.values()]
    o = ring.attention(*own[:3], inputs=dict(zip(inputs, own[3:])) or None,
                       **options)
    assert o.is_cuda or not REAL, o.device
    made = torch.autograd.grad(o, own, put(ring.shard(d)))
    for x, y in zip(made, own):
        assert x.dtype == y.dtype, (x.dtype, y.dtype)
    return [here(x) for x in (o, *made)]


def whole_of(of, given, inputs):
    """The same of the whole, by `of`, in float64."""
    *whole, d = [x.double() for x in given]
    whole = [x.requires_grad_() for x in (*whole, *map(torch.Tensor.double,
                                                       inputs.values()))]
    o = of(*whole)
    return [o, *torch.autograd.grad(o, whole, d)]


def alike(ring, found, wanted, dtype, what):
    for i, (x, y) in enumerate(zip(found, wanted)):
        near(x, ring.shard(y) if i < 4 else y, BOUNDS[dtype][i > 0],
             f"{what}: {('o', 'dq', 'dk', 'dv')[i] if i < 4 else 'input'}")


def dense(q, k, v, bias=0):
    """Causal attention of plain PyTorch."""
    k, v = (x.repeat_interleave(q.shape[2] // k.shape[2], 2) for x in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5 + bias
    past = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    weights = scores.masked_fill(~past, -torch.inf).softmax(-1)
    return torch.einsum("bhij,bjhd->bihd", weights, v)


def one_device(text, given, inputs):
    """o and all gradients by dil.torch, on one GPU, or where there is none on the
    processor."""
    on = "cuda" if REAL else "cpu"
    *whole, d = [x.to(on).requires_grad_() for x in given]
    whole += [x.to(on).requires_grad_() for x in inputs.values()]
    o = dil.torch.attention(*whole[:3], text,
                            inputs=dict(zip(inputs, whole[3:])) or None)
    return [x.cpu() for x in (o, *torch.autograd.grad(o, whole, d))]


def longnet():
    """LongNet: plain PyTorch on the processor, and dil on one GPU."""
    from dil.torch import Ring
    given = tensors(4, 4, 64, torch.bfloat16)
    right = whole_of(lambda *x: gathered(*x, PAIRS, causal=True), given, {})
    for layout, exchange in (("contiguous", "ring"), ("striped", "gather")):
        ring = Ring(LONGNET, layout=layout, exchange=exchange)
        found = ring_of(ring, given, {})
        alike(ring, found, right, torch.bfloat16, layout)
        if REAL:
            alike(ring, found, one_device(LONGNET, given, {}), torch.bfloat16,
                  "one GPU")


def causal():
    """Dense and causal, zigzag, with the same bits each time."""
    from dil.torch import Ring
    given = tensors(2, 2, 64, torch.bfloat16)
    ring = Ring(CAUSAL, layout="zigzag")
    right = whole_of(dense, given, {})
    found = ring_of(ring, given, {})
    alike(ring, found, right, torch.bfloat16, "zigzag")
    for _ in range(3 if REAL else 1):
        for x, y in zip(ring_of(ring, given, {}), found):
            assert torch.equal(x, y)
    if REAL:
        alike(ring, found, one_device(CAUSAL, given, {}), torch.bfloat16,
              "one GPU")


def inputs():
    """Grouped heads in float32, with the gradient of an input."""
    from dil.torch import Ring
    slopes = {"t": torch.tensor([0.1, 0.2, 0.3, 0.4])}
    given = tensors(4, 2, 16, torch.float32, length=101)
    ring = Ring(GQA, topology="pair")
    alike(ring, ring_of(ring, given, slopes), one_device(GQA, given, slopes),
          torch.float32, "inputs")


SOON = 30  # seconds, where a ring's timeout is 60


def hears(words, call):
    """Each process is refused, and long before a timeout."""
    began = time.monotonic()
    fails("DIL_USAGE", words, call)
    assert time.monotonic() - began < SOON, words


def refusals():
    """Each process hears of tensors on the wrong device."""
    from dil.torch import Ring
    rank, ring = dist.get_rank(), Ring(CAUSAL)
    own = [put(ring.shard(x)) for x in tensors(2, 2, 64, torch.bfloat16)[:3]]
    mixed = [own[0], here(own[1]) if rank else own[1], own[2]]
    hears("k is on cpu, and q on cuda:1", lambda: ring.attention(*mixed))
    hears("device must be the same in all processes: rank",
          lambda: ring.attention(*(map(here, own) if rank else own)))
    if REAL:
        apart = [x.to("cuda:0") for x in own]
    else:
        apart, Away.number = own, 0
    hears("rank 0 and rank 1 are both on GPU", lambda: ring.attention(*apart))
    Away.number = rank
    ring.attention(*own)  # and goes on


def patched():
    """torchscale's attention on a ring of GPUs."""
    import torch_patch
    from dil.torch import Ring
    whole, own = (torch_patch.model(seq_parallel=True) for _ in "12")
    for m in whole:
        m.args.seq_parallel = False
    dil.torch.patch(whole.cuda())
    ring = Ring(layout="zigzag")
    assert dil.torch.patch(own.cuda(), ring=ring) == 2
    dice = torch.Generator().manual_seed(4)
    x, d = torch.randn(2, 2, 101, 64, generator=dice).cuda()
    y, z = x, ring.shard(x)
    for a, b in zip(whole, own):
        y = y + a(y, y, y, is_causal=True)[0]
        z = z + b(z, z, z, is_causal=True)[0]
    near(z, ring.shard(y), 1e-4, "patched")
    right = torch.autograd.grad(y, list(whole.parameters()), d, allow_unused=True)
    made = torch.autograd.grad(z, list(own.parameters()), ring.shard(d),
                               allow_unused=True)
    for a, b in zip(made, right):
        dist.all_reduce(a)
        assert float((a - b).norm()) < 1e-3 * max(float(b.norm()), 1), b


def trains():
    import train_longnet as example
    small = ["--layers", "2", "--width", "64", "--length", "200", "--segments",
             "32", "64", "128", "--batch", "2", "--quiet", "--warmup", "5",
             "--steps", "12", "--device", "cuda"]
    ours = example.train(example.options(small + ["--ring", "2"])).losses
    alone = example.train(example.options(small)).losses
    gap = max(abs(a - b) for a, b in zip(ours, alone))
    assert gap < 1e-3, gap


# ---- beside them --------------------------------------------------------------


def start(name, chip=80):
    with tempfile.TemporaryDirectory() as folder:
        made = [subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), name],
            env={"FAKE_CHIP": str(chip), "FAKE_DEVICES": "2", **os.environ,
                 "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2",
                 "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1",
                 "MASTER_PORT": str(20000 + os.getpid() % 12000),
                 **({} if REAL else {"DIL_CACHE_DIR": folder})},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for rank in range(2)]
        said = [x.communicate(timeout=600)[0] for x in made]
    assert all(x.returncode == 0 for x in made), "\n".join(said)[-4000:]
    if REAL:
        print(f"# {name}: {said[0].strip()[-60:]}")


def test_longnet():
    start("longnet", chip=90)


def test_causal_zigzag():
    start("causal", chip=90)


def test_inputs():
    start("inputs")


def test_wrong_devices_are_refused_on_all():
    start("refusals")


def test_a_patched_model():
    if not REAL:
        raise Skipped("PyTorch has no GPU here")
    start("patched")


def test_training():
    if not REAL:
        raise Skipped("PyTorch has no GPU here")
    start("trains")


def main():
    rank, began = int(os.environ["RANK"]), time.monotonic()
    torch.set_num_threads(1)
    if REAL:
        torch.cuda.set_device(rank)
    else:
        emulate(rank)
    if sys.argv[1] != "trains":  # the example makes the group itself
        dist.init_process_group("nccl" if REAL else "gloo")
    globals()[sys.argv[1]]()
    dist.barrier()  # rank 0 has the place where they agree
    print(f"{time.monotonic() - began:.1f} s", flush=True)
    os._exit(0)


if __name__ == "__main__":
    if len(sys.argv) > 1 and "RANK" in os.environ:
        main()
    if REAL and torch.cuda.device_count() < 2:
        print("ok a ring of GPUs: left out, it wants two GPUs")
        sys.exit()
    sys.exit(run_tests(globals()))
