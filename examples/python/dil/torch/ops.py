"""The ops dil::attention and dil::attention_backward.

In: tensors and the name of a plan. Out: o and lse, or gradients. The ops are
registered with PyTorch's dispatcher: for processors and GPUs, as fakes for
torch.compile, under autocast, and with the autograd formula below the Autograd
key, so that a bare op keeps its gradients as well. `attend` leaves the
dispatcher out where nothing but autograd looks at a call, and a call of the op
from Python does where nobody looks.
"""

import torch
from torch import _C, library
from torch.autograd import forward_ad

from dil import Error, _quick
from dil._layout import PLAIN, Layout
from .plan import _plans, named

_library = library.Library("dil", "DEF")
_library.define(
    "attention"
    "(Tensor q, Tensor k, Tensor v, Tensor[] inputs, str plan,"
    " Tensor? lengths=None, float? scale=None, Tensor? seed=None,"
    " bool train=False, Tensor? offsets_q=None, Tensor? offsets_k=None,"
    " SymInt longest_q=0, SymInt longest_k=0, Tensor? pages=None)"
    " -> (Tensor o, Tensor lse)")
_library.define(
    "attention_backward"
    "(Tensor? grad_o, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, Tensor o,"
    " Tensor lse, Tensor[] inputs, str plan, Tensor? lengths, float? scale,"
    " Tensor? seed, bool train, bool[] wanted, Tensor? offsets_q=None,"
    " Tensor? offsets_k=None, SymInt longest_q=0, SymInt longest_k=0)"
    " -> Tensor[]")

attention = torch.ops.dil.attention.default
attention_backward = torch.ops.dil.attention_backward.default
dispatched = attention._op  # by the dispatcher, whoever looks on


def _tangents_may_be():
    return forward_ad._current_level >= 0


# Whom the quick way asks before it takes a call: who may look on.
_NOBODY, _BELOW_AUTOCAST, _EVERYBODY = range(3)
_quick.watch((torch.is_grad_enabled, _C._is_any_autocast_enabled,
              _C._len_torch_dispatch_stack, _C._len_torch_function_stack,
              _C._are_functorch_transforms_active, _C._get_tracing_state,
              _C._autograd._profiler_enabled, _tangents_may_be))


# ---- checks ------------------------------------------------------------------


def _refuse(text):
    raise Error("DIL_USAGE", text)


