"""_c.py - the C interface of dil, by ctypes: its library, its structs, and its
errors.

The library is libdil.so: DIL_LIBRARY, or that of the wheel or the build this
file lies in, or the system's. The structs are those of dil.h, dilrt.h and
dlpack.h.
"""

import ctypes
import functools
import os


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


class Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16)]


class Tensor(ctypes.Structure):  # DLTensor
    _fields_ = [("data", ctypes.c_void_p), ("device", Device),
                ("ndim", ctypes.c_int32), ("dtype", DataType),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


class Managed(ctypes.Structure):  # DLManagedTensor
    pass


class Versioned(ctypes.Structure):  # DLManagedTensorVersioned
    pass


Managed._fields_ = [
    ("tensor", Tensor), ("context", ctypes.c_void_p),
    ("deleter", ctypes.CFUNCTYPE(None, ctypes.POINTER(Managed)))]
Versioned._fields_ = [
    ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32),
    ("context", ctypes.c_void_p),
    ("deleter", ctypes.CFUNCTYPE(None, ctypes.POINTER(Versioned))),
    ("flags", ctypes.c_uint64), ("tensor", Tensor)]


class _Sized(ctypes.Structure):
    """A struct of dil: its size comes first, whatever is not set is 0."""

    def __init__(self, **fields):
        super().__init__(size=ctypes.sizeof(self), **fields)


class ContextOptions(_Sized):
    _fields_ = [("size", ctypes.c_size_t), ("device", ctypes.c_char_p),
                ("threads", ctypes.c_int32), ("log_level", ctypes.c_int32),
                ("allocate", ctypes.c_void_p), ("release", ctypes.c_void_p),
                ("memory_user", ctypes.c_void_p), ("log", ctypes.c_void_p),
                ("log_user", ctypes.c_void_p), ("parallel", ctypes.c_void_p),
                ("parallel_user", ctypes.c_void_p)]


class Define(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("value", ctypes.c_char_p)]


class ProgramOptions(_Sized):
    _fields_ = [("size", ctypes.c_size_t),
                ("defines", ctypes.POINTER(Define)),
                ("define_count", ctypes.c_int32), ("json", ctypes.c_int32)]


class KernelOptions(_Sized):
    _fields_ = [("size", ctypes.c_size_t), ("isa", ctypes.c_char_p),
                ("force", ctypes.c_uint32), ("json", ctypes.c_int32),
                ("dtype", ctypes.c_char_p), ("sizes", ctypes.c_void_p),
                ("backward", ctypes.c_int32), ("heads", ctypes.c_int32),
                ("kv_heads", ctypes.c_int32), ("head_dim", ctypes.c_int32),
                ("value_dim", ctypes.c_int32), ("ranks", ctypes.c_int64)]


class AttentionOptions(_Sized):
    _fields_ = [("size", ctypes.c_size_t), ("preset", ctypes.c_char_p),
                ("heads", ctypes.c_int32), ("kv_heads", ctypes.c_int32),
                ("head_dim", ctypes.c_int32), ("value_dim", ctypes.c_int32),
                ("dtype", ctypes.c_char_p), ("causal", ctypes.c_int32),
                ("branch_count", ctypes.c_int32),
                ("segments", ctypes.POINTER(ctypes.c_int64)),
                ("dilations", ctypes.POINTER(ctypes.c_int64)),
                ("window", ctypes.POINTER(ctypes.c_int64)),
                ("combine", ctypes.c_char_p),
                ("defines", ctypes.POINTER(Define)),
                ("define_count", ctypes.c_int32),
                ("backward", ctypes.c_int32)]


class Sizes(ctypes.Structure):
    _fields_ = [("batch", ctypes.c_int64), ("queries", ctypes.c_int64),
                ("keys", ctypes.c_int64)]


class TensorInfo(_Sized):
    _fields_ = [("size", ctypes.c_size_t), ("name", ctypes.c_char_p),
                ("dtype", DataType), ("rank", ctypes.c_int32),
                ("shape", ctypes.c_int64 * 4)]


class KernelInfo(_Sized):
    _fields_ = [("size", ctypes.c_size_t), ("name", ctypes.c_char_p),
                ("device", ctypes.c_char_p), ("target", ctypes.c_char_p),
                ("plan_hash", ctypes.c_uint64), ("dtype", DataType),
                ("heads", ctypes.c_int32), ("kv_heads", ctypes.c_int32),
                ("head_dim", ctypes.c_int32), ("value_dim", ctypes.c_int32),
                ("input_count", ctypes.c_int32), ("has_lse", ctypes.c_int32),
                ("takes_scale", ctypes.c_int32),
                ("has_dropout", ctypes.c_int32),
                ("schedule", ctypes.c_char_p), ("remembered", ctypes.c_int32),
                ("device_reason", ctypes.c_char_p),
                ("has_backward", ctypes.c_int32),
                ("selection_count", ctypes.c_int32)]


