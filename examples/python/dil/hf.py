"""dil in transformers.

    import dil.hf
    dil.hf.use()                             # the model's own attention
    AutoModel.from_pretrained(..., attn_implementation="dil")

    dil.hf.use("sinks.dil", name="sinks")    # a pattern of your own instead
    AutoModel.from_pretrained(..., attn_implementation="sinks")

The masks that transformers builds are recognised by their code: causal,
sliding, chunked, blockwise, padded and packed, and any of them together or in
turn. They become statements of a pattern and no table. A mask function that is
not known is refused by name. A mask that the caller prepared, of 4 dimensions,
is read pair by pair: bool says who is seen, floats are added to the scores.
Soft caps, learned sinks, a position bias and attention dropout become
statements, too.

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

    shape: tuple                 # of the tensor, [B, 1, N, M]
    first: int = 0               # the position of key 0
    causal: bool = False
    left: int | None = None      # keys before a query, None: all
    right: int | None = None     # keys behind it
    # Further conditions of a pair in dil's language, and the tensors they read.
    terms: list = dataclasses.field(default_factory=list)
    inputs: dict = dataclasses.field(default_factory=dict)
    lengths: torch.Tensor | None = None  # the keys that exist, i32 [B]

    @property
    def ndim(self):
        return len(self.shape)

    def contiguous(self):  # generate() asks this of a mask that it has made
        return self

    def reads(self, name, tensor):
        if name in self.inputs:
            _refuse(f"a mask with two tensors of the kind '{name}' is not known "
                    f"to dil.hf: {_TABLE}")
        self.inputs[name] = tensor


_TABLE = ('use attn_implementation="sdpa", or prepare the mask as a tensor of 4 '
          "dimensions")


def _code(function):
    return getattr(function, "__code__", None)


def _inner(maker, *arguments):
    """The code of the function that a maker of transformers returns; of a
    maker that this version lacks, what no function has."""
    maker = getattr(masking_utils, maker, None)
    return object() if maker is None else _code(maker(*arguments))


_any = torch.zeros(1, 1, dtype=torch.int64)
_CAUSAL = _code(masking_utils.causal_mask_function)
_WHOLE = _code(masking_utils.bidirectional_mask_function)
_AND, _OR = _inner("and_masks"), _inner("or_masks")
_SLIDING = _inner("sliding_window_overlay", 1)
_NEAR = _inner("sliding_window_bidirectional_overlay", 1)
_CHUNKED = _inner("chunked_overlay", 1, _any)
_BLOCKWISE = _inner("blockwise_overlay", _any)
_PACKED = _inner("packed_sequence_mask_function", _any)
_REMAPPED = _inner("remap_positions_for_packed_sequence",
                   masking_utils.causal_mask_function, _any)


def _kept(function):
    """What a function of transformers closes over, by name."""
    if _code(function) is None:
        return {}
    cells = function.__closure__ or ()
    return {name: cell.cell_contents
            for name, cell in zip(function.__code__.co_freevars, cells)}


def _least(a, b):
    return b if a is None else a if b is None else min(a, b)


def _rows(mask, tensor):
    """A tensor of positions for the keys of the call, i32 [B, M]."""
    of = tensor.expand(mask.shape[0], -1)
    return of[:, mask.first:mask.first + mask.shape[3]].to(torch.int32)


def _term(function, mask, i="i", j="j"):
    """What a mask function says of query i and key j, in dil's language."""
    code, kept = _code(function), _kept(function)
    if code is _CAUSAL:
        return f"{j} <= {i}"
    if code is _WHOLE:
        return f"{j} >= 0"
    if code is _AND or code is _OR:
        parts = [f"({_term(part, mask, i, j)})"
                 for part in kept["mask_functions"]]
        return (" && " if code is _AND else " || ").join(parts)
    if code is _SLIDING:
        return f"{i} - {j} < {int(kept['sliding_window'])}"
    if code is _NEAR:
        return f"abs({i} - {j}) <= {int(kept['sliding_window'])}"
    if code is _CHUNKED:  # positions count from the first key of the call
        mask.reads("start", (kept["left_padding"] - mask.first).to(torch.int32))
        size = int(kept["chunk_size"])
        return f"({i} - start[b]) / {size} == ({j} - start[b]) / {size}"
    if code is _BLOCKWISE:
        mask.reads("group", _rows(mask, kept["block_sequence_ids"]))
        return "group[b, i] == group[b, j] && group[b, i] >= 0"
    if code is _PACKED:
        mask.reads("document", _rows(mask, kept["packed_sequence_mask"]))
        return "document[b, i] == document[b, j]"
    if code is _REMAPPED:
        mask.reads("at", _rows(mask, kept["position_ids"]))
        return _term(kept["mask_function"], mask, "at[b, i]", "at[b, j]")
    name = getattr(function, "__qualname__", type(function).__name__)
    _refuse(f"the mask function '{name}' is not known to dil.hf: {_TABLE}, or "
            "dil.hf.use() with a pattern that says what the mask says")


