"""Modules of dilated attention: what a LongNet is built of.

    attention = dil.torch.modules.MultiheadDilatedAttention(
        768, 12, dilation_rates=[1, 2, 4], segment_lengths=[2048, 4096, 8192])
    y, _ = attention(x, x, x, is_causal=True)          # x: [B, N, 768], any N

Names, their order and state_dict keys are those of dilated-attention-pytorch;
`from_torchscale` renames the keys of torchscale's. `mode` says what dilated
attention means: "longnet" is the paper, "torchscale" its published code,
"headgroup" gives each branch heads of its own.
"""

import functools
import math

import torch
from torch import nn
from torch.nn import functional

from . import attention, dilated
from .autocast import norm_and_project
from .cache import KeyValueCache

__all__ = ["DilatedAttention", "MultiheadDilatedAttention", "XPos",
           "KeyValueCache", "LongNetEncoderLayer", "LongNetDecoderLayer",
           "LongNetEncoder", "LongNetDecoder", "from_torchscale"]

# ---- attention -------------------------------------------------------------


class DilatedAttention(nn.Module):
    """Dilated attention (LongNet, arXiv 2307.02486) of q [B, N, H, D] over k and
    v [B, M, Hkv, D], to [B, N, H, D]; H is a multiple of Hkv.

    Branch x sees segments of segment_lengths[x] rows, and of them each
    dilation_rates[x]-th; no length need be a multiple of anything.
    `softmax_scale`: 1 / sqrt(D) where it is None. `attention_dropout`: the
    probability that a weight is dropped in training. `mode` says what the
    branches mean to each other, see above. gradient="detached" takes the mixing
    weights of the branches as constants, as torchscale does. ValueError where
    one of these cannot be; dil.Error where tensors do not fit together.
    """

    def __init__(self, segment_lengths, dilation_rates, softmax_scale=None,
                 attention_dropout=0.0, op=None, *, mode="longnet",
                 gradient="exact"):
        super().__init__()
        if op is not None:
            raise ValueError("op chooses a kernel of xformers: dil makes its "
                             "own")
        if mode not in dilated.MODES:
            raise ValueError(f"mode must be one of {', '.join(dilated.MODES)}, "
                             f"got {mode!r}")
        if gradient not in ("exact", "detached"):
            raise ValueError("gradient must be 'exact' or 'detached', got "
                             f"{gradient!r}")
        if not 0.0 <= attention_dropout < 1.0:
            raise ValueError("attention_dropout must be at least 0 and below "
                             f"1, got {attention_dropout}")
        self.pairs = dilated.branches(segment_lengths, dilation_rates)
        self.softmax_scale, self.dropout_p = softmax_scale, attention_dropout
        self.mode, self.gradient = mode, gradient
        self.ring = None  # a dil.torch.Ring: tensors are this process's rows

    def extra_repr(self):
        return (f"{', '.join(f'{s}:{r}' for s, r in self.pairs)}, "
                f"mode={self.mode!r}, dropout={self.dropout_p}")

    def forward(self, query, key, value, is_causal=False,
                key_padding_mask=None):
        """Rows stand at the end of the keys; is_causal: they see keys up to their
        own. key_padding_mask: bool [B, M], true for keys that nobody sees."""
        for name, x in ("query", query), ("key", key), ("value", value):
            if x.dim() != 4:
                raise ValueError(f"{name} must be [batch, rows, heads, dim], "
                                 f"got {x.dim()} dimensions")
        text = dilated.text_of(
            query, key, value, self.pairs, dilated.MODES[self.mode],
            causal=is_causal, dropout=self.dropout_p, scale=self.softmax_scale,
            gradient="exact" if self.mode == "headgroup" else self.gradient,
            padding=key_padding_mask is not None)
        inputs = {}
        if key_padding_mask is not None:
            inputs["padding"] = dilated.padding_of(key_padding_mask)
        train = self.training and self.dropout_p > 0
        if self.ring is not None:
            if inputs or train:
                raise ValueError("on a ring there is neither padding nor "
                                 "dropout of weights yet")
            return self.ring.attention(query, key, value, text)
        return attention(query, key, value, text, inputs=inputs, train=train)


