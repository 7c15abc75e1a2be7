"""python.py - the Python host: examples/python/dil on NumPy arrays and on
DLPack tensors. Prints `ok NAME` or `not ok NAME` a test."""

import copy
import os
import pickle
import subprocess
import sys
import types

import numpy

from cases import fails, off, on_four_threads, readme_python, run_tests
import dil
import longnet

try:
    import torch
except ImportError:
    sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                 "standin"))
    import torch

CAUSAL = "pattern p { heads 4; head_dim 16; dtype %s; causal; branch { } }"
random = numpy.random.default_rng(7)


def tensors(heads=4, kv=4, n=50, d=16, dtype="float32"):
    return [random.standard_normal((2, n, h, d)).astype(dtype)
            for h in (heads, kv, kv)]


def dense(q, k, v):
    """Causal attention in float64."""
    n = q.shape[1]
    scores = numpy.einsum("bihd,bjhd->bhij", q, k, dtype="float64")
    scores = scores / q.shape[-1] ** 0.5
    scores[..., numpy.triu_indices(n, 1)[0], numpy.triu_indices(n, 1)[1]] = -numpy.inf
    top = scores.max(-1, keepdims=True)
    weights = numpy.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    o = numpy.einsum("bhij,bjhd->bihd", weights / total, v)
    return o, (numpy.log(total) + top)[..., 0]


class OnlyDlpack:
    """A tensor of which nothing but DLPack is known."""

    def __init__(self, array):
        self.array, self.shape = array, array.shape

    def __dlpack__(self, **named):
        return self.array.__dlpack__()


def test_against_numpy():
    q, k, v = tensors()
    o, lse = dil.Program(CAUSAL % "f32").kernel()(q, k, v, lse=True)
    right, right_lse = dense(q, k, v)
    assert off(o, right) < 2e-6 and abs(lse - right_lse).max() < 2e-5


def dense_gradients(q, k, v, d_o, dlse):
    """Of causal attention in float64; dlse is the gradient of lse."""
    o, lse = dense(q, k, v)
    scale = q.shape[-1] ** -0.5
    scores = scale * numpy.einsum("bihd,bjhd->bhij", q, k, dtype="float64")
    weights = numpy.tril(numpy.exp(scores - lse[..., None]))
    delta = numpy.einsum("bihd,bihd->bhi", d_o, o) - dlse
    dp = numpy.einsum("bihd,bjhd->bhij", d_o, v)
    ds = weights * (dp - delta[..., None])
    return {"q": scale * numpy.einsum("bhij,bjhd->bihd", ds, k),
            "k": scale * numpy.einsum("bhij,bihd->bjhd", ds, q),
            "v": numpy.einsum("bhij,bihd->bjhd", weights, d_o)}


def test_gradients_against_numpy():
    q, k, v = tensors()
    kernel = dil.Program(CAUSAL % "f32").kernel(backward=True)
    assert kernel.has_backward
    o, lse = kernel(q, k, v, lse=True)
    d_o, = (random.standard_normal(o.shape).astype("float32") for _ in "x")
    dlse = random.standard_normal(lse.shape).astype("float32")
    right = dense_gradients(q, k, v, d_o, dlse)
    found = kernel.backward(d_o, q, k, v, o, lse, dlse=dlse)
    again = kernel.backward(d_o, q, k, v, o, dlse=dlse)  # lse made again
    assert sorted(found) == ["k", "q", "v"]
    for name in right:
        assert off(found[name], right[name]) < 4e-6, name
        assert off(again[name], right[name]) < 4e-6, name