def _check(q, k, v, inputs, plan, lengths=None, lies=PLAIN):
    """What dil would say of one tensor alone, or could not know; the kernel
    checks the rest."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 4:
            _refuse(f"{name} must be a tensor of 4 dimensions, got {x.dim()}")
        if x.dtype != q.dtype:
            _refuse(f"q, k and v must have one dtype: q has {q.dtype}, {name} "
                    f"{x.dtype}")
    others = [("k", k), ("v", v), ("lengths", lengths), *lies.tensors()]
    others += [(f"input '{name}'", x)
               for name, x in zip(plan.input_names, inputs)]
    for name, x in others:
        if x is not None and x.device != q.device:
            _refuse(f"{name} is on {x.device}, and q on {q.device}: all tensors "
                    "of a call are on one device")
    if len(inputs) != len(plan.input_names):
        _refuse(f"plan '{plan.name}' has {len(plan.input_names)} inputs, got "
                f"{len(inputs)}")


# ---- kernels -----------------------------------------------------------------


def _output(q, v):
    return q.new_empty((*q.shape[:3], v.shape[3]))


def _log_sums(plan, q):
    """Of no elements, where the rows of a plan have no lse."""
    shape = (q.shape[0], q.shape[2], q.shape[1]) if plan.has_lse else (0,)
    return q.new_empty(shape, dtype=torch.float32)


def _stream(q):
    """The handle of the stream on which PyTorch works."""
    return _C._cuda_getCurrentRawStream(q.device.index)


def _seed(q, seed):
    """As a kernel takes it: a tensor on the device of q, or a number."""
    if seed is None:
        return 0
    if (seed.device == q.device and seed.dtype == torch.int64
            and seed.numel() == 1):
        return seed
    return int(seed) % 2 ** 64


def _kernel(q, k, v, inputs, plan, backward=False):
    try:
        return plan.kernel(q, k, v, backward)
    except (ValueError, IndexError):  # of a shape
        _check(q, k, v, inputs, plan)
        raise


def _run(q, k, v, inputs, plan, lengths, scale, seed, train, wants_lse,
         lies=PLAIN):
    """o, and lse where it is wanted; else None."""
    kernel = _kernel(q, k, v, inputs, plan)
    call = (q, k, v, None, True if wants_lse and plan.has_lse else None, lengths,
            inputs, train, _seed(q, seed),
            kernel._scale(scale),
            _stream(q) if q.is_cuda else None)
    made = (_quick.is_quick(type(q))
            and _quick.run(kernel._handle, *call,
                           None if lies is PLAIN else lies))
    if not made:
        _check(q, k, v, inputs, plan, lengths, lies)
        with torch.no_grad():  # autograd is above
            made = kernel._run_at_length(*call, lies)
    if wants_lse and not plan.has_lse:
        made = made[0], _log_sums(plan, q)
    return made


saving = True  # keep_for_gradients() sets it


def _run_saving(q, k, v, inputs, plan, lengths, scale, seed, train, lies):
    """o, lse, and what the run leaves for its gradients; None where it leaves
    nothing, or where more than autograd looks on."""
    if (not saving or any(lies.tensors()) or torch.compiler.is_compiling()
            or type(q) not in (torch.Tensor, torch.nn.Parameter)
            or _C._len_torch_dispatch_stack() or _C._len_torch_function_stack()
            or _C._are_functorch_transforms_active() or _C._get_tracing_state()):
        return None
    kernel = _kernel(q, k, v, inputs, plan, backward=True)
    if not kernel.saves:
        return None
    _check(q, k, v, inputs, plan, lengths, lies)
    try:
        saved = q.new_empty(kernel.saved_bytes(q.shape[0], q.shape[1], k.shape[1]),
                            dtype=torch.uint8)
    except torch.cuda.OutOfMemoryError:
        return None  # the gradients make it again
    with torch.no_grad():  # autograd is above
        o, lse = kernel._run_at_length(
            q, k, v, None, True if plan.has_lse else None, lengths, inputs, train,
            _seed(q, seed), kernel._scale(scale), _stream(q) if q.is_cuda else None,
            saved=saved)
    return o, lse if plan.has_lse else _log_sums(plan, q), saved


def _layout_of(lies):
    return Layout(*lies) if lies else PLAIN


def _attention(q, k, v, inputs, plan, lengths=None, scale=None, seed=None,
               train=False, *lies):
    plan = named(plan)
    made = _quick.attend(_NOBODY, plan.number, q, k, v, inputs, lengths, scale,
                         seed, train, True, lies)
    return made or _run(q, k, v, tuple(inputs), plan, lengths, scale, seed,
                        train, True, _layout_of(lies))


def _fake(q, k, v, inputs, plan, lengths=None, scale=None, seed=None,
          train=False, *lies):
    plan = named(plan)
    _check(q, k, v, inputs, plan, lengths, Layout(*lies))
    return _output(q, v), _log_sums(plan, q)


def _empty_gradients(q, k, v, inputs, wanted):
    return [torch.empty_like(x, memory_format=torch.contiguous_format)
            for x, want in zip((q, k, v, *inputs), wanted) if want]


def _as_kernels_want(plan, grad_o, grad_lse, o, lse):
    """Autograd hands over any strides: those of a sum's gradient are 0."""
    if grad_o is None:
        grad_o = torch.zeros_like(o)
    elif grad_o.stride(-1) != 1:
        grad_o = grad_o.contiguous()
    return (grad_o, None if grad_lse is None else grad_lse.contiguous(),
            lse if plan.has_lse else None)


