"""dil in models that exist: torchscale's LongNet, Prov-GigaPath, fkodom's.

    count = dil.torch.patch(model)      # every dilated attention of the model
    dil.torch.unpatch(model)

A module is found by the name of its class and by its fields, so that any copy
of the code will do; flash-attn and xformers need not be installed. Its
`forward` is replaced on the object alone. By default the patched model computes
the same function as before, faults that its weights were trained with included;
what differs in spite of that is said in a warning.
"""

import functools
import warnings

import torch

from . import attention, dilated
from .autocast import norm_and_project, project_all
from .dilated import refuse

__all__ = ["patch", "unpatch"]


class _Patched(functools.partial):
    """A replaced forward: a partial, which can be copied and saved."""


# ---- torchscale and Prov-GigaPath ------------------------------------------


def _xpos(m, x, offset, is_key):
    """torchscale's positions on [B, N, H, D]; its code wants [B * H, N, D]."""
    turned = m.xpos(x.transpose(1, 2).flatten(0, 1), offset=offset,
                    downscale=is_key)
    return turned.unflatten(0, (x.shape[0], -1)).transpose(1, 2).to(x.dtype)


def _xpos_of(m, x, positions, length, is_key):
    """The same of rows at any positions of a sequence. Positions turn and stretch
    each pair of elements, so that its two units tell how."""
    units = torch.eye(2, dtype=x.dtype, device=x.device).repeat(1, x.shape[3] // 2)
    first, second = (
        m.xpos(unit.expand(1, length, -1), offset=0, downscale=is_key)
        [0, positions, None].to(x.dtype) for unit in units)
    return (x[..., ::2].repeat_interleave(2, -1) * first
            + x[..., 1::2].repeat_interleave(2, -1) * second)


def _with_earlier(state, k, v):
    """Keys and values with those of earlier calls, in torchscale's own form:
    [B, H, M, D], so that a host can reorder beams."""
    for name, x in (("prev_key", k), ("prev_value", v)):
        x = x.transpose(1, 2)
        if name in state:
            earlier = state[name].view(*x.shape[:2], -1, x.shape[3])
            x = torch.cat([earlier, x], 2)
        state[name] = x
    return [state[name].transpose(1, 2) for name in ("prev_key", "prev_value")]


def _torchscale(m, options, query, key, value, incremental_state=None,
                key_padding_mask=None, attn_mask=None, rel_pos=None,
                is_first_step=False, is_causal=False):
    if attn_mask is not None or rel_pos is not None:
        refuse("dilated attention takes no attn_mask and no rel_pos, as in "
               "torchscale: pass is_causal, or write a pattern with a mask or "
               "score")
    q, k, v = (x.unflatten(-1, (m.num_heads, -1)) for x in project_all(
        (m.q_proj, m.k_proj, m.v_proj), (query, key, value)))
    ring = options["ring"]
    if incremental_state is not None:
        if ring:
            refuse("rows cannot be decoded one by one on a ring: patch the model "
                   "again without one")
        k, v = _with_earlier(incremental_state, k, v)
    if m.xpos is not None and ring:
        at = ring.positions().to(q.device), ring.length
        q, k = _xpos_of(m, q, *at, False), _xpos_of(m, k, *at, True)
    elif m.xpos is not None:
        offset = k.shape[1] - q.shape[1]
        q, k = _xpos(m, q, offset, False), _xpos(m, k, 0, True)
    honour = options["padding"] == "honour" and key_padding_mask is not None
    text = dilated.text_of(
        q, k, v, dilated.branches(m.args.segment_length, m.args.dilated_ratio),
        dilated.MODES["torchscale"], causal=is_causal, dropout=m.dropout,
        gradient=options["gradient"], zero_keys=options["zero_keys"],
        padding=honour)
    inputs = {"padding": dilated.padding_of(key_padding_mask)} if honour else {}
    attend = ring.attention if ring else attention
    x = attend(q, k, v, text, inputs=inputs,
               train=m.training and m.dropout > 0).flatten(2)
    return norm_and_project(m.inner_attn_ln, m.out_proj, x), None


def _is_torchscale(m):
    args = getattr(m, "args", None)
    return hasattr(args, "dilated_ratio") and hasattr(m, "q_proj")


def _tell_torchscale(m, options):
    """What a patched module does otherwise, a sentence each."""
    if getattr(m.args, "seq_parallel", False) and not options["ring"]:
        refuse("seq_parallel splits one sequence over processes by "
               "torchscale's own messages, which a patch does not have: give it "
               "ring=dil.torch.Ring(), or set args.seq_parallel = False")
    if options["ring"] and options["padding"] == "honour":
        refuse('padding="honour" does not go with a ring: key_padding_mask is of '
               "this process's rows alone")
    for s, r in dilated.branches(m.args.segment_length, m.args.dilated_ratio):
        if s % r:
            yield (f"dilation {r} does not divide segment {s}: beyond {s} rows "
                   "torchscale misplaces the rows of this branch, dil does not")
    if not options["zero_keys"]:
        yield ("zero_keys=False: rows near the end do not see the zeros that "
               "torchscale pads with")
    if m.dropout:
        yield ("attention dropout draws other numbers than flash-attn's, and "
               "none in eval(), where torchscale goes on to drop")
    if options["gradient"] == "exact":
        yield ('gradient="exact": torchscale takes the mixing weights of the '
               "branches as constants")
    if options["padding"] == "honour":
        yield 'padding="honour": torchscale attends to padded keys'


# ---- dilated-attention-pytorch, fkodom's -----------------------------------


def _fkodom(m, options, query, key, value, is_causal=False):
    """A branch at a time: each is divided by its sum over the rows, so that
    what the branches write to one head cannot be one call."""
    heads, pairs = query.shape[2], dilated.branches(m.segment_lengths,
                                                    m.dilation_rates)
    out = torch.zeros_like(query)
    for at, (s, r) in enumerate(pairs):
        size = heads // len(pairs) + (at < heads % len(pairs))
        mine = slice(at * size, (at + 1) * size)
        q, k, v = query[:, :, mine], key[:, :, mine], value[:, :, mine]
        if q.shape[2] == 0:
            continue
        text = dilated.text_of(q, k, v, ((s, r),), f"phase {at % r};",
                               causal=is_causal)
        x = attention(q, k, v, text)
        x = x / x.sum(1, keepdim=True)
        out = torch.cat([out[:, :, :mine.start], out[:, :, mine] + x,
                         out[:, :, mine.stop:]], 2)
    return out / len(pairs)


def _is_fkodom(m):
    return hasattr(m, "segment_lengths") and hasattr(m, "dilation_rates")


def _tell_fkodom(m, options):
    if options["ring"]:
        refuse("dilated-attention-pytorch divides by sums over all rows, which a "
               "ring has not: a ring is for torchscale's models")
    if m.dropout_p:
        yield ("attention_dropout is ignored, as dilated-attention-pytorch "
               "ignores it")
    if m.softmax_scale is not None:
        yield ("softmax_scale is ignored, as dilated-attention-pytorch "
               "ignores it")


# ---- models ----------------------------------------------------------------

_KINDS = ((_is_torchscale, _tell_torchscale, _torchscale),
          (_is_fkodom, _tell_fkodom, _fkodom))


def _kind(m):
    if not any(c.__name__ == "DilatedAttention" for c in type(m).__mro__):
        return None
    return next((kind for kind in _KINDS if kind[0](m)), None)


def _must_be(name, given, *known):
    if given not in known:
        refuse(f"{name} must be one of {', '.join(map(repr, known))}, "
               f"got {given!r}")


def patch(model, *, zero_keys=True, padding="ignore", gradient="detached",
          ring=None):
    """Lets dil compute every dilated attention of a model; returns how many.

    `zero_keys`: attend to the zeros that torchscale pads with, as its weights
    were trained. `padding`: "ignore" key_padding_mask, as torchscale does, or
    "honour" it. `gradient`: "detached" takes the mixing weights of the branches
    as constants, as torchscale does; "exact" does not. `ring`: a dil.torch.Ring;
    each process gives the model its rows of one sequence, as ring.shard() or
    ring.positions() deal them out, and args.seq_parallel counts for nothing. A
    patched model can be patched again with other options.
    """
    _must_be("zero_keys", zero_keys, True, False)
    _must_be("padding", padding, "ignore", "honour")
    _must_be("gradient", gradient, "detached", "exact")
    options = {"zero_keys": zero_keys, "padding": padding, "gradient": gradient,
               "ring": ring}
    found = [(m, _kind(m)) for m in model.modules() if _kind(m)]
    if not found:
        refuse("the model has no dilated attention that a patch knows: "
               "torchscale's and fkodom's class is called DilatedAttention")
    told = {text: None for m, kind in found for text in kind[1](m, options)}
    for m, (_, _, forward) in found:
        m.forward = _Patched(forward, m, options)
    if told:
        warnings.warn("dil.torch.patch: " + "; ".join(told), stacklevel=2)
    return len(found)


def unpatch(model):
    """Gives a model its own attention back; returns how many modules."""
    count = 0
    for m in model.modules():
        if isinstance(m.__dict__.get("forward"), _Patched):
            del m.forward
            count += 1
    return count
