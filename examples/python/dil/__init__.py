"""dil from Python: patterns of attention, compiled and run on arrays.

One file, ctypes alone: it works without the rest of this package. Tensors are
NumPy arrays or anything with `__dlpack__` (PyTorch, CuPy, JAX, ...); nothing is
copied. The interpreter's lock is free while dil works, and a mistake is a
`dil.Error` with dil's own text, caret lines included. `import dil.torch` has
functions that PyTorch's autograd knows.

    import dil, numpy
    kernel = dil.Program(path="longnet.dil").kernel()
    o, lse = kernel(q, k, v, lse=True)      # q: [B, N, H, D] of the kernel's type

With `backward=True` the kernel has gradients:

    kernel = dil.attention("longnet", heads=12, head_dim=64, backward=True)
    o, lse = kernel(q, k, v, lse=True)
    gradients = kernel.backward(d_o, q, k, v, o, lse)   # by name: "q", "k", "v"

On a GPU, with tensors of PyTorch. Autograd does not know these kernels (but
those of dil.torch): a tensor that requires a gradient is taken under
torch.no_grad() alone.

    kernel = dil.attention("longnet", heads=12, head_dim=64, causal=True,
                           dtype=torch.bfloat16, context=q.device)
    o = kernel(q, k, v, stream=torch.cuda.current_stream().cuda_stream)

A kernel of 16-bit brain floats takes NumPy arrays of `uint16` or of
`ml_dtypes.bfloat16`; `dil.bfloat16(x)` rounds float32 to the former, and
`dil.float32(x)` goes back. The library is libdil.so: DIL_LIBRARY, or that of the
wheel or the build this file lies in, or the system's.
"""

import ctypes
import importlib.util
import operator
import os
import sys
import threading

__all__ = ["Error", "Context", "Program", "Kernel", "attention", "bfloat16",
           "float32", "version"]

# ---- the library -----------------------------------------------------------


def _load():
    here = os.path.dirname(os.path.abspath(__file__))
    built = os.path.join(here, "..", "..", "..", "build", "libdil.so")
    carried = os.path.join(here, "lib", "libdil.so.2")  # in a wheel
    places = [os.environ.get("DIL_LIBRARY"), carried, built, "libdil.so.2"]
    path = next(x for x in places if x and (x not in (carried, built)
                                            or os.path.exists(x)))
    try:
        return ctypes.CDLL(path)
    except OSError as problem:
        raise ImportError(f"{problem}: DIL_LIBRARY names the libdil.so of a "
                          "build; `make install` makes it known to all"
                          ) from None


class _Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):  # DLTensor
    _fields_ = [("data", ctypes.c_void_p), ("device", _Device),
                ("ndim", ctypes.c_int32), ("dtype", _DataType),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


class _Managed(ctypes.Structure):  # DLManagedTensor
    pass


class _Versioned(ctypes.Structure):  # DLManagedTensorVersioned
    pass


_Managed._fields_ = [
    ("tensor", _Tensor), ("context", ctypes.c_void_p),
    ("deleter", ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed)))]
_Versioned._fields_ = [
    ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32),
    ("context", ctypes.c_void_p),
    ("deleter", ctypes.CFUNCTYPE(None, ctypes.POINTER(_Versioned))),
    ("flags", ctypes.c_uint64), ("tensor", _Tensor)]


class _Sized(ctypes.Structure):
    """A struct of dil: its size comes first, whatever is not set is 0."""

    def __init__(self, **fields):
        super().__init__(size=ctypes.sizeof(self), **fields)


class _ContextOptions(_Sized):
    _fields_ = [("size", ctypes.c_size_t), ("device", ctypes.c_char_p),
                ("threads", ctypes.c_int32), ("log_level", ctypes.c_int32),
                ("allocate", ctypes.c_void_p), ("release", ctypes.c_void_p),
                ("memory_user", ctypes.c_void_p), ("log", ctypes.c_void_p),
                ("log_user", ctypes.c_void_p), ("parallel", ctypes.c_void_p),
                ("parallel_user", ctypes.c_void_p)]


class _Define(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("value", ctypes.c_char_p)]


class _ProgramOptions(_Sized):
    _fields_ = [("size", ctypes.c_size_t),
                ("defines", ctypes.POINTER(_Define)),
                ("define_count", ctypes.c_int32), ("json", ctypes.c_int32)]


class _KernelOptions(_Sized):
    _fields_ = [("size", ctypes.c_size_t), ("isa", ctypes.c_char_p),
                ("force", ctypes.c_uint32), ("json", ctypes.c_int32),
                ("dtype", ctypes.c_char_p), ("sizes", ctypes.c_void_p),
                ("backward", ctypes.c_int32), ("heads", ctypes.c_int32),
                ("kv_heads", ctypes.c_int32), ("head_dim", ctypes.c_int32),
                ("value_dim", ctypes.c_int32)]


