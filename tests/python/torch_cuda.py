"""torch_cuda.py - dil.torch on a GPU, beside PyTorch in float64: the ops and
their gradients, streams, captured graphs, autocast, compilation, lifetimes and
what is refused. Prints `ok NAME` or `not ok NAME` a test."""

import gc
import sys

import torch
from torch.utils import checkpoint

from cases import Skipped, fails, on_four_threads, run_gpu_tests
from gathers import gathered, near
from scaling import check_grad_scaler
import dil.torch

CAUSAL = "pattern p { heads 4; head_dim 64; dtype bf16; causal; branch { } }"
DENSE = CAUSAL.replace("causal; ", "")
LONGNET = """pattern p { heads 4; head_dim 64; dtype bf16; causal;
  segments 128, 256, 512; dilations 1, 2, 4; }"""
DROPS = CAUSAL.replace("causal;", "causal; dropout 0.5;")
BIASED = """pattern p { heads 4; head_dim 64; dtype bf16; causal;
  input slope : f32[H] gradient; input doc : i32[B, M];
  score s - slope[h] * (i - j); mask doc[b, i] == doc[b, j]; branch { } }"""
SCALED = CAUSAL.replace("causal;", "causal; scale runtime;")
PAIRS = (128, 1), (256, 2), (512, 4)
# Of o and of gradients, by what 8, 11 and 24 bits of a mantissa hold.
BOUNDS = {torch.bfloat16: (6e-3, 1.2e-2), torch.float16: (1e-3, 2e-3),
          torch.float32: (1e-5, 2e-5)}
attention = dil.torch.attention
op = torch.ops.dil.attention.default


def tensors(n=700, heads=4, kv=4, d=64, dtype=torch.bfloat16, gradient=True,
            batch=2, m=None):
    made = [torch.randn(batch, rows, h, d, device="cuda").to(dtype)
            for h, rows in ((heads, n), (kv, m or n), (kv, m or n))]
    return [x.requires_grad_(gradient) for x in made]


def wide(x):
    return [y.detach().double().requires_grad_() for y in x]


def dense(q, k, v, causal=True):
    """Attention and its lse, which autograd knows."""
    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
    if causal:
        past = torch.ones(scores.shape[-2:], dtype=torch.bool,
                          device=q.device).tril()
        scores = scores.masked_fill(~past, -torch.inf)
    return (torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v),
            scores.logsumexp(-1))


def gradients(of, x, weights):
    return torch.autograd.grad((of(*x).double() * weights).sum(), x)


def compare(text, right, what, **kind):
    """o and its gradients, of one kind of tensors."""
    x = tensors(**kind)
    most, most_back = BOUNDS[x[0].dtype]
    x64 = wide(x)
    expected = right(*x64)
    weights = torch.randn_like(expected)
    near(attention(*x, text), expected, most, what)
    found = gradients(lambda *y: attention(*y, text), x, weights)
    true = torch.autograd.grad(expected, x64, weights)
    for name, a, b in zip("qkv", found, true):
        assert a.dtype == x[0].dtype
        near(a, b, most_back, f"d{name} of {what}")


def test_every_dtype():
    for dtype in BOUNDS:
        compare(CAUSAL, lambda *x: dense(*x)[0], f"causal {dtype}", dtype=dtype)
        compare(LONGNET, lambda *x: gathered(*x, PAIRS, causal=True),
                f"longnet {dtype}", dtype=dtype)


def test_sizes_of_the_tensors():
    """Grouped heads, other head sizes, rows that no tile divides."""
    for kind in ({"heads": 8, "kv": 2}, {"heads": 6, "kv": 3, "d": 48, "n": 333},
                 {"d": 128, "n": 65}, {"d": 40, "n": 1, "m": 333}, {"d": 256, "n": 129}):
        for dtype in (torch.bfloat16, torch.float32):
            compare(DENSE, lambda *x: dense(*x, causal=False)[0],
                    f"{kind} {dtype}", dtype=dtype, **kind)


DETACHED = LONGNET.replace("causal;", "causal; gradient detached;")
MEAN = LONGNET.replace("causal;", "causal; combine mean;")


