"""torch_ops.py - dil.torch on PyTorch: the ops, their gradients, compilation.
Prints `ok NAME` or `not ok NAME` a test."""

import sys

import torch

from cases import fails, run_tests
import dil
import dil.torch

CAUSAL = "pattern p { heads 4; head_dim 16; dtype f32; causal; branch { } }"
attention = dil.torch.attention
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


def test_opcheck():
    name = dil.torch.Plan(CAUSAL).name
    for gradient in (False, True):
        found = torch.library.opcheck(
            torch.ops.dil.attention.default,
            (*tensors(gradient=gradient), [], name, None, None, None, False))
        assert list(found.values()) == ["SUCCESS"] * 4, found


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


if __name__ == "__main__":
    sys.exit(run_tests(globals()))