class _AttentionOptions(_Sized):
    _fields_ = [("size", ctypes.c_size_t), ("preset", ctypes.c_char_p),
                ("heads", ctypes.c_int32), ("kv_heads", ctypes.c_int32),
                ("head_dim", ctypes.c_int32), ("value_dim", ctypes.c_int32),
                ("dtype", ctypes.c_char_p), ("causal", ctypes.c_int32),
                ("branch_count", ctypes.c_int32),
                ("segments", ctypes.POINTER(ctypes.c_int64)),
                ("dilations", ctypes.POINTER(ctypes.c_int64)),
                ("window", ctypes.POINTER(ctypes.c_int64)),
                ("combine", ctypes.c_char_p),
                ("defines", ctypes.POINTER(_Define)),
                ("define_count", ctypes.c_int32),
                ("backward", ctypes.c_int32)]


class _Sizes(ctypes.Structure):
    _fields_ = [("batch", ctypes.c_int64), ("queries", ctypes.c_int64),
                ("keys", ctypes.c_int64)]


class _TensorInfo(_Sized):
    _fields_ = [("size", ctypes.c_size_t), ("name", ctypes.c_char_p),
                ("dtype", _DataType), ("rank", ctypes.c_int32),
                ("shape", ctypes.c_int64 * 4)]


class _KernelInfo(_Sized):
    _fields_ = [("size", ctypes.c_size_t), ("name", ctypes.c_char_p),
                ("device", ctypes.c_char_p), ("target", ctypes.c_char_p),
                ("plan_hash", ctypes.c_uint64), ("dtype", _DataType),
                ("heads", ctypes.c_int32), ("kv_heads", ctypes.c_int32),
                ("head_dim", ctypes.c_int32), ("value_dim", ctypes.c_int32),
                ("input_count", ctypes.c_int32), ("has_lse", ctypes.c_int32),
                ("takes_scale", ctypes.c_int32),
                ("has_dropout", ctypes.c_int32),
                ("schedule", ctypes.c_char_p), ("remembered", ctypes.c_int32),
                ("device_reason", ctypes.c_char_p),
                ("has_backward", ctypes.c_int32)]


_TensorPointer = ctypes.POINTER(_Tensor)


class _Arguments(_Sized):
    _fields_ = [("size", ctypes.c_size_t), ("q", _TensorPointer),
                ("k", _TensorPointer), ("v", _TensorPointer),
                ("o", _TensorPointer), ("lse", _TensorPointer),
                ("inputs", ctypes.POINTER(_TensorPointer)),
                ("input_count", ctypes.c_int32), ("train", ctypes.c_int32),
                ("lengths", _TensorPointer), ("seed", ctypes.c_uint64),
                ("scale", ctypes.c_double), ("stream", ctypes.c_void_p),
                ("o_flags", ctypes.c_uint64), ("lse_flags", ctypes.c_uint64)]


class _Gradients(_Sized):
    _fields_ = [("size", ctypes.c_size_t),
                ("forward", ctypes.POINTER(_Arguments)),
                ("d_o", _TensorPointer), ("dlse", _TensorPointer),
                ("dq", _TensorPointer), ("dk", _TensorPointer),
                ("dv", _TensorPointer),
                ("inputs", ctypes.POINTER(_TensorPointer)),
                ("input_count", ctypes.c_int32),
                ("dq_flags", ctypes.c_uint64), ("dk_flags", ctypes.c_uint64),
                ("dv_flags", ctypes.c_uint64),
                ("input_flags", ctypes.POINTER(ctypes.c_uint64)),
                ("workspace", ctypes.c_void_p),
                ("workspace_bytes", ctypes.c_int64)]


_library = _load()
for _name in ("dil_version_text", "dil_last_error", "dil_status_name",
              "dil_context_device", "dil_program_warnings",
              "dil_program_kernel_name"):
    getattr(_library, _name).restype = ctypes.c_char_p
for _name in ("dil_context_free", "dil_program_free", "dil_kernel_free"):
    getattr(_library, _name).argtypes = [ctypes.c_void_p]
    getattr(_library, _name).restype = None
_library.dil_context_device.argtypes = [ctypes.c_void_p]
_library.dil_context_threads.argtypes = [ctypes.c_void_p]
_library.dil_program_warnings.argtypes = [ctypes.c_void_p]
_library.dil_program_kernel_name.argtypes = [ctypes.c_void_p, ctypes.c_int32]
_library.dil_program_kernel_count.argtypes = [ctypes.c_void_p]
_kernel_run = _library.dil_kernel_run
_kernel_run.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
_kernel_run.restype = ctypes.c_int