class MultiheadDilatedAttention(nn.Module):
    """Projections round dilated attention, self or cross, with MAGNETO's norm
    (arXiv 2210.06423) before the last one: query [B, N, embed_dim], key and value
    [B, M, embed_dim], to ([B, N, embed_dim], None).

    `dropout` is that of attention weights, `bias` of the four projections;
    `layer_norm` says whether MAGNETO's norm is there, and `gamma_init` is its
    gain of the first weights of v_proj and out_proj. `xpos_scale_base`: positions
    by XPos; over so many rows products fall, by the pair of elements, to 0.29 or
    less far. The rest is DilatedAttention's. ValueError where num_heads does not
    divide embed_dim.
    """

    def __init__(self, embed_dim, num_heads, dilation_rates, segment_lengths,
                 dropout=0.0, bias=True, layer_norm=True, layer_norm_eps=1e-5,
                 gamma_init=1.0, device=None, dtype=None, op=None, *,
                 mode="longnet", gradient="exact", xpos_scale_base=None):
        super().__init__()
        if embed_dim % num_heads:
            raise ValueError(f"embed_dim ({embed_dim}) must be divisible by "
                             f"num_heads ({num_heads})")
        like = {"device": device, "dtype": dtype}
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.gamma_init = gamma_init
        linear = functools.partial(nn.Linear, embed_dim, embed_dim, bias=bias,
                                   **like)
        self.q_proj, self.k_proj, self.v_proj = linear(), linear(), linear()
        self.attention = DilatedAttention(
            segment_lengths, dilation_rates, attention_dropout=dropout, op=op,
            mode=mode, gradient=gradient)
        self.norm = (nn.LayerNorm(embed_dim, eps=layer_norm_eps, **like)
                     if layer_norm else None)
        self.out_proj = linear()
        self.xpos = (None if xpos_scale_base is None else
                     XPos(embed_dim // num_heads, xpos_scale_base, device))
        self.reset_parameters()

    def reset_parameters(self):
        for linear, gain in ((self.q_proj, 1), (self.k_proj, 1),
                             (self.v_proj, self.gamma_init),
                             (self.out_proj, self.gamma_init)):
            _start(linear, gain)

    def _project(self, query, key, value):
        """q, k, v as rows of heads; one product where they are one tensor."""
        parts = self.q_proj, self.k_proj, self.v_proj
        if query is key and key is value and query.shape[1] > 1:
            weight = torch.cat([p.weight for p in parts])
            bias = (None if self.q_proj.bias is None else
                    torch.cat([p.bias for p in parts]))
            x = functional.linear(query, weight, bias).chunk(3, dim=-1)
        else:
            x = [p(y) for p, y in zip(parts, (query, key, value))]
        return [y.unflatten(-1, (self.num_heads, -1)) for y in x]

    def forward(self, query, key, value, is_causal=False, *,
                key_padding_mask=None, cache=None):
        """cache: a KeyValueCache of earlier calls, which this call adds to."""
        for name, x in ("query", query), ("key", key), ("value", value):
            if x.dim() != 3 or x.shape[-1] != self.embed_dim:
                raise ValueError(f"{name} must be [batch, rows, "
                                 f"{self.embed_dim}], got {list(x.shape)}")
        q, k, v = self._project(query, key, value)
        ring = getattr(self.attention, "ring", None)
        if self.xpos is not None and ring is not None:
            at = ring.positions() - ring.length // 2
            q, k = self.xpos(q, at), self.xpos(k, at, is_key=True)
        elif self.xpos is not None:
            first, center = (0, k.shape[1] // 2) if cache is None else \
                cache.place(k.shape[1])
            ends = first + k.shape[1] - q.shape[1]
            q = self.xpos(q, ends - center)
            k = self.xpos(k, first - center, is_key=True)
        if cache is not None:
            k, v = cache.append(k, v)
        x = self.attention(q, k, v, is_causal=is_causal,
                           key_padding_mask=key_padding_mask).flatten(2)
        return norm_and_project(self.norm, self.out_proj, x), None


def _start(linear, gain):
    nn.init.xavier_normal_(linear.weight, gain=gain)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)


class XPos(nn.Module):
    """Rotary positions whose length decays (arXiv 2212.10554), as torchscale
    places them: neighbouring elements are a pair, queries grow with the
    position and keys shrink. Only the distance of two positions counts."""

    def __init__(self, head_dim, scale_base=512, device=None):
        super().__init__()
        if head_dim % 2:
            raise ValueError(f"xpos turns pairs: head_dim ({head_dim}) must be "
                             "even")
        self.head_dim, self.scale_base = head_dim, scale_base
        # Of torchscale's state_dict; a model in half precision rounds it.
        self.register_buffer("scale", self._scale(device))

    def _scale(self, device):
        pair = torch.arange(0, self.head_dim, 2, device=device)
        return (pair + 0.4 * self.head_dim) / (1.4 * self.head_dim)

    def _turn(self, device):
        """1e4 ^ (-k / pairs) for pair k."""
        pair = torch.arange(0, self.head_dim, 2, device=device)
        return 1e4 ** (-pair / self.head_dim)

    def _must_fit(self, x, first):
        """Rows far from the center must have a length that x's type has."""
        far = max(abs(first), abs(first + x.shape[1]))
        largest = math.log(torch.finfo(x.dtype).max) - math.log(64)
        reach = int(largest / -math.log(0.4 / 1.4) * self.scale_base)
        if far > reach:
            raise ValueError(
                f"xpos with scale_base {self.scale_base} reaches {reach} "
                f"positions from the center in {x.dtype}, got {far}: take a "
                "larger base")

    def forward(self, x, first, is_key=False):
        """x [B, N, H, D], whose row 0 stands at position `first`; or `first` has
        the position of each row."""
        if isinstance(first, torch.Tensor):
            at = first.to(x.device, torch.float32)
            for end in (first.min(), first.max()) if len(first) else ():
                self._must_fit(x[:, :0], int(end))
        else:
            self._must_fit(x, first)
            at = torch.arange(first, first + x.shape[1], device=x.device,
                              dtype=torch.float32)
        at = at[:, None, None]
        power = (-at if is_key else at) / self.scale_base
        length = self._scale(x.device) ** power
        angle = at * self._turn(x.device)
        cos, sin = angle.cos() * length, angle.sin() * length
        even, odd = x.float()[..., 0::2], x.float()[..., 1::2]
        turned = torch.stack((even * cos - odd * sin, odd * cos + even * sin),
                             -1)
        return turned.flatten(-2).to(x.dtype)


# ---- layers ----------------------------------------------------------------

_ACTIVATIONS = {"relu": functional.relu, "gelu": functional.gelu,
                "swish": functional.silu}


def _activation(given):
    if callable(given):
        return given
    if given not in _ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(_ACTIVATIONS)} "
                         f"or a function, got {given!r}")
    return _ACTIVATIONS[given]


