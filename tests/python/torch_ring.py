"""torch_ring.py - rings of processes in PyTorch: two processes are forked for
each test, so that PyTorch is imported once. Prints `ok NAME` or `not ok NAME` a
test."""

import copy
import multiprocessing
import os
import pickle
import sys
import tempfile
import threading
import time

import cases  # noqa: F401  the folder of the examples
import torch
import torch.distributed as dist

import dil.torch
from cases import fails, run_tests

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


SOON = 15  # seconds, where a ring's timeout is 60 and a group's half an hour


def hears(words, make, call):
    """Each process is refused, and long before a timeout."""
    from dil.torch import Error
    began = time.monotonic()
    try:
        ring = make()
        q, k, v, _ = tensors()
        call(ring, [ring.shard(x) for x in (q, k, v)])
    except Error as error:
        assert any(word in str(error) for word in words), error
    else:
        raise AssertionError(f"nothing was refused: {words}")
    assert time.monotonic() - began < SOON, words


def refusals():
    """Each process hears of what one of them does wrong."""
    from dil.torch import Ring
    t = {"t": torch.zeros(4)}
    rank = torch.distributed.get_rank()

    hears(["has a ring of 3, and the group has 2"],
          lambda: Ring(GQA, topology="pair"),
          lambda ring, own: Ring(GQA, topology="three"))
    hears(["length must be the same in all processes: rank"], lambda: Ring(GQA),
          lambda ring, own: ring.attention(*own, inputs=t,
                                           length=101 + 2 * rank))
    hears(["and q has 49", "failed"], lambda: Ring(GQA, timeout=20),
          lambda ring, own: ring.attention(
              own[0][:, rank:], *own[1:], inputs=t))
    hears(["call must be the same in all processes"], lambda: Ring(GQA),
          lambda ring, own: wants_alone(ring, own, t))


def first_calls():
    """A process that cannot go on says so before any other waits for it."""
    from dil.torch import Ring
    rank, t = torch.distributed.get_rank(), {"t": torch.zeros(4)}
    layouts = ("zigzag", "spiral")[rank], ("zigzag", "striped")[rank]
    hears(["layout must be one of"], lambda: Ring(GQA, layout=layouts[0]), None)
    hears(["layout must be the same in all processes: rank"],
          lambda: Ring(GQA, layout=layouts[1]), None)
    types = torch.float32, torch.float64
    hears(["float64"], lambda: Ring(GQA), lambda ring, own: ring.attention(
        *(x.to(types[rank]) for x in own), inputs=t))
    hears(["heads must be the same in all processes"], lambda: Ring(GQA),
          lambda ring, own: ring.attention(
              own[0][:, :, :4 - 2 * rank], *own[1:],
              inputs={"t": torch.zeros(4 - 2 * rank)}))
    hears(["input 't' is not given"], lambda: Ring(GQA),
          lambda ring, own: ring.attention(*own, inputs=(t, None)[rank]))


def goes_on():
    """After a call that was refused, the ring computes as before."""
    from dil.torch import Ring
    rank, ring = torch.distributed.get_rank(), Ring(GQA)
    slopes = {"t": torch.tensor([0.1, 0.2, 0.3, 0.4])}
    for wrong in ({"inputs": {"u": slopes["t"]}}, {"scale": 2.0}):
        agrees(ring, GQA, slopes)
        own = [ring.shard(x) for x in tensors()[:3]]
        try:
            ring.attention(*own, **(wrong if rank else {"inputs": slopes}))
        except (dil.Error, TypeError):
            continue
        raise AssertionError(wrong)


def one_seed():
    """Dropout without a seed: the processes draw alike, also when a checkpoint
    computes the call again."""
    from dil.torch import Ring
    from torch.utils import checkpoint
    text = GQA.replace("causal;", "causal; dropout 0.5;")
    slopes = {"t": torch.tensor([0.1, 0.2, 0.3, 0.4])}
    ring, (q, k, v, d) = Ring(text, layout="striped"), tensors()
    torch.manual_seed(0)
    seed = int(torch.randint(2 ** 63 - 1, (), dtype=torch.int64))
    whole = [x.requires_grad_() for x in (q, k, v)]
    right = dil.torch.attention(*whole, text, inputs=slopes, train=True, seed=seed)
    right = [right, *torch.autograd.grad(right, whole, d)]
    own = [ring.shard(x).detach().requires_grad_() for x in whole]
    call = lambda *x: ring.attention(*x, inputs=slopes, train=True)
    torch.manual_seed(ring.rank)
    for way in (call, lambda *x: checkpoint.checkpoint(call, *x,
                                                       use_reentrant=False)):
        torch.manual_seed(ring.rank)
        o = way(*own)
        found = [o, *torch.autograd.grad(o, own, ring.shard(d))]
        for x, y in zip(found, right):
            expect(x, ring.shard(y), "with dropout")


