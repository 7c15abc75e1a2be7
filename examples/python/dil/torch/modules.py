"""Modules of dilated attention: what a LongNet is built of.

    attention = dil.torch.modules.MultiheadDilatedAttention(
        768, 12, dilation_rates=[1, 2, 4], segment_lengths=[2048, 4096, 8192])
    y, _ = attention(x, x, x, is_causal=True)          # x: [B, N, 768], any N

Names, their order and state_dict keys are those of dilated-attention-pytorch;
`from_torchscale` renames the keys of torchscale's. `mode` says what dilated
attention means: "longnet" is the paper, "torchscale" its published code,
"headgroup" gives each branch heads of its own.
"""

import math

import torch
from torch import nn
from torch.nn import functional

from . import attention, dilated
from .cache import KeyValueCache

__all__ = ["DilatedAttention", "MultiheadDilatedAttention", "XPos",
           "KeyValueCache", "LongNetEncoderLayer", "LongNetDecoderLayer",
           "LongNetEncoder", "LongNetDecoder", "from_torchscale"]

# ---- attention -------------------------------------------------------------


class DilatedAttention(nn.Module):
    """Dilated attention of q [B, N, H, D] over k, v [B, M, Hkv, D].

    No length need be a multiple of anything. gradient="detached" takes the
    mixing weights of the branches as constants, as torchscale does.
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

    def extra_repr(self):
        return (f"{', '.join(f'{s}:{r}' for s, r in self.pairs)}, "
                f"mode={self.mode!r}, dropout={self.dropout_p}")

    def forward(self, query, key, value, is_causal=False,
                key_padding_mask=None):
        """key_padding_mask: bool [B, M], true for keys that nobody sees."""
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
        return attention(query, key, value, text, inputs=inputs,
                         train=self.training and self.dropout_p > 0)


class MultiheadDilatedAttention(nn.Module):
    """Projections round dilated attention, self or cross, with MAGNETO's norm
    (arXiv 2210.06423) before the last one. Returns (output, None)."""

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
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            nn.Linear(embed_dim, embed_dim, bias=bias, **like)
            for _ in range(4))
        self.attention = DilatedAttention(
            segment_lengths, dilation_rates, attention_dropout=dropout, op=op,
            mode=mode, gradient=gradient)
        self.norm = (nn.LayerNorm(embed_dim, eps=layer_norm_eps, **like)
                     if layer_norm else None)
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
        if self.xpos is not None:
            first, center = (0, k.shape[1] // 2) if cache is None else \
                cache.place(k.shape[1])
            ends = first + k.shape[1] - q.shape[1]
            q = self.xpos(q, ends - center)
            k = self.xpos(k, first - center, is_key=True)
        if cache is not None:
            k, v = cache.append(k, v)
        x = self.attention(q, k, v, is_causal=is_causal,
                           key_padding_mask=key_padding_mask).flatten(2)
        return self.out_proj(x if self.norm is None else self.norm(x)), None


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
        """x [B, N, H, D], whose row 0 stands at position `first`."""
        self._must_fit(x, first)
        at = torch.arange(first, first + x.shape[1], device=x.device,
                          dtype=torch.float32)[:, None, None]
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
    """What both layers have: MAGNETO's sub-LN feed-forward block with its two
    norms, and the attention's options."""

    def __init__(self, d_model, dim_feedforward, dropout, activation, eps,
                 gamma, norms, like):
        super().__init__()
        self.activation = _activation(activation)
        self.dropout = nn.Dropout(dropout)
        self.before, self.between = norms
        setattr(self, self.before, nn.LayerNorm(d_model, eps=eps, **like))
        self.linear1 = nn.Linear(d_model, dim_feedforward, **like)
        setattr(self, self.between,
                nn.LayerNorm(dim_feedforward, eps=eps, **like))
        self.linear2 = nn.Linear(dim_feedforward, d_model, **like)
        _start(self.linear1, gamma)
        _start(self.linear2, gamma)

    def feed_forward(self, x):
        y = self.activation(self.linear1(getattr(self, self.before)(x)))
        y = self.linear2(getattr(self, self.between)(self.dropout(y)))
        return x + self.dropout(y)


class LongNetEncoderLayer(_Layer):
    """Self-attention and a feed-forward block, each with norms before and
    inside (sub-LN)."""

    def __init__(self, d_model, nhead, segment_lengths, dilation_rates,
                 dim_feedforward=2048, dropout=0.1, activation="relu",
                 layer_norm_eps=1e-5, gamma_init=1.0, device=None, dtype=None,
                 *, attention_dropout=0.0, **options):
        like = {"device": device, "dtype": dtype}
        super().__init__(d_model, dim_feedforward, dropout, activation,
                         layer_norm_eps, gamma_init, ("norm2", "norm3"), like)
        self.norm1 = nn.LayerNorm(d_model, eps=layer_norm_eps, **like)
        self.self_attn = MultiheadDilatedAttention(
            d_model, nhead, dilation_rates, segment_lengths, attention_dropout,
            layer_norm_eps=layer_norm_eps, gamma_init=gamma_init, **like,
            **options)

    def forward(self, src, is_causal=False, *, key_padding_mask=None,
                cache=None):
        y = self.norm1(src)
        y, _ = self.self_attn(y, y, y, is_causal, cache=cache,
                              key_padding_mask=key_padding_mask)
        return self.feed_forward(src + self.dropout(y))


