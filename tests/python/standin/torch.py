"""torch.py - as much of PyTorch as python.py asks for, on NumPy arrays, for
machines without it. Tensors refuse to be exported as the real ones do."""

import contextlib

import numpy


class dtype:
    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return "torch." + self.name


class device:
    def __init__(self, name):
        self.name = name

    def __str__(self):
        return self.name

    def __repr__(self):
        return f"device('{self.name}')"


float16, bfloat16, float32, float64, int32, int64 = map(
    dtype, ("float16", "bfloat16", "float32", "float64", "int32", "int64"))
_dtypes = {kind.name: kind for kind in (float16, float32, float64, int32, int64)}
_enabled = True


def is_grad_enabled():
    return _enabled


@contextlib.contextmanager
def no_grad():
    global _enabled
    before, _enabled = _enabled, False
    yield
    _enabled = before


class Tensor:
    is_cuda = False

    def __init__(self, array, requires_grad=False):
        self.array, self.requires_grad = array, requires_grad
        self.shape, self.device = array.shape, device("cpu")
        self.dtype = _dtypes[array.dtype.name]

    def requires_grad_(self):
        self.requires_grad = True
        return self

    def detach(self):
        return Tensor(self.array)

    def clamp(self, low, high):
        return Tensor(self.array.clip(low, high))

    def to(self, kind):
        return Tensor(self.array.astype(kind.name))

    def new_empty(self, shape, dtype):
        return Tensor(numpy.empty(shape, dtype.name))

    def numpy(self):
        return self.array

    def __dlpack__(self, **named):
        if self.requires_grad:
            raise BufferError("Can't export tensors that require gradient, use "
                              "tensor.detach()")
        return self.array.__dlpack__()


def from_numpy(array):
    return Tensor(array)


def tensor(values, dtype, device):
    return Tensor(numpy.array(values, dtype.name))