def patched():
    """A model of torchscale's kind, its rows shared out: outputs are those of one
    process, and gradients add up to its own."""
    import torch_patch
    from dil.torch import Ring, modules

    turn = modules.XPos(16)
    for options in ({}, {"segments": (24, 40), "ratios": (1, 4)},
                    {"xpos": True}, {"seq_parallel": True, "causal": True}):
        causal, turns = options.pop("causal", False), options.pop("xpos", False)
        whole, own = (torch_patch.model(**options) for _ in "12")
        for m in (*whole, *own) if turns else ():
            m.xpos = lambda x, offset=0, downscale=False: turn(
                x[:, :, None], offset, downscale)[:, :, 0]
        for m in whole:
            m.args.seq_parallel = False
        dil.torch.patch(whole)
        for layout in ("contiguous", "zigzag"):
            ring = Ring(layout=layout)
            assert dil.torch.patch(own, ring=ring) == 2
            dice = torch.Generator().manual_seed(4)
            x, d = torch.randn(2, 2, 101, 64, generator=dice)
            y, z = x, ring.shard(x)
            for a, b in zip(whole, own):
                y = y + a(y, y, y, is_causal=causal)[0]
                z = z + b(z, z, z, is_causal=causal)[0]
            expect(z, ring.shard(y), (options, layout))
            right = torch.autograd.grad(y, list(whole.parameters()), d,
                                        allow_unused=True)
            made = torch.autograd.grad(z, list(own.parameters()), ring.shard(d),
                                       allow_unused=True)
            for a, b in zip(made, right):
                torch.distributed.all_reduce(a)
                gap = (a - b).norm() / b.norm()
                assert gap < 1e-5 or b.norm() < 1e-3, (options, layout, gap)


def patch_refuses():
    """What a model on a ring cannot do is refused by name, on all."""
    import torch_patch
    from dil.torch import Ring
    ring, m = Ring(), torch_patch.model()
    fails("DIL_USAGE", "key_padding_mask is of this process's rows alone",
          dil.torch.patch, m, ring=ring, padding="honour")
    dil.torch.patch(m, ring=ring)
    x = ring.shard(torch.randn(1, 30, 64))
    fails("DIL_USAGE", "rows cannot be decoded one by one on a ring", m[0], x, x,
          x, incremental_state={})
    fails("DIL_USAGE", "cannot be pickled, it is of these processes", pickle.dumps,
          m)
    assert torch.equal(copy.deepcopy(m)[0](x, x, x)[0], m[0](x, x, x)[0])
    theirs = type("DilatedAttention", (torch.nn.Module,), {
        "segment_lengths": [8], "dilation_rates": [1], "dropout_p": 0.0,
        "softmax_scale": None})()
    fails("DIL_USAGE", "a ring is for torchscale's models", dil.torch.patch, theirs,
          ring=ring)
    fails("DIL_USAGE", "the ring has no plan of its own", ring.attention, x, x, x)


def is_silent():
    """A process that never calls is named within the ring's own timeout."""
    from dil.torch import Ring
    ring = Ring(GQA, timeout=2)
    if torch.distributed.get_rank() == 0:
        hears(["rank 1 is silent"], lambda: ring,
              lambda ring, own: ring.attention(*own,
                                               inputs={"t": torch.zeros(4)}))
    torch.distributed.barrier()


def alone(words, timeout=2):
    """A ring that this process makes alone is a named error, and soon."""
    from dil.torch import Ring
    began = time.monotonic()
    fails("DIL_ENVIRONMENT", words, Ring, GQA, timeout=timeout)
    assert time.monotonic() - began < SOON, words


def late_rings():
    """A ring of one process alone is refused, whichever it is, and rings that all
    make afterwards are theirs, whatever was made alone before."""
    from dil.torch import Ring
    slopes = {"t": torch.tensor([0.1, 0.2, 0.3, 0.4])}
    rank, barrier = torch.distributed.get_rank(), torch.distributed.barrier
    for turn in range(2):
        if rank == 0:
            alone("rank 1 is silent: it has not come to make the ring within 2 s")
        barrier()
        if rank == 1:
            alone("rank 0 is silent: it has not opened the ring within 2 s")
            alone("rank 0 is silent")
        barrier()
        rings = [Ring(GQA), Ring(GQA, layout="zigzag")]
        for ring in rings[::-1]:
            agrees(ring, GQA, slopes)
    time.sleep(rank)  # not together, and within the time
    agrees(Ring(GQA, timeout=10), GQA, slopes)


