"""Patterns of dilated attention for modules and patches.

In: segments, dilations, and how the branches mix. Out: the text of a pattern
for the tensors of a call. `zero_keys=True` writes the padding that torchscale
attends to as sinks: keys of score 0 without a value.
"""

import torch

from dil import Error

# What a mode of the modules means: the paper, its published code, and fkodom's
# heads for each branch.
MODES = {
    "longnet": "phase cycle;",
    "torchscale": "phase block;",
    "headgroup": "heads split; phase branch; combine mean;",
}


def refuse(text):
    raise Error("DIL_USAGE", text)


def branches(segments, dilations):
    """Segment lengths and dilations as pairs, or an error that says why not."""
    segments, dilations = tuple(segments), tuple(dilations)
    if not segments:
        raise ValueError("segment_lengths cannot be empty")
    if len(segments) != len(dilations):
        raise ValueError(f"{len(segments)} segment_lengths and "
                         f"{len(dilations)} dilation_rates must have the same "
                         "length")
    if min(segments + dilations) < 1:
        raise ValueError("segment_lengths and dilation_rates must be at least "
                         "1")
    return tuple((int(s), int(r)) for s, r in zip(segments, dilations))


def _zero_key_sink(heads, segment, dilation):
    """A branch's sink of the keys that torchscale pads with: to the end of the
    last segment, or to a multiple of the dilation where one segment holds all.

    Of the first x positions of a segment, (x + r - 1 - p) / r have phase p."""
    s, r = segment, dilation
    below = f"{r - 1} - h / {-(-heads // r)}"
    end = f"(M > {s} ? {s} : (M + {r - 1}) / {r} * {r})"
    here = f"M - (M - 1) / {s} * {s}"
    count = f"({end} + {below}) / {r} - ({here} + {below}) / {r}"
    return f"sink i / {s} == (M - 1) / {s} ? log(1.0 * ({count})) : -inf;"


def text_of(q, k, v, pairs, statements, *, causal=False, dropout=0.0,
            scale=None, gradient="exact", zero_keys=False, padding=False):
    """The pattern for tensors of [B, N, H, D], as dil.torch.attention takes it.

    Plain words and no cache, so that torch.compile sees a constant; attention()
    knows the plan of a text."""
    lines = [f"heads {q.shape[2]} kv {k.shape[2]};",
             f"head_dim {q.shape[3]} value {v.shape[3]};", "dtype f32;",
             statements]
    if causal:
        lines.append("causal;")
    if dropout:
        lines.append(f"dropout {dropout};")
    if scale is not None:
        lines.append(f"scale {float(scale)};")
    if gradient == "detached" and len(pairs) > 1:
        lines.append("gradient detached;")
    if padding:
        lines.append("input padding : u8[B, M]; mask padding[b, j] == 0;")
    for s, r in pairs:
        sink = ""
        if zero_keys and not causal:  # a causal row sees none of them
            sink = _zero_key_sink(q.shape[2], s, r)
        lines.append(f"branch {{ segment {s}; dilation {r}; {sink} }}")
    return "pattern dilated {\n" + "\n".join(lines) + "\n}\n"


def padding_of(mask):
    """A mask of PyTorch's kind (true: nobody sees the key) as the input of
    plans made with `padding`."""
    if mask.dim() != 2:
        raise ValueError("key_padding_mask must be [batch, keys], got "
                         f"{mask.dim()} dimensions")
    if mask.dtype not in (torch.bool, torch.uint8):
        raise ValueError(f"key_padding_mask must be bool, got {mask.dtype}")
    return mask.to(torch.uint8)
