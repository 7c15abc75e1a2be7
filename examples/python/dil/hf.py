"""dil in transformers.

    import dil.hf
    dil.hf.use()                             # the model's own attention
    AutoModel.from_pretrained(..., attn_implementation="dil")

    dil.hf.use("sinks.dil", name="sinks")    # a pattern of your own instead
    AutoModel.from_pretrained(..., attn_implementation="sinks")

The masks that transformers builds are recognised by their code: causal,
sliding, chunked, padded and packed. They become statements of a pattern and no
table. A mask that is not known is refused by name. Soft caps, learned sinks and
attention dropout become statements, too.

A pattern of your own says itself which keys a query sees: causality of the
model is its business. What a model asks for and a pattern lacks is refused by
name. Where a batch is padded, say, the pattern must have
`input padding : u8[B, M]; mask padding[b, j] == 0;`.
"""

import dataclasses

import torch
from transformers import (AttentionInterface, AttentionMaskInterface,
                          masking_utils)

from dil import Error
from .torch import attention
from .torch.plan import find

__all__ = ["use"]


def _refuse(text):
    raise Error("DIL_USAGE", text)


# ---- masks -----------------------------------------------------------------


@dataclasses.dataclass
class Mask:
    """The keys that a call's queries see, in place of a mask's tensor."""

    causal: bool = False
    left: int | None = None      # keys before a query, None: all
    right: int | None = None     # keys behind it
    chunk: int | None = None     # positions of a chunk
    start: torch.Tensor | None = None    # of the first chunk, i32 [B]
    document: torch.Tensor | None = None  # of each position, i32 [B, M]
    padding: torch.Tensor | None = None   # 1 where nobody sees a key, u8 [B, M]
    lengths: torch.Tensor | None = None   # the keys that exist, i32 [B]
    shape: tuple = ()            # of the tensor, [B, 1, N, M]

    @property
    def ndim(self):
        return len(self.shape)

    def contiguous(self):  # generate() asks this of a mask that it has made
        return self


def _code(function):
    return getattr(function, "__code__", None)


def _inner(maker, *arguments):
    """The code of the function that a maker of transformers returns."""
    return _code(getattr(masking_utils, maker)(*arguments))


_any = torch.zeros(1, 1, dtype=torch.int64)
_CAUSAL = _code(masking_utils.causal_mask_function)
_WHOLE = _code(masking_utils.bidirectional_mask_function)
_AND = _inner("and_masks")
_SLIDING = _inner("sliding_window_overlay", 1)
_NEAR = _inner("sliding_window_bidirectional_overlay", 1)
_CHUNKED = _inner("chunked_overlay", 1, _any)
_PACKED = _inner("packed_sequence_mask_function", _any)
_REMAPPED = _inner("remap_positions_for_packed_sequence",
                   masking_utils.causal_mask_function, _any)


def _kept(function):
    """What a function of transformers closes over, by name."""
    cells = function.__closure__ or ()
    return {name: cell.cell_contents
            for name, cell in zip(function.__code__.co_freevars, cells)}


def _least(a, b):
    return b if a is None else a if b is None else min(a, b)


def _read(function, mask):
    """Adds what a mask function says to the mask."""
    code = _code(function)
    kept = _kept(function) if code else {}
    if code is _CAUSAL:
        mask.causal = True
    elif code is _AND:
        for part in kept["mask_functions"]:
            _read(part, mask)
    elif code is _SLIDING:
        mask.left = _least(mask.left, int(kept["sliding_window"]) - 1)
    elif code is _NEAR:
        mask.left = _least(mask.left, int(kept["sliding_window"]))
        mask.right = _least(mask.right, int(kept["sliding_window"]))
    elif code is _CHUNKED:
        mask.chunk, mask.start = int(kept["chunk_size"]), kept["left_padding"]
    elif code is _PACKED:
        mask.document = kept["packed_sequence_mask"]
    elif code is _REMAPPED:  # inside a document distances stay what they are
        _read(kept["mask_function"], mask)
        if mask.chunk is not None:
            _refuse("chunks of packed sequences are not known to dil.hf: pad "
                    "the sequences instead")
    elif code is not _WHOLE:
        name = getattr(function, "__qualname__", type(function).__name__)
        _refuse(f"the mask function '{name}' is not known to dil.hf: use "
                'attn_implementation="sdpa", or dil.hf.use() with a pattern '
                "that says what the mask says")


