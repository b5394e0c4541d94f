"""As much of PyTorch as memwarden touches, with tensors that are lists of numbers."""

import collections
import math
import types

from . import _C, autograd, cuda, linalg, nn, optim, utils  # noqa: F401

__version__ = "2.9.1+fake"


class dtype:
    def __init__(self, name, size, floating):
        self.name, self.size, self.floating = name, size, floating

    def __repr__(self):
        return "torch." + self.name


float32 = dtype("float32", 4, True)
bfloat16 = dtype("bfloat16", 2, True)
int64 = dtype("int64", 8, False)
Device = collections.namedtuple("Device", "type index")
Device.__str__ = lambda self: self.type if self.index is None else "%s:%d" % self
# How often somebody read a value back from a device.
synchronizations = 0


class Tensor:
    def __init__(self, data, shape=None, dtype=float32, device="cpu", requires_grad=False):
        self.data, self.dtype = list(data), dtype
        self.shape = tuple(shape) if shape is not None else (len(self.data),)
        kind, _, index = device.partition(":")
        self.device = Device(kind, int(index) if index else None)
        self.requires_grad, self.grad = requires_grad, None
        self.is_sparse = False

    def numel(self):
        return math.prod(self.shape)

    def dim(self):
        return len(self.shape)

    def element_size(self):
        return self.dtype.size

    def is_floating_point(self):
        return self.dtype.floating

    def is_complex(self):
        return False

    def detach(self):
        return self

    def float(self):
        return self

    def to(self, device, non_blocking=False):
        assert non_blocking, "this would wait for the device"
        return self

    def any(self):
        return Tensor([float(any(self.data))], (), device=str(self.device))

    def tolist(self):
        global synchronizations
        synchronizations += 1
        return self.data

    def __float__(self):
        global synchronizations
        synchronizations += 1
        return float(self.data[0])

    def backward(self):
        autograd.backward(self)


def stack(tensors):
    return Tensor([tensor.data[0] for tensor in tensors])


def isinf(tensor):
    return Tensor([float(math.isinf(each)) for each in tensor.data])


def is_grad_enabled():
    return True


class no_grad:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


compiler = types.SimpleNamespace(is_compiling=lambda: False)