TensorPointer = ctypes.POINTER(Tensor)


@functools.lru_cache(maxsize=None)
def array_of(kind, count):
    """The type, which takes ctypes long to make."""
    return kind * count


class Arguments(_Sized):
    _fields_ = [("size", ctypes.c_size_t), ("q", TensorPointer),
                ("k", TensorPointer), ("v", TensorPointer),
                ("o", TensorPointer), ("lse", TensorPointer),
                ("inputs", ctypes.POINTER(TensorPointer)),
                ("input_count", ctypes.c_int32), ("train", ctypes.c_int32),
                ("lengths", TensorPointer), ("seed", ctypes.c_uint64),
                ("scale", ctypes.c_double), ("stream", ctypes.c_void_p),
                ("o_flags", ctypes.c_uint64), ("lse_flags", ctypes.c_uint64),
                ("seed_tensor", TensorPointer),
                ("offsets_q", TensorPointer), ("offsets_k", TensorPointer),
                ("longest_q", ctypes.c_int64), ("longest_k", ctypes.c_int64),
                ("pages", TensorPointer),
                ("selection", ctypes.POINTER(TensorPointer)),
                ("selection_count", ctypes.c_int32),
                ("selection_flags", ctypes.POINTER(ctypes.c_uint64)),
                ("saved", ctypes.c_void_p), ("saved_bytes", ctypes.c_int64)]


class Gradients(_Sized):
    _fields_ = [("size", ctypes.c_size_t),
                ("forward", ctypes.POINTER(Arguments)),
                ("d_o", TensorPointer), ("dlse", TensorPointer),
                ("dq", TensorPointer), ("dk", TensorPointer),
                ("dv", TensorPointer),
                ("inputs", ctypes.POINTER(TensorPointer)),
                ("input_count", ctypes.c_int32),
                ("dq_flags", ctypes.c_uint64), ("dk_flags", ctypes.c_uint64),
                ("dv_flags", ctypes.c_uint64),
                ("input_flags", ctypes.POINTER(ctypes.c_uint64)),
                ("workspace", ctypes.c_void_p),
                ("workspace_bytes", ctypes.c_int64)]


class RankOptions(_Sized):
    _fields_ = [("size", ctypes.c_size_t), ("meet", ctypes.c_char_p),
                ("rank", ctypes.c_int32), ("ranks", ctypes.c_int32),
                ("layout", ctypes.c_int32), ("gather", ctypes.c_int32),
                ("timeout", ctypes.c_double)]


class TopologyInfo(_Sized):
    _fields_ = [("size", ctypes.c_size_t), ("name", ctypes.c_char_p),
                ("devices", ctypes.c_int64), ("ring", ctypes.c_int32),
                ("heads", ctypes.c_int32), ("batch", ctypes.c_int32),
                ("layout", ctypes.c_int32), ("gather", ctypes.c_int32),
                ("timeout", ctypes.c_double)]


library = _load()
for _name in ("dil_version_text", "dil_last_error", "dil_status_name",
              "dil_context_device", "dil_program_warnings",
              "dil_program_kernel_name"):
    getattr(library, _name).restype = ctypes.c_char_p
for _name in ("dil_context_free", "dil_program_free", "dil_kernel_free"):
    getattr(library, _name).argtypes = [ctypes.c_void_p]
    getattr(library, _name).restype = None
library.dil_rank_free.argtypes = [ctypes.c_void_p]
library.dil_rank_free.restype = None
library.dil_context_device.argtypes = [ctypes.c_void_p]
library.dil_context_threads.argtypes = [ctypes.c_void_p]
library.dil_program_warnings.argtypes = [ctypes.c_void_p]
library.dil_program_kernel_name.argtypes = [ctypes.c_void_p, ctypes.c_int32]
library.dil_program_kernel_count.argtypes = [ctypes.c_void_p]
kernel_run = library.dil_kernel_run
kernel_run.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
kernel_run.restype = ctypes.c_int

version = library.dil_version_text().decode()


class Error(Exception):
    """What dil has to say; `status` is its name, such as "DIL_USAGE"."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status

    def __reduce__(self):
        return Error, (self.status, str(self))


def must(status):
    if status:
        raise Error(library.dil_status_name(status).decode(),
                    library.dil_last_error().decode())


def encoded(name, value):
    try:
        return None if value is None else os.fsencode(value)
    except TypeError:
        raise Error("DIL_USAGE", f"{name} must be text, got {value!r}"
                    ) from None


def define_pairs(values):
    pairs = [(name.encode(), str(value).encode())
             for name, value in (values or {}).items()]
    return (Define * len(pairs))(*pairs), len(pairs)
