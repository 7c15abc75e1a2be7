"""torch_sdpa.py - dil under PyTorch's scaled_dot_product_attention. Prints
`ok NAME` or `not ok NAME` a test."""

import contextlib
import sys

import torch
from torch.nn import attention as registry
from torch.nn.functional import scaled_dot_product_attention as sdpa

from cases import Skipped, run_tests
from gathers import near
import dil.torch
from dil.torch import sdpa as plug

calls = []


@contextlib.contextmanager
def active():
    """dil in place of the flash kernels, and its calls counted."""
    own = plug._forward

    def counted(*arguments):
        calls.append(arguments)
        return own(*arguments)

    calls.clear()
    plug._forward = counted
    registry.activate_flash_attention_impl("dil")
    try:
        yield
    finally:
        registry.restore_flash_attention_impl(_raise_warn=False)
        plug._forward = own


def tensors(kv=8, n=300, m=300, d=64, value=64, dtype=torch.float32,
            device="cpu"):
    torch.manual_seed(5)
    return [torch.randn(2, h, rows, dim, dtype=dtype, device=device)
            for h, rows, dim in ((8, n, d), (kv, m, d), (kv, m, value))]


SERVED = (({}, {}), ({"is_causal": True}, {}), ({"scale": 0.3}, {}),
          ({"enable_gqa": True}, {"kv": 2}), ({}, {"n": 7}),
          ({}, {"d": 96, "value": 96}))


def test_served_calls():
    for call, sizes in SERVED:
        q, k, v = tensors(**sizes)
        plain = sdpa(q, k, v, **call)
        with active():
            near(sdpa(q, k, v, **call), plain, 1e-6, str(call))
            assert len(calls) == 1, call
        assert torch.equal(sdpa(q, k, v, **call), plain)


def test_gradients():
    for call, sizes in SERVED:
        x = [y.requires_grad_() for y in tensors(**sizes)]
        y = sdpa(*x, **call)
        do = torch.randn_like(y)
        plain = torch.autograd.grad(y, x, do)
        with active():
            found = torch.autograd.grad(sdpa(*x, **call), x, do)
        for name, a, b in zip("qkv", found, plain):
            near(a, b, 2e-6, f"d{name} {call}")


def test_other_calls_fall_through():
    q, k, v = tensors()
    mask = torch.rand(300, 300) < 0.5
    short = q[:, :, :100]
    with active():
        masked = sdpa(q, k, v, attn_mask=mask)
        ahead = sdpa(short, k, v, is_causal=True)
        wide = sdpa(*tensors(d=320, value=320))
        double = sdpa(*tensors(dtype=torch.float64))
        x = [y.clone().requires_grad_() for y in (q, k, v)]
        grads = torch.autograd.grad(sdpa(*x, attn_mask=mask).sum(), x)
        torch.manual_seed(3)
        dropped = sdpa(q, k, v, dropout_p=0.1)
        assert not calls
    assert torch.equal(masked, sdpa(q, k, v, attn_mask=mask))
    assert torch.equal(ahead, sdpa(short, k, v, is_causal=True))
    assert torch.equal(wide, sdpa(*tensors(d=320, value=320)))
    assert torch.equal(double, sdpa(*tensors(dtype=torch.float64)))
    torch.manual_seed(3)
    assert torch.equal(dropped, sdpa(q, k, v, dropout_p=0.1))
    again = torch.autograd.grad(sdpa(*x, attn_mask=mask).sum(), x)
    assert all(torch.equal(a, b) for a, b in zip(grads, again))


def test_brain_floats():
    q, k, v = tensors(dtype=torch.bfloat16)
    with active():
        near(sdpa(q, k, v), sdpa(q.double(), k.double(), v.double()), 5e-3)
        assert len(calls) == 1


def test_the_registry_knows_the_name():
    assert "dil" in registry.list_flash_attention_impls()
    assert registry.current_flash_attention_impl() != "dil"
    with active():
        assert registry.current_flash_attention_impl() == "dil"
    with active():  # a second time
        pass


def test_a_layer_of_pytorch():
    torch.manual_seed(2)
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0,
                                             batch_first=True)
    x = torch.randn(2, 50, 64)
    plain = torch.autograd.grad(layer(x).square().sum(),
                                list(layer.parameters()))
    with active():
        found = torch.autograd.grad(layer(x).square().sum(),
                                    list(layer.parameters()))
        assert len(calls) == 1
    near(torch.cat([x.flatten() for x in found]),
         torch.cat([x.flatten() for x in plain]), 2e-6)


def test_on_a_gpu():
    if not torch.cuda.is_available():
        raise Skipped("there is no GPU")
    for call, sizes in SERVED:
        for dtype in (torch.float16, torch.bfloat16):
            x = [y.requires_grad_() for y in tensors(**sizes, dtype=dtype,
                                                     device="cuda")]
            wide = [y.detach().double().requires_grad_() for y in x]
            expected = sdpa(*wide, **call)
            do = torch.randn_like(expected)
            flash = registry.SDPBackend.FLASH_ATTENTION
            with registry.sdpa_kernel(flash), active():
                y = sdpa(*x, **call)
                assert len(calls) == 1
                found = torch.autograd.grad(y, x, do.to(dtype))
            near(y, expected, 1e-2, str(call))
            for a, b in zip(found, torch.autograd.grad(expected, wide, do)):
                near(a, b, 2e-2, str(call))


if __name__ == "__main__":
    sys.exit(run_tests(globals()))