def _is_distance(function):
    """Whether only the distance of query and key counts: inside a document it
    stays what it is when positions begin anew."""
    code = _code(function)
    if code is _AND:
        return all(map(_is_distance, _kept(function)["mask_functions"]))
    return any(code is known for known in (_CAUSAL, _WHOLE, _SLIDING, _NEAR))


def _read(function, mask):
    """Adds what a mask function says to the mask: windows as such, the rest as
    terms."""
    code, kept = _code(function), _kept(function)
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
    elif code is _REMAPPED and _is_distance(kept["mask_function"]):
        _read(kept["mask_function"], mask)
    elif code is not _WHOLE:
        mask.terms.append(_term(function, mask))


def _ends(function):
    """Whether no query sees keys behind the last query."""
    code, kept = _code(function), _kept(function)
    if code is _AND or code is _OR:
        ends = map(_ends, kept["mask_functions"])
        return any(ends) if code is _AND else all(ends)
    if code is _REMAPPED:
        return _ends(kept["mask_function"])
    return any(code is known for known in (_CAUSAL, _BLOCKWISE, _PACKED))


def _padding(attention_mask, first, count):
    """The tokenizer's mask as u8 [B, M], 1: padding; None: no padding."""
    if attention_mask is None:
        return None
    if attention_mask.dim() != 2:
        _refuse(f"a mask of {attention_mask.dim()} dimensions is not known to "
                "dil.hf: give the tokenizer's, of 2 dimensions, or one of pairs, "
                "of 4")
    seen = attention_mask[:, first:first + count].to(torch.bool)
    if seen.shape[1] < count:
        seen = torch.nn.functional.pad(seen, (0, count - seen.shape[1]))
    # A compiler cannot ask a tensor what it holds.
    if not torch.compiler.is_compiling() and bool(seen.all()):
        return None
    return (~seen).to(torch.uint8)


def _lengths(mask, function, q_offset, device):
    """dil wants the last query at the last key. A static cache has room behind
    it, which `lengths` leaves out; None: no such room, or no matter."""
    batch, _, queries, keys = mask.shape
    if not mask.causal and not mask.terms and \
            (mask.left, mask.right) == (None, None):
        return None
    end = q_offset + queries - mask.first
    if isinstance(end, torch.Tensor):  # as a compiled cache has it
        return end.to(device, torch.int32).repeat(batch)
    if end == keys:
        return None
    if end > keys or not _ends(function):
        _refuse(f"{queries} queries from position {q_offset} over {keys} keys "
                f"from position {mask.first}: dil wants the last query at the "
                f"last key. For other places {_TABLE}")
    return torch.full((batch,), end, dtype=torch.int32, device=device)


def _mask(batch_size, q_length, kv_length, q_offset=0, kv_offset=0,
          mask_function=masking_utils.causal_mask_function, attention_mask=None,
          device="cpu", **rest):
    """What transformers calls to make a mask."""
    if isinstance(attention_mask, Mask):  # made ahead by generate()
        return attention_mask
    mask = Mask((batch_size, 1, q_length, kv_length), kv_offset)
    _read(mask_function, mask)
    mask.lengths = _lengths(mask, mask_function, q_offset, device)
    padding = _padding(attention_mask, kv_offset, kv_length)
    if padding is not None:
        mask.reads("padding", padding)
        mask.terms.append("padding[b, j] == 0")
    return mask


# ---- masks and biases of pairs ---------------------------------------------

_FLOATS = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


@dataclasses.dataclass
class Pairs:
    """A number for each pair, under its name in a pattern."""

    name: str
    x: torch.Tensor    # [B or 1, H or 1, N, M]
    kind: str          # its type in a declaration

    def declared(self):
        sizes = ["1" if size == 1 else letter
                 for size, letter in zip(self.x.shape, "BH")]
        return f"{self.kind}[{', '.join(sizes)}, N, M]"

    def element(self):
        at = ["0" if size == 1 else letter
              for size, letter in zip(self.x.shape, "bh")]
        return f"{self.name}[{', '.join(at)}, row, j]"


def _fitting(what, x, q, k):
    """x for the queries and keys of a call."""
    batch, heads, queries, _ = q.shape
    keys = k.shape[2]
    if (x.dim() != 4 or x.shape[0] not in (1, batch)
            or x.shape[1] not in (1, heads) or x.shape[2] != queries
            or x.shape[3] < keys):
        _refuse(f"{what} {list(x.shape)} does not fit the call: it must be "
                f"[{batch} or 1, {heads} or 1, {queries}, {keys}] for batch, "
                "heads, queries and keys")
    return x[..., :keys]


