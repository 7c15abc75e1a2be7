"""_tensors.py - tensors as dil takes them: DLTensors of NumPy arrays and of
anything with `__dlpack__`, element types, integers, and new tensors beside old
ones.
"""

import ctypes
import operator
import sys

from ._c import (DataType, Device, Error, Managed, Tensor, Versioned,
                 array_of)

CPU = 1
GPUS = (2, 13)      # CUDA's memory, and managed memory
_DEFAULT_STREAM = 1  # as DLPack numbers it
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}  # DLDataTypeCode; brain floats: 4
NAMES = {(2, 32): "float32", (2, 16): "float16", (4, 16): "uint16",
         (0, 32): "int32", (1, 8): "uint8"}
STORED = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


def pytorch():
    """PyTorch, where somebody else has imported it."""
    return sys.modules.get("torch")


def is_torch(x):
    return pytorch() is not None and isinstance(x, pytorch().Tensor)


def dtype_name(given):
    """dil's name of an element type: a text is one, or told by dil."""
    if given is None or isinstance(given, str):
        return given
    name = getattr(given, "__name__", str(given)).rpartition(".")[2]
    if name not in STORED:
        raise Error("DIL_USAGE", 'dtype must be "f32", "bf16", "f16" or such a '
                    f"type of PyTorch or NumPy, got {given!r}")
    return STORED[name]


def is_array(x):
    return hasattr(x, "__array_interface__")


def _array_type(x, want):
    kind, bits = x.dtype.kind, x.dtype.itemsize * 8
    if not x.dtype.isnative:
        raise Error("DIL_USAGE", f"an array holds {x.dtype}, of another order "
                    f"of bytes: pass x.astype('{x.dtype.name}')")
    name = x.dtype.name
    if name == "bfloat16" or (want == 4 and name == "uint16"):
        return DataType(4, 16, 1)
    if kind not in _CODES:
        raise Error("DIL_USAGE", f"arrays of {x.dtype} cannot be passed")
    return DataType(_CODES[kind], bits, 1)