class _Layer(nn.Module):
    """What both layers are made of: attentions, which a kind of layer names, and
    a feed-forward block, each behind a norm. Parameters have the order of
    dilated-attention-pytorch, so that an optimizer's state fits, too."""

    def __init__(self, d_model, nhead, segment_lengths, dilation_rates,
                 dim_feedforward=2048, dropout=0.1, activation="relu",
                 layer_norm_eps=1e-5, gamma_init=1.0, device=None, dtype=None,
                 *, attention_dropout=0.0, **options):
        super().__init__()
        like = {"device": device, "dtype": dtype}
        norm = functools.partial(nn.LayerNorm, eps=layer_norm_eps, **like)
        make = functools.partial(
            MultiheadDilatedAttention, d_model, nhead, dilation_rates,
            segment_lengths, attention_dropout, layer_norm_eps=layer_norm_eps,
            gamma_init=gamma_init, **like)
        self.activation = _activation(activation)
        self.dropout = nn.Dropout(dropout)
        attentions = self.attentions(make, options)
        for at, (name, module) in enumerate(attentions.items(), 1):
            self.add_module(f"norm{at}", norm(d_model))
            self.add_module(name, module)
        last = len(attentions) + 1
        self.before, self.inside = f"norm{last}", f"norm{last + 1}"
        self.add_module(self.before, norm(d_model))
        self.linear1 = nn.Linear(d_model, dim_feedforward, **like)
        self.add_module(self.inside, norm(dim_feedforward))
        self.linear2 = nn.Linear(dim_feedforward, d_model, **like)
        _start(self.linear1, gamma_init)
        _start(self.linear2, gamma_init)

    def feed_forward(self, x):
        y = self.activation(self.linear1(getattr(self, self.before)(x)))
        y = self.linear2(getattr(self, self.inside)(self.dropout(y)))
        return x + self.dropout(y)