def _attention_backward(grad_o, grad_lse, q, k, v, o, lse, inputs, plan, lengths,
                        scale, seed, train, wanted, *lies):
    plan = named(plan)
    grad_o, grad_lse, lse = _as_kernels_want(plan, grad_o, grad_lse, o, lse)
    found = _quick.gradients(
        _NOBODY, plan.number, grad_o, grad_lse, q, k, v, o, lse, inputs, lengths,
        scale, seed, train, wanted, lies)
    if found is not False:
        return found
    return _gradients(grad_o, grad_lse, q, k, v, o, lse, inputs, plan, lengths,
                      scale, seed, train, wanted, _layout_of(lies))


def _gradients(grad_o, grad_lse, q, k, v, o, lse, inputs, plan, lengths, scale,
               seed, train, wanted, lies, saved=None):
    """By the longer way. `saved`: what the run left, or None."""
    made = _empty_gradients(q, k, v, inputs, wanted)
    if not made:
        return made
    names = [name for name, want in zip(("q", "k", "v", *plan.input_names), wanted)
             if want]
    with torch.no_grad():
        plan.kernel(q, k, v, backward=True).backward(
            grad_o, q, k, v, o, lse, dlse=grad_lse,
            inputs=dict(zip(plan.input_names, inputs)), wanted=names,
            out=dict(zip(names, made)), lengths=lengths,
            train=train, seed=_seed(q, seed),
            scale=scale, stream=_stream(q) if q.is_cuda else None,
            saved=saved, **lies.offsets())
    return made


def _fake_backward(grad_o, grad_lse, q, k, v, o, lse, inputs, plan, lengths,
                   scale, seed, train, wanted, *lies):
    return _empty_gradients(q, k, v, inputs, wanted)


for _device in ("CPU", "CUDA"):
    _library.impl("attention", _attention, _device)
    _library.impl("attention_backward", _attention_backward, _device)
library.register_fake("dil::attention", _fake, lib=_library)
library.register_fake("dil::attention_backward", _fake_backward, lib=_library)


# ---- gradients ---------------------------------------------------------------


class _Attention(torch.autograd.Function):
    """made: o, lse and what the run left for gradients, if it left something; or
    the keyset of the op that makes them here, where compilers that follow autograd
    see it. call: the plan, what the op takes
    behind it, the layout, and whether lse is returned. Few arguments, since each
    takes long beside a small call."""

    @staticmethod
    def forward(ctx, made, call, q, k, v, *inputs):
        plan, numbers, lies, gives_lse = call
        is_known = isinstance(made, tuple)
        if not is_known:
            made = (_run_saving(q, k, v, inputs, plan, *numbers, lies)
                    or _below(made, (q, k, v, inputs, plan.name, *numbers, *lies)))
        o, lse, *left = made
        lengths, _, seed, _ = numbers
        saved = (q, k, v, o, lse, lengths, seed, left[0] if left else None, lies[0],
                 lies[1], *inputs)
        ctx.call = call
        # The two methods below set the same; compilers look for these methods.
        if is_known:
            ctx.to_save, ctx.materialize_grads = saved, False
        else:
            ctx.save_for_backward(*saved)
            ctx.set_materialize_grads(False)
        if not gives_lse:
            return o
        if not plan.has_lse:
            ctx.mark_non_differentiable(lse)
        return o, lse

    @staticmethod
    def backward(ctx, grad_o, grad_lse=None):
        q, k, v, o, lse, lengths, seed, left, *offsets_inputs = ctx.saved_tensors
        plan, (_, scale, _, train), lies, _ = ctx.call
        offsets, inputs = offsets_inputs[:2], offsets_inputs[2:]
        needs = ctx.needs_input_grad
        wanted = needs[2:]
        if grad_o is None and grad_lse is None:
            return (None,) * len(needs)
        if left is not None and not torch.is_grad_enabled():
            given = _as_kernels_want(plan, grad_o, grad_lse, o, lse)
            made = iter(_gradients(*given[:2], q, k, v, o, given[2], inputs, plan,
                                   lengths, scale, seed, train, wanted, lies, left))
            return None, None, *(next(made) if want else None for want in wanted)
        made = (not torch.compiler.is_compiling() and grad_o is not None
                and grad_o.stride(-1) == 1 and grad_lse is None
                and _quick.gradients(
                    _BELOW_AUTOCAST, plan.number, grad_o, None, q, k, v, o,
                    lse if plan.has_lse else None, inputs, lengths, scale, seed,
                    train, wanted, lies))
        if made is False:
            made = attention_backward(grad_o, grad_lse, q, k, v, o, lse, inputs,
                                      plan.name, lengths, scale, seed, train,
                                      wanted, *offsets, lies.longest_q,
                                      lies.longest_k)
        made = iter(made)
        return None, None, *(next(made) if want else None for want in wanted)


