"""Rings: one sequence on the processes of a process group.

    ring = dil.torch.Ring("longnet.dil", topology="node")
    q, k, v = (ring.shard(x) for x in (q, k, v))
    o = ring.attention(q, k, v)          # this process's rows; autograd knows it

The process group brings the ranks together and nothing more: rows travel by
dil's own links, and between GPUs by NCCL. There each process has a GPU of its
own, on which its tensors are. Each process calls with its own rows, in the same
order as all others; a mistake of one of them is a `dil.Error` on each, within the
timeout.
"""

import contextlib
import ctypes
import socket

import torch
import torch.distributed as dist

from dil import Error, _c
from .agree import Agreement
from .ops import _check, _stream
from .plan import find

__all__ = ["Ring"]

DEFAULT_TIMEOUT = 60.0  # seconds
LAYOUTS = ("contiguous", "zigzag", "striped")
_DEVICES = {"cpu": 1, "cuda": 2}  # as DLPack numbers them
_TYPES = {torch.float32: (2, 32), torch.bfloat16: (4, 16),
          torch.float16: (2, 16), torch.int32: (0, 32), torch.uint8: (1, 8),
          torch.bool: (6, 8)}


def _refuse(text):
    raise Error("DIL_USAGE", text)


# ---- tensors ------------------------------------------------------------------


def _view(x):
    """A DLTensor of a tensor, which must outlive it."""
    if x.device.type not in _DEVICES:
        _refuse(f"a tensor is on {x.device}: the ranks of a ring are on "
                "processors or on CUDA GPUs")
    if x.dtype not in _TYPES:
        _refuse(f"tensors of {x.dtype} cannot be passed")
    many = ctypes.c_int64 * max(x.dim(), 1)
    code, bits = _TYPES[x.dtype]
    device = _c.Device(_DEVICES[x.device.type], x.device.index or 0)
    return _c.Tensor(x.data_ptr(), device, x.dim(), _c.DataType(code, bits, 1),
                     many(*x.shape), many(*x.stride()), 0)


def _pointers(views):
    """An array of pointers to DLTensors, None for NULL."""
    made = (_c.TensorPointer * max(len(views), 1))()
    for i, view in enumerate(views):
        if view is not None:
            made[i] = ctypes.pointer(view)
    return made


def _rows(x):
    """Rows whose elements stand side by side, each with its own sign."""
    x = x.resolve_neg()
    return x if x.stride(-1) == 1 or x.shape[-1] < 2 else x.contiguous()


def _gpu(device):
    """What no rank shares with another: a GPU, by a name that it alone has; None
    of a processor."""
    if device.type == "cpu":
        return None
    known = torch.cuda.get_device_properties(device)
    return f"GPU {getattr(known, 'uuid', device)} of {socket.gethostname()}"


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


class _How:
    """What all ranks have alike in a call, and the device of this one."""

    def __init__(self, kernel, device, sizes, train, seed, scale):
        self.kernel, self.sizes, self.train = kernel, sizes, bool(train)
        self.seed, self.scale = seed, float(kernel._scale(scale))
        self.device = device

    def offer(self):
        """A seed of PyTorch's generator, which draws it again where a checkpoint
        computes the call again."""
        if self.seed is None:
            return int(torch.randint(2 ** 63 - 1, (), dtype=torch.int64))
        return None

    def word(self, call, **more):
        """As the ranks tell it each other."""
        kernel, sizes = self.kernel, self.sizes
        return {"call": call, "device": self.device.type, "dtype": kernel.dtype,
                "heads": kernel.heads, "kv_heads": kernel.kv_heads,
                "head_dim": kernel.head_dim, "value_dim": kernel.value_dim,
                "plan": f"{kernel.name} {kernel.plan_hash:x}",
                "batch": sizes.batch,
                "length": sizes.queries, "key_length": sizes.keys,
                "train": self.train, "seed": self.seed, "scale": self.scale,
                **more}


class _Forward:
    """A call as dil takes it, with all that must outlive it."""

    def __init__(self, how, q, k, v, o, lse, inputs):
        self.how, self.given = how, (q, k, v, o, lse, inputs)
        self._views = [_view(x) for x in (q, k, v, o)]
        self._lse = None if lse is None else _view(lse)
        self._inputs = _pointers([_view(x) for x in inputs])
        at = [ctypes.pointer(view) for view in self._views]
        self.arguments = _c.Arguments(
            q=at[0], k=at[1], v=at[2], o=at[3],
            lse=None if lse is None else ctypes.pointer(self._lse),
            inputs=self._inputs if inputs else None, input_count=len(inputs),
            train=int(how.train), seed=how.seed or 0, scale=how.scale,
            stream=_stream(q) if q.is_cuda else None)

    def run(self, rank):
        _c.must(_c.library.dil_rank_run(rank, ctypes.byref(self.how.sizes),
                                        ctypes.byref(self.arguments)))


