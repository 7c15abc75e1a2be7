"""torch_ops.py - dil.torch on PyTorch: the ops, their gradients, compilation,
autocast, and what is refused. Prints `ok NAME` or `not ok NAME` a test."""

import copy
import gc
import io
import itertools
import os
import pickle
import sys
import warnings

import torch
from torch.utils import checkpoint

from cases import fails, on_four_threads, run_tests
from scaling import check_grad_scaler
import dil
import dil.torch

CAUSAL = "pattern p { heads 4; head_dim 16; dtype f32; causal; branch { } }"
DROPS = CAUSAL.replace("causal;", "causal; dropout 0.5;")
MEAN = """pattern p { heads 4; head_dim 16; dtype f32; combine mean;
  segments 16, 32; dilations 1, 2; }"""
BIASED = """pattern p { heads 4; head_dim 16; dtype f32; causal;
  input slope : f32[H] gradient; input doc : i32[B, M];
  score s - slope[h] * (i - j); mask doc[b, i] == doc[b, j]; branch { } }"""
SCALED = CAUSAL.replace("causal;", "causal; scale runtime;")
attention = dil.torch.attention
op = torch.ops.dil.attention.default
torch.manual_seed(7)


def tensors(n=50, heads=4, kv=4, d=16, dtype=torch.float32, gradient=True):
    made = [torch.randn(2, n, h, d, dtype=dtype) for h in (heads, kv, kv)]
    return [x.requires_grad_(gradient) for x in made]


def dense(q, k, v):
    """Causal attention and its lse, which autograd knows."""
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
    past = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    scores = scores.masked_fill(~past, -torch.inf)
    return (torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v),
            scores.logsumexp(-1))


def off(a, b):
    """The largest relative distance of two lists of tensors."""
    return max(float((x.detach().double() - y.detach().double()).norm()
                     / y.detach().double().norm()) for x, y in zip(a, b))


def test_gradients_of_o_and_lse():
    x = tensors()
    weights = torch.randn(x[0].shape)

    def gradients(of):
        o, lse = of(*x)
        return torch.autograd.grad((o * weights).sum() + lse.square().sum(), x)

    found = gradients(lambda *x: attention(*x, CAUSAL, lse=True))
    right = gradients(lambda *x: dense(*(y.double() for y in x)))
    assert off(found, right) < 3e-6