def three_come():
    """Those who came hear from rank 0 which rank did not."""
    from dil.torch import Ring
    rank = torch.distributed.get_rank()
    if rank != 1:
        time.sleep(rank / 4)  # rank 0 gives up first
        alone("rank 1 is silent: it has not come to make the ring")
    torch.distributed.barrier()
    ring = Ring(MEAN)
    agrees(ring, MEAN, {}, heads=2, kv=2, dim=8)


def nothing_stays():
    """What ended rings said leaves the store."""
    import gc
    from dil.torch import Ring
    store = torch.distributed.group.WORLD.get_group_store()
    t, rank = {"t": torch.zeros(4)}, torch.distributed.get_rank()
    for _ in range(3):
        ring = Ring(GQA)
        own = [ring.shard(x) for x in tensors()[:3]]
        ring.attention(*own, inputs=t)
        fails("DIL_USAGE", "length must be the same", ring.attention, *own,
              inputs=t, length=101 + 2 * rank)
    del ring, own
    gc.collect()
    torch.distributed.barrier()
    left = [key for key in store.list_keys() if "dil ring" in str(key)]
    assert not left, left


def store_goes():
    """The end of the process that holds the store is a named error."""
    from dil.torch import Ring
    ring = Ring(GQA, timeout=5)
    torch.distributed.barrier()
    if torch.distributed.get_rank() == 0:
        os._exit(0)
    own = [ring.shard(x) for x in tensors()[:3]]
    for call in (lambda: ring.attention(*own, inputs={"t": torch.zeros(4)}),
                 lambda: Ring(GQA, timeout=5)):
        try:
            call()
        except dil.Error as error:
            assert error.status == "DIL_ENVIRONMENT", error
            assert "is gone" in str(error) or "is silent" in str(error), error
        else:
            raise AssertionError("nothing was raised")
    os._exit(0)


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


def run_rank(test, rank, folder, environment):
    said = os.open(f"{folder}/said.{rank}",
                   os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.environ.update(environment, RANK=str(rank))
    torch.set_num_threads(1)
    if test is not trains:  # the example makes the group itself
        dist.init_process_group("gloo")
    test()
    dist.barrier()  # rank 0 has the place where they agree
    os._exit(0)


def start(test, ranks=2):
    """Processes that run a function of this file."""
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        environment = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
                       "MASTER_PORT": str(20000 + os.getpid() % 12000),
                       "DIL_CACHE_DIR": folder}
        made = [fork.Process(target=run_rank, args=(test, rank, folder,
                                                    environment))
                for rank in range(ranks)]
        for one in made:
            one.start()
        for one in made:
            one.join(240)
            one.kill()
            one.join()
        said = "".join(open(f"{folder}/said.{rank}").read()
                       for rank in range(ranks))
    assert all(one.exitcode == 0 for one in made), said[-3000:]


def test_layouts_and_exchanges_agree_with_one_process():
    start(layouts)


def test_the_same_bits_each_time():
    start(same_bits)


def test_each_process_hears_of_a_mistake():
    start(refusals)


def test_a_first_call_tells_who_cannot_go_on():
    start(first_calls)


def test_a_refused_call_is_no_end():
    start(goes_on)


def test_dropout_draws_one_seed():
    start(one_seed)


def test_patched_models_agree_with_one_process():
    start(patched)


def test_a_patch_refuses_by_name():
    start(patch_refuses)


def test_a_silent_process_is_named():
    start(is_silent)


def test_rings_made_late_or_alone_are_refused_and_no_end():
    start(late_rings)


def test_who_came_hears_of_who_did_not():
    start(three_come, ranks=3)


def test_one_word_decides_who_came():
    from dil.torch import agree
    doors = []
    store = dist.HashStore()
    for rank in range(2):
        door = object.__new__(agree._Door)
        door._store, door._rank, door._ranks = store, rank, 2
        door._times = {0: 0, 1: 0}
        doors.append(door)
    fails("DIL_ENVIRONMENT", "rank 0 is silent", doors[1].come, 0.05)
    fails("DIL_ENVIRONMENT", "rank 1 is silent", doors[0].open, 0.05)
    assert doors[0]._times[1] == doors[1]._times[1] == 0
    names = []
    coming = threading.Thread(target=lambda: names.append(doors[1].come(1)))
    coming.start()
    while not doors[0]._takes(1):
        time.sleep(0.01)
    time.sleep(1.2)  # rank 1 has waited enough, but rank 0 had taken it
    doors[0]._told(1, name="it")
    coming.join()
    assert names == ["it"] and doors[0]._times[1] == doors[1]._times[1] == 1


def test_ended_rings_leave_nothing():
    start(nothing_stays)


def test_the_end_of_the_store_is_named():
    start(store_goes)


def test_training_follows_one_process():
    start(trains)


if __name__ == "__main__":
    sys.exit(run_tests(globals()))