def _of_pairs(attention_mask, position_bias, q, k):
    """The mask that a caller prepared and the bias of a model, as Pairs."""
    found, bias, what = [], None, "a mask"
    if isinstance(attention_mask, torch.Tensor):
        x = _fitting("a mask", attention_mask, q, k)
        if x.dtype == torch.bool:
            found.append(Pairs("table", x.to(torch.uint8), "u8"))
        else:
            bias = x
    if position_bias is not None:
        what = "position_bias"
        x = _fitting(what, position_bias, q, k)
        bias = x if bias is None else x + bias
    if bias is not None:
        if bias.dtype not in _FLOATS:
            _refuse(f"{what} of {bias.dtype} is not known to dil.hf: it must be "
                    "bool, float32, bfloat16 or float16")
        found.append(Pairs("bias", bias, _FLOATS[bias.dtype]))
    return found


def _must_be_mask(module, attention_mask, q, k, sliding_window, is_causal):
    """The mask of a call; of a model that made none, what its module says."""
    if isinstance(attention_mask, Mask):
        return attention_mask
    shape = (q.shape[0], 1, q.shape[2], k.shape[2])
    if attention_mask is not None:  # the caller's, which says all
        return Mask(shape)
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    causal = bool(is_causal) and q.shape[2] > 1
    if causal and q.shape[2] != k.shape[2]:
        _refuse(f"{type(module).__name__} has {q.shape[2]} causal queries over "
                f"{k.shape[2]} keys and no mask that says where they stand: "
                "give attention_mask")
    return Mask(shape, causal=causal,
                left=sliding_window - 1 if sliding_window else None)


# ---- the model's own attention ---------------------------------------------


_DECLARED = {"padding": "u8[B, M]", "start": "i32[B]", "at": "i32[B, M]",
             "document": "i32[B, M]", "group": "i32[B, M]"}


def _text(q, k, v, mask, pairs, dropout, softcap, sinks):
    lines = [f"heads {q.shape[1]} kv {k.shape[1]};",
             f"head_dim {q.shape[3]} value {v.shape[3]};", "dtype f32;",
             "scale runtime;"]
    if mask.causal:
        lines.append("causal;")
    if (mask.left, mask.right) != (None, None):
        sides = ["inf" if x is None else str(x)
                 for x in (mask.left, mask.right)]
        lines.append(f"window {', '.join(sides)};")
    lines += [f"input {name} : {_DECLARED[name]};" for name in mask.inputs]
    lines += [f"mask {term};" for term in mask.terms]
    if softcap:
        lines.append(f"score {float(softcap)} * tanh(s / {float(softcap)});")
    for of in pairs:
        learns = torch.is_grad_enabled() and of.x.requires_grad
        lines += [f"input {of.name} : {of.declared()}"
                  f"{' gradient' if learns else ''};",
                  f"mask {of.element()} != 0;" if of.name == "table" else
                  f"score s + {of.element()};"]
    if sinks is not None:
        lines += ["input sinks : f32[H] gradient;", "sink sinks[h];"]
    if dropout:
        lines.append(f"dropout {float(dropout)};")
    return "pattern model {\n" + "\n".join(lines) + "\nbranch { }\n}\n"


def _inputs(mask, pairs, sinks):
    """The tensors that a mask and sinks bring, by their names in a pattern."""
    found = dict(mask.inputs)
    found.update((of.name, of.x) for of in pairs)
    if sinks is not None:
        found["sinks"] = sinks.float()
    return found


# ---- a pattern of the user's -----------------------------------------------

_WANTED = {
    "padding": "the batch is padded: `input padding : u8[B, M]; "
               "mask padding[b, j] == 0;`",
    "document": "the batch is packed: `input document : i32[B, M]; "
                "mask document[b, i] == document[b, j];`",
    "start": "the model attends in chunks: `input start : i32[B];` and a mask",
    "at": "the model attends in chunks of packed documents: "
          "`input at : i32[B, M];`, positions in a document, and a mask",
    "group": "tokens of a group see each other: `input group : i32[B, M];`, "
             "-1 elsewhere, and a mask",
    "table": "the caller prepared a mask: `input table : u8[B, 1, N, M]; "
             "mask table[b, 0, row, j] != 0;`",
    "bias": "scores have a bias: `input bias : f32[B, H, N, M]; "
            "score s + bias[b, h, row, j];`",
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
    if cache is not None:
        _refuse("continuous batching is not known to dil.hf: generate() serves "
                'a batch, or use attn_implementation="sdpa"')
    if output_attentions:
        _refuse("dil makes no attention weights: output_attentions wants "
                'attn_implementation="eager"')
    mask = _must_be_mask(module, attention_mask, query, key, sliding_window,
                         is_causal)
    pairs = _of_pairs(attention_mask, position_bias, query, key)
    inputs = _inputs(mask, pairs, s_aux)
    scaling = query.shape[3] ** -0.5 if scaling is None else float(scaling)
    if plan is None:
        chosen = _text(query, key, value, mask, pairs, dropout, softcap,
                       s_aux)
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