class LongNetEncoderLayer(_Layer):
    """Self-attention and a feed-forward block, each with norms before and
    inside (sub-LN, MAGNETO, arXiv 2210.06423): [B, N, d_model] to the same.

    `nhead` heads of d_model / nhead elements; segment_lengths in rows, and
    dilation_rates, as in DilatedAttention; `dim_feedforward` elements between
    the two linear layers. `dropout` is a probability, of both blocks' results
    and between the linear layers; `attention_dropout`, of weights. `activation`
    is "relu", "gelu", "swish" or a function. `gamma_init` is MAGNETO's gain of
    the first weights. `options` go to MultiheadDilatedAttention: mode, gradient,
    bias, xpos_scale_base. ValueError where one of them cannot be.
    """

    def attentions(self, make, options):
        return {"self_attn": make(**options)}

    def forward(self, src, is_causal=False, *, key_padding_mask=None,
                cache=None):
        """src [B, N, d_model]; key_padding_mask bool [B, N], true for rows that
        nobody sees; cache: a KeyValueCache, for decoding."""
        y = self.norm1(src)
        y, _ = self.self_attn(y, y, y, is_causal, cache=cache,
                              key_padding_mask=key_padding_mask)
        return self.feed_forward(src + self.dropout(y))


class LongNetDecoderLayer(_Layer):
    """Causal self-attention, attention to a memory, and a feed-forward block:
    [B, N, d_model] and a memory [B, M, d_model] to [B, N, d_model].

    The arguments are LongNetEncoderLayer's; XPos turns the self-attention alone.
    The norms inside stand where dilated-attention-pytorch has them: none in the
    self-attention. Queries are aligned with the end of the memory.
    """

    def attentions(self, make, options):
        own = {"xpos_scale_base": options.pop("xpos_scale_base", None),
               "layer_norm": False}
        return {"self_attn": make(**options, **own),
                "multihead_attn": make(**options)}

    def forward(self, tgt, memory, tgt_is_causal=True, memory_is_causal=False,
                *, memory_key_padding_mask=None, cache=None):
        """memory_key_padding_mask: bool [B, M], true for rows that nobody sees;
        cache: a KeyValueCache of tgt's earlier rows, for decoding."""
        y = self.norm1(tgt)
        y, _ = self.self_attn(y, y, y, tgt_is_causal, cache=cache)
        tgt = tgt + self.dropout(y)
        y, _ = self.multihead_attn(self.norm2(tgt), memory, memory,
                                   memory_is_causal,
                                   key_padding_mask=memory_key_padding_mask)
        return self.feed_forward(tgt + self.dropout(y))


# ---- stacks ----------------------------------------------------------------