version = _library.dil_version_text().decode()


class Error(Exception):
    """What dil has to say; `status` is its name, such as "DIL_USAGE"."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status

    def __reduce__(self):
        return Error, (self.status, str(self))


def _must(status):
    if status:
        raise Error(_library.dil_status_name(status).decode(),
                    _library.dil_last_error().decode())


def _text(name, value):
    try:
        return None if value is None else os.fsencode(value)
    except TypeError:
        raise Error("DIL_USAGE", f"{name} must be text, got {value!r}") from None


def _defines(values):
    pairs = [(name.encode(), str(value).encode())
             for name, value in (values or {}).items()]
    return (_Define * len(pairs))(*pairs), len(pairs)


# ---- tensors ---------------------------------------------------------------

_CPU = 1
_GPUS = (2, 13)      # CUDA's memory, and managed memory
_DEFAULT_STREAM = 1  # as DLPack numbers it
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}  # DLDataTypeCode; brain floats: 4
_NAMES = {(2, 32): "float32", (2, 16): "float16", (4, 16): "uint16",
          (0, 32): "int32", (1, 8): "uint8"}
_STORED = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


def _torch():
    """PyTorch, where somebody else has imported it."""
    return sys.modules.get("torch")


def _is_torch(x):
    return _torch() is not None and isinstance(x, _torch().Tensor)


def _dtype(given):
    """dil's name of an element type: a text is one, or told by dil."""
    if given is None or isinstance(given, str):
        return given
    name = getattr(given, "__name__", str(given)).rpartition(".")[2]
    if name not in _STORED:
        raise Error("DIL_USAGE", 'dtype must be "f32", "bf16", "f16" or such a '
                    f"type of PyTorch or NumPy, got {given!r}")
    return _STORED[name]


def _is_array(x):
    return hasattr(x, "__array_interface__")


def _array_type(x, want):
    kind, bits = x.dtype.kind, x.dtype.itemsize * 8
    if not x.dtype.isnative:
        raise Error("DIL_USAGE", f"an array holds {x.dtype}, of another order "
                    f"of bytes: pass x.astype('{x.dtype.name}')")
    brain = x.dtype.name == "bfloat16" or (want == 4 and x.dtype.name == "uint16")
    if brain:
        return _DataType(4, 16, 1)
    if kind not in _CODES:
        raise Error("DIL_USAGE", f"arrays of {x.dtype} cannot be passed")
    return _DataType(_CODES[kind], bits, 1)