def test_gradients_of_inputs_and_views():
    kernel = dil.Program(
        "pattern p { heads 2; head_dim 16; dtype f16; causal;"
        "  input slope : f32[H] gradient; input doc : i32[B, M];"
        "  score s - slope[h] * (i - j); branch { mask doc[b, i] == doc[b, j]; } }"
    ).kernel(backward=True)
    both = random.standard_normal((2, 40, 3, 2, 16)).astype("float16")
    q, k, v = (both[:, :, i] for i in range(3))
    inputs = {"slope": numpy.array([0.1, 0.2], "float32"),
              "doc": numpy.arange(80, dtype="int32").reshape(2, 40) // 15}
    o, lse = kernel(q, k, v, inputs=inputs, lse=True)
    d_o = random.standard_normal(o.shape).astype("float16")
    found = kernel.backward(d_o, q, k, v, o, lse, inputs=inputs)
    assert sorted(found) == ["k", "q", "slope", "v"]
    wide = {"k": numpy.full(k.shape, numpy.nan, "float32")}
    some = kernel.backward(d_o, q, k, v, o, lse, inputs=inputs, out=wide,
                           wanted=["k", "slope"])
    assert sorted(some) == ["k", "slope"] and some["k"] is wide["k"]
    assert off(some["k"], found["k"].astype("float64")) < 1e-3
    assert (some["slope"] == found["slope"]).all()
    step = numpy.float32(1e-2)  # by differences of a sum of o
    for h in range(2):
        sums = []
        for sign in (1, -1):
            slope = inputs["slope"].copy()
            slope[h] += sign * step
            moved = kernel(q, k, v, inputs=dict(inputs, slope=slope))
            sums.append((moved.astype("float64") * d_o).sum())
        slope = (sums[0] - sums[1]) / (2 * float(step))
        assert abs(slope - found["slope"][h]) < 0.05 * abs(slope) + 0.2


def test_wrong_gradients_are_refused():
    q, k, v = tensors()
    plain = dil.Program(CAUSAL % "f32").kernel()
    o = plain(q, k, v)
    assert not plain.has_backward
    fails("DIL_USAGE", "was made without gradients", plain.backward, o, q, k, v,
          o)
    kernel = dil.Program(CAUSAL % "f32").kernel(backward=True)
    fails("DIL_USAGE", "no tensor 'slope' with a gradient", kernel.backward, o,
          q, k, v, o, wanted=["slope"])
    fails("DIL_USAGE", "dq is an output and shares memory with q",
          kernel.backward, o, q, k, v, o, out={"q": q})
    read_only = numpy.zeros_like(k)
    read_only.flags.writeable = False
    fails("DIL_USAGE", "dk is an output and is read-only", kernel.backward, o,
          q, k, v, o, out={"k": read_only})
    fails("DIL_USAGE", "do must have the shape of o", kernel.backward,
          o[:, :-1], q, k, v, o)


def test_brain_floats():
    q, k, v = (dil.bfloat16(x) for x in tensors())
    kernel = dil.Program(CAUSAL % "bf16").kernel()
    o = kernel(q, k, v)
    right, _ = dense(*(dil.float32(x) for x in (q, k, v)))
    assert kernel.dtype == "uint16" and o.dtype == "uint16"
    assert off(dil.float32(o), right) < 4e-3
    edge = numpy.array([1.0, numpy.inf, numpy.nan, 1.00390625, -0.0], "float32")
    back = dil.float32(dil.bfloat16(edge))
    assert back[1] == numpy.inf and numpy.isnan(back[2]) and back[3] == 1.0


def test_half_floats_and_views():
    q, k, v = tensors(dtype="float16")
    heads_first = numpy.ascontiguousarray(q.transpose(0, 2, 1, 3))
    kernel = dil.Program(CAUSAL % "f16").kernel()
    o = kernel(heads_first.transpose(0, 2, 1, 3), k, v)
    assert off(o.astype("float64"), dense(q, k, v)[0]) < 1e-3


def test_dlpack():
    q, k, v = tensors()
    out = numpy.zeros_like(q)
    kernel = dil.Program(CAUSAL % "f32").kernel()
    kernel(OnlyDlpack(q), OnlyDlpack(k), OnlyDlpack(v), out=OnlyDlpack(out))
    assert off(out, dense(q, k, v)[0]) < 2e-6
    fails("DIL_USAGE", "must be given", kernel, *map(OnlyDlpack, (q, k, v)))


def test_inputs_by_name():
    text = ("pattern p { heads 4; head_dim 16; dtype f32; "
            "input slope : f32[H]; input doc : i32[B, M]; "
            "score s - slope[h] * abs(i - j); mask doc[b, i] == doc[b, j]; "
            "branch { } }")
    kernel = dil.Program(text).kernel()
    q, k, v = tensors()
    slope = random.random(4).astype("float32")
    doc = (numpy.arange(50) // 10 * numpy.ones((2, 1))).astype("int32")
    o = kernel(q, k, v, inputs={"doc": doc, "slope": slope})
    scores = numpy.einsum("bihd,bjhd->bhij", q, k, dtype="float64") / 4
    far = abs(numpy.subtract.outer(numpy.arange(50), numpy.arange(50)))
    scores = scores - slope[None, :, None, None] * far
    scores[..., doc[0][:, None] != doc[0]] = -numpy.inf
    weights = numpy.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    assert off(o, numpy.einsum("bhij,bjhd->bihd", weights, v)) < 2e-6
    assert kernel.inputs(2, 50, 50) == [("slope", "float32", (4,)),
                                        ("doc", "int32", (2, 50))]
    fails("DIL_USAGE", "'doc' is not given", kernel, q, k, v,
          inputs={"slope": slope})
    fails("DIL_USAGE", "no input 'dog'", kernel, q, k, v, inputs={"dog": doc})


def test_errors_carry_carets():
    fails("DIL_INPUT", "did you mean 'dilation'?", dil.Program,
          "pattern p { heads 4; head_dim 8; dtype f32; "
          "branch { segment 16; dilaton 2; } }")
    fails("DIL_INPUT", "^^^^^^^", dil.Program,
          "pattern p { heads 4; head_dim 8; dtype f32; branch { dilaton 2; } }")
    fails("DIL_ENVIRONMENT", "nosuch.dil", dil.Program, path="nosuch.dil")
    fails("DIL_USAGE", "a text or a path", dil.Program)


def test_other_sizes_and_dtypes():
    program = dil.Program(CAUSAL % "bf16")
    kernel = program.kernel(dtype=numpy.float32, heads=6, kv_heads=3, head_dim=24)
    assert repr(kernel) == "<dil.Kernel 'p' on cpu: 6 heads (kv 3) of 24, f32>"
    q, k, v = tensors(heads=6, kv=3, d=24)
    twice = (x.repeat(2, axis=2) for x in (k, v))
    assert off(kernel(q, k, v), dense(q, *twice)[0]) < 2e-6
    fails("DIL_INPUT", "6 heads cannot share 4 kv heads evenly", program.kernel,
          heads=6, kv_heads=4)


def test_calls_are_checked():
    q, k, v = tensors()
    kernel = dil.Program(CAUSAL % "f32").kernel()
    fails("DIL_USAGE", "k must", kernel, q, k[:, :, :2], v)
    fails("DIL_USAGE", "q must be f32, got float64", kernel, q.astype("float64"), k, v)
    fails("DIL_USAGE", "astype('float32')", kernel, q, k.astype(">f4"), v)
    fails("DIL_USAGE", "fixes its scale", kernel, q, k, v, scale=0.25)
    fails("DIL_USAGE", "list", kernel, q, k, v, out=[1])
    fails("DIL_USAGE", "k must be a tensor of 4 dimensions, got a list",
          kernel, q, [1], v)
    fails("DIL_USAGE", "q must be a tensor of 4 dimensions, got 3",
          kernel, q[0], k, v)
    shut = numpy.zeros_like(q)
    shut.setflags(write=False)
    fails("DIL_USAGE", "read-only", kernel, q, k, v, out=shut)
    fails("DIL_USAGE", "o ", kernel, q, k, v, out=q)


def test_a_scale_of_the_call():
    text = CAUSAL.replace("causal;", "causal; scale runtime;") % "f32"
    kernel, (q, k, v) = dil.Program(text).kernel(), tensors()
    fails("DIL_USAGE", "say scale=", kernel, q, k, v)
    assert off(kernel(q, k, v, scale=0.25), dense(q, k, v)[0]) < 2e-6


def test_copies_are_the_object():
    """A copy that goes takes nothing away."""
    kernel, (q, k, v) = dil.Program(CAUSAL % "f32").kernel(), tensors()
    program = dil.Program(CAUSAL % "f32")
    for x in (kernel, program, program.context):
        assert copy.copy(x) is x and copy.deepcopy([x])[0] is x
    twice = copy.copy(kernel)
    del twice
    assert off(kernel(q, k, v), dense(q, k, v)[0]) < 2e-6
    fails("DIL_USAGE", "a dil.Kernel cannot be pickled", pickle.dumps, kernel)
    fails("DIL_USAGE", "a dil.Context cannot", pickle.dumps, program.context)
    error = pickle.loads(pickle.dumps(dil.Error("DIL_INPUT", "words")))
    assert (error.status, str(error)) == ("DIL_INPUT", "words")


def test_objects_say_what_they_are():
    context = dil.Context(threads=2)
    assert repr(context) == "<dil.Context on cpu, 2 threads>"
    program = dil.Program("pattern p { heads 4 kv 2; head_dim 16 value 8; "
                          "dtype bf16; branch { } } kernel x = p; kernel y = p;",
                          context=context)
    assert repr(program) == "<dil.Program of 'x', 'y' on cpu>"
    assert repr(program.kernel("x")) == (
        "<dil.Kernel 'p' on cpu: 4 heads (kv 2) of 16 (value 8), bf16>")
    assert repr(dil.Program(CAUSAL % "f16").kernel()) == (
        "<dil.Kernel 'p' on cpu: 4 heads of 16, f16>")


def test_gradients_are_refused():
    kernel, (q, k, v) = dil.Program(CAUSAL % "f32").kernel(), tensors()
    right = dense(q, k, v)[0]
    q, k, v = map(torch.from_numpy, (q, k, v))
    assert off(kernel(q, k, v).numpy(), right) < 2e-6
    k.requires_grad_()
    fails("DIL_USAGE", "k requires a gradient, and autograd does not know dil: pass "
          "k.detach(), or call the kernel under torch.no_grad()", kernel, q, k, v)
    assert off(kernel(q, k.detach(), v).numpy(), right) < 2e-6
    with torch.no_grad():
        out, lse = kernel(q, k, v, lse=True)
        assert off(out.numpy(), right) < 2e-6 and lse.dtype == torch.float32


def test_lengths_become_int32():
    kernel, (q, k, v) = dil.Program(CAUSAL % "f32").kernel(), tensors()
    given = numpy.array([50, 20], "int32")
    right = kernel(q, k, v, lengths=given)
    assert not numpy.array_equal(right, kernel(q, k, v))
    both = [torch.from_numpy(x) for x in (q, k, v)]
    for lengths in ([50, 20], (50, 20), given.astype("int64"),
                    torch.from_numpy(given.astype("int64"))):
        assert numpy.array_equal(right, kernel(q, k, v, lengths=lengths))
        o = kernel(*both, lengths=lengths)
        assert numpy.array_equal(right, o.numpy())
    large = numpy.array([50, 2 ** 32 + 20])
    for lengths in (large, -large, torch.from_numpy(large), [50, 51]):
        fails("DIL_USAGE", "] must be within 0 and 50, got ", kernel, q, k, v,
              lengths=lengths)
    fails("DIL_USAGE", "lengths must be int32, got 4294967296", kernel, q, k, v,
          lengths=[50, 2 ** 32])
    fails("DIL_USAGE", "lengths must be integers, got [50, 2.5]", kernel, q, k,
          v, lengths=[50, 2.5])
    fails("DIL_USAGE", "lengths must be i32 [2], got i32 [1]", kernel, q, k, v,
          lengths=[50])
    fails("DIL_USAGE", "lengths must be i32, got int16", kernel, q, k, v,
          lengths=given.astype("int16"))
    fails("DIL_USAGE", "lengths is of type int, neither", kernel, q, k, v, lengths=50)
    fails("DIL_USAGE", "beside OnlyDlpack must be a tensor of int32", kernel,
          *map(OnlyDlpack, (q, k, v)), out=numpy.empty_like(q), lengths=[50, 20])


def test_lengths_wait_for_their_reader():
    """No other tensor gets the memory of lengths before the call has read them."""
    class Tensor:
        is_cuda, device, dtype = True, "cuda:0", "int64"

        def __init__(self, *values, **kind):
            self.readers = []

        def clamp(self, low, high):
            return self

        def to(self, kind):
            return Tensor()

        def record_stream(self, stream):
            self.readers.append(stream)

    streams = types.SimpleNamespace(ExternalStream=lambda stream, device: stream,
                                    default_stream=lambda device: "default")
    before = sys.modules["torch"]
    sys.modules["torch"] = types.SimpleNamespace(
        Tensor=Tensor, tensor=Tensor, int32="int32", int64="int64", cuda=streams)
    try:
        for lengths in ([50, 20], Tensor()):
            assert dil._tensors.as_int32(
                "lengths", lengths, Tensor(), 7).readers == [7]
            assert dil._tensors.as_int32(
                "lengths", lengths, Tensor(), None).readers == ["default"]
    finally:
        sys.modules["torch"] = before


def test_types_and_devices_of_others():
    def made(dtype, context=None):
        return dil.attention(heads=2, head_dim=8, dtype=dtype, context=context)

    for dtype, name in ((torch.bfloat16, "uint16"), (torch.float16, "float16"),
                        (torch.float32, "float32"), (numpy.float32, "float32"),
                        (numpy.dtype("float16"), "float16"), ("f32", "float32")):
        assert made(dtype, torch.device("cpu")).dtype == name
    for wrong in (torch.float64, numpy.dtype("int32"), 32, [1]):
        fails("DIL_USAGE", f'dtype must be "f32", "bf16", "f16" or such a type '
              f"of PyTorch or NumPy, got {wrong!r}", made, wrong)
    for wrong in (1, ["cpu"], numpy):
        fails("DIL_USAGE", f"or a torch.device, got {wrong!r}", made, "f32", wrong)
        fails("DIL_USAGE", "or a torch.device", dil.Context, wrong)
    fails("DIL_USAGE", "no device ''", made, "f32", "")
    fails("DIL_USAGE", "preset must be text, got 5", dil.attention, 5)
    fails("DIL_USAGE", "path= names a file", dil.Program, 5)


def test_files_presets_and_defines():
    here = os.path.dirname(os.path.abspath(__file__))
    path = os.path.join(here, "..", "..", "examples", "longnet.dil")
    program = dil.Program(path=path, defines={"w": 16})
    assert program.kernels == ["longnet"] and program.warnings == ""
    kernel = program.kernel("longnet")
    assert (kernel.heads, kernel.head_dim, kernel.dtype) == (12, 64, "uint16")
    assert dil.attention("sliding", heads=4, head_dim=16).heads == 4
    fails("DIL_USAGE", "not as 'float32': it is called 'f32' here",
          dil.attention, heads=2, head_dim=16, dtype="float32")
    fails("DIL_USAGE", "2 segments and 1 dilations", dil.attention, heads=2,
          head_dim=8, segments=[1, 2], dilations=[1])
    fails("DIL_USAGE", "(128, 0) looks back", dil.attention, heads=2,
          head_dim=8, window=128)


def test_tables_are_of_bool():
    text = ("pattern p { heads 4; head_dim 16; dtype f32; block 10; "
            "input kept : u8[H, nb, nb]; keep from kept; branch { } }")
    q, k, v = tensors()
    kept = random.random((4, 5, 5)) < 0.5
    kernel = dil.Program(text).kernel()
    given = kernel(q, k, v, inputs={"kept": kept})
    same = kernel(q, k, v, inputs={"kept": kept.astype("uint8")})
    assert (given == same).all() and off(given, kernel(
        q, k, v, inputs={"kept": numpy.ones_like(kept)})) > 0.01


def test_a_missing_library_is_told():
    lost = subprocess.run([sys.executable, "-c", "import dil"], text=True,
                          env=dict(os.environ, DIL_LIBRARY="/nosuch/libdil.so",
                                   PYTHONPATH=os.path.dirname(
                                       os.path.dirname(dil.__file__))),
                          capture_output=True)
    assert "DIL_LIBRARY names the libdil.so of a build" in lost.stderr


def test_readme():
    """The README's lines, on tensors of the sizes that they name."""
    q, k, v = tensors(heads=12, kv=12, n=100, d=64)
    seen = {"q": q, "k": k, "v": v}
    exec(readme_python(0), seen)
    branches = [(2048, 1), (4096, 2), (8192, 4), (16384, 6), (32768, 12)]
    for t, h in ((0, 0), (57, 3), (99, 11)):
        right = longnet.expected(q, k, v, t, h, branches)
        assert off(seen["o"][0, t, h], right) < 2e-6
    assert seen["lse"].shape == (2, 12, 100)


def test_threads_run_at_once():
    """The lock is free in a call: four threads of calls, one kernel."""
    kernel = dil.Program(CAUSAL % "f32").kernel()
    q, k, v = tensors(n=300)
    right = kernel(q, k, v)

    def work():
        for _ in range(20):
            assert numpy.array_equal(kernel(q, k, v), right)

    on_four_threads(work)


def test_an_extension_of_other_sources_is_left_out():
    class Other:
        connect = staticmethod(lambda *given: False)

    class Older:
        connect = staticmethod(lambda run, backward: None)

    assert not dil._quick._connect(Other) and not dil._quick._connect(Older)


if __name__ == "__main__":
    sys.exit(run_tests(globals()))