class _Stack(nn.Module):
    """Layers of one kind and a last norm."""

    kind, gains = None, 0  # of a layer; MAGNETO's figure 2: what gamma grows by

    def __init__(self, num_layers, d_model, nhead, segment_lengths,
                 dilation_rates, dim_feedforward=None, *, layer_norm_eps=1e-5,
                 gamma_init=None, checkpoint=False, device=None, dtype=None,
                 **options):
        super().__init__()
        if gamma_init is None:
            gamma_init = math.sqrt(math.log(self.gains * num_layers))
        self.checkpoint = checkpoint
        self.layers = nn.ModuleList(
            self.kind(d_model, nhead, segment_lengths, dilation_rates,
                      dim_feedforward or 4 * d_model,
                      layer_norm_eps=layer_norm_eps, gamma_init=gamma_init,
                      device=device, dtype=dtype, **options)
            for _ in range(num_layers))
        self.norm = nn.LayerNorm(d_model, eps=layer_norm_eps, device=device,
                                 dtype=dtype)

    def new_cache(self):
        """A cache for decoding: a KeyValueCache for each layer."""
        return [KeyValueCache() for _ in self.layers]

    def run(self, x, arguments, options, cache):
        """x through the layers; their activations are made again backward where
        the stack was made so."""
        again = self.checkpoint and self.training and torch.is_grad_enabled()
        for at, layer in enumerate(self.layers):
            call = functools.partial(
                layer, cache=None if cache is None else cache[at], **options)
            if again:
                x = torch.utils.checkpoint.checkpoint(call, x, *arguments,
                                                      use_reentrant=False)
            else:
                x = call(x, *arguments)
        return self.norm(x)


class LongNetEncoder(_Stack):
    """Layers of self-attention and a last norm (LongNet, arXiv 2307.02486):
    [B, N, d_model] to the same. A decoder-only language model is this with
    is_causal=True and a cache.

    `dim_feedforward` is 4 * d_model where it is not given, and `gamma_init`
    MAGNETO's sqrt(log(2 * num_layers)). `checkpoint`: a training step keeps no
    activations inside layers, and computes them twice. `options` go to
    LongNetEncoderLayer.
    """

    kind, gains = LongNetEncoderLayer, 2

    def forward(self, x, is_causal=False, *, key_padding_mask=None, cache=None):
        """As LongNetEncoderLayer; cache: what new_cache() made, or None."""
        return self.run(x, (is_causal,), {"key_padding_mask": key_padding_mask},
                        cache)


class LongNetDecoder(_Stack):
    """Layers that attend to themselves and to a memory, and a last norm; the
    arguments are LongNetEncoder's, with a gain of sqrt(log(3 * num_layers))."""

    kind, gains = LongNetDecoderLayer, 3

    def forward(self, tgt, memory, tgt_is_causal=True, memory_is_causal=False,
                *, memory_key_padding_mask=None, cache=None):
        """As LongNetDecoderLayer; cache: what new_cache() made, or None."""
        return self.run(tgt, (memory, tgt_is_causal, memory_is_causal),
                        {"memory_key_padding_mask": memory_key_padding_mask},
                        cache)


# ---- weights of torchscale -------------------------------------------------

_TORCHSCALE = (("self_attn.inner_attn_ln.", "self_attn.norm."),
               ("inner_attn_ln.", "norm."),
               ("self_attn_layer_norm.", "norm1."),
               ("final_layer_norm.", "norm2."),
               ("ffn.fc1.", "linear1."), ("ffn.fc2.", "linear2."),
               ("ffn.ffn_layernorm.", "norm3."))


def from_torchscale(state):
    """The state_dict of a torchscale attention, layer or LongNet encoder under
    the names of these modules (mode="torchscale"). Names of what these modules
    do not have, as an embedding, stay."""
    renamed = {}
    for name, value in state.items():
        if name.startswith("layer_norm."):
            name = "norm." + name.removeprefix("layer_norm.")
        for theirs, ours in _TORCHSCALE:
            head, found, tail = name.rpartition(theirs)
            if found and (not head or head.endswith(".")):
                name = head + ours + tail
                break
        renamed[name] = value
    return renamed
