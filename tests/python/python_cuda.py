"""python_cuda.py - the Python host on a GPU: tensors of PyTorch by `__dlpack__`,
on the streams of their owner. Prints `ok NAME` or `not ok NAME` a test."""

import sys
import traceback

import torch

from cases import dil, fails, on_four_threads

SEGMENTS = 256, 512, 1024
NESTED = """pattern p { heads 4; head_dim 64; dtype %s; causal;
  segments 256, 512, 1024; dilations 1, 1, 1; }"""
context = dil.Context("cuda")
torch.manual_seed(7)


def tensors(n=1500, dtype=torch.bfloat16):
    return [torch.randn(2, n, 4, 64, device="cuda").to(dtype) for _ in range(3)]


def definition(q, k, v, times=None):
    """Output and lse in float64; times[i, j]: how many branches have the pair."""
    n = q.shape[1]
    at = torch.arange(n, device="cuda")
    if times is None:
        times = sum((at[:, None] // w == at // w).double() for w in SEGMENTS)
        times = times * (at <= at[:, None])
    q, k, v = (x.double() for x in (q, k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / q.shape[-1] ** 0.5
    scores = scores + times.log()
    o = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v)
    return o, scores.logsumexp(-1)


def off(a, b):
    a, b = a.double().cpu(), b.double().cpu()
    return float((a - b).norm() / b.norm())


def kernel_of(dtype="bf16", text=NESTED):
    return dil.Program(text % dtype, context=context).kernel()


def torch_tensors():
    q, k, v = tensors()
    o, lse = kernel_of()(q, k, v, lse=True)
    want, lse_want = definition(q, k, v)
    assert o.is_cuda and o.dtype == torch.bfloat16
    assert off(o, want) < 4e-3, off(o, want)
    assert float((lse - lse_want).abs().max()) < 1e-4


def single_floats():
    q, k, v = tensors(400, torch.float32)
    o = kernel_of("f32")(q, k, v)
    assert off(o, definition(q, k, v)[0]) < 1e-5


def slices_of_one_tensor():
    packed = torch.randn(2, 700, 3, 4, 64, device="cuda").bfloat16()
    q, k, v = packed.unbind(2)
    out = torch.empty(2, 700, 4, 128, device="cuda", dtype=torch.bfloat16)
    o = kernel_of()(q, k, v, out=out[..., 64:])
    assert off(o, definition(q, k, v)[0]) < 4e-3


def own_streams():
    """What is made on a stream is read there: never before it is there."""
    kernel, side = kernel_of(), torch.cuda.Stream()
    q, k, v = tensors(1024)
    want = kernel(q, k, v).clone()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        for turn in range(50):
            late = torch.zeros_like(q)
            torch.cuda._sleep(200000)
            late.copy_(q)
            o = kernel(late, k, v, stream=side.cuda_stream)
            late.zero_()  # after the kernel, on the same stream
            assert turn % 10 or torch.equal(o, want), turn


def another_stream_than_torchs():
    """A tensor's owner is told who reads it, and its stream goes first."""
    kernel, maker, reader = kernel_of(), torch.cuda.Stream(), torch.cuda.Stream()
    q, k, v = tensors(1024)
    want = kernel(q, k, v).clone()
    torch.cuda.synchronize()
    for turn in range(20):
        with torch.cuda.stream(maker):
            late, out = torch.zeros_like(q), torch.empty_like(q)
            torch.cuda._sleep(200000)
            late.copy_(q)
            kernel(late, k, v, out=out, stream=reader.cuda_stream)
        reader.synchronize()
        assert torch.equal(out, want), turn


def several_threads():
    kernel = kernel_of()
    q, k, v = tensors(1024)
    want = kernel(q, k, v).clone()
    torch.cuda.synchronize()

    def work():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(30):
                o = kernel(q, k, v, stream=stream.cuda_stream)
                assert torch.equal(o, want)

    on_four_threads(work)


def inputs_on_the_device():
    text = """pattern p { heads 4; head_dim 64; dtype %s; input doc : i32[N];
      mask doc[i] == doc[j]; branch { } }"""
    q, k, v = tensors(300)
    doc = (torch.arange(300, device="cuda") // 70).int()
    o = kernel_of(text=text)(q, k, v, inputs={"doc": doc})
    want, _ = definition(q, k, v, (doc[:, None] == doc).double())
    assert off(o, want) < 4e-3


def lengths_of_any_kind():
    """int64, and more than there is, as int32; a list, on the device of q."""
    kernel, (q, k, v) = kernel_of(), tensors(300)
    want = kernel(q, k, v, lengths=torch.tensor([300, 77], device="cuda").int())
    assert not torch.equal(want, kernel(q, k, v))
    for lengths in ([300, 77], torch.tensor([300, 77], device="cuda"),
                    torch.tensor([2 ** 40, 77], device="cuda")):
        assert torch.equal(want, kernel(q, k, v, lengths=lengths))


def gradients():
    q, k, v = tensors(64)
    kernel = dil.attention(heads=4, head_dim=64, dtype=torch.bfloat16,
                           context=q.device)
    want = kernel(q, k, v)
    v.requires_grad_()
    fails("DIL_USAGE", "v requires a gradient", kernel, q, k, v)
    with torch.no_grad():
        assert torch.equal(want, kernel(q, k, v))


def refused():
    kernel = kernel_of()
    q, k, v = tensors(64)
    fails("DIL_USAGE", "k is on cpu, the kernel is on cuda", kernel, q, k.cpu(), v)
    fails("DIL_USAGE", "q must be bf16", kernel, q.float(), k, v)
    fails("DIL_USAGE", "shares memory", kernel, q, k, v, out=q)
    fails("DIL_USAGE", "q is on cuda:0, the kernel is on cpu",
          dil.Program(NESTED % "bf16").kernel(), q, k, v)


def what_it_says():
    kernel = kernel_of()
    assert kernel.device == "cuda:0" and kernel.target.startswith("sm_")
    assert kernel.schedule == "" and not kernel.remembered


for test in (torch_tensors, single_floats, slices_of_one_tensor, own_streams,
             another_stream_than_torchs, several_threads, inputs_on_the_device,
             lengths_of_any_kind, gradients, refused, what_it_says):
    try:
        test()
        print("ok", test.__name__, flush=True)
    except Exception:
        print("not ok", test.__name__)
        traceback.print_exc(file=sys.stdout)