def test_what_a_run_leaves_for_its_gradients():
    """Outputs of branches, where gradients would make them again: the same gradients
    as those of a kernel that does, under autocast as well, and refused as such."""
    for text in (DETACHED, MEAN):
        q, k, v = tensors()
        plan = dil.torch.Plan(text)
        kernel = plan.kernel(q, k, v, backward=True)
        assert kernel.saves and kernel.saved_bytes(2, 700, 700) > 0
        o = attention(q, k, v, plan)
        assert o.grad_fn.saved_tensors[7].dtype == torch.uint8
        along = torch.randn_like(o)
        made = torch.autograd.grad(o, (q, k, v), along)
        with torch.no_grad():
            plain, lse = op(q, k, v, [], plan.name)
            again = kernel.backward(along, q, k, v, plain,
                                    lse if plan.has_lse else None)
        near(o, plain, 4e-3, "o")
        for name, x in zip("qkv", made):
            near(x, again[name], 4e-3, name)
        with torch.autocast("cuda", torch.bfloat16):
            other = attention(q, k, v, plan)
        assert torch.equal(other, o)
        for x, y in zip(torch.autograd.grad(other, (q, k, v), along), made):
            assert torch.equal(x, y)
        with torch.no_grad():
            few = torch.empty(64, dtype=torch.uint8, device="cuda")
            fails("DIL_USAGE", "saved has 64 bytes, and this call takes",
                  lambda: kernel(q, k, v, saved=few))
            fails("DIL_USAGE", "saved must be on the device of q",
                  lambda: kernel(q, k, v, saved=few.cpu()))


def test_lse_and_its_gradient():
    x = tensors()

    def loss(o, lse):
        return o.double().square().sum() + lse.double().square().sum()

    found = torch.autograd.grad(loss(*attention(*x, CAUSAL, lse=True)), x)
    x64 = wide(x)
    o, lse = dense(*x64)
    near(attention(*x, CAUSAL, lse=True)[1], lse, 1e-5)
    for a, b in zip(found, torch.autograd.grad(loss(o, lse), x64)):
        near(a, b, 2e-2)


def test_gradients_of_inputs():
    for dtype in (torch.bfloat16, torch.float32):
        x = tensors(n=200, dtype=dtype)
        slope = torch.tensor([0.1, 0.2, 0.3, 0.4], device="cuda")
        doc = (torch.arange(400, device="cuda") // 70).int().reshape(2, 200)
        o = attention(*x, BIASED, inputs={"slope": slope.requires_grad_(),
                                          "doc": doc})
        found = torch.autograd.grad(o.double().square().sum(), [*x, slope])
        q, k, v = x64 = wide(x)
        steep = slope.detach().double().requires_grad_()
        at = torch.arange(200, device="cuda")
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / 8
        scores = scores - steep[:, None, None] * (at[:, None] - at)
        kept = (at[:, None] >= at) & (doc[:, :, None] == doc[:, None])
        scores = scores.masked_fill(~kept[:, None], -torch.inf)
        right = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v)
        near(o, right, BOUNDS[dtype][0])
        true = torch.autograd.grad(right.square().sum(), [*x64, steep])
        for a, b in zip(found, true):
            near(a, b, 2e-2 if dtype == torch.bfloat16 else 1e-4)


def test_every_layout():
    """Views of one packed tensor, and tensors whose heads come first."""
    packed = torch.randn(2, 300, 3, 4, 64, device="cuda").bfloat16()
    packed.requires_grad_()
    o = attention(*packed.unbind(2), CAUSAL)
    found, = torch.autograd.grad(o.double().square().sum(), packed)
    true = packed.detach().double().requires_grad_()
    right, _ = dense(*true.unbind(2))
    near(o, right, 6e-3)
    near(found, torch.autograd.grad(right.square().sum(), true)[0], 1.2e-2)
    turned = [x.transpose(1, 2).contiguous().transpose(1, 2).detach()
              for x in packed.unbind(2)]
    assert torch.equal(attention(*turned, CAUSAL), o)