def _view_array(x, want):
    """A DLTensor of a NumPy array, and what must stay alive beside it."""
    size = x.dtype.itemsize
    if any(step % size for step in x.strides):
        raise Error("DIL_USAGE", "an array's strides must be whole elements")
    shape = (ctypes.c_int64 * x.ndim)(*x.shape)
    strides = (ctypes.c_int64 * x.ndim)(*(s // size for s in x.strides))
    pointer, read_only = x.__array_interface__["data"]
    tensor = _Tensor(pointer, _Device(_CPU, 0), x.ndim, _array_type(x, want),
                     shape, strides, 0)
    return tensor, int(read_only), (x, shape, strides)


_capsule = ctypes.pythonapi.PyCapsule_GetPointer
_capsule.restype = ctypes.c_void_p
_capsule.argtypes = [ctypes.py_object, ctypes.c_char_p]
_capsule_name = ctypes.pythonapi.PyCapsule_GetName
_capsule_name.restype = ctypes.c_char_p
_capsule_name.argtypes = [ctypes.py_object]


def _want_gradients(*tensors):
    for x in tensors:
        if getattr(x, "requires_grad", False):
            return True
    return False


def _export(x, stream):
    """The capsule of a tensor, in the newest form that it knows. On a GPU its
    owner is told the stream, which waits for what it has still to write."""
    named = {}
    if getattr(x, "__dlpack_device__", lambda: (_CPU, 0))()[0] in _GPUS:
        named["stream"] = stream or _DEFAULT_STREAM
    try:
        return x.__dlpack__(max_version=(1, 1), **named)
    except TypeError:
        return x.__dlpack__(**named)


def _without_gradient(x, name):
    if not _want_gradients(x):
        return x
    if _torch() is None or _torch().is_grad_enabled():
        raise Error("DIL_USAGE", f"{name} requires a gradient, and autograd does "
                    f"not know dil: pass {name}.detach(), or call the kernel "
                    "under torch.no_grad(); kernel.backward computes gradients")
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
    kinds = {b"dltensor": _Managed, b"dltensor_versioned": _Versioned}
    if kind not in kinds:
        raise Error("DIL_USAGE", f"{name} is a capsule named {kind}, no tensor")
    made = kinds[kind].from_address(_capsule(capsule, kind))
    flags = made.flags & 1 if kind == b"dltensor_versioned" else 0
    return made.tensor, flags, (x, capsule)


def _view(x, name, want, stream):
    if _is_array(x) and hasattr(x, "strides") and hasattr(x, "itemsize"):
        return _view_array(x, want)
    if hasattr(x, "__dlpack__"):
        return _view_dlpack(_without_gradient(x, name), name, stream)
    raise Error("DIL_USAGE", f"{name} is of type {type(x).__name__}, neither a "
                "NumPy array nor a tensor with __dlpack__")


def _like(x, shape, dtype):
    """An empty tensor of x's kind, on its device."""
    if _is_torch(x):
        kind = _torch().float32 if dtype == "lse" else x.dtype
        return x.new_empty(shape, dtype=kind)
    if _is_array(x):
        import numpy
        return numpy.empty(shape, "float32" if dtype == "lse" else x.dtype)
    raise Error("DIL_USAGE", f"outputs beside {type(x).__name__} must be given")


_LOW, _HIGH = -2 ** 31, 2 ** 31 - 1  # of int32


def _lengths_of_numbers(numbers, q):
    """int32 beside q, of Python's integers."""
    try:
        numbers = [operator.index(n) for n in numbers]
    except TypeError:
        raise Error("DIL_USAGE", "lengths must be integers, got "
                    f"{numbers!r}") from None
    for n in numbers:
        if not _LOW <= n <= _HIGH:
            raise Error("DIL_USAGE", f"lengths must be int32, got {n}")
    if _is_torch(q):
        return _torch().tensor(numbers, dtype=_torch().int32, device=q.device)
    if _is_array(q):
        import numpy
        return numpy.array(numbers, "int32")
    raise Error("DIL_USAGE", f"lengths beside {type(q).__name__} must be a "
                "tensor of int32")


def _lengths(x, q, stream):
    """Lengths as dil takes them. What int32 cannot hold becomes its nearest
    number, which is outside 0..M as well: so a tensor waits for no GPU."""
    if isinstance(x, (list, tuple, range)):
        made = _lengths_of_numbers(x, q)
    elif _is_array(x) and getattr(x, "dtype", None) == "int64":
        made = x.clip(_LOW, _HIGH).astype("int32")
    elif _is_torch(x) and x.dtype == _torch().int64:
        made = x.clamp(_LOW, _HIGH).to(_torch().int32)
    else:
        return x
    if _is_torch(made) and made.is_cuda:  # its memory waits for its reader
        cuda, device = _torch().cuda, made.device
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


# ---- the quick way -----------------------------------------------------------
#
# PyTorch's tensors have a C exchange table of DLPack 1.3, whose functions fill a
# DLTensor without a capsule. A call of such tensors goes by it: in C where the
# extension _call.c is there, else by ctypes. Any other call, and any that dil
# refuses, goes the long way, which says what is wrong.

_View = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
_CurrentStream = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32,
                                   ctypes.POINTER(ctypes.c_void_p))


class _ExchangeTable(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32),
                ("older", ctypes.c_void_p), ("allocate", ctypes.c_void_p),
                ("managed_from", ctypes.c_void_p),
                ("managed_to", ctypes.c_void_p), ("view", _View),
                ("current_stream", _CurrentStream)]


def _extension():
    """The module of _call.c: beside this file, or beside the library of a
    build; None where it was not built."""
    here = os.path.dirname(os.path.abspath(__file__))
    for folder in (here, os.path.dirname(_library._name)):
        path = os.path.join(folder, "_call.abi3.so")
        if not os.path.exists(path):
            continue
        spec = importlib.util.spec_from_file_location(__name__ + "._call", path)
        module = importlib.util.module_from_spec(spec)
        module.connect(ctypes.cast(_library.dil_kernel_run,
                                   ctypes.c_void_p).value)
        return module
    return None


class _Exchange:
    """A type's table, as functions of Python."""

    def __init__(self, table):
        self.view, self.current_stream = table.view, table.current_stream

    def is_current(self, device, stream):
        current = ctypes.c_void_p()
        failed = self.current_stream(device.type, device.id,
                                     ctypes.byref(current))
        return not failed and current.value == (stream or None)


_exchanges = {}  # of types; None: the type has no table


