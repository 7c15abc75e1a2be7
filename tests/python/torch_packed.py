"""torch_packed.py - dil.torch on documents packed one after the other, and on caches
of pages. Prints `ok NAME` or `not ok NAME` a test."""

import contextlib
import sys

import numpy
import torch

from cases import Skipped, fails, run_tests
import dil
import dil.torch

CAUSAL = "pattern p { heads 4; head_dim 16; dtype f32; causal; branch { } }"
BIASED = """pattern p { heads 4; head_dim 16; dtype f32; combine mean;
  input slope : f32[H] gradient; score s - slope[h] * abs(i - j);
  branch { segment 16; } branch { dilation 2; } }"""
ROWS, KEYS = [0, 20, 20, 33, 48], [0, 25, 30, 50, 65]
attention, op = dil.torch.attention, dil.torch.ops.attention


def tensors(rows=48, keys=65, gradient=True):
    dice = torch.Generator().manual_seed(5)
    return [torch.randn(1, n, 4, 16, generator=dice).requires_grad_(gradient)
            for n in (rows, keys, keys)]


def int32(x):
    return torch.tensor(x, dtype=torch.int32)


def expect(found, right):
    for one, other in zip(found, right, strict=True):
        assert one.shape == other.shape, (one.shape, other.shape)
        gap = (one - other).abs().max() / other.abs().max()
        assert gap < 1e-5, float(gap)


def one_by_one(q, k, v, text, **named):
    return torch.cat([
        attention(q[:, a:b], k[:, c:d], v[:, c:d], text, **named)
        for a, b, c, d in zip(ROWS, ROWS[1:], KEYS, KEYS[1:]) if b > a], 1)


def test_gradients_are_those_of_each_document():
    slope = torch.tensor([0.1, 0.2, 0.3, 0.4]).requires_grad_()
    for text, inputs in ((CAUSAL, {}), (BIASED, {"slope": slope})):
        x = tensors()
        wanted = [*x, *inputs.values()]
        right = one_by_one(*x, text, inputs=inputs)
        o = attention(*x, text, inputs=inputs, offsets_q=ROWS,
                      offsets_k=torch.tensor(KEYS))
        weights = torch.randn_like(o)
        expect([o, *torch.autograd.grad((o * weights).sum(), wanted)],
               [right, *torch.autograd.grad((right * weights).sum(), wanted)])


def test_lse_has_a_gradient():
    x = tensors()
    o, lse = attention(*x, CAUSAL, lse=True, offsets_q=int32(ROWS),
                       offsets_k=int32(KEYS))
    assert lse.shape == (1, 4, 48)
    found = torch.autograd.grad(lse.square().sum() + o.sum(), x)
    parts = [attention(x[0][:, a:b], x[1][:, c:d], x[2][:, c:d], CAUSAL, lse=True)
             for a, b, c, d in zip(ROWS, ROWS[1:], KEYS, KEYS[1:]) if b > a]
    right = sum(s.square().sum() + o.sum() for o, s in parts)
    expect(found, torch.autograd.grad(right, x))


def test_opcheck():
    name = dil.torch.Plan(CAUSAL).name
    for gradient, lies in ((True, (int32(ROWS), int32(KEYS), 20, 25)),
                           (False, (None, None, 0, 0, int32([[0, 1]])))):
        q, k, v = tensors(gradient=gradient)
        lengths = None
        if not gradient:
            q, lengths = q[:, :1], int32([50])
            k, v = (x[:, :64].reshape(2, 32, 4, 16) for x in (k, v))
        found = torch.library.opcheck(op, (q, k, v, [], name, lengths, None, None,
                                           False, *lies))
        assert list(found.values()) == ["SUCCESS"] * 4, found


def test_compiled():
    """One graph for documents of any lengths."""
    torch._dynamo.reset()
    made = torch.compile(lambda q, k, v, at, most: attention(
        q, k, v, CAUSAL, offsets_q=at, longest_q=most).square().sum(),
        fullgraph=True, dynamic=True, backend="aot_eager")
    for at in (ROWS, [0, 7, 65], [0, 3, 6, 60, 64]):
        x = tensors(65, 65)
        longest = max(b - a for a, b in zip(at, at[1:]))
        found = torch.autograd.grad(made(*x, int32(at), longest), x)
        right = attention(*x, CAUSAL, offsets_q=at).square().sum()
        expect(found, torch.autograd.grad(right, x))