def inputs():
    return {"slope": torch.tensor([0.1, 0.2, 0.3, 0.4]).requires_grad_(),
            "doc": (torch.arange(100) // 15).int().reshape(2, 50)}


def test_order_of_gradients():
    """A plan whose gradients have no fixed order, where PyTorch asks for one."""
    text = CAUSAL + """schedule free { gradient_order any; }
      kernel k = p with free;"""
    plan, gpu = dil.torch.Plan(text), torch.device("cuda")
    assert plan.any_order and not dil.torch.Plan(CAUSAL).any_order
    plan._check_order(gpu)  # nobody asks
    q, k, v = tensors()
    try:
        torch.use_deterministic_algorithms(True)
        fails("DIL_USAGE", "take `gradient_order any` from its schedule",
              plan._check_order, gpu)
        attention(q, k, v, plan).sum().backward()  # processors keep an order
        first, q.grad = q.grad, None
        attention(q, k, v, plan).sum().backward()
        assert torch.equal(first, q.grad)
        torch.use_deterministic_algorithms(True, warn_only=True)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            plan._check_order(gpu)
        assert len(told) == 1 and "fixed one" in str(told[0].message)
    finally:
        torch.use_deterministic_algorithms(False)


def test_opcheck():
    def check(text, *rest, **kind):
        plan = dil.torch.Plan(text)
        given = inputs() if plan.input_names else {}
        found = torch.library.opcheck(op, (
            *tensors(**kind), list(given.values()), plan.name, *rest))
        assert list(found.values()) == ["SUCCESS"] * 4, (text, found)

    check(CAUSAL)
    check(CAUSAL, torch.tensor([50, 20], dtype=torch.int32), gradient=False)
    check(MEAN)
    check(BIASED)
    check(SCALED, None, 0.25, kv=2)
    check(DROPS, None, None, torch.tensor(5), True)


def test_every_layout():
    """Tensors whose memory has another order of dimensions, in both ways."""
    right = None
    torch.manual_seed(3)
    flat = [x.detach() for x in tensors()] + [torch.randn(2, 50, 4, 16)]
    for order in itertools.permutations(range(3)):
        back = [order.index(i) for i in range(3)]
        q, k, v, weights = (x.permute(*order, 3).contiguous().permute(*back, 3)
                            for x in flat)
        x = [y.detach().requires_grad_() for y in (q, k, v)]
        o = attention(*x, CAUSAL)
        found = [o, *torch.autograd.grad(o, x, weights)]
        right = right or found
        assert all(torch.equal(a, b) for a, b in zip(found, right)), order


def test_differences():
    """gradcheck wants float64, which no kernel has: steps of 1e-2 in f32, whose
    central differences of these smooth functions are good to 2e-3."""
    small = [torch.randn(1, 6, 2, 4).requires_grad_() for _ in range(3)]
    slope = torch.tensor([0.1, 0.3]).requires_grad_()
    doc = torch.zeros(1, 6, dtype=torch.int32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that these are not float64
        assert torch.autograd.gradcheck(
            lambda q, k, v, s: attention(q, k, v, BIASED, lse=True,
                                         inputs={"slope": s, "doc": doc}),
            (*small, slope), eps=1e-2, atol=2e-3, rtol=2e-2)


def test_gradients_of_inputs():
    x, given = tensors(), inputs()
    o = attention(*x, BIASED, inputs=given)
    found = torch.autograd.grad(o.square().sum(), [*x, given["slope"]])
    q, k, v = x
    at = torch.arange(50)
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / 4
    scores = scores - given["slope"][:, None, None] * (at[:, None] - at)
    kept = (at[:, None] >= at) & (given["doc"][:, :, None]
                                  == given["doc"][:, None])
    scores = scores.masked_fill(~kept[:, None], -torch.inf)
    right = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v)
    assert off([o], [right]) < 3e-6
    assert off(found, torch.autograd.grad(right.square().sum(),
                                          [*x, given["slope"]])) < 1e-5


def test_a_bare_op_keeps_gradients():
    x = tensors()
    o, lse = op(*x, [], dil.torch.Plan(CAUSAL).name)
    right, _ = dense(*x)
    assert o.requires_grad and lse.requires_grad
    assert off(torch.autograd.grad(o.sum(), x),
               torch.autograd.grad(right.sum(), x)) < 1e-5
    given = inputs()
    given["doc"] = given["doc"].float().requires_grad_()
    fails("DIL_USAGE", "input 'doc' requires a gradient, and plan", op, *x,
          list(given.values()), dil.torch.Plan(BIASED).name)
    fails("DIL_USAGE", "pass doc.detach()", attention, *x, BIASED, inputs=given)


def test_who_looks_on_sees_the_op():
    """Though a call from Python leaves the dispatcher out where nobody does."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, called, types, given=(), named=None):
            seen.append(called)
            return called(*given, **(named or {}))

    seen, name = [], dil.torch.Plan(CAUSAL).name
    x = tensors(gradient=False)
    right = op(*x, [], name)
    with Watch():
        found = op(*x, inputs=[], plan=name)
    assert seen == [op] and torch.equal(found[0], right[0])
    with torch.profiler.profile() as spy:
        op(*x, [], name)
    assert any(e.key == "dil::attention" for e in spy.key_averages())
    assert op(*(y.bfloat16() for y in x), [], name)[0].dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        assert op(*x, [], name)[0].dtype == torch.bfloat16
    fails("DIL_USAGE", "there is no plan 'none'", op, *x, [], "none")


def test_the_way_does_not_matter():
    """By the extension, by ctypes, at length, as an op: the same bits."""
    x = tensors(gradient=False)
    right, lse = attention(*x, CAUSAL, lse=True)
    assert torch.equal(op(*x, [], dil.torch.Plan(CAUSAL).name)[1], lse)
    quick, never = dil._quick, lambda *call: False
    ways = quick.run, quick.attend
    try:
        quick.attend = never
        for quick.run in (ways[0], quick.run_by_ctypes, never):
            assert torch.equal(attention(*x, CAUSAL), right)
    finally:
        quick.run, quick.attend = ways


def test_views_of_the_other_sign():
    """Memory that holds the numbers negated, as that of a conjugate's imag."""
    x = tensors(gradient=False)
    turned = torch.view_as_complex(torch.stack(x[:2], -1)).conj().imag
    assert turned.is_neg()
    right = attention(x[0], -x[1], x[2], CAUSAL)
    assert torch.equal(attention(x[0], turned, x[2], CAUSAL), right)
    q = x[0].clone().requires_grad_()
    assert torch.equal(attention(q, turned, x[2], CAUSAL), right)
    kernel = dil.Program(CAUSAL).kernel()
    fails("DIL_USAGE", "pass k.resolve_neg()", kernel, x[0], turned, x[2])


def test_gradients_by_the_host():
    """Kernel.backward writes what autograd finds; True where it is to be made,
    by the extension and at length."""
    x = tensors()
    o, lse = attention(*x, CAUSAL, lse=True)
    above = torch.randn_like(o)
    right = torch.autograd.grad(o, x, above)
    kernel = dil.Program(CAUSAL).kernel(backward=True)
    quick = dil._quick
    way = quick.backward
    try:
        for quick.backward in (way, lambda *call: False):
            with torch.no_grad():
                found = kernel.backward(above, *x, o, lse)
                assert all(map(torch.equal, found.values(), right))
                k = torch.empty_like(x[1])
                some = kernel.backward(above, *x, o, wanted=["q"], out={"k": k})
            assert sorted(some) == ["k", "q"] and some["k"] is k
            assert torch.equal(k, right[1]) and torch.equal(some["q"], right[0])
            fails("DIL_USAGE", "q requires a gradient", kernel.backward, above,
                  *x, o)
    finally:
        quick.backward = way


def test_lengths_scales_and_seeds():
    x = tensors(gradient=False)
    right = attention(*x, CAUSAL, lengths=torch.tensor([50, 20]).int())
    assert not torch.equal(right, attention(*x, CAUSAL))
    for lengths in ([50, 20], torch.tensor([50, 20])):
        assert torch.equal(right, attention(*x, CAUSAL, lengths=lengths))
    fails("DIL_USAGE", "must be within 0 and 50", attention, *x, CAUSAL,
          lengths=[50, 2 ** 40])
    assert torch.equal(attention(*x, SCALED, scale=0.25), attention(*x, CAUSAL))
    fails("DIL_USAGE", "say scale=", attention, *x, SCALED)
    fails("DIL_USAGE", "fixes its scale", attention, *x, CAUSAL, scale=0.5)
    right = attention(*x, DROPS, train=True, seed=2 ** 64 - 3)
    assert torch.equal(right, attention(*x, DROPS, train=True,
                                        seed=torch.tensor(-3)))
    kernel = dil.Program(DROPS).kernel()
    for quick in (dil._quick.run, lambda *call: False):
        way, dil._quick.run = dil._quick.run, quick
        try:
            assert torch.equal(right, kernel(*x, train=True,
                                             seed=torch.tensor(-3)))
            fails("DIL_USAGE", "seed_tensor must be one element of i64 or u64",
                  kernel, *x, train=True, seed=torch.tensor([1, 2]))
        finally:
            dil._quick.run = way
    torch.manual_seed(1)
    drawn = [attention(*x, DROPS, train=True) for _ in range(2)]
    torch.manual_seed(1)
    assert torch.equal(drawn[0], attention(*x, DROPS, train=True))
    assert not torch.equal(*drawn)
    assert torch.equal(attention(*x, DROPS), attention(*x, CAUSAL))


def test_checkpoints():
    x = tensors()
    for text, train in ((CAUSAL, False), (DROPS, True)):
        def run(*x):
            return attention(*x, text, train=train)

        torch.manual_seed(9)
        right = torch.autograd.grad(run(*x).square().sum(), x)
        for reentrant in (False, True):
            torch.manual_seed(9)
            o = checkpoint.checkpoint(run, *x, use_reentrant=reentrant)
            for y in x:
                y.grad = None
            o.square().sum().backward()
            assert all(torch.equal(y.grad, g) for y, g in zip(x, right))


def test_autocast():
    x = tensors()
    right = torch.autograd.grad(dense(*x)[0].square().sum(), x)
    for dtype, bound in ((torch.bfloat16, 3e-2), (torch.float16, 4e-3)):
        with torch.autocast("cpu", dtype):
            o = attention(*x, CAUSAL)
            bare, _ = op(*x, [], dil.torch.Plan(CAUSAL).name)
        assert o.dtype == bare.dtype == dtype and torch.equal(o, bare)
        found = torch.autograd.grad(o.float().square().sum(), x)
        assert found[0].dtype == torch.float32 and off(found, right) < bound


def test_a_grad_scaler_sees_what_is_not_finite():
    check_grad_scaler(lambda *x: attention(*x, CAUSAL),
                      torch.randn(2, 50, 4, 16))


def test_compiled_dropout_draws_anew():
    torch._dynamo.reset()
    compiled = torch.compile(lambda *x: attention(*x, DROPS, train=True),
                             fullgraph=True, backend="aot_eager")
    x = tensors(gradient=False)
    assert not torch.equal(compiled(*x), compiled(*x))


def test_threads():
    x = tensors(n=200)
    right = torch.autograd.grad(attention(*x, CAUSAL).sum(), x)

    def work():
        mine = [y.detach().requires_grad_() for y in x]
        for _ in range(10):
            found = torch.autograd.grad(attention(*mine, CAUSAL).sum(), mine)
            assert all(map(torch.equal, found, right))

    on_four_threads(work)


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.plan = dil.torch.Plan(CAUSAL)
        self.projection = torch.nn.Linear(16, 16)

    def forward(self, x):
        x = self.projection(x)
        return attention(x, x, x, self.plan)


def test_modules_are_copied_and_saved():
    layer, x = Layer(), torch.randn(1, 20, 4, 16)
    right, file = layer(x), io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)),
                  torch.load(file, weights_only=False)):
        assert torch.equal(other(x), right)
        assert other.plan.name == layer.plan.name


