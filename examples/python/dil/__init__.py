"""dil from Python: patterns of attention, compiled and run on arrays.

By ctypes alone: it works without dil.torch and dil.hf. Tensors are NumPy arrays
or anything with `__dlpack__` (PyTorch, CuPy, JAX, ...); nothing is copied. The
interpreter's lock is free while dil works, and a mistake is a `dil.Error` with
dil's own text, caret lines included. `import dil.torch` has functions that
PyTorch's autograd knows.

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

from . import _c, _layout, _quick, _tensors
from ._c import Error, library as _library, must as _must, version
from ._tensors import bfloat16, float32

__all__ = ["Error", "Context", "Program", "Kernel", "attention", "bfloat16",
           "float32", "version"]


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
        options = _c.ContextOptions(device=_device(device), threads=threads)
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
    torch = _tensors.pytorch()
    if torch is not None and isinstance(given, torch.device):
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
        pairs, count = _c.define_pairs(defines)
        options = _c.ProgramOptions(defines=pairs, define_count=count)
        tail = (ctypes.byref(options), ctypes.byref(pointer))
        if path is not None:
            _must(_library.dil_program_read(self.context._pointer,
                                            _c.encoded("path", path), *tail))
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
               kv_heads=0, head_dim=0, value_dim=0, ranks=False):
        """The kernel of that name; the only one when not given. backward: with
        gradients. dtype, as dil.attention takes it, and the sizes stand in
        place of the pattern's own. ranks: for dil.torch.Ring, whose ranks have
        parts of sequences."""
        pointer = ctypes.c_void_p()
        options = _c.KernelOptions(
            isa=_c.encoded("isa", isa), backward=int(backward),
            dtype=_c.encoded("dtype", _tensors.dtype_name(dtype)), heads=heads,
            kv_heads=kv_heads, head_dim=head_dim, value_dim=value_dim,
            ranks=int(ranks))
        _must(_library.dil_program_kernel(
            self._pointer, _c.encoded("name", name), ctypes.byref(options),
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
        tensor, self.flags[name], keep = _tensors.view_of(x, name, want,
                                                          self.stream)
        self.alive.append((tensor, keep))
        return ctypes.pointer(tensor)

    def rows(self, x, name):
        _must_be_rows(name, x)
        return self.pointer(x, name, self.kernel._code)

    def arguments(self, q, k, v, o, lse, inputs, lengths, train, seed, scale,
                  lies, lists, saved=None):
        """`inputs` in the kernel's order."""
        kernel = self.kernel
        for name, x in ("q", q), ("k", k), ("v", v):
            _must_be_rows(name, x)
        tensors = [self.pointer(x, f"input '{name}'")
                   for name, x in zip(kernel.input_names, inputs)]
        arguments = _c.Arguments(
            q=self.rows(q, "q"), k=self.rows(k, "k"), v=self.rows(v, "v"),
            o=self.pointer(o, "o", kernel._code),
            inputs=_c.array_of(_c.TensorPointer, len(tensors))(*tensors),
            input_count=len(tensors), train=int(train), scale=scale,
            stream=self.stream)
        if isinstance(seed, int):
            arguments.seed = seed
        else:
            arguments.seed_tensor = self.pointer(seed, "seed")
        if lse is not None:
            arguments.lse = self.pointer(lse, "lse")
        if lengths is not None:
            arguments.lengths = self.pointer(
                _tensors.as_int32("lengths", lengths, q, self.stream), "lengths")
        for name, x in lies.tensors():
            setattr(arguments, name, self.pointer(x, name))
        arguments.longest_q = _layout.counted(lies.offsets_q, lies.longest_q)
        arguments.longest_k = _layout.counted(lies.offsets_k, lies.longest_k)
        pointers = [self.pointer(x, "a list of blocks") for x in lists]
        arguments.selection = _c.array_of(_c.TensorPointer, len(lists))(*pointers)
        arguments.selection_count = len(lists)
        if saved is not None:
            views = (self.pointer(x, "saved").contents for x in (saved, q))
            arguments.saved, arguments.saved_bytes = _tensors.bytes_of(*views, "saved")
        arguments.o_flags = self.flags["o"]
        arguments.lse_flags = self.flags.get("lse", 0)
        return arguments