def test_autocast():
    x = tensors()
    with torch.autocast("cpu", torch.bfloat16):
        o = attention(*x, CAUSAL, offsets_q=ROWS, offsets_k=KEYS)
    assert o.dtype == torch.bfloat16
    right = one_by_one(*(y.bfloat16() for y in x), CAUSAL)
    assert torch.equal(o, right)


def test_pages():
    dice = torch.Generator().manual_seed(6)
    q = torch.randn(2, 1, 4, 16, generator=dice)
    pool = [torch.randn(7, 8, 4, 16, generator=dice) for _ in range(2)]
    pages = torch.tensor([[3, 0, 5], [6, 3, -1]])
    o, lse = attention(q, *pool, CAUSAL, lse=True, pages=pages, lengths=[20, 15])
    k, v = (x[pages.clamp(0)].reshape(2, 24, 4, 16) for x in pool)
    right = attention(q, k, v, CAUSAL, lse=True, lengths=[20, 15])
    assert torch.equal(o, right[0]) and torch.equal(lse, right[1])
    with torch.no_grad():
        again = attention(q.clone().requires_grad_(), *pool, CAUSAL, pages=pages,
                          lengths=[20, 15])
    assert torch.equal(again, o)


class OneWay:
    """Calls by the extension alone, or at length alone."""

    def __init__(self, by_extension):
        self.quick, self.by_extension = dil._quick, by_extension
        self.ways = {name: getattr(self.quick, name)
                     for name in ("run", "backward", "attend", "gradients")}

    def _only(self, way):
        def call(*given):
            made = way(*given)
            assert made, "the extension did not take the call"
            return made
        return call

    def __enter__(self):
        for name, way in self.ways.items():
            setattr(self.quick, name, self._only(way) if self.by_extension
                    else lambda *given: False)

    def __exit__(self, *error):
        for name, way in self.ways.items():
            setattr(self.quick, name, way)


def in_both_ways(call):
    """What both give, which is the same; a first call makes the kernels."""
    call()
    made = []
    for by_extension in (True, False):
        with OneWay(by_extension):
            made.append(call())
    assert all(map(torch.equal, *made))
    return made[0]


def test_the_way_does_not_matter():
    """By the extension and at length: the same bits, of the op, of autograd and of
    the host; the rows of the longest document may be left out."""
    if not dil._quick.extension:
        raise Skipped("the extension is not built")
    x, name = tensors(), dil.torch.Plan(CAUSAL).name
    kernel = dil.Program(CAUSAL).kernel(backward=True)
    above = torch.randn(1, 48, 4, 16)
    lies = {"offsets_q": int32(ROWS), "offsets_k": int32(KEYS)}

    def autograd():
        o = attention(*x, CAUSAL, **lies)
        return o, *torch.autograd.grad(o, x, above)

    def host(**more):
        plain = [y.detach() for y in x]
        o, lse = kernel(*plain, lse=True, **lies, **more)
        return o, lse, *kernel.backward(above, *plain, o, lse, **lies,
                                        **more).values()

    def pages():
        o, lse = attention(x[0][:, :1].detach(), *pool, CAUSAL, lse=True,
                           pages=int32([[0, 1]]), lengths=int32([50]))
        return o, lse

    pool = [y[:, :64].detach().reshape(2, 32, 4, 16) for y in x[1:]]
    right = in_both_ways(autograd)
    found = in_both_ways(host)
    assert torch.equal(found[0], right[0])
    assert all(map(torch.equal, found[2:], right[1:]))
    assert torch.equal(in_both_ways(lambda: host(longest_q=20, longest_k=25))[0],
                       right[0])
    bare = [y.detach() for y in x]
    assert torch.equal(in_both_ways(lambda: op(
        *bare, [], name, offsets_q=lies["offsets_q"],
        offsets_k=lies["offsets_k"]))[0], right[0])
    in_both_ways(pages)