def _apply(made, call, q, k, v, inputs):
    """o, and lse or None, as autograd knows them."""
    made = _Attention.apply(made, call, q, k, v, *inputs)
    return made if call[-1] else (made, None)


class _Gradients(torch.autograd.Function):
    """The gradients, which have none: told when somebody asks."""

    @staticmethod
    def forward(ctx, keyset, count, *given):
        tensors, others = given[:count], given[count:]
        with _C._AutoDispatchBelowAutograd():
            return tuple(attention_backward.redispatch(
                keyset & _C._after_autograd_keyset, *tensors[:7],
                list(tensors[7:]), *others))

    @staticmethod
    def backward(ctx, *_):
        _refuse("double backward: gradients of gradients are not supported by "
                "this build, and create_graph=True asks for them")


def _below(keyset, call):
    with _C._AutoDispatchBelowAutograd():
        return attention.redispatch(keyset & _C._after_autograd_keyset, *call)


def _refuse_gradients(q, k, v, inputs, plan, lies):
    """A gradient that no kernel has is never dropped in silence."""
    if plan.no_gradients:
        raise plan.no_gradients
    if lies.pages is not None:
        _refuse("a call with pages has no gradients: call under torch.no_grad(), "
                "or pass detached tensors")
    for name, x, able in zip(plan.input_names, inputs,
                             plan.differentiable_inputs) if inputs else ():
        if x.requires_grad and not able:
            _refuse(f"input '{name}' requires a gradient, and plan "
                    f"'{plan.name}' has none for it: declare the input with "
                    f"`gradient`, or pass {name}.detach()")
    if type(q) in (torch.Tensor, torch.nn.Parameter):  # no fake of a compiler
        _kernel(q, k, v, inputs, plan, backward=True)


def _refuse_tangents(*tensors):
    """Forward-mode derivatives, which no kernel makes."""
    for x in tensors if _tangents_may_be() else ():
        if forward_ad.unpack_dual(x).tangent is not None:
            _refuse("forward-mode derivatives (torch.func.jvp, dual tensors) are "
                    "not supported: take gradients by autograd, or pass detached "
                    "tensors")


def _want_gradients(*tensors):
    if torch.is_grad_enabled():
        for x in tensors:
            if x is not None and x.requires_grad:
                return True
    return False


def _known_to_autograd(made, call, q, k, v, inputs):
    """What the quick way made, of which autograd must know where it says so."""
    if len(made) == 2:
        return made
    return _apply(made[:2], call, q, k, v, inputs)


def _autograd(keyset, q, k, v, inputs, plan, lengths=None, scale=None, seed=None,
              train=False, *lies):
    known, lies = named(plan), _layout_of(lies)
    call = lengths, scale, seed, train
    made = _quick.attend(_BELOW_AUTOCAST, known.number, q, k, v, inputs, *call,
                         True, lies)
    if made:
        return _known_to_autograd(made, (known, call, lies, True), q, k, v, inputs)
    _refuse_tangents(q, k, v, *inputs)
    if not _want_gradients(q, k, v, *inputs):
        return _below(keyset, (q, k, v, inputs, plan, *call, *lies))
    _check(q, k, v, inputs, known, lengths, lies)
    _refuse_gradients(q, k, v, inputs, known, lies)
    return _apply(keyset, (known, call, lies, True), q, k, v, inputs)


def _autograd_backward(keyset, grad_o, grad_lse, q, k, v, o, lse, inputs, *rest):
    tensors = grad_o, grad_lse, q, k, v, o, lse, *inputs
    if _want_gradients(*tensors):
        return list(_Gradients.apply(keyset, len(tensors), *tensors, *rest))
    with _C._AutoDispatchBelowAutograd():
        return attention_backward.redispatch(
            keyset & _C._after_autograd_keyset, *tensors[:7], inputs, *rest)