def _view_array(x, want):
    """A DLTensor of a NumPy array, and what must stay alive beside it."""
    size = x.dtype.itemsize
    if any(step % size for step in x.strides):
        raise Error("DIL_USAGE", "an array's strides must be whole elements")
    numbers = array_of(ctypes.c_int64, x.ndim)
    shape = numbers(*x.shape)
    strides = numbers(*(s // size for s in x.strides))
    pointer, read_only = x.__array_interface__["data"]
    tensor = Tensor(pointer, Device(CPU, 0), x.ndim, _array_type(x, want),
                    shape, strides, 0)
    return tensor, int(read_only), (x, shape, strides)


capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
capsule_pointer.restype = ctypes.c_void_p
capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_capsule_name = ctypes.pythonapi.PyCapsule_GetName
_capsule_name.restype = ctypes.c_char_p
_capsule_name.argtypes = [ctypes.py_object]


def is_direct(*tensors):
    """Whether the memory of PyTorch's tensors is all there is to them: they
    want no gradient, and none has its numbers there with the other sign."""
    try:
        for x in tensors:
            if x is not None and (x.is_neg() or x.requires_grad and
                                  pytorch().is_grad_enabled()):
                return False
    except AttributeError:  # of another library's tensor
        return False
    return True


def _export(x, stream):
    """The capsule of a tensor, in the newest form that it knows. On a GPU its
    owner is told the stream, which waits for what it has still to write."""
    named = {}
    if getattr(x, "__dlpack_device__", lambda: (CPU, 0))()[0] in GPUS:
        named["stream"] = stream or _DEFAULT_STREAM
    try:
        return x.__dlpack__(max_version=(1, 1), **named)
    except TypeError:
        return x.__dlpack__(**named)


def _direct(x, name):
    """The tensor that may be exported, or why there is none."""
    if is_torch(x) and getattr(x, "is_neg", bool)():
        raise Error("DIL_USAGE", f"{name} is a view whose memory holds the "
                    f"numbers with the other sign: pass {name}.resolve_neg()")
    if not getattr(x, "requires_grad", False):
        return x
    if pytorch() is None or pytorch().is_grad_enabled():
        raise Error("DIL_USAGE", f"{name} requires a gradient, and autograd "
                    f"does not know dil: pass {name}.detach(), or call the "
                    "kernel under torch.no_grad(); kernel.backward computes "
                    "gradients")
    return x.detach()


def _view_dlpack(x, name, stream):
    """A DLTensor that the capsule keeps alive: it is not consumed, so that it
    frees what it holds when it goes."""
    try:
        capsule = _export(x, stream)
    except (BufferError, RuntimeError) as problem:
        raise Error("DIL_USAGE", f"{name} cannot be passed on: {problem}"
                    ) from problem
    kind = _capsule_name(capsule)
    kinds = {b"dltensor": Managed, b"dltensor_versioned": Versioned}
    if kind not in kinds:
        raise Error("DIL_USAGE", f"{name} is a capsule named {kind}, no tensor")
    made = kinds[kind].from_address(capsule_pointer(capsule, kind))
    flags = made.flags & 1 if kind == b"dltensor_versioned" else 0
    return made.tensor, flags, (x, capsule)


def view_of(x, name, want, stream):
    if is_array(x) and hasattr(x, "strides") and hasattr(x, "itemsize"):
        return _view_array(x, want)
    if hasattr(x, "__dlpack__"):
        return _view_dlpack(_direct(x, name), name, stream)
    raise Error("DIL_USAGE", f"{name} is of type {type(x).__name__}, neither a "
                "NumPy array nor a tensor with __dlpack__")


def bytes_of(view, beside, name):
    """Address and size of the memory of a view, on the device of another."""
    kind = NAMES.get((view.dtype.code, view.dtype.bits))
    if kind != "uint8" or view.ndim != 1:
        raise Error("DIL_USAGE", f"{name} must be a tensor of uint8 of one "
                    "dimension")
    if ((view.device.type, view.device.id)
            != (beside.device.type, beside.device.id)):
        raise Error("DIL_USAGE", f"{name} must be on the device of q")
    if view.shape[0] > 1 and view.strides and view.strides[0] != 1:
        raise Error("DIL_USAGE", f"{name} must be contiguous")
    return (view.data or 0) + view.byte_offset, view.shape[0]


def like(x, shape, dtype):
    """An empty tensor of x's kind, on its device; dtype None: that of x."""
    if is_torch(x):
        kind = getattr(pytorch(), dtype) if dtype else x.dtype
        return x.new_empty(shape, dtype=kind)
    if is_array(x):
        import numpy
        return numpy.empty(shape, dtype or x.dtype)
    raise Error("DIL_USAGE", f"outputs beside {type(x).__name__} must be given")


_LOW, _HIGH = -2 ** 31, 2 ** 31 - 1  # of int32


def _of_numbers(name, numbers, q):
    """int32 beside q, of Python's integers."""
    try:
        numbers = [operator.index(n) for n in numbers]
    except TypeError:
        raise Error("DIL_USAGE", f"{name} must be integers, got "
                    f"{numbers!r}") from None
    for n in numbers:
        if not _LOW <= n <= _HIGH:
            raise Error("DIL_USAGE", f"{name} must be int32, got {n}")
    if is_torch(q):
        return pytorch().tensor(numbers, dtype=pytorch().int32, device=q.device)
    if is_array(q):
        import numpy
        return numpy.array(numbers, "int32")
    raise Error("DIL_USAGE", f"{name} beside {type(q).__name__} must be a "
                "tensor of int32")


def as_int32(name, x, q, stream):
    """Lengths, offsets and pages as dil takes them. What int32 cannot hold becomes
    its nearest number, which is outside of all tensors as well: so a tensor waits
    for no GPU."""
    if isinstance(x, (list, tuple, range)):
        made = _of_numbers(name, x, q)
    elif is_array(x) and getattr(x, "dtype", None) == "int64":
        made = x.clip(_LOW, _HIGH).astype("int32")
    elif is_torch(x) and x.dtype == pytorch().int64:
        made = x.clamp(_LOW, _HIGH).to(pytorch().int32)
    else:
        return x
    if is_torch(made) and made.is_cuda:  # its memory waits for its reader
        cuda, device = pytorch().cuda, made.device
        made.record_stream(cuda.ExternalStream(stream, device) if stream
                           else cuda.default_stream(device))
    return made


def bfloat16(x):
    """float32 rounded to the nearest brain floats (ties to even), as uint16."""
    import numpy
    bits = numpy.ascontiguousarray(x, "float32").view("uint32")
    rounded = bits + 0x7FFF + (bits >> 16 & 1)
    quiet = numpy.where(numpy.isnan(x), bits | 0x400000, rounded)
    return (quiet >> 16).astype("uint16")


def float32(x):
    """Brain floats, as uint16, to float32."""
    import numpy
    return (numpy.asarray(x).astype("uint32") << 16).view("float32")