def test_both_ways_refuse_alike():
    q, k, v = tensors(gradient=False)
    pool = [y[:, :64].reshape(2, 32, 4, 16) for y in (k, v)]
    at = {"offsets_q": int32(ROWS), "offsets_k": int32(KEYS)}
    one = {"pages": int32([[0, 1]]), "lengths": int32([50])}
    for words, rows, named in (
            ("falls at element 2", (q, k, v),
             {"offsets_q": int32([0, 30, 20]), "offsets_k": int32([0, 1, 2])}),
            ("offsets_k has 4 elements", (q, k, v),
             {**at, "offsets_k": int32(KEYS[:4])}),
            ("longest_q", (q, k, v), {**at, "longest_q": 5}),
            ("got -1", (q, k, v), {**at, "longest_k": -1}),
            ("pages must be i32", (q[:, :1], *pool),
             {**one, "pages": one["pages"].float()}),
            ("pages want lengths", (q[:, :1], *pool), {"pages": one["pages"]}),
            ("a call with pages has no gradients",
             (q[:, :1].clone().requires_grad_(), *pool), one)):
        for way in (contextlib.nullcontext(), OneWay(False)):
            with way:
                fails("DIL_USAGE", words, attention, *rows, CAUSAL, **named)


def test_rows_of_the_longest_document_are_any_integer():
    q, k, v = tensors(gradient=False)
    right = attention(q, k, v, CAUSAL, offsets_q=ROWS, offsets_k=KEYS)
    kernel = dil.Program(CAUSAL).kernel()
    for kind in (int, torch.tensor, numpy.int64, numpy.array, numpy.uint8):
        named = {"offsets_q": int32(ROWS), "offsets_k": int32(KEYS),
                 "longest_q": kind(20), "longest_k": kind(25)}
        assert torch.equal(attention(q, k, v, CAUSAL, **named), right)
        assert torch.equal(kernel(q, k, v, **named), right)
    for call in (kernel, lambda *x, **named: attention(*x, CAUSAL, **named)):
        for wrong in (20.0, "20", torch.tensor(20.0), torch.tensor([20, 20])):
            fails("DIL_USAGE", "longest_q must be an integer, got", call, q, k, v,
                  offsets_q=ROWS, offsets_k=KEYS, longest_q=wrong)
        fails("DIL_USAGE", "longest_q must be an integer of at most", call, q, k,
              v, offsets_q=ROWS, offsets_k=KEYS, longest_q=2 ** 70)


def test_mistakes_are_named():
    q, k, v = tensors(gradient=False)
    x, pages = q.clone().requires_grad_(), int32([[0, 1]])
    pool = [y[:, :64].reshape(2, 32, 4, 16) for y in (k, v)]

    def refused(words, *rows, **named):
        fails("DIL_USAGE", words, attention, *(rows or (q, k, v)), CAUSAL, **named)

    refused("a call with pages has no gradients", x[:, :1], *pool, pages=pages,
            lengths=[50])
    refused("pages want lengths", q[:, :1], *pool, pages=pages)
    for name in ("offsets_k", "longest_q", "longest_k"):
        refused(f"{name} is given, and offsets_q is not", **{name: 5})
    refused("offsets_q falls at element 2", offsets_q=[0, 30, 20], offsets_k=KEYS[:3])
    refused("offsets_q must be i32", offsets_q=int32([ROWS]), offsets_k=KEYS)
    refused("offsets_k has 4 elements, and offsets_q 5", offsets_q=ROWS,
            offsets_k=KEYS[:4])
    refused("lengths cannot be used with offsets_q", offsets_q=ROWS, offsets_k=KEYS,
            lengths=[50])
    refused("is on meta, and q on cpu", offsets_q=int32(ROWS).to("meta"),
            longest_q=20, offsets_k=KEYS)
    fails("DIL_USAGE", "must be given where offsets are on a GPU",
          dil._layout.layout, None, OnAGpu(), None, None, None, None)
    # The list is looked at before it is brought to a GPU.
    there = dil._layout.layout(lambda name, x: OnAGpu(), [0, 20, 50], (0, 7, 11),
                               None, None, None)
    assert (there.longest_q, there.longest_k) == (30, 7), there


class OnAGpu:
    is_cuda = True


if __name__ == "__main__":
    sys.exit(run_tests(globals()))