def test_the_way_does_not_matter():
    """By the extension, by ctypes, at length, as an op: the same bits."""
    x = tensors(gradient=False)
    right, lse = attention(*x, CAUSAL, lse=True)
    assert torch.equal(op(*x, [], dil.torch.Plan(CAUSAL).name)[1], lse)
    with torch.profiler.profile():  # by the dispatcher
        assert torch.equal(attention(*x, CAUSAL), right)


def late(x):
    """The same numbers, which are there only after a while."""
    made = torch.zeros_like(x)
    torch.cuda._sleep(2000000)
    made.copy_(x)
    return made


def test_other_streams():
    """Tensors just made on the current stream, overwritten just after."""
    x = [y.detach() for y in tensors(1024)]
    weights = torch.randn_like(x[0])
    y = [z.clone().requires_grad_() for z in x]
    right = attention(*y, CAUSAL)
    true = torch.autograd.grad(right, y, weights)
    torch.cuda.synchronize()
    for stream in (torch.cuda.Stream(), torch.cuda.Stream(),
                   torch.cuda.current_stream()):
        with torch.cuda.stream(stream):
            for turn in range(10):
                y = [late(z).requires_grad_() for z in x]
                o = attention(*y, CAUSAL)
                found = torch.autograd.grad(o, y, late(weights))
                for z in y:
                    z.detach().zero_()
                assert torch.equal(o, right), turn
                assert all(map(torch.equal, found, true)), turn
        stream.synchronize()


def test_tensors_go_right_after_the_call():
    x = [y.detach() for y in tensors(2048)]
    right = attention(*x, CAUSAL)
    torch.cuda.synchronize()
    for turn in range(20):
        o = attention(*(late(y) for y in x), CAUSAL)
        for _ in range(3):  # takes the memory that was freed
            torch.randn_like(x[0])
        assert torch.equal(o, right), turn
    plan = dil.torch.Plan(CAUSAL.replace("heads 4", "heads 5"))
    o = attention(*x, plan)
    del plan
    gc.collect()
    assert torch.equal(o, right)


def test_threads_with_streams():
    x = tensors(512)
    right = torch.autograd.grad(attention(*x, CAUSAL).float().sum(), x)
    torch.cuda.synchronize()

    def work():
        mine = [y.detach().requires_grad_() for y in x]
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                o = attention(*mine, CAUSAL)
                found = torch.autograd.grad(o.float().sum(), mine)
                assert all(map(torch.equal, found, right))

    on_four_threads(work)


def test_autocast():
    x = tensors(dtype=torch.float32)
    weights = torch.randn(x[0].shape, device="cuda")
    x64 = wide(x)
    right = dense(*x64)[0]
    true = torch.autograd.grad(right, x64, weights.double())
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cuda", dtype):
            o = attention(*x, CAUSAL)
            bare, _ = op(*x, [], dil.torch.Plan(CAUSAL).name)
        assert o.dtype == bare.dtype == dtype and torch.equal(o, bare)
        near(o, right, 2 * BOUNDS[dtype][0])
        for a, b in zip(torch.autograd.grad(o.float(), x, weights), true):
            assert a.dtype == torch.float32
            near(a, b, 2 * BOUNDS[dtype][1])


def test_a_grad_scaler_sees_what_is_not_finite():
    check_grad_scaler(lambda *x: attention(*x, CAUSAL),
                      torch.randn(2, 300, 4, 64, device="cuda"))


def test_gradients_that_are_not_finite():
    """inf in the gradient of one row: what depends on it is not finite."""
    for dtype in BOUNDS:
        x = tensors(n=200, dtype=dtype)
        weights = torch.ones_like(x[0])
        weights[0, 150, 1, 3] = torch.inf
        dq, dk, dv = torch.autograd.grad(attention(*x, CAUSAL), x, weights)
        assert not dq[0, 150, 1].isfinite().all()
        assert not dk[0, :151, 1].isfinite().all()
        assert not dv[0, :151, 1, 3].isfinite().any()
        for found in (dq, dk, dv):
            assert found[1].isfinite().all() and found[0, :, 0].isfinite().all()


