"""torch_selection.py - dil.torch on the blocks of keys that a call chooses. Prints
`ok NAME` or `not ok NAME` a test."""

import sys

import torch

from cases import fails, run_tests
import dil
import dil.torch

CAUSAL = "pattern p { heads 4; head_dim 16; dtype f32; causal; branch { } }"
LISTED = """pattern p { heads 4; head_dim 16; dtype f32; causal; block 1, 32;
  input rows : i32[B, H, nbq + 1]; input cols : i32[B, H, *];
  keep from rows, cols; branch { } }"""
attention, chosen_blocks = dil.torch.attention, dil.torch.chosen_blocks
op = torch.ops.dil.attention_selection.default


def moba():
    return dil.torch.Plan("moba", {"size": 32, "blocks": 2})


def tensors(rows=200, gradient=True):
    dice = torch.Generator().manual_seed(5)
    return [torch.randn(1, rows, 4, 16, generator=dice).requires_grad_(gradient)
            for _ in "qkv"]


def expect(found, right):
    for one, other in zip(found, right, strict=True):
        assert one.shape == other.shape, (one.shape, other.shape)
        assert (one - other).abs().max() / other.abs().max() < 1e-5


def same(found, right):
    return all(torch.equal(a, b) for one, other in zip(found, right, strict=True)
               for a, b in zip(one, other, strict=True))


def test_chosen_blocks():
    """The lists of a choice, and gradients through them: nothing goes through the
    choice itself."""
    x = tensors()
    (rows, cols), = chosen_blocks(*x, moba())
    o = attention(*x, moba())
    right = attention(*x, LISTED, inputs={"rows": rows, "cols": cols})
    weights = torch.randn_like(o)
    expect([o, *torch.autograd.grad((o * weights).sum(), x)],
           [right, *torch.autograd.grad((right * weights).sum(), x)])
    fails("DIL_USAGE", "chooses no blocks", chosen_blocks, *x, CAUSAL)


def test_gradients_take_what_was_chosen():
    """The run leaves its lists for the gradients: the same bits as where these choose
    again. Lists without blocks leave none."""
    x = tensors()
    o = attention(*x, moba())
    left = o.grad_fn.saved_tensors[7]
    assert left.dtype == torch.uint8 and left.numel() > 0
    along = torch.randn_like(o)
    made = torch.autograd.grad(o, x, along, retain_graph=True)
    kernel = moba().kernel(*x, backward=True)
    with torch.no_grad():
        again = kernel.backward(along, *x, o.detach())
        both = torch.empty(kernel.saved_bytes(1, 200, 200), dtype=torch.uint8)
        fails("DIL_USAGE", "saved does not go with a selection",
              lambda: kernel(*x, selection=True, saved=both))
    assert all(torch.equal(y, again[name]) for y, name in zip(made, "qkv"))
    left.data.zero_()
    assert all(y.abs().max() == 0 for y in torch.autograd.grad(o, x, along))
    dil.torch.keep_for_gradients(False)
    o = attention(*x, moba())
    dil.torch.keep_for_gradients(True)
    assert o.grad_fn.saved_tensors[7] is None
    assert all(map(torch.equal, torch.autograd.grad(o, x, along), made))


def test_calls_without_memory_to_keep():
    """Where there is no room for what a call keeps, its gradients make it again."""
    x = tensors()
    kernel, asked = moba().kernel(*x, backward=True), []

    def none_left(*sizes):
        asked.append(sizes)
        raise torch.cuda.OutOfMemoryError("no memory left")

    kernel.saved_bytes = none_left
    o = attention(*x, moba())
    del kernel.saved_bytes
    assert asked == [(1, 200, 200)] and o.grad_fn.saved_tensors[7] is None
    along = torch.randn_like(o)
    right = torch.autograd.grad(attention(*x, moba()), x, along)
    assert all(map(torch.equal, torch.autograd.grad(o, x, along), right))


def test_the_host_gives_the_same():
    x = tensors(gradient=False)
    kernel = dil.attention("moba", heads=4, head_dim=16, dtype="f32",
                           defines={"size": 32, "blocks": 2})
    _, right = kernel(*x, selection=True)
    assert same(chosen_blocks(*x, moba()), right)
    assert not any(y.requires_grad for y in chosen_blocks(*tensors(), moba())[0])


def test_opcheck():
    name = moba().name
    for gradient in (True, False):
        found = torch.library.opcheck(op, (*tensors(gradient=gradient), [], name))
        assert list(found.values()) == ["SUCCESS"] * 4, found


def test_compiled():
    """One graph for all lengths, of the choice and of a call that takes it."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    plan = moba()

    def both(q, k, v):
        (rows, cols), = chosen_blocks(q * 1.0, k, v, plan)
        return rows, cols, attention(q, k, v, LISTED,
                                     inputs={"rows": rows, "cols": cols})

    made = torch.compile(both, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (200, 130, 96):
        x = tensors(rows)
        found, right = made(*x), both(*x)
        assert same([found[:2]], [right[:2]])
        expect(torch.autograd.grad(found[2].sum(), x),
               torch.autograd.grad(right[2].sum(), x))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_autocast():
    x = tensors(gradient=False)
    with torch.autocast("cpu", torch.bfloat16):
        found = chosen_blocks(*x, moba())
    assert same(found, chosen_blocks(*(y.bfloat16() for y in x), moba()))


def test_mistakes_are_named():
    q, k, v = tensors(gradient=False)
    fails("DIL_USAGE", "must have one dtype", chosen_blocks, q, k.half(), v,
          moba())
    fails("DIL_USAGE", "k is on meta, and q on cpu", chosen_blocks, q,
          k.to("meta"), v, moba())
    fails("DIL_USAGE", "has no input 'rows'", chosen_blocks, q, k, v, moba(),
          inputs={"rows": q})
    fails("DIL_USAGE", "vmap over dil::attention is not supported",
          torch.vmap(lambda *x: chosen_blocks(*x, moba())[0][0]),
          *(torch.stack([y] * 2) for y in (q, k, v)))


if __name__ == "__main__":
    sys.exit(run_tests(globals()))