def _exchange(kind):
    """That of PyTorch's tensors and parameters, where their release has one.
    Another subclass may mean something else, and other types may have tensors
    that are read-only, which a view does not say."""
    torch = _torch()
    declared = getattr(kind, "__dlpack_c_exchange_api__", None)
    if torch is None or declared is None or kind not in (torch.Tensor,
                                                         torch.nn.Parameter):
        return None
    table = _ExchangeTable.from_address(
        _capsule(declared, b"dlpack_exchange_api"))
    taken = table.major == 1 and table.view and table.current_stream
    if not taken or (_call and not _call.use(kind, declared)):
        return None
    return _Exchange(table)


def _is_quick(kind):
    if kind not in _exchanges:
        _exchanges[kind] = _exchange(kind)
    return _exchanges[kind] is not None


class _Slots:
    """The structs of a call with so many tensors, which are filled anew."""

    def __init__(self, lse, lengths, inputs):
        self.tensors = (_Tensor * (4 + lse + lengths + inputs))()
        self.places = [ctypes.addressof(x) for x in self.tensors]
        pointers = [ctypes.pointer(x) for x in self.tensors]
        self.arguments = _Arguments(**dict(zip("qkvo", pointers)))
        if lse:
            self.arguments.lse = pointers[4]
        if lengths:
            self.arguments.lengths = pointers[4 + lse]
        first = 4 + lse + lengths
        self.inputs = (_TensorPointer * inputs)(*pointers[first:])
        self.arguments.inputs = self.inputs
        self.arguments.input_count = inputs
        self.address = ctypes.addressof(self.arguments)
        self.device = self.tensors[0].device
        self.set = False   # whether train, seed, scale or stream ever were
        self.busy = False  # a finaliser may call a kernel amid another call


_slots = threading.local()


def _slots_of(lse, lengths, inputs):
    try:
        return _slots.made[lse, lengths, inputs]
    except AttributeError:
        _slots.made = {}
    except KeyError:
        pass
    made = _slots.made[lse, lengths, inputs] = _Slots(lse, lengths, inputs)
    return made


def _run_by_ctypes(kernel, q, k, v, o, lse, lengths, inputs, train, seed, scale,
                   stream):
    """As _call.run, but outputs must be given."""
    slots = _slots_of(lse is not None, lengths is not None, len(inputs))
    if slots.busy:
        return False
    tensors = [q, k, v, o]
    if lse is not None:
        tensors.append(lse)
    if lengths is not None:
        tensors.append(lengths)
    if inputs:
        tensors += inputs
    exchange, view = _exchanges[type(q)], _exchanges[type(q)].view
    slots.busy = True
    try:
        for x, place in zip(tensors, slots.places):
            if _exchanges.get(type(x)) is not exchange or view(x, place):
                return False
        device = slots.device
        if device.type != _CPU and not exchange.is_current(device, stream):
            return False
        arguments = slots.arguments
        if train or seed or scale or stream or slots.set:
            slots.set = True
            arguments.train, arguments.seed = train, seed
            arguments.scale, arguments.stream = scale, stream
        return not _kernel_run(kernel, slots.address)
    except Exception:  # of the tensors' owner
        return False
    finally:
        slots.busy = False


_call = _extension()
_run = _call.run if _call else _run_by_ctypes


# ---- contexts, programs, kernels ---------------------------------------------


class _Owned:
    """A pointer of dil's that goes with its object. Nothing changes the object,
    so a copy of it is the object itself."""

    def __init__(self, pointer, free):
        self._pointer, self._free = pointer, free

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        raise Error("DIL_USAGE", f"a dil.{type(self).__name__} cannot be "
                    "pickled, it is of this process alone: make it anew from "
                    "its text")

    def __del__(self):
        pointer = getattr(self, "_pointer", None)
        if pointer:
            self._free(pointer)


class Context(_Owned):
    """A device with its threads and memory: "cpu", "cuda", "cuda:1", or a
    torch.device.

    Where a context is asked for, its device will do.
    """

    def __init__(self, device="cpu", threads=0):
        pointer = ctypes.c_void_p()
        options = _ContextOptions(device=_device(device), threads=threads)
        _must(_library.dil_context_new(ctypes.byref(options),
                                       ctypes.byref(pointer)))
        super().__init__(pointer, _library.dil_context_free)

    def __repr__(self):
        count = _library.dil_context_threads(self._pointer)
        threads = f", {count} threads" if count else ""
        return f"<dil.Context on {self.device}{threads}>"

    @property
    def device(self):
        return _library.dil_context_device(self._pointer).decode()

    def wait(self, stream=None):
        """Until the work of a CUDA stream is done."""
        _must(_library.dil_context_wait(self._pointer, ctypes.c_void_p(stream)))


