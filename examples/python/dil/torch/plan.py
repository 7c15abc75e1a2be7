"""Plans: one object for a pattern, on any dtype, device and sizes.

In: a text, a path or the name of a preset. Out: a short name, under which the
ops of ops.py find the plan, and a kernel for each kind of call, made when such
a call comes first.
"""

import hashlib
import os
import threading
import warnings

import torch

import dil
from dil import Error, _quick

_plans = {}    # by name
_found = {}    # by what attention() was given
_contexts = {}  # by device
_lock = threading.RLock()
_lost = []     # what a fork left behind, which its child must not free


def _forget():
    """In a forked child: contexts of the parent have their threads there."""
    global _lock
    _lock = threading.RLock()
    _lost.append(dict(_contexts))
    _contexts.clear()
    for plan in _plans.values():
        for of in (plan._programs, plan._kernels, plan._rank_kernels):
            _lost.append(dict(of))
            of.clear()
    _quick.forget()


os.register_at_fork(after_in_child=_forget)


def _context(device):
    """The one context of a device."""
    with _lock:
        if device not in _contexts:
            _contexts[device] = dil.Context(str(device))
        return _contexts[device]


def _how(source):
    """A text, or a path (that of a preset, too), as dil.Program takes it."""
    try:
        source = os.fspath(source)
    except TypeError:
        raise Error("DIL_USAGE", "a plan is a dil.torch.Plan, the text of a "
                    f"pattern, a path or a preset's name, got {source!r}"
                    ) from None
    if "{" in source:
        return {"text": source}
    if source.isidentifier() and not os.path.exists(source):
        return {"path": "preset:" + source}
    return {"path": source}


class Plan:
    """A pattern of a text, of a file or of a preset; `defines` replaces the
    values of its lets, `kernel` names one where there are several.

    Heads, head dims and dtype are those of the tensors of a call, whatever the
    pattern says. What is wrong with the pattern is told here. Plans of the same
    pattern share their kernels.
    """

    def __init__(self, source, defines=None, kernel=None):
        self._made = source, dict(defines or {}), kernel
        self._how = _how(source)
        self._programs, self._kernels, self._rank_kernels = {}, {}, {}
        first = self._program(torch.device("cpu")).kernel(kernel)
        self.kernel_name = first.name
        self.input_names = first.input_names
        self.has_lse, self.has_dropout = first.has_lse, first.has_dropout
        self.takes_scale = first.takes_scale
        self.any_order = "gradient_order any" in first.schedule
        self.list_count = first._list_count  # of the blocks that it chooses
        self.no_gradients = None  # or the error of who asks for them
        self.differentiable_inputs = self._differentiable(kernel)
        self.name = f"{first.name}_{self._hash(first)}"
        with _lock:
            self.number = len(_plans)  # of the quick way
            known = _plans.setdefault(self.name, self)
        self.number = known.number
        self._programs, self._kernels = known._programs, known._kernels
        self._rank_kernels = known._rank_kernels

    def __repr__(self):
        return f"<dil.torch.Plan '{self.name}'>"

    def __reduce__(self):
        return Plan, self._made

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self

    def _hash(self, first):
        """The same in every process, so that a saved graph finds its plan."""
        parts = [self._made[1:], first.plan_hash]
        if "text" in self._how:
            parts.append(self._how["text"])
        elif self._how["path"].startswith("preset:"):
            parts.append(self._how["path"])
        else:
            with open(self._how["path"], "rb") as file:
                parts.append((os.path.realpath(file.name), file.read()))
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:8]

    def _program(self, device):
        with _lock:
            if device not in self._programs:
                self._programs[device] = dil.Program(
                    defines=self._made[1], context=_context(device), **self._how)
            return self._programs[device]

    def _differentiable(self, kernel):
        """Which inputs have a gradient."""
        try:
            both = self._program(torch.device("cpu")).kernel(kernel,
                                                             backward=True)
        except Error as error:
            self.no_gradients = error
            return (False,) * len(self.input_names)
        return tuple(both._has_gradient(i)
                     for i in range(len(self.input_names)))

    def kernel(self, q, k, v, backward=False):
        """The kernel for tensors as these."""
        _, _, heads, head_dim = q.shape
        if backward and self.any_order:
            self._check_order(q.device)
        key = (q.dtype, q.device, heads, k.shape[2], head_dim, v.shape[3],
               backward)
        found = self._kernels.get(key)
        return found or self._make(key, q, k, v)

    def rank_kernel(self, q, k, v):
        """The kernel for a rank's rows, where the plan has gradients with them. On
        a GPU it is another one than that of whole sequences, and its gradients
        have a fixed order, whatever the plan's schedule says."""
        backward = self.no_gradients is None
        if not q.is_cuda:
            return self.kernel(q, k, v, backward)
        sizes = (q.dtype, q.device, q.shape[2], k.shape[2], q.shape[3], v.shape[3])
        with _lock:
            if sizes not in self._rank_kernels:
                self._rank_kernels[sizes] = self._kernel(*sizes, backward,
                                                         ranks=True)
            return self._rank_kernels[sizes]

    def _check_order(self, device):
        """As PyTorch does where an op of its own has no fixed order."""
        if (device.type == "cpu"
                or not torch.are_deterministic_algorithms_enabled()):
            return
        text = (f"plan '{self.name}' adds gradients in any order on a GPU, and "
                "torch.use_deterministic_algorithms(True) asks for a fixed one: "
                "take `gradient_order any` from its schedule, or set "
                "warn_only=True")
        if not torch.is_deterministic_algorithms_warn_only_enabled():
            raise Error("DIL_USAGE", text)
        warnings.warn(text, stacklevel=2)

    def _kernel(self, dtype, device, heads, kv_heads, head_dim, value_dim, backward,
                ranks=False):
        return self._program(device).kernel(
            self._made[2], dtype=dtype, heads=heads, kv_heads=kv_heads,
            head_dim=head_dim, value_dim=value_dim, backward=backward,
            ranks=ranks)

    def _make(self, key, q, k, v):
        with _lock:
            if key not in self._kernels:
                self._kernels[key] = self._kernel(*key)
                self._tell(key[:-1], q, k, v)
            return self._kernels[key]

    def _tell(self, kind, q, k, v):
        """The quick way of the kernels for tensors as these."""
        forward, backward = (self._kernels.get((*kind, x)) for x in (False, True))
        quick = [_quick.is_quick(x) for x in (torch.Tensor, torch.nn.Parameter)]
        if forward and all(quick):
            # Else it is checked, or finds what the run has left for it.
            quick_backward = (backward and not self.any_order
                              and not backward.saves)
            _quick.learn(self.number, q, k, v, forward._handle,
                         backward._handle if quick_backward else 0,
                         self.takes_scale, self.has_lse)


def find(source):
    """The plan of attention()'s argument, made once."""
    if isinstance(source, Plan):
        return source
    with _lock:
        if source not in _found:
            _found[source] = Plan(source)
        return _found[source]


def named(name):
    """The plan that an op names."""
    if name not in _plans:
        raise Error("DIL_USAGE", f"there is no plan '{name}' in this process: "
                    "make its dil.torch.Plan first")
    return _plans[name]
