"""Rings: one sequence on the processes of a process group.

    ring = dil.torch.Ring("longnet.dil", topology="node")
    q, k, v = (ring.shard(x) for x in (q, k, v))
    o = ring.attention(q, k, v)          # this process's rows; autograd knows it

The process group brings the ranks together and nothing more: rows travel by
dil's own links. Each process calls with its own rows, in the same order as all
others; a mistake of one of them is a `dil.Error` on each.
"""

import ctypes
import os
import socket
import threading

import torch
import torch.distributed as dist

from dil import Error, _c
from .plan import find

__all__ = ["Ring"]

LAYOUTS = ("contiguous", "zigzag", "striped")
_TYPES = {torch.float32: (2, 32), torch.bfloat16: (4, 16),
          torch.float16: (2, 16), torch.int32: (0, 32), torch.uint8: (1, 8),
          torch.bool: (6, 8)}


def _refuse(text):
    raise Error("DIL_USAGE", text)


# ---- tensors ------------------------------------------------------------------


def _view(x):
    """A DLTensor of a tensor, which must outlive it."""
    if x.device.type != "cpu":
        _refuse(f"a tensor is on {x.device}: in this build the ranks of a ring "
                "are on processors")
    if x.dtype not in _TYPES:
        _refuse(f"tensors of {x.dtype} cannot be passed")
    many = ctypes.c_int64 * max(x.dim(), 1)
    code, bits = _TYPES[x.dtype]
    return _c.Tensor(x.data_ptr(), _c.Device(1, 0), x.dim(),
                     _c.DataType(code, bits, 1), many(*x.shape),
                     many(*x.stride()), 0)


def _pointers(views):
    """An array of pointers to DLTensors, None for NULL."""
    made = (_c.TensorPointer * max(len(views), 1))()
    for i, view in enumerate(views):
        if view is not None:
            made[i] = ctypes.pointer(view)
    return made


def _rows(x):
    """Rows whose elements stand side by side."""
    return x if x.stride(-1) == 1 or x.shape[-1] < 2 else x.contiguous()


# ---- one rank -----------------------------------------------------------------


class _Rank:
    """This process's rank for the calls of one kernel."""

    def __init__(self, kernel, ring, meet):
        self.kernel, self.pointer = kernel, ctypes.c_void_p()
        options = _c.RankOptions(
            meet=meet.encode(), rank=ring.rank, ranks=ring.ranks,
            layout=LAYOUTS.index(ring.layout), gather=int(ring.gathers),
            timeout=ring.timeout)
        _c.must(_c.library.dil_rank_new(
            ctypes.c_void_p(kernel._handle), ctypes.byref(options),
            ctypes.byref(self.pointer)))

    def __del__(self):
        if self.pointer:
            _c.library.dil_rank_free(self.pointer)

    def arguments(self, how, q, k, v, o, lse, inputs):
        """The call as dil takes it, and what must outlive it."""
        views = [_view(x) for x in (q, k, v, o)]
        sums = None if lse is None else _view(lse)
        others = _pointers([_view(x) for x in inputs])
        made = _c.Arguments(
            q=ctypes.pointer(views[0]), k=ctypes.pointer(views[1]),
            v=ctypes.pointer(views[2]), o=ctypes.pointer(views[3]),
            lse=None if sums is None else ctypes.pointer(sums),
            inputs=others if inputs else None, input_count=len(inputs),
            train=int(how.train), seed=how.seed, scale=how.scale)
        return made, (views, sums, others)

    def run(self, how, q, k, v, inputs):
        o = q.new_empty((*q.shape[:3], v.shape[3]))
        lse = (q.new_empty((q.shape[0], q.shape[2], q.shape[1]),
                           dtype=torch.float32) if self.kernel.has_lse else None)
        made, kept = self.arguments(how, q, k, v, o, lse, inputs)
        _c.must(_c.library.dil_rank_run(self.pointer, ctypes.byref(how.sizes),
                                        ctypes.byref(made)))
        del kept
        return o, lse

    def backward(self, how, d_o, dlse, q, k, v, o, lse, inputs, wanted):
        """The gradients of q, k, v and the inputs; None where not wanted."""
        made, kept = self.arguments(how, q, k, v, o, lse, inputs)
        gradients = [torch.empty_like(x, memory_format=torch.contiguous_format)
                     if want or i < 3 else None
                     for i, (x, want) in enumerate(zip((q, k, v, *inputs),
                                                       wanted))]
        views = [None if x is None else _view(x) for x in gradients]
        outer = _view(d_o), None if dlse is None else _view(dlse)
        of_inputs = _pointers(views[3:])
        call = _c.Gradients(
            forward=ctypes.pointer(made), d_o=ctypes.pointer(outer[0]),
            dlse=None if dlse is None else ctypes.pointer(outer[1]),
            dq=ctypes.pointer(views[0]), dk=ctypes.pointer(views[1]),
            dv=ctypes.pointer(views[2]), inputs=of_inputs if inputs else None,
            input_count=len(inputs))
        _c.must(_c.library.dil_rank_backward(
            self.pointer, ctypes.byref(how.sizes), ctypes.byref(call)))
        del kept
        return [x if want else None for x, want in zip(gradients, wanted)]


