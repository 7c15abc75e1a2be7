"""_quick.py - calls of PyTorch's tensors without a detour.

PyTorch's tensors have a C exchange table of DLPack 1.3, whose functions fill a
DLTensor without a capsule. A call of such tensors goes by it: in C where the
extension _call.c is there, else by ctypes. Any other call, and any that dil
refuses, goes the long way, which says what is wrong.
"""

import ctypes
import importlib.util
import os
import threading
import warnings

from ._c import (Arguments, Tensor, TensorPointer, array_of, kernel_run,
                 library)
from ._tensors import CPU, capsule_pointer, pytorch

_View = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
_CurrentStream = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32,
                                   ctypes.POINTER(ctypes.c_void_p))


class _ExchangeTable(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32),
                ("older", ctypes.c_void_p), ("allocate", ctypes.c_void_p),
                ("managed_from", ctypes.c_void_p),
                ("managed_to", ctypes.c_void_p), ("view", _View),
                ("current_stream", _CurrentStream)]


_FORM = 2  # of the extension, see _call.c


def _connect(module):
    """Whether the extension takes the calls of this package."""
    addresses = (ctypes.cast(function, ctypes.c_void_p).value
                 for function in (library.dil_kernel_run,
                                  library.dil_kernel_backward))
    try:
        return module.connect(*addresses, _FORM)
    except TypeError:  # of one that knew no forms
        return False


def _extension():
    """The module of _call.c: beside this file, or beside the library of a
    build; None where it was not built."""
    here = os.path.dirname(os.path.abspath(__file__))
    for folder in (here, os.path.dirname(library._name)):
        path = os.path.join(folder, "_call.abi3.so")
        if not os.path.exists(path):
            continue
        spec = importlib.util.spec_from_file_location(__package__ + "._call",
                                                      path)
        module = importlib.util.module_from_spec(spec)
        if _connect(module):
            return module
        warnings.warn(f"{path} was built of other sources than this package, and "
                      "is left out: calls take longer; `make python` builds it "
                      "anew", stacklevel=2)
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


exchanges = {}  # of types; None: the type has no table


def exchange(kind):
    """That of PyTorch's tensors and parameters, where their release has one.
    Another subclass may mean something else, and other types may have tensors
    that are read-only, which a view does not say."""
    torch = pytorch()
    declared = getattr(kind, "__dlpack_c_exchange_api__", None)
    if torch is None or declared is None or kind not in (torch.Tensor,
                                                         torch.nn.Parameter):
        return None
    table = _ExchangeTable.from_address(
        capsule_pointer(declared, b"dlpack_exchange_api"))
    taken = table.major == 1 and table.view and table.current_stream
    if not taken or (extension and not extension.use(kind, declared)):
        return None
    return _Exchange(table)


def is_quick(kind):
    if kind not in exchanges:
        exchanges[kind] = exchange(kind)
    return exchanges[kind] is not None


class _Slots:
    """The structs of a call with so many tensors, which are filled anew."""

    def __init__(self, lse, lengths, inputs):
        self.tensors = array_of(Tensor, 4 + lse + lengths + inputs)()
        self.places = [ctypes.addressof(x) for x in self.tensors]
        pointers = [ctypes.pointer(x) for x in self.tensors]
        self.arguments = Arguments(**dict(zip("qkvo", pointers)))
        if lse:
            self.arguments.lse = pointers[4]
        if lengths:
            self.arguments.lengths = pointers[4 + lse]
        first = 4 + lse + lengths
        self.inputs = array_of(TensorPointer, inputs)(*pointers[first:])
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


def run_by_ctypes(kernel, q, k, v, o, lse, lengths, inputs, train, seed, scale,
                  stream, lies):
    """As run of _call.c, but outputs must be given, and rows lie plainly."""
    if lies is not None or not isinstance(seed, int):
        return False
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
    exchange, view = exchanges[type(q)], exchanges[type(q)].view
    slots.busy = True
    try:
        for x, place in zip(tensors, slots.places):
            if exchanges.get(type(x)) is not exchange or view(x, place):
                return False
        device = slots.device
        if device.type != CPU and not exchange.is_current(device, stream):
            return False
        arguments = slots.arguments
        if train or seed or scale or stream or slots.set:
            slots.set = True
            arguments.train, arguments.seed = train, seed
            arguments.scale, arguments.stream = scale, stream
        return not kernel_run(kernel, slots.address)
    except Exception:  # of the tensors' owner
        return False
    finally:
        slots.busy = False


def _never(*call):
    return False


# Without the extension there is a quick way for `run` alone. `attend` and
# `gradients` are calls of dil.torch's plans.
extension = _extension()
run, backward = run_by_ctypes, _never
attend = gradients = learn = watch = forget = _never
if extension:
    run, backward = extension.run, extension.backward
    attend, gradients = extension.attend, extension.gradients
    learn, watch, forget = extension.learn, extension.watch, extension.forget