class Kernel(_Owned):
    """A compiled pattern; a call runs it."""

    def __init__(self, pointer, context):
        super().__init__(pointer, _library.dil_kernel_free)
        self.context = context
        info = _c.KernelInfo()
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
        self.dtype = _tensors.NAMES[info.dtype.code, info.dtype.bits]
        self.plan_hash = info.plan_hash
        self._handle, self._input_count = pointer.value, info.input_count
        self._list_count = info.selection_count
        self.input_names = tuple(name for name, _, _ in self.inputs(1, 1, 1))
        self._differentiable = [name for i, name in enumerate(self.input_names)
                                if self._has_gradient(i)]
        self.saves = self.has_backward and self.saved_bytes(1, 64, 64) > 0

    def __repr__(self):
        stored = _tensors.STORED.get(self.dtype, "bf16")
        kv = "" if self.kv_heads == self.heads else f" (kv {self.kv_heads})"
        value = ("" if self.value_dim == self.head_dim
                 else f" (value {self.value_dim})")
        return (f"<dil.Kernel '{self.name}' on {self.device}: {self.heads} heads"
                f"{kv} of {self.head_dim}{value}, {stored}>")

    def saved_bytes(self, batch, queries, keys):
        """Bytes of `saved` of a call; 0: gradients make nothing of it again."""
        bytes_, sizes = ctypes.c_int64(), _c.Sizes(batch, queries, keys)
        _must(_library.dil_kernel_saved(self._pointer, ctypes.byref(sizes),
                                        ctypes.byref(bytes_)))
        return bytes_.value

    def inputs(self, batch, queries, keys):
        """Name, dtype and shape of each declared input, for these sizes."""
        sizes = _c.Sizes(batch, queries, keys)
        return [self._tensor(64 + i, sizes) for i in range(self._input_count)]

    def _tensor(self, number, sizes):
        info = _c.TensorInfo()
        _must(_library.dil_kernel_tensor(self._pointer, number,
                                         ctypes.byref(sizes), ctypes.byref(info)))
        return (info.name.decode(),
                _tensors.NAMES[info.dtype.code, info.dtype.bits],
                tuple(info.shape[:info.rank]))

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

    def _lies(self, q, stream, offsets_q, offsets_k, longest_q, longest_k, pages):
        """The layout of a call."""
        return _layout.layout(
            lambda name, x: _tensors.as_int32(name, x, q, stream), offsets_q,
            offsets_k, longest_q, longest_k, pages)

    def __call__(self, q, k, v, inputs=None, out=None, lse=False, lengths=None,
                 train=False, seed=0, scale=None, stream=None, offsets_q=None,
                 offsets_k=None, longest_q=None, longest_k=None, pages=None,
                 selection=False, saved=None):
        """Attention of q [B, N, H, D] over k [B, M, Hkv, D], v [B, M, Hkv, Dv].

        `inputs`: the declared inputs by name. `out`, `lse`: tensors to write
        to; `lse=True` makes one, float32 [B, H, N]. `lengths`: the keys that
        each batch row has, int32 [B]; int64 and a list of integers become that,
        on their own device or that of q. `seed`: an integer, or a tensor of one
        int64 on the device of q, which kernels read when they run. `scale`: of
        a pattern that says `scale runtime`, and of no other. `stream`: a CUDA
        stream's handle, the default one when not given; what the tensors' owner
        has yet to write comes first, and the call does not wait for its own
        end. A tensor that requires a gradient is refused, but under
        torch.no_grad().
        `offsets_q`: q [1, T, H, D] holds documents, of which document b has the
        rows offsets_q[b] to offsets_q[b + 1] - 1; int32 [B + 1], or as lengths.
        `offsets_k`: the same of k and v, where it differs. `longest_q`,
        `longest_k`: rows of the longest document, needed on a GPU alone.
        `pages`: k and v are a cache [pages, rows, Hkv, D], and pages[b, j / rows]
        has key j of batch row b; int32 [B, n], with `lengths`.
        `selection`: also return what each `keep top` and `keep mass` chose, a list
        of pairs of rows [B, H, nbq + 1] and cols [B, H, ...]: block r of queries
        has the blocks of keys cols[rows[r]] to cols[rows[r + 1] - 1].
        `saved`: a tensor of saved_bytes() bytes, uint8 beside q, where the call leaves
        what backward() would make again; backward() takes it as well.
        Returns the output, and lse and the selection where they are asked for.
        """
        if lse is False:
            lse = None
        given = self._ordered(inputs) if inputs or self.input_names else ()
        call = (q, k, v, out, lse, lengths, given, train, seed,
                self._scale(scale), stream)
        lies = None
        if not offsets_q is offsets_k is longest_q is longest_k is pages is None:
            lies = self._lies(q, stream, offsets_q, offsets_k, longest_q,
                              longest_k, pages)
        if selection:
            return self._with_selection(call, lies, saved)
        made = (saved is None and _quick.is_quick(type(q))
                and _tensors.is_direct(q, k, v, out, *given)
                and _quick.run(self._handle, *call, lies)
                or self._run_at_length(*call, lies, saved=saved))
        if made is not True:
            out = out if out is not None else made[0]
            lse = made[1] if lse is True else lse
        return out if lse is None else (out, lse)

    def _with_selection(self, call, lies, saved):
        """o, lse where it is wanted, and pairs of lists."""
        q, k, _, _, lse, *_ = call
        lists = self._lists(q, k)
        o, sums = self._run_at_length(*call, lies, lists, saved)
        chosen = list(zip(lists[::2], lists[1::2]))
        return (o, chosen) if lse is None else (o, sums, chosen)

    def _lists(self, q, k):
        """For the blocks that a call chooses: rows and cols of each choice."""
        _must_be_rows("q", q), _must_be_rows("k", k)
        if not self._list_count:
            raise Error("DIL_USAGE", f"kernel '{self.name}' chooses no blocks: "
                        "selection wants a `keep top` or `keep mass`")
        sizes = _c.Sizes(q.shape[0], q.shape[1], k.shape[1])
        return [_tensors.like(q, self._tensor(192 + i, sizes)[2], "int32")
                for i in range(self._list_count)]

    def _run_at_length(self, q, k, v, o, lse, lengths, inputs, train, seed, scale,
                       stream, lies=None, lists=(), saved=None):
        """o and lse, which are made where they are None and True."""
        _must_be_rows("q", q)
        if o is None:
            o = _tensors.like(q, tuple(q.shape[:3]) + (self.value_dim,), None)
        if lse is True:
            lse = _tensors.like(q, (q.shape[0], self.heads, q.shape[1]),
                                "float32")
        views = _Views(self, stream)
        arguments = views.arguments(q, k, v, o, lse, inputs, lengths, train, seed,
                                    scale, lies or _layout.PLAIN, lists, saved)
        _must(_c.kernel_run(self._handle, ctypes.addressof(arguments)))
        return o, lse

    def _has_gradient(self, index):
        info, sizes = _c.TensorInfo(), _c.Sizes(1, 1, 1)
        return not _library.dil_kernel_tensor(
            self._pointer, 128 + index, ctypes.byref(sizes), ctypes.byref(info))

    def backward(self, d_o, q, k, v, o, lse=None, inputs=None, dlse=None,
                 wanted=None, out=None, lengths=None, train=False, seed=0,
                 scale=None, stream=None, offsets_q=None, offsets_k=None,
                 longest_q=None, longest_k=None, saved=None):
        """Gradients of a call that ran with the same q, k, v, inputs, lengths,
        train, seed, scale and offsets.

        `o` and `lse` are what it wrote (lse may be left out: then it is
        computed again); `d_o` is the gradient of o, `dlse` that of lse, where
        it is used. `wanted`: names out of "q", "k", "v" and the inputs with a
        gradient; all of them when not given. `out`: tensors to write to, by
        name, of the type of what they are gradients of or float32. `saved`: the call's.
        Returns a dict of gradients by name. The kernel must have been made with
        `backward=True`, or say `backward` in its file.
        """
        ordered, out = self._ordered(inputs), out or {}
        named = {"q": q, "k": k, "v": v, **dict(zip(self.input_names, ordered))}
        if wanted is None:
            wanted = ["q", "k", "v", *self._differentiable]
        for name in wanted:
            if name not in named:
                raise Error("DIL_USAGE", f"kernel '{self.name}' has no tensor "
                            f"'{name}' with a gradient")
        asked = [out.get(name, True if name in wanted else None)
                 for name in named]
        call = (q, k, v, o, lse, ordered, lengths, train, seed,
                self._scale(scale), stream)
        lies = self._lies(q, stream, offsets_q, offsets_k, longest_q, longest_k,
                          None)
        found = (saved is None and _quick.is_quick(type(q)) and self.has_backward
                 and _tensors.is_direct(d_o, dlse, q, k, v, o, lse, *ordered)
                 and _quick.backward(self._handle, d_o, dlse, *call, asked, lies))
        names = [name for name, x in zip(named, asked) if x is not None]
        if found is not False:
            return dict(zip(names, found))
        made = {name: _tensors.like(x, tuple(x.shape), None) if y is True else y
                for (name, x), y in zip(named.items(), asked) if y is not None}
        self._backward_at_length(d_o, dlse, call, lies, made, saved)
        return made

    def _backward_at_length(self, d_o, dlse, call, lies, made, saved=None):
        """Writes to the tensors of `made`, which have names."""
        *call, stream = call
        views = _Views(self, stream)
        q, k, v, o, lse, inputs, lengths, *numbers = call
        call = views.arguments(q, k, v, o, lse, inputs, lengths, *numbers, lies,
                               (), saved)
        count = len(inputs)
        g = _c.Gradients(forward=ctypes.pointer(call),
                         d_o=views.rows(d_o, "do"), input_count=count)
        if dlse is not None:
            g.dlse = views.pointer(dlse, "dlse")
        for name in ("q", "k", "v"):
            if name in made:
                setattr(g, f"d{name}", views.rows(made[name], f"d{name}"))
                setattr(g, f"d{name}_flags", views.flags[f"d{name}"])
        pointers = _c.array_of(_c.TensorPointer, count)()
        flags = _c.array_of(ctypes.c_uint64, count)()
        for i, name in enumerate(self.input_names):
            if name in made:
                label = f"the gradient of input '{name}'"
                pointers[i] = views.pointer(made[name], label)
                flags[i] = views.flags[label]
        g.inputs, g.input_flags = pointers, flags
        _must(_library.dil_kernel_backward(self._pointer, ctypes.byref(g)))


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
    pairs, count = _c.define_pairs(defines)
    options = _c.AttentionOptions(
        preset=_c.encoded("preset", preset), heads=heads, kv_heads=kv_heads,
        head_dim=head_dim, value_dim=value_dim,
        dtype=_c.encoded("dtype", _tensors.dtype_name(dtype)),
        causal=int(causal), branch_count=len(segments),
        segments=(ctypes.c_int64 * len(segments))(*segments),
        dilations=(ctypes.c_int64 * len(segments))(*dilations),
        window=None if window is None else (ctypes.c_int64 * 2)(*window),
        combine=_c.encoded("combine", combine), defines=pairs,
        define_count=count, backward=int(backward))
    pointer = ctypes.c_void_p()
    _must(_library.dil_attention(context._pointer, ctypes.byref(options),
                                 ctypes.byref(pointer)))
    return Kernel(pointer, context)