def test_any_order_of_going():
    """Plans, kernels and outputs go in any order, collected or not."""
    x = tensors()
    for _ in range(3):
        plan = dil.torch.Plan(CAUSAL.replace("heads 4", "heads 5"))
        o = attention(*x, plan)
        del plan
        gc.collect()
        assert off(torch.autograd.grad(o.sum(), x),
                   torch.autograd.grad(dense(*x)[0].sum(), x)) < 1e-5


def test_a_fork_makes_its_own_kernels():
    x = tensors(n=10)
    right = attention(*x, CAUSAL)
    child = os.fork()
    if not child:
        try:
            torch.set_num_threads(1)
            same = torch.equal(attention(*x, CAUSAL), right)
            os._exit(0 if same else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert torch.equal(attention(*x, CAUSAL), right)


def test_one_graph_for_all_lengths():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(
        lambda q, k, v: attention(q * 1.0, k, v, CAUSAL).square().sum(),
        fullgraph=True, dynamic=True)
    for n in (50, 70, 33):
        x = tensors(n)
        found = torch.autograd.grad(compiled(*x), x)
        right = torch.autograd.grad(attention(*x, CAUSAL).square().sum(), x)
        assert off(found, right) < 1e-6
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_sizes_are_those_of_the_tensors():
    for sizes in ({}, {"heads": 6, "kv": 6}, {"heads": 6, "kv": 2, "d": 40}):
        q, k, v = x = tensors(**sizes)
        group = q.shape[2] // k.shape[2]
        right, _ = dense(q, *(y.repeat_interleave(group, 2) for y in (k, v)))
        found = attention(*x, CAUSAL)
        assert off([found], [right]) < 3e-6
        assert off(torch.autograd.grad(found.sum(), x),
                   torch.autograd.grad(right.sum(), x)) < 1e-5


def test_wrong_calls_are_refused():
    q, k, v = tensors(gradient=False)
    fails("DIL_USAGE", "k torch.float16", attention, q, k.half(), v, CAUSAL)
    fails("DIL_USAGE", "k is on meta, and q on cpu", attention, q, k.to("meta"), v,
          CAUSAL)
    fails("DIL_INPUT", "did you mean 'dilation'?", dil.torch.Plan,
          "pattern p { heads 4; head_dim 8; dtype f32; branch { dilaton 2; } }")
    fails("DIL_USAGE", "q must be a tensor of 4 dimensions, got 3", attention,
          q[0], k, v, CAUSAL)
    fails("DIL_USAGE", "got torch.float64", attention,
          *(x.double() for x in (q, k, v)), CAUSAL)
    fails("DIL_USAGE", "q must be a tensor of 4 dimensions, got 3", attention,
          q[0].clone().requires_grad_(), k, v, CAUSAL)
    fails("DIL_USAGE", "has no lse", attention, q, k, v, MEAN, lse=True)
    fails("DIL_USAGE", "k must", attention, q, k[:1], v, CAUSAL)
    fails("DIL_USAGE", "input 'slope' is not given", attention, q, k, v, BIASED)
    fails("DIL_USAGE", "has no input 'slop'", attention, q, k, v, BIASED,
          inputs={"slop": 1})
    fails("DIL_USAGE", "is a dil.torch.Plan, the text", attention, q, k, v, 5)
    fails("DIL_USAGE", "there is no plan 'p_lost'", op, q, k, v, [], "p_lost")
    fails("DIL_INPUT", "the last head must be at most 3, got 7", attention, q, k,
          v, CAUSAL.replace("heads 4", "heads 8").replace(
              "branch { }", "branch { heads 0..7; }"))


def test_gradients_of_gradients_are_refused():
    q, k, v = x = tensors()
    found, = torch.autograd.grad(attention(*x, CAUSAL).sum(), q,
                                 create_graph=True)
    assert off([found], torch.autograd.grad(dense(*x)[0].sum(), q)) < 1e-5
    fails("DIL_USAGE", "double backward", found.sum().backward)


def test_forward_derivatives_are_refused():
    q, k, v = tensors(gradient=False)
    plan = dil.torch.Plan(CAUSAL)
    fails("DIL_USAGE", "forward-mode derivatives", torch.func.jvp,
          lambda x: dil.torch.attention(x, k, v, plan), (q,), (q,))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, q)
        fails("DIL_USAGE", "forward-mode derivatives", op, dual, k, v, [],
              plan.name)


def test_half_a_layout_is_refused():
    """Offsets of keys alone, by the bare op: never another call's result."""
    name = dil.torch.Plan(CAUSAL).name
    some = torch.tensor([0, 3, 9], dtype=torch.int32)
    fails("DIL_USAGE", "offsets", op, *tensors(gradient=False), [], name,
          offsets_k=some)


def test_vmap_is_refused():
    x = [torch.stack([y.detach()] * 2) for y in tensors()]
    fails("DIL_USAGE", "vmap over dil::attention is not supported",
          torch.vmap(lambda *x: attention(*x, CAUSAL)), *x)


if __name__ == "__main__":
    sys.exit(run_tests(globals()))