def _padding(attention_mask, first, count):
    """The tokenizer's mask as u8 [B, M], 1: padding; None: no padding."""
    if attention_mask is None:
        return None
    if attention_mask.dim() != 2:
        _refuse(f"a prepared mask of {attention_mask.dim()} dimensions is not "
                "known to dil.hf: give the tokenizer's, of 2 dimensions")
    seen = attention_mask[:, first:first + count].to(torch.bool)
    if seen.shape[1] < count:
        seen = torch.nn.functional.pad(seen, (0, count - seen.shape[1]))
    # A compiler cannot ask a tensor what it holds.
    if not torch.compiler.is_compiling() and bool(seen.all()):
        return None
    return (~seen).to(torch.uint8)


def _lengths(mask, batch_size, q_length, kv_length, q_offset, kv_offset,
             device):
    """dil wants the last query at the last key. A static cache has room behind
    it, which `lengths` leaves out; None: no such room, or no matter."""
    if not mask.causal and mask.chunk is None and \
            (mask.left, mask.right) == (None, None):
        return None
    end = q_offset + q_length - kv_offset
    if isinstance(end, torch.Tensor):  # as a compiled cache has it
        return end.to(device, torch.int32).repeat(batch_size)
    if end == kv_length:
        return None
    if end > kv_length or not mask.causal:
        _refuse(f"{q_length} queries from position {q_offset} over {kv_length} "
                f"keys from position {kv_offset}: dil wants the last query at "
                "the last key")
    return torch.full((batch_size,), end, dtype=torch.int32, device=device)


def _mask(batch_size, q_length, kv_length, q_offset=0, kv_offset=0,
          mask_function=masking_utils.causal_mask_function, attention_mask=None,
          device="cpu", **rest):
    """What transformers calls to make a mask."""
    if isinstance(attention_mask, Mask):  # made ahead by generate()
        return attention_mask
    mask = Mask(shape=(batch_size, 1, q_length, kv_length))
    _read(mask_function, mask)
    mask.lengths = _lengths(mask, batch_size, q_length, kv_length, q_offset,
                            kv_offset, device)
    mask.padding = _padding(attention_mask, kv_offset, kv_length)
    if mask.start is not None:  # positions count from the first key of the call
        mask.start = (mask.start - kv_offset).to(torch.int32)
    if mask.document is not None:
        mask.document = mask.document.expand(batch_size, -1).to(torch.int32)
    return mask


def _must_be_mask(module, attention_mask, q, k, sliding_window, is_causal):
    """The mask of a call; of a model that made none, what its module says."""
    if isinstance(attention_mask, Mask):
        return attention_mask
    if attention_mask is not None:
        _refuse(f"a prepared mask {list(attention_mask.shape)} is not known to "
                "dil.hf: give the tokenizer's mask, of 2 dimensions")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    causal = bool(is_causal) and q.shape[2] > 1
    if causal and q.shape[2] != k.shape[2]:
        _refuse(f"{type(module).__name__} has {q.shape[2]} causal queries over "
                f"{k.shape[2]} keys and no mask that says where they stand")
    return Mask(causal=causal,
                left=sliding_window - 1 if sliding_window else None)


# ---- the model's own attention ---------------------------------------------


def _text(q, k, v, mask, dropout, softcap, sinks):
    lines = [f"heads {q.shape[1]} kv {k.shape[1]};",
             f"head_dim {q.shape[3]} value {v.shape[3]};", "dtype f32;",
             "scale runtime;"]
    if mask.causal:
        lines.append("causal;")
    if (mask.left, mask.right) != (None, None):
        sides = ["inf" if x is None else str(x)
                 for x in (mask.left, mask.right)]
        lines.append(f"window {', '.join(sides)};")
    if mask.chunk is not None:
        lines += ["input start : i32[B];",
                  f"mask (i - start[b]) / {mask.chunk} == "
                  f"(j - start[b]) / {mask.chunk};"]
    if mask.document is not None:
        lines += ["input document : i32[B, M];",
                  "mask document[b, i] == document[b, j];"]
    if mask.padding is not None:
        lines += ["input padding : u8[B, M];", "mask padding[b, j] == 0;"]
    if softcap:
        lines.append(f"score {float(softcap)} * tanh(s / {float(softcap)});")
    if sinks is not None:
        lines += ["input sinks : f32[H] gradient;", "sink sinks[h];"]
    if dropout:
        lines.append(f"dropout {float(dropout)};")
    return "pattern model {\n" + "\n".join(lines) + "\nbranch { }\n}\n"