_library.impl("attention", _autograd, "Autograd", with_keyset=True)
_library.impl("attention_backward", _autograd_backward, "Autograd",
              with_keyset=True)


# ---- autocast, vmap ----------------------------------------------------------

_autocasts = _C.DispatchKeySet(_C.DispatchKey.AutocastCPU).add(
    _C.DispatchKey.AutocastCUDA)


def cast_with_autocast(op):
    """q, k and v in the dtype of autocast; inputs stay in their own."""
    def cast_to(kind):
        def cast(q, k, v, *rest):
            dtype = torch.get_autocast_dtype(kind)
            with _C._ExcludeDispatchKeyGuard(_autocasts):
                return op(*(x.to(dtype) if x.is_floating_point() else x
                            for x in (q, k, v)), *rest)
        return cast

    name = op._schema.name.partition("::")[2]
    _library.impl(name, cast_to("cpu"), "AutocastCPU")
    _library.impl(name, cast_to("cuda"), "AutocastCUDA")


def _refuse_vmap(info, in_dims, *given):
    _refuse("vmap over dil::attention is not supported: q, k and v have a batch "
            "dimension of their own")


def refuse_vmap(op):
    library.register_vmap(op._schema.name, _refuse_vmap, lib=_library)


cast_with_autocast(attention)
refuse_vmap(attention)
refuse_vmap(attention_backward)


# ---- without the dispatcher --------------------------------------------------


def _is_plain(*tensors):
    """Whether only autograd looks on: no compiler, mode, transform, autocast or
    profiler."""
    if (_C._is_any_autocast_enabled()
            or _C._len_torch_dispatch_stack() or _C._len_torch_function_stack()
            or _C._are_functorch_transforms_active() or _C._get_tracing_state()
            or _C._autograd._profiler_enabled() or _tangents_may_be()):
        return False
    for x in tensors:
        if type(x) is not torch.Tensor or x.is_neg():
            return False
    return True


def _from_python(q, k, v, inputs, plan, lengths=None, scale=None, seed=None,
                 train=False, *lies, **named):
    """The op as Python calls it. The dispatcher converts each argument and
    result twice, which takes longer than a small kernel."""
    known = _plans.get(plan)
    call = lengths, scale, seed, train
    made = (known and not named
            and _quick.attend(_EVERYBODY, known.number, q, k, v, inputs, *call,
                              True, lies))
    if made:
        return _known_to_autograd(made, (known, call, _layout_of(lies), True), q,
                                  k, v, inputs)
    return dispatched(q, k, v, inputs, plan, *call, *lies, **named)


attention._op = _from_python  # as PyTorch itself does for ops of tensors alone


def attend(q, k, v, inputs, plan, lengths, scale, seed, train, wants_lse,
           lies=PLAIN):
    """The op by the shortest way; lse may be None where it is not wanted."""
    if torch.compiler.is_compiling():
        return attention(q, k, v, inputs, plan, lengths, scale, seed, train, *lies)
    known = named(plan)
    call = lengths, scale, seed, train
    made = _quick.attend(_EVERYBODY, known.number, q, k, v, inputs, *call,
                         wants_lse, None if lies is PLAIN else lies)
    if made:
        return _known_to_autograd(made, (known, call, lies, wants_lse), q, k, v,
                                  inputs)
    if not _is_plain(q, k, v, *inputs):
        return attention(q, k, v, inputs, plan, *call, *lies)
    wants = _want_gradients(q, k, v, *inputs)
    if wants:
        _refuse_gradients(q, k, v, inputs, known, lies)
    made = wants and _run_saving(q, k, v, tuple(inputs), known, *call, lies)
    if not made:
        made = _run(q, k, v, tuple(inputs), known, *call, wants or wants_lse, lies)
    if not wants:
        return made
    return _apply(made, (known, call, lies, wants_lse), q, k, v, inputs)