class LongNetDecoderLayer(_Layer):
    """Causal self-attention, attention to a memory, and a feed-forward block.
    The norms inside stand where dilated-attention-pytorch has them."""

    def __init__(self, d_model, nhead, segment_lengths, dilation_rates,
                 dim_feedforward=2048, dropout=0.1, activation="relu",
                 layer_norm_eps=1e-5, gamma_init=1.0, device=None, dtype=None,
                 *, attention_dropout=0.0, xpos_scale_base=None, **options):
        like = {"device": device, "dtype": dtype}
        super().__init__(d_model, dim_feedforward, dropout, activation,
                         layer_norm_eps, gamma_init, ("norm3", "norm4"), like)
        self.norm1 = nn.LayerNorm(d_model, eps=layer_norm_eps, **like)
        self.norm2 = nn.LayerNorm(d_model, eps=layer_norm_eps, **like)
        common = (d_model, nhead, dilation_rates, segment_lengths,
                  attention_dropout)
        more = dict(gamma_init=gamma_init, layer_norm_eps=layer_norm_eps,
                    **like, **options)
        self.self_attn = MultiheadDilatedAttention(
            *common, layer_norm=False, xpos_scale_base=xpos_scale_base, **more)
        self.multihead_attn = MultiheadDilatedAttention(*common, **more)

    def forward(self, tgt, memory, tgt_is_causal=True, memory_is_causal=False,
                *, memory_key_padding_mask=None, cache=None):
        y = self.norm1(tgt)
        y, _ = self.self_attn(y, y, y, tgt_is_causal, cache=cache)
        tgt = tgt + self.dropout(y)
        y, _ = self.multihead_attn(self.norm2(tgt), memory, memory,
                                   memory_is_causal,
                                   key_padding_mask=memory_key_padding_mask)
        return self.feed_forward(tgt + self.dropout(y))


# ---- stacks ----------------------------------------------------------------


class LongNetEncoder(nn.Module):
    """Layers of self-attention and a last norm; decoder-only language models
    are this with is_causal=True and a cache."""

    def __init__(self, num_layers, d_model, nhead, segment_lengths,
                 dilation_rates, dim_feedforward=None, *, layer_norm_eps=1e-5,
                 gamma_init=None, checkpoint=False, device=None, dtype=None,
                 **options):
        super().__init__()
        if gamma_init is None:  # MAGNETO, figure 2
            gamma_init = math.sqrt(math.log(2 * num_layers))
        self.checkpoint = checkpoint
        self.layers = nn.ModuleList(
            LongNetEncoderLayer(
                d_model, nhead, segment_lengths, dilation_rates,
                dim_feedforward or 4 * d_model, layer_norm_eps=layer_norm_eps,
                gamma_init=gamma_init, device=device, dtype=dtype, **options)
            for _ in range(num_layers))
        self.norm = nn.LayerNorm(d_model, eps=layer_norm_eps, device=device,
                                 dtype=dtype)

    def new_cache(self):
        """A cache for decoding: a KeyValueCache for each layer."""
        return [KeyValueCache() for _ in self.layers]

    def forward(self, x, is_causal=False, *, key_padding_mask=None, cache=None):
        for at, layer in enumerate(self.layers):
            options = {"key_padding_mask": key_padding_mask,
                       "cache": None if cache is None else cache[at]}
            if self.checkpoint and self.training and torch.is_grad_enabled():
                x = torch.utils.checkpoint.checkpoint(
                    layer, x, is_causal, use_reentrant=False, **options)
            else:
                x = layer(x, is_causal, **options)
        return self.norm(x)


class LongNetDecoder(nn.Module):
    """Layers that attend to themselves and to a memory, and a last norm."""

    def __init__(self, num_layers, d_model, nhead, segment_lengths,
                 dilation_rates, dim_feedforward=None, *, layer_norm_eps=1e-5,
                 gamma_init=None, device=None, dtype=None, **options):
        super().__init__()
        if gamma_init is None:
            gamma_init = math.sqrt(math.log(3 * num_layers))
        self.layers = nn.ModuleList(
            LongNetDecoderLayer(
                d_model, nhead, segment_lengths, dilation_rates,
                dim_feedforward or 4 * d_model, layer_norm_eps=layer_norm_eps,
                gamma_init=gamma_init, device=device, dtype=dtype, **options)
            for _ in range(num_layers))
        self.norm = nn.LayerNorm(d_model, eps=layer_norm_eps, device=device,
                                 dtype=dtype)

    new_cache = LongNetEncoder.new_cache

    def forward(self, tgt, memory, tgt_is_causal=True, memory_is_causal=False,
                *, memory_key_padding_mask=None, cache=None):
        for at, layer in enumerate(self.layers):
            tgt = layer(tgt, memory, tgt_is_causal, memory_is_causal,
                        memory_key_padding_mask=memory_key_padding_mask,
                        cache=None if cache is None else cache[at])
        return self.norm(tgt)


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