def captured(run):
    """A graph of run(), which ran before as PyTorch's notes ask."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = run()
    return graph, made


def test_captured_graphs():
    """Forward and backward, replayed with other contents."""
    for text in (CAUSAL, LONGNET):
        for dtype in BOUNDS:
            x = tensors(dtype=dtype)
            weights = torch.randn_like(x[0])

            def run():
                o = attention(*x, text)
                return o, *torch.autograd.grad(o, x, weights)

            graph, made = captured(run)
            for turn in range(3):
                with torch.no_grad():
                    for y in (*x, weights):
                        y.copy_(torch.randn_like(y))
                for y in made:
                    y.fill_(torch.nan)
                graph.replay()
                assert all(map(torch.equal, made, run())), (text, dtype, turn)


def test_captured_dropout_draws_anew():
    """By PyTorch's generator, and by a seed of the caller; gradients follow."""
    x = tensors(n=300)
    weights = torch.randn_like(x[0])
    seed = torch.tensor(3, device="cuda")

    def run(**named):
        o = attention(*x, DROPS, train=True, **named)
        return o, *torch.autograd.grad(o, x, weights)

    graph, made = captured(run)
    torch.manual_seed(4)
    drawn = []
    for turn in range(3):
        graph.replay()
        drawn.append([y.clone() for y in made])
    assert not torch.equal(drawn[0][0], drawn[1][0])
    assert not torch.equal(drawn[1][1], drawn[2][1])
    graph, made = captured(lambda: run(seed=seed))
    for number in (3, 2 ** 40 + 5, -1):
        seed.fill_(number)
        graph.replay()
        assert all(map(torch.equal, made, run(seed=number))), number


def test_graphed_callables():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.projection = torch.nn.Linear(64, 192)

        def forward(self, rows):
            return attention(*self.projection(rows).chunk(3, -1), CAUSAL)

    layer = Layer().cuda().bfloat16()
    rows = torch.randn(2, 256, 4, 64, device="cuda").bfloat16()
    rows.requires_grad_()
    with torch.no_grad():
        want = layer(rows)
    graphed = torch.cuda.make_graphed_callables(layer, (rows,))
    with torch.no_grad():
        assert torch.equal(graphed(rows), want)


def test_checkpoints():
    x = tensors()
    for text, train in ((CAUSAL, False), (DROPS, True)):
        def run(*x):
            return attention(*x, text, train=train)

        torch.manual_seed(9)
        right = torch.autograd.grad(run(*x).float().square().sum(), x)
        for reentrant in (False, True):
            torch.manual_seed(9)
            o = checkpoint.checkpoint(run, *x, use_reentrant=reentrant)
            for y in x:
                y.grad = None
            o.float().square().sum().backward()
            assert all(torch.equal(y.grad, g) for y, g in zip(x, right))


def test_one_graph_for_all_lengths():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(
        lambda q, k, v: attention(q * 1.0, k, v, CAUSAL).float().square().sum(),
        fullgraph=True, dynamic=True)
    for n in (500, 700, 333):
        x = tensors(n)
        found = torch.autograd.grad(compiled(*x), x)
        right = torch.autograd.grad(attention(*x, CAUSAL).float().square().sum(),
                                    x)
        for a, b in zip(found, right):
            near(a, b, 1e-2)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_opcheck():
    for text, rest in ((CAUSAL, ()), (SCALED, (None, 0.1)),
                       (DROPS, (None, None, torch.tensor(5), True))):
        found = torch.library.opcheck(op, (
            *tensors(n=50), [], dil.torch.Plan(text).name, *rest))
        assert list(found.values()) == ["SUCCESS"] * 4, (text, found)