class _Backward:
    """The gradients of a call; of q, k and v they are always made. A GPU adds
    them up in place, as float32."""

    def __init__(self, forward, d_o, dlse, wanted):
        q, k, v, _, _, inputs = forward.given
        self.forward, self.given = forward, (d_o, dlse)
        self.wanted = wanted
        self._types = [x.dtype for x in (q, k, v, *inputs)]
        rows = torch.float32 if q.is_cuda else q.dtype
        self.made = [torch.empty_like(x, dtype=rows,
                                      memory_format=torch.contiguous_format)
                     for x in (q, k, v)]
        self.made += [
            torch.empty_like(x, memory_format=torch.contiguous_format)
            if want else None for x, want in zip(inputs, wanted[3:])]
        views = [None if x is None else _view(x) for x in self.made]
        self._outer = [None if x is None else _view(x) for x in (d_o, dlse)]
        self._inputs = _pointers(views[3:])
        at = _pointers(self._outer + views[:3])
        self.gradients = _c.Gradients(
            forward=ctypes.pointer(forward.arguments), d_o=at[0], dlse=at[1],
            dq=at[2], dk=at[3], dv=at[4],
            inputs=self._inputs if inputs else None, input_count=len(inputs))

    def run(self, rank):
        _c.must(_c.library.dil_rank_backward(
            rank, ctypes.byref(self.forward.how.sizes),
            ctypes.byref(self.gradients)))

    def found(self):
        return [x.to(dtype) if want else None
                for x, want, dtype in zip(self.made, self.wanted, self._types)]


class _Attend(torch.autograd.Function):

    @staticmethod
    def forward(ctx, ring, how, q, k, v, *inputs):
        with ring._telling():
            o = q.new_empty((*q.shape[:3], v.shape[3]))
            lse = (q.new_empty((q.shape[0], q.shape[2], q.shape[1]),
                               dtype=torch.float32)
                   if how.kernel.has_lse else None)
            call = _Forward(how, q, k, v, o, lse, inputs)
        ring._together(call, how, how.word("forward"))
        ctx.ring, ctx.how, ctx.has_lse = ring, how, lse is not None
        sums = q.new_empty(0, dtype=torch.float32) if lse is None else lse
        ctx.save_for_backward(q, k, v, o, sums, *inputs)
        ctx.set_materialize_grads(False)
        return o, sums

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_o, dlse):
        ring, how, wanted = ctx.ring, ctx.how, ctx.needs_input_grad[2:]
        with ring._telling():
            q, k, v, o, lse, *inputs = ctx.saved_tensors
            d_o = torch.zeros_like(o) if d_o is None else _rows(d_o)
            if not ctx.has_lse:
                lse = dlse = None
            elif dlse is not None:
                dlse = dlse.resolve_neg()
            call = _Backward(_Forward(how, q, k, v, o, lse, inputs), d_o, dlse,
                             wanted)
        ring._together(call, how, how.word(
            "backward", input_gradients=wanted[3:], dlse=dlse is not None))
        return None, None, *call.found()


# ---- the ring -----------------------------------------------------------------


_LONGEST = 1e9  # seconds of a timeout


def _seconds(timeout):
    """A timeout by which the others can be told that it is none."""
    good = isinstance(timeout, (int, float)) and 0 < timeout <= _LONGEST
    return timeout if good else DEFAULT_TIMEOUT