def _device(given):
    if isinstance(given, str):
        return given.encode()
    if _torch() is not None and isinstance(given, _torch().device):
        return str(given).encode()
    raise Error("DIL_USAGE", 'a context is a dil.Context, or a device: "cpu", '
                f'"cuda", "cuda:1" or a torch.device, got {given!r}')


def _context(given):
    if isinstance(given, Context):
        return given
    return Context("cpu" if given is None else given)


class Program(_Owned):
    """The patterns and kernels of a .dil file, or of a text.

    `defines` replaces the values of `let` lines. `path` may be "preset:NAME".
    """

    def __init__(self, text=None, path=None, defines=None, context=None):
        if (text is None) == (path is None):
            raise Error("DIL_USAGE", "a program is a text or a path")
        if not isinstance(text, (str, type(None))):
            raise Error("DIL_USAGE", f"a program's text is a str, got {text!r}: "
                        "path= names a file")
        self.context = _context(context)
        pointer = ctypes.c_void_p()
        pairs, count = _defines(defines)
        options = _ProgramOptions(defines=pairs, define_count=count)
        tail = (ctypes.byref(options), ctypes.byref(pointer))
        if path is not None:
            _must(_library.dil_program_read(self.context._pointer,
                                            _text("path", path), *tail))
        else:
            code = text.encode()
            _must(_library.dil_program_parse(self.context._pointer, b"<text>",
                                             code, ctypes.c_size_t(len(code)),
                                             *tail))
        super().__init__(pointer, _library.dil_program_free)

    def __repr__(self):
        names = ", ".join(f"'{name}'" for name in self.kernels)
        return f"<dil.Program of {names} on {self.context.device}>"

    @property
    def warnings(self):
        return _library.dil_program_warnings(self._pointer).decode()

    @property
    def kernels(self):
        count = _library.dil_program_kernel_count(self._pointer)
        return [_library.dil_program_kernel_name(self._pointer, i).decode()
                for i in range(count)]

    def kernel(self, name=None, isa=None, backward=False, dtype=None, heads=0,
               kv_heads=0, head_dim=0, value_dim=0):
        """The kernel of that name; the only one when not given. backward: with
        gradients. dtype, as dil.attention takes it, and the sizes stand in
        place of the pattern's own."""
        pointer = ctypes.c_void_p()
        options = _KernelOptions(isa=_text("isa", isa), backward=int(backward),
                                 dtype=_text("dtype", _dtype(dtype)),
                                 heads=heads, kv_heads=kv_heads,
                                 head_dim=head_dim, value_dim=value_dim)
        _must(_library.dil_program_kernel(self._pointer, _text("name", name),
                                          ctypes.byref(options),
                                          ctypes.byref(pointer)))
        return Kernel(pointer, self.context)


def _must_be_rows(name, x):
    rank = len(getattr(x, "shape", ()))
    if rank != 4:
        raise Error("DIL_USAGE", f"{name} must be a tensor of 4 dimensions, got "
                    + (f"{rank}" if rank else f"a {type(x).__name__}"))


class _Views:
    """Tensors of one call, as dil takes them, kept alive until it is done."""

    def __init__(self, kernel, stream):
        self.kernel, self.stream = kernel, stream
        self.alive, self.flags = [], {}

    def pointer(self, x, name, want=None):
        tensor, self.flags[name], keep = _view(x, name, want, self.stream)
        self.alive.append((tensor, keep))
        return ctypes.pointer(tensor)

    def rows(self, x, name):
        _must_be_rows(name, x)
        return self.pointer(x, name, self.kernel._code)

    def arguments(self, q, k, v, o, lse, inputs, lengths, train, seed, scale):
        """`inputs` in the kernel's order."""
        kernel = self.kernel
        for name, x in ("q", q), ("k", k), ("v", v):
            _must_be_rows(name, x)
        tensors = [self.pointer(x, f"input '{name}'")
                   for name, x in zip(kernel.input_names, inputs)]
        arguments = _Arguments(
            q=self.rows(q, "q"), k=self.rows(k, "k"), v=self.rows(v, "v"),
            o=self.pointer(o, "o", kernel._code),
            inputs=(_TensorPointer * len(tensors))(*tensors),
            input_count=len(tensors), train=int(train), seed=seed,
            scale=scale, stream=self.stream)
        if lse is not None:
            arguments.lse = self.pointer(lse, "lse")
        if lengths is not None:
            arguments.lengths = self.pointer(
                _lengths(lengths, q, self.stream), "lengths")
        arguments.o_flags = self.flags["o"]
        arguments.lse_flags = self.flags.get("lse", 0)
        return arguments