def _inputs(mask, sinks):
    """The tensors that a mask and sinks bring, by their names in a pattern."""
    found = {"padding": mask.padding, "document": mask.document,
             "start": mask.start,
             "sinks": None if sinks is None else sinks.float()}
    return {name: x for name, x in found.items() if x is not None}


# ---- a pattern of the user's -----------------------------------------------

_WANTED = {
    "padding": "the batch is padded: `input padding : u8[B, M]; "
               "mask padding[b, j] == 0;`",
    "document": "the batch is packed: `input document : i32[B, M]; "
                "mask document[b, i] == document[b, j];`",
    "start": "the model attends in chunks: `input start : i32[B];` and a mask",
    "sinks": "the model has learned sinks: `input sinks : f32[H] gradient; "
             "sink sinks[h];`",
}


def _check(plan, name, inputs, mask, dropout, softcap, scaling, head_dim):
    """What the model asks for, the pattern must have."""
    for wanted in inputs:
        if wanted not in plan.input_names:
            _refuse(f"pattern '{name}' lacks an input '{wanted}': "
                    f"{_WANTED[wanted]} does it")
    if mask.left is not None or mask.right is not None:
        _refuse(f"the model slides a window over pattern '{name}': set the "
                "model's sliding_window to None, or its layer types to "
                "full_attention")
    if softcap:
        _refuse(f"the model caps its scores at {softcap}, and pattern '{name}' "
                "may not: dil.hf.use() without a pattern does")
    if dropout and not plan.has_dropout:
        _refuse(f"the model drops attention at {dropout}, and pattern '{name}' "
                f"has no dropout: write `dropout {dropout};` or set the "
                "model's to 0")
    if not plan.takes_scale and abs(scaling * head_dim ** 0.5 - 1) > 1e-6:
        _refuse(f"the model scales by {scaling}, and pattern '{name}' by "
                "itself: write `scale runtime;`")


# ---- registration ----------------------------------------------------------


def _attend(plan, name, module, query, key, value, attention_mask, dropout=0.0,
            scaling=None, is_causal=None, sliding_window=None, softcap=None,
            s_aux=None, position_bias=None, cache=None, output_attentions=False,
            **rest):
    if position_bias is not None:
        _refuse("position_bias is not known to dil.hf: a pattern with `score s "
                "+ bias[b, h, row, j]` has one")
    if cache is not None:
        _refuse("continuous batching is not known to dil.hf")
    if output_attentions:
        _refuse("dil makes no attention weights: output_attentions wants "
                'attn_implementation="eager"')
    mask = _must_be_mask(module, attention_mask, query, key, sliding_window,
                         is_causal)
    inputs = _inputs(mask, s_aux)
    scaling = query.shape[3] ** -0.5 if scaling is None else float(scaling)
    if plan is None:
        chosen = _text(query, key, value, mask, dropout, softcap, s_aux)
        scale = scaling
    else:
        _check(plan, name, inputs, mask, dropout, softcap, scaling,
               query.shape[3])
        chosen, scale = plan, scaling if plan.takes_scale else None
    o = attention(query.transpose(1, 2), key.transpose(1, 2),
                  value.transpose(1, 2), chosen, inputs=inputs, scale=scale,
                  lengths=mask.lengths, train=dropout > 0)
    return o, None


def use(plan=None, name="dil"):
    """Makes attn_implementation=name known to transformers.

    `plan`: None for the model's own attention, or a dil.torch.Plan, a text, a
    path or a preset, which every layer has in its place; heads and sizes are
    the model's.
    """
    if name in ("eager", "sdpa", "flash_attention_2", "flash_attention_3",
                "flex_attention"):
        _refuse(f"'{name}' is an attention of transformers itself: take "
                "another name")
    known = None if plan is None else find(plan)

    def attend(module, query, key, value, attention_mask, **named):
        return _attend(known, name, module, query, key, value, attention_mask,
                       **named)

    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, _mask)