class Ring:
    """One sequence on the processes of a group.

    `plan`: what attention() takes; None where each call names one. `topology`: the
    name of one in the plan's file, whose ring has as many ranks as the group has
    processes; without a name `layout` ("contiguous", "zigzag" or "striped") and
    `exchange` ("ring" or "gather") say how rows are dealt out and travel.
    `timeout`: seconds that a wait for another process may take; the topology's,
    or 60, where it is not given. All processes make their Ring together; one that
    comes alone hears so within `timeout`, or 60 seconds where it is not given.
    """

    def __init__(self, plan=None, topology=None, group=None, layout="contiguous",
                 exchange="ring", timeout=None):
        if not dist.is_initialized():
            _refuse("a ring needs torch.distributed.init_process_group")
        self.group = dist.group.WORLD if group is None else group
        self.rank = dist.get_rank(self.group)
        self.ranks = dist.get_world_size(self.group)
        self.length, self._made = None, {}  # ranks, by the handles of kernels
        self.layout, self.gathers = layout, exchange == "gather"
        self._agreement = Agreement(self.group, _seconds(timeout))
        with self._telling():
            self.plan = None if plan is None else find(plan)
            self._choose(topology, layout, exchange, timeout)
        self._agreement.reach({"layout": self.layout, "gather": self.gathers,
                               "timeout": self.timeout})
        self._agreement.wait(self.timeout)

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        _refuse("a dil.torch.Ring cannot be pickled, it is of these processes: "
                "make it anew, and patch the model again")

    def _choose(self, topology, layout, exchange, timeout):
        if layout not in LAYOUTS or exchange not in ("ring", "gather"):
            _refuse(f"layout must be one of {', '.join(LAYOUTS)}, and exchange "
                    f"ring or gather, got {layout!r} and {exchange!r}")
        self.timeout = DEFAULT_TIMEOUT
        if topology is not None:
            if self.plan is None:
                _refuse("a topology is one of the plan's file: give the plan")
            self._follow(topology)
        if timeout is not None:
            self.timeout = float(timeout)
        if not 0 < self.timeout <= _LONGEST:
            _refuse(f"timeout must be seconds, more than 0 and at most "
                    f"{_LONGEST:g}, got {timeout!r}")

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
        self.timeout = info.timeout or self.timeout

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

    @contextlib.contextmanager
    def _telling(self):
        """What goes wrong here, before the processes agree on a call, is told to
        the others, which are on their way to it."""
        try:
            yield
        except Exception as problem:
            self._agreement.refuse(problem)
            raise

    def _together(self, call, how, word):
        """Runs a call of which all processes say the same word, on the rank of
        its kernel, which they make together."""
        kernel = how.kernel
        all_have, seed = self._agreement.reach(
            word, kernel._handle in self._made, how.offer(), _gpu(how.device))
        if how.seed is None:
            how.seed = call.arguments.seed = seed
        rank = self._made.pop(kernel._handle, None)
        if not all_have:
            rank = _Rank(kernel, self, self._agreement.meeting())
        call.run(rank.pointer)
        self._made[kernel._handle] = rank  # one that failed is of no more use

    def attention(self, q, k, v, plan=None, *, inputs=None, train=False,
                  seed=None, scale=None, length=None, key_length=None,
                  lse=False):
        """attention() of this process's rows, in the order of positions(). The
        sequence has `length` queries and `key_length` keys; what positions() or
        shard() were told last, and as many, where they are not given. `inputs`
        are those of the whole. `seed`: an integer, the same in all processes; where
        dropout has none, PyTorch's generator of rank 0 draws it.
        Returns o, or with `lse` o and lse, of this process's rows.
        """
        with self._telling():
            if plan is None and self.plan is None:
                _refuse("the ring has no plan of its own: give one")
            plan = self.plan if plan is None else find(plan)
            how, given = self._prepare(plan, q, k, v, inputs, train, seed, scale,
                                       length, key_length, lse)
        o, sums = _Attend.apply(self, how, *given)
        return (o, sums) if lse else o

    def _prepare(self, plan, q, k, v, inputs, train, seed, scale, length,
                 key_length, lse):
        """A call as _Attend takes it."""
        from . import _in_order
        if length is None and self.length is None:
            _refuse("the length of the sequence is not known: give it")
        length = self.length if length is None else int(length)
        keys = length if key_length is None else int(key_length)
        draws = plan.has_dropout and train and seed is None
        if lse and not plan.has_lse:
            _refuse(f"plan '{plan.name}' has no lse: its branches have a softmax "
                    "each")
        given = _in_order(plan.name, plan.input_names, inputs)
        _check(q, k, v, given, plan)
        q, k, v = (_rows(x) for x in (q, k, v))
        kernel = plan.rank_kernel(q, k, v)
        how = _How(kernel, q.device, _c.Sizes(q.shape[0], length, keys), train,
                   None if draws else int(seed or 0) % 2 ** 64, scale)
        return how, (q, k, v, *(x.resolve_neg() for x in given))