class Kernel(_Owned):
    """A compiled pattern; a call runs it."""

    def __init__(self, pointer, context):
        super().__init__(pointer, _library.dil_kernel_free)
        self.context = context
        info = _KernelInfo()
        _must(_library.dil_kernel_describe(pointer, ctypes.byref(info)))
        self.name, self.device = info.name.decode(), info.device.decode()
        self.target = info.target.decode()
        self.schedule = info.schedule.decode()  # knobs; "": dil's own choice
        self.remembered = bool(info.remembered)  # they are of `dil tune`
        self.heads, self.kv_heads = info.heads, info.kv_heads
        self.head_dim, self.value_dim = info.head_dim, info.value_dim
        self.has_lse, self._code = bool(info.has_lse), info.dtype.code
        self.takes_scale = bool(info.takes_scale)
        self.has_dropout = bool(info.has_dropout)
        self.has_backward = bool(info.has_backward)
        self.dtype = _NAMES[info.dtype.code, info.dtype.bits]
        self.plan_hash = info.plan_hash
        self._handle, self._input_count = pointer.value, info.input_count
        self.input_names = tuple(name for name, _, _ in self.inputs(1, 1, 1))

    def __repr__(self):
        stored = _STORED.get(self.dtype, "bf16")
        kv = "" if self.kv_heads == self.heads else f" (kv {self.kv_heads})"
        value = ("" if self.value_dim == self.head_dim
                 else f" (value {self.value_dim})")
        return (f"<dil.Kernel '{self.name}' on {self.device}: {self.heads} heads"
                f"{kv} of {self.head_dim}{value}, {stored}>")

    def inputs(self, batch, queries, keys):
        """Name, dtype and shape of each declared input, for these sizes."""
        sizes, found = _Sizes(batch, queries, keys), []
        for index in range(self._input_count):
            info = _TensorInfo()
            _must(_library.dil_kernel_tensor(self._pointer, 64 + index,
                                             ctypes.byref(sizes),
                                             ctypes.byref(info)))
            found.append((info.name.decode(),
                          _NAMES[info.dtype.code, info.dtype.bits],
                          tuple(info.shape[:info.rank])))
        return found

    def _ordered(self, given):
        """The inputs of a call, in the kernel's order."""
        given = given or {}
        for name in given:
            if name not in self.input_names:
                raise Error("DIL_USAGE", f"kernel '{self.name}' has no input "
                            f"'{name}'; it has "
                            + (", ".join(self.input_names) or "none"))
        for name in self.input_names:
            if name not in given:
                raise Error("DIL_USAGE", f"input '{name}' is not given")
        return tuple(given[name] for name in self.input_names)

    def _scale(self, scale):
        if self.takes_scale and scale is None:
            raise Error("DIL_USAGE", f"kernel '{self.name}' says `scale "
                        "runtime`: say scale=1 / sqrt(head_dim), or another")
        if not self.takes_scale and scale is not None:
            raise Error("DIL_USAGE", f"kernel '{self.name}' fixes its scale: "
                        "scale wants `scale runtime;` in its pattern")
        return 0.0 if scale is None else scale

    def __call__(self, q, k, v, inputs=None, out=None, lse=False, lengths=None,
                 train=False, seed=0, scale=None, stream=None):
        """Attention of q [B, N, H, D] over k [B, M, Hkv, D], v [B, M, Hkv, Dv].

        `inputs`: the declared inputs by name. `out`, `lse`: tensors to write
        to; `lse=True` makes one, float32 [B, H, N]. `lengths`: the keys that
        each batch row has, int32 [B]; int64 and a list of integers become that,
        on their own device or that of q. `scale`: of a pattern that says `scale
        runtime`, and of no other. `stream`: a CUDA stream's handle, the default
        one when not given; what the tensors' owner has yet to write comes
        first, and the call does not wait for its own end. A tensor that
        requires a gradient is refused, but under torch.no_grad().
        Returns the output, or the output and lse.
        """
        if lse is False:
            lse = None
        given = self._ordered(inputs) if inputs or self.input_names else ()
        call = (q, k, v, out, lse, lengths, given, train, seed,
                self._scale(scale), stream)
        made = (_is_quick(type(q)) and not _want_gradients(q, k, v, out, *given)
                and _run(self._handle, *call)) or self._run_at_length(*call)
        if made is not True:
            out = out if out is not None else made[0]
            lse = made[1] if lse is True else lse
        return out if lse is None else (out, lse)

    def _run_at_length(self, q, k, v, o, lse, lengths, inputs, train, seed, scale,
                       stream):
        """o and lse, which are made where they are None and True."""
        _must_be_rows("q", q)
        if o is None:
            o = _like(q, tuple(q.shape[:3]) + (self.value_dim,), None)
        if lse is True:
            lse = _like(q, (q.shape[0], self.heads, q.shape[1]), "lse")
        views = _Views(self, stream)
        arguments = views.arguments(q, k, v, o, lse, inputs, lengths, train, seed,
                                    scale)
        _must(_kernel_run(self._handle, ctypes.addressof(arguments)))
        return o, lse

    def _has_gradient(self, index):
        info, sizes = _TensorInfo(), _Sizes(1, 1, 1)
        return not _library.dil_kernel_tensor(
            self._pointer, 128 + index, ctypes.byref(sizes), ctypes.byref(info))

    def backward(self, d_o, q, k, v, o, lse=None, inputs=None, dlse=None,
                 wanted=None, out=None, lengths=None, train=False, seed=0,
                 scale=None, stream=None):
        """Gradients of a call that ran with the same q, k, v, inputs, lengths,
        train, seed and scale.

        `o` and `lse` are what it wrote (lse may be left out: then it is
        computed again); `d_o` is the gradient of o, `dlse` that of lse, where
        it is used. `wanted`: names out of "q", "k", "v" and the inputs with a
        gradient; all of them when not given. `out`: tensors to write to, by
        name, of the type of what they are gradients of or float32.
        Returns a dict of gradients by name. The kernel must have been made with
        `backward=True`, or say `backward` in its file.
        """
        views, ordered = _Views(self, stream), self._ordered(inputs)
        call = views.arguments(q, k, v, o, lse, ordered, lengths, train, seed,
                               self._scale(scale))
        named = dict(zip(self.input_names, ordered))
        able = [name for i, name in enumerate(named) if self._has_gradient(i)]
        if wanted is None:
            wanted = ["q", "k", "v"] + able
        made = dict(out or {})
        for name in wanted:
            x = {"q": q, "k": k, "v": v}.get(name, named.get(name))
            if x is None:
                raise Error("DIL_USAGE", f"kernel '{self.name}' has no tensor "
                            f"'{name}' with a gradient")
            if name not in made:
                made[name] = _like(x, tuple(x.shape), None)
        g = _Gradients(forward=ctypes.pointer(call), d_o=views.rows(d_o, "do"),
                       input_count=len(named))
        if dlse is not None:
            g.dlse = views.pointer(dlse, "dlse")
        for name in ("q", "k", "v"):
            if name in made:
                setattr(g, f"d{name}", views.rows(made[name], f"d{name}"))
                setattr(g, f"d{name}_flags", views.flags[f"d{name}"])
        pointers = (_TensorPointer * len(named))()
        flags = (ctypes.c_uint64 * len(named))()
        for i, name in enumerate(named):
            if name in made:
                label = f"the gradient of input '{name}'"
                pointers[i] = views.pointer(made[name], label)
                flags[i] = views.flags[label]
        g.inputs, g.input_flags = pointers, flags
        _must(_library.dil_kernel_backward(self._pointer, ctypes.byref(g)))
        return made


