"""The ops dil::attention and dil::attention_backward.

In: tensors and the name of a plan. Out: o and lse, or gradients. The ops are
registered with PyTorch's dispatcher: for processors and GPUs, as fakes for
torch.compile, under autocast, and with the autograd formula below the Autograd
key, so that a bare op keeps its gradients as well.
"""

import torch
from torch import library

from dil import Error
from .plan import named

_library = library.Library("dil", "DEF")
_library.define(
    "attention"
    "(Tensor q, Tensor k, Tensor v, Tensor[] inputs, str plan, Tensor? lengths,"
    " float? scale, Tensor? seed, bool train) -> (Tensor o, Tensor lse)")
_library.define(
    "attention_backward"
    "(Tensor? grad_o, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, Tensor o,"
    " Tensor lse, Tensor[] inputs, str plan, Tensor? lengths, float? scale,"
    " Tensor? seed, bool train, bool[] wanted) -> Tensor[]")

_forward = torch.ops.dil.attention.default
_backward = torch.ops.dil.attention_backward.default

attention = _forward


# ---- checks ------------------------------------------------------------------


def _refuse(text):
    raise Error("DIL_USAGE", text)


def _check(q, k, v, inputs, plan, lengths=None):
    """What shapes and types say; dil checks the rest."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 4:
            _refuse(f"{name} must be a tensor of 4 dimensions, got {x.dim()}")
        if x.dtype != q.dtype:
            _refuse(f"q, k and v must have one dtype: q has {q.dtype}, {name} "
                    f"{x.dtype}")
    others = [("k", k), ("v", v), ("lengths", lengths)]
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
    """Without one lse a row, one of no elements."""
    shape = (q.shape[0], q.shape[2], q.shape[1]) if plan.has_lse else (0,)
    return q.new_empty(shape, dtype=torch.float32)


def _call(q, inputs, plan, lengths, scale, seed, train):
    """The arguments that forward and backward share, by name."""
    stream = None
    if q.is_cuda:
        stream = torch.cuda.current_stream(q.device).cuda_stream
    number = 0 if seed is None else int(seed) % 2 ** 64
    return {"inputs": dict(zip(plan.input_names, (x.detach() for x in inputs))),
            "lengths": lengths, "scale": scale, "train": train, "seed": number,
            "stream": stream}


def _attention(q, k, v, inputs, plan, lengths, scale, seed, train):
    plan = named(plan)
    _check(q, k, v, inputs, plan, lengths)
    o, lse = _output(q, v), _log_sums(plan, q)
    plan.kernel(q, k, v)(q.detach(), k.detach(), v.detach(), out=o,
                         lse=lse if plan.has_lse else None,
                         **_call(q, inputs, plan, lengths, scale, seed, train))
    return o, lse


def _fake(q, k, v, inputs, plan, lengths, scale, seed, train):
    plan = named(plan)
    _check(q, k, v, inputs, plan, lengths)
    return _output(q, v), _log_sums(plan, q)


def _wanted(q, k, v, inputs, wanted):
    return [x for x, want in zip((q, k, v, *inputs), wanted) if want]


def _rows(x):
    """Autograd hands over any strides: those of a sum's gradient are 0."""
    x = x.detach()
    return x if x.stride(-1) == 1 else x.contiguous()


def _attention_backward(grad_o, grad_lse, q, k, v, o, lse, inputs, plan, lengths,
                        scale, seed, train, wanted):
    plan = named(plan)
    names = [name for name, want in zip(("q", "k", "v", *plan.input_names), wanted)
             if want]
    made = [x.new_empty(x.shape)
            for x in _wanted(q, k, v, inputs, wanted)]
    if not made:
        return made
    plan.kernel(q, k, v, backward=True).backward(
        torch.zeros_like(o) if grad_o is None else _rows(grad_o),
        q.detach(), k.detach(), v.detach(), o.detach(),
        lse.detach() if plan.has_lse else None,
        dlse=None if grad_lse is None else grad_lse.contiguous(), wanted=names,
        out=dict(zip(names, made)),
        **_call(q, inputs, plan, lengths, scale, seed, train))
    return made


def _fake_backward(grad_o, grad_lse, q, k, v, o, lse, inputs, plan, lengths,
                   scale, seed, train, wanted):
    return [x.new_empty(x.shape) for x in _wanted(q, k, v, inputs, wanted)]


for _device in ("CPU", "CUDA"):
    _library.impl("attention", _attention, _device)
    _library.impl("attention_backward", _attention_backward, _device)
library.register_fake("dil::attention", _fake, lib=_library)
library.register_fake("dil::attention_backward", _fake_backward, lib=_library)


# ---- gradients ---------------------------------------------------------------


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, keyset, q, k, v, plan, lengths, scale, seed, train, *inputs):
        with torch._C._AutoDispatchBelowAutograd():
            o, lse = _forward.redispatch(
                keyset & torch._C._after_autograd_keyset, q, k, v, list(inputs),
                plan, lengths, scale, seed, train)
        ctx.save_for_backward(q, k, v, o, lse, lengths, seed, *inputs)
        ctx.call = plan, scale, train
        ctx.set_materialize_grads(False)
        if not named(plan).has_lse:
            ctx.mark_non_differentiable(lse)
        return o, lse

    @staticmethod
    def backward(ctx, grad_o, grad_lse):
        q, k, v, o, lse, lengths, seed, *inputs = ctx.saved_tensors
        plan, scale, train = ctx.call
        needs = ctx.needs_input_grad
        wanted = [*needs[1:4], *needs[9:]]
        if grad_o is None and grad_lse is None:
            return (None,) * len(needs)
        made = iter(_backward(grad_o, grad_lse, q, k, v, o, lse, inputs, plan,
                              lengths, scale, seed, train, wanted))
        found = [next(made) if want else None for want in wanted]
        return None, *found[:3], None, None, None, None, None, *found[3:]


def _refuse_gradients(q, k, v, inputs, plan):
    """A gradient that no kernel has is never dropped in silence."""
    if plan.no_gradients:
        raise plan.no_gradients
    for name, x, able in zip(plan.input_names, inputs,
                             plan.differentiable_inputs):
        if x.requires_grad and not able:
            _refuse(f"input '{name}' requires a gradient, and plan "
                    f"'{plan.name}' has none for it: declare the input with "
                    f"`gradient`, or pass {name}.detach()")
    if type(q) in (torch.Tensor, torch.nn.Parameter):  # no fake of a compiler
        plan.kernel(q, k, v, backward=True)


def _wants_gradient(q, k, v, inputs):
    return torch.is_grad_enabled() and (
        q.requires_grad or k.requires_grad or v.requires_grad
        or any(x.requires_grad for x in inputs))


def _autograd(keyset, q, k, v, inputs, plan, lengths, scale, seed, train):
    if not _wants_gradient(q, k, v, inputs):
        with torch._C._AutoDispatchBelowAutograd():
            return _forward.redispatch(
                keyset & torch._C._after_autograd_keyset, q, k, v, inputs, plan,
                lengths, scale, seed, train)
    known = named(plan)
    _check(q, k, v, inputs, known, lengths)
    _refuse_gradients(q, k, v, inputs, known)
    return _Attention.apply(keyset, q, k, v, plan, lengths, scale, seed, train,
                            *inputs)


_library.impl("attention", _autograd, "Autograd", with_keyset=True)