def test_seeds_of_dropout():
    """A seed draws one mask, in both directions; half of the weights go."""
    for dtype in BOUNDS:
        q, k, v = x = tensors(n=300, dtype=dtype, batch=1)
        first = attention(*x, DROPS, train=True, seed=5)
        assert torch.equal(first, attention(*x, DROPS, train=True,
                                            seed=torch.tensor(5)))
        assert torch.equal(first, attention(*x, DROPS, train=True,
                                            seed=torch.tensor(5, device="cuda")))
        assert not torch.equal(first, attention(*x, DROPS, train=True, seed=6))
        assert torch.equal(attention(*x, DROPS), attention(*x, CAUSAL))
        # With values that are unit vectors the output is the dropped weights.
        unit = torch.eye(300, device="cuda")[:, :64, None].transpose(1, 2)
        unit = unit.expand(300, 4, 64)[None].to(dtype).contiguous()
        weights = attention(q, k, unit, DROPS, train=True, seed=5)[0, 100:]
        plain = attention(q, k, unit, CAUSAL)[0, 100:]
        kept = weights != 0
        assert 0.49 < float(kept.double().mean()) < 0.51
        near(weights[kept], 2 * plain[kept], 2e-2)
        whole = torch.zeros(4, 300, 300, device="cuda", dtype=torch.double)
        for start in range(0, 300, 64):
            step = torch.zeros(300, 64, device="cuda")
            wide_ = min(64, 300 - start)
            step[start:start + wide_, :wide_] = torch.eye(wide_, device="cuda")
            step = step[:, None].expand(300, 4, 64)[None].to(dtype).contiguous()
            told = attention(q, k, step, DROPS, train=True, seed=5)[0]
            whole[:, :, start:start + wide_] = (
                told.permute(1, 0, 2)[:, :, :wide_] != 0).double()
        x64 = wide(x)
        scores = torch.einsum("bihd,bjhd->bhij", x64[0], x64[1]) / 8
        past = torch.ones(300, 300, dtype=torch.bool, device="cuda").tril()
        p = scores.masked_fill(~past, -torch.inf).softmax(-1) * whole * 2
        right = torch.einsum("bhij,bjhd->bihd", p, x64[2])
        near(first, right, 2 * BOUNDS[dtype][0])
        do = torch.randn_like(right)
        found = torch.autograd.grad(first, x, do.to(dtype))
        for a, b in zip(found, torch.autograd.grad(right, x64, do)):
            near(a, b, 2 * BOUNDS[dtype][1])


def test_drawn_seeds():
    x = tensors(gradient=False)
    torch.manual_seed(1)
    drawn = [attention(*x, DROPS, train=True) for _ in range(2)]
    torch.manual_seed(1)
    assert torch.equal(drawn[0], attention(*x, DROPS, train=True))
    assert not torch.equal(*drawn)


def test_lengths_and_scales():
    x = tensors(gradient=False)
    right = attention(*x, CAUSAL,
                      lengths=torch.tensor([700, 20], device="cuda").int())
    assert not torch.equal(right, attention(*x, CAUSAL))
    for lengths in ([700, 20], torch.tensor([700, 20], device="cuda")):
        assert torch.equal(right, attention(*x, CAUSAL, lengths=lengths))
    near(attention(*x, SCALED, scale=0.125), attention(*x, CAUSAL), 1e-3)


def test_wrong_calls_are_refused():
    q, k, v = tensors(gradient=False)
    for wants in (False, True):
        q = q.detach().requires_grad_(wants)
        fails("DIL_USAGE", "k torch.float16", attention, q, k.half(), v, CAUSAL)
        fails("DIL_USAGE", "k is on cpu, and q on cuda:0", attention, q, k.cpu(),
              v, CAUSAL)
        fails("DIL_USAGE", "got torch.float64", attention,
              *(x.double() for x in (q, k, v)), CAUSAL)
        fails("DIL_USAGE", "lengths is on cpu", attention, q, k, v, CAUSAL,
              lengths=torch.tensor([700, 20]).int())
        fails("DIL_USAGE", "input 'slope' is on cpu", attention, q, k, v, BIASED,
              inputs={"slope": torch.ones(4), "doc": torch.zeros(
                  2, 700, dtype=torch.int32, device="cuda")})
    near(attention(q, k, v, CAUSAL), dense(*(x.double() for x in (q, k, v)))[0],
         6e-3)  # as if nothing had been


def test_gradients_of_gradients_are_refused():
    q, k, v = x = tensors(n=100)
    found, = torch.autograd.grad(attention(*x, CAUSAL).float().sum(), q,
                                 create_graph=True)
    fails("DIL_USAGE", "double backward", found.float().sum().backward)


if __name__ == "__main__":
    sys.exit(run_gpu_tests(globals()))