def attention(preset=None, heads=0, kv_heads=0, head_dim=0, value_dim=0,
              dtype=None, causal=False, segments=(), dilations=(), window=None,
              combine=None, defines=None, context=None, backward=False):
    """A kernel without a file: a preset, or branches by their segment lengths
    (0: the whole sequence) and dilations (none: dense attention). window: how
    many keys a query sees before and after itself, -1 for all. dtype: "f32",
    "bf16" or "f16", or such a type of PyTorch or NumPy. backward: with
    gradients."""
    context = _context(context)
    if len(segments) != len(dilations):
        raise Error("DIL_USAGE", f"{len(segments)} segments and "
                    f"{len(dilations)} dilations")
    if isinstance(window, int):
        raise Error("DIL_USAGE", f"a window has two sides: ({window}, 0) looks "
                    "back")
    pairs, count = _defines(defines)
    options = _AttentionOptions(
        preset=_text("preset", preset), heads=heads, kv_heads=kv_heads,
        head_dim=head_dim, value_dim=value_dim,
        dtype=_text("dtype", _dtype(dtype)), causal=int(causal),
        branch_count=len(segments),
        segments=(ctypes.c_int64 * len(segments))(*segments),
        dilations=(ctypes.c_int64 * len(segments))(*dilations),
        window=None if window is None else (ctypes.c_int64 * 2)(*window),
        combine=_text("combine", combine), defines=pairs, define_count=count,
        backward=int(backward))
    pointer = ctypes.c_void_p()
    _must(_library.dil_attention(context._pointer, ctypes.byref(options),
                                 ctypes.byref(pointer)))
    return Kernel(pointer, context)