class _How:
    """What all ranks have alike in a call."""

    def __init__(self, sizes, train, seed, scale):
        self.sizes, self.train, self.seed, self.scale = sizes, train, seed, scale


class _Attend(torch.autograd.Function):

    @staticmethod
    def forward(ctx, rank, how, q, k, v, *inputs):
        o, lse = rank.run(how, q, k, v, inputs)
        ctx.rank, ctx.how, ctx.has_lse = rank, how, lse is not None
        sums = q.new_empty(0, dtype=torch.float32) if lse is None else lse
        ctx.save_for_backward(q, k, v, o, sums, *inputs)
        ctx.set_materialize_grads(False)
        return o, sums

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_o, dlse):
        q, k, v, o, lse, *inputs = ctx.saved_tensors
        d_o = torch.zeros_like(o) if d_o is None else _rows(d_o)
        if not ctx.has_lse:
            lse = dlse = None
        made = ctx.rank.backward(ctx.how, d_o, dlse, q, k, v, o, lse, inputs,
                                 ctx.needs_input_grad[2:])
        return None, None, *made


# ---- the ring -----------------------------------------------------------------


def _meeting(ring):
    """A place to meet that rank 0 chooses: a port of its host."""
    place = [None]
    if ring.rank == 0:
        host = os.environ.get("MASTER_ADDR") or "127.0.0.1"
        with socket.socket() as probe:
            probe.bind(("", 0))
            place[0] = f"{host}:{probe.getsockname()[1]}"
    dist.broadcast_object_list(place, group=ring.group,
                               src=dist.get_global_rank(ring.group, 0))
    return place[0]


class Ring:
    """One sequence on the processes of a group.

    `plan`: what attention() takes. `topology`: the name of one in the plan's
    file, whose ring has as many ranks as the group has processes; without a name
    `layout` ("contiguous", "zigzag" or "striped") and `exchange` ("ring" or
    "gather") say how rows are dealt out and travel. `timeout`: seconds that a
    wait for another process may take; the topology's, or 60, where it is not
    given. All processes make their Ring together.
    """

    def __init__(self, plan, topology=None, group=None, layout="contiguous",
                 exchange="ring", timeout=None):
        if not dist.is_initialized():
            _refuse("a ring needs torch.distributed.init_process_group")
        self.group = dist.group.WORLD if group is None else group
        self.rank = dist.get_rank(self.group)
        self.ranks = dist.get_world_size(self.group)
        self.plan, self.length, self._made = find(plan), None, {}
        self.layout, self.gathers = layout, exchange == "gather"
        self.timeout, self._lock = float(timeout or 0), threading.Lock()
        if layout not in LAYOUTS or exchange not in ("ring", "gather"):
            _refuse(f"layout must be one of {', '.join(LAYOUTS)}, and exchange "
                    f"ring or gather, got {layout!r} and {exchange!r}")
        if topology is not None:
            self._follow(topology)

    def _follow(self, name):
        """The topology of the plan's file."""
        info = _c.TopologyInfo()
        device = torch.device("cpu")
        program = self.plan._program(device)
        _c.must(_c.library.dil_program_topology(
            program._pointer, _c.encoded("topology", name), ctypes.byref(info)))
        if info.heads * info.batch != 1:
            raise Error("DIL_UNSUPPORTED", f"topology '{name}' splits heads or "
                        "batch rows: a Ring splits the sequence alone")
        if info.ring != self.ranks:
            _refuse(f"topology '{name}' has a ring of {info.ring}, and the group "
                    f"has {self.ranks} processes")
        self.layout, self.gathers = LAYOUTS[info.layout], bool(info.gather)
        self.timeout = self.timeout or info.timeout

    def positions(self, length=None):
        """The rows of a sequence that this process owns, int64; `length` is also
        that of the calls to come."""
        if length is not None:
            self.length = int(length)
        if self.length is None:
            _refuse("the length of the sequence is not known yet: give it to "
                    "positions(), or shard() a tensor")
        rows = torch.arange(self.length)
        if self.layout == "striped":
            return rows[self.rank::self.ranks].clone()
        pieces = self.ranks * (2 if self.layout == "zigzag" else 1)
        each, more = divmod(self.length, pieces)
        parts = rows.split([each + (i < more) for i in range(pieces)])
        own = [parts[self.rank]]
        if pieces > self.ranks:
            own.append(parts[pieces - 1 - self.rank])
        return torch.cat(own)

    def shard(self, x, dim=1):
        """The rows along `dim` that this process owns, of a whole tensor."""
        return x.index_select(dim, self.positions(x.shape[dim]).to(x.device))

    def _rank(self, plan, q, k, v):
        """The rank for tensors as these, made by all processes together."""
        kernel = plan.kernel(q, k, v, backward=plan.no_gradients is None)
        with self._lock:
            if kernel._handle not in self._made:
                self._made[kernel._handle] = _Rank(kernel, self, _meeting(self))
            return self._made[kernel._handle]

    def attention(self, q, k, v, plan=None, *, inputs=None, train=False,
                  seed=None, scale=None, length=None, key_length=None,
                  lse=False):
        """attention() of this process's rows, in the order of positions(). The
        sequence has `length` queries and `key_length` keys; what positions() or
        shard() were told last, and as many, where they are not given. `inputs`
        are those of the whole. `seed`: an integer, the same in all processes.
        Returns o, or with `lse` o and lse, of this process's rows.
        """
        from . import _in_order
        plan = self.plan if plan is None else find(plan)
        if length is None and self.length is None:
            _refuse("the length of the sequence is not known: give it")
        length = self.length if length is None else int(length)
        keys = length if key_length is None else int(key_length)
        if plan.has_dropout and train and seed is None:
            _refuse("dropout on a ring needs a seed that all processes have "
                    "alike")
        if lse and not plan.has_lse:
            _refuse(f"plan '{plan.name}' has no lse: its branches have a softmax "
                    "each")
        q, k, v = (_rows(x) for x in (q, k, v))
        rank = self._rank(plan, q, k, v)
        how = _How(_c.Sizes(q.shape[0], length, keys), train,
                   int(seed or 0) % 2 ** 64, rank.kernel._scale(scale))
        o, sums = _Attend.apply(rank, how, q, k, v,
                                *_in_order(plan.name, plan.input_names, inputs))
        return (o, sums) if lse else o
