"""The slide encoder of Prov-GigaPath with random weights, its attention by
PyTorch and by dil: how far apart, and how long.

    python3 examples/python/gigapath.py --tiles 10000
    python3 examples/python/gigapath.py --tiles 2000 --layers 2 --backward

The configuration is that of the published encoder: 12 layers of 768 in 16
heads, segments 1024 .. 1048576 with dilations 1 .. 16. Over PyTorch the
attention is what torchscale computes: rows gathered for each branch, padded
with zeros that take part, mixed by weights that have no gradient.
`dil.torch.patch` replaces it, as it replaces that of the published code, which
`--checkout FOLDER` runs instead of the modules here.
"""

import argparse
import os
import sys
import time
import types

# PyTorch's threads would go on spinning where dil's threads want the cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
import numpy
import torch
from torch import nn
from torch.nn import functional

import dil.torch

SEGMENTS, DILATIONS = [1024, 5792, 32768, 185363, 1048576], [1, 2, 4, 8, 16]

# ---- the encoder over PyTorch ----------------------------------------------


class DilatedAttention(nn.Module):
    """Dilated attention with torchscale's fields and its result, over PyTorch's
    own flash kernel."""

    def __init__(self, width, heads):
        super().__init__()
        self.args = types.SimpleNamespace(segment_length=SEGMENTS,
                                          dilated_ratio=DILATIONS)
        self.num_heads, self.dropout, self.xpos = heads, 0.0, None
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            setattr(self, name, nn.Linear(width, width))
        self.inner_attn_ln = nn.LayerNorm(width)

    @staticmethod
    def _flash(q, k, v):
        """o and lse of [B, n, H, D]."""
        aten = torch.ops.aten
        op = (aten._scaled_dot_product_flash_attention if q.is_cuda
              else aten._scaled_dot_product_flash_attention_for_cpu)
        o, lse = op(*(x.transpose(1, 2) for x in (q, k, v)))[:2]
        return o.transpose(1, 2), lse.transpose(1, 2)

    def _branch(self, tensors, s, r):
        """Gathers, attends, scatters: o, and lse of the rows it serves."""
        batch, n, heads, _ = tensors[0].shape
        s = min(s, n)
        long = -(-s // r) * r  # a segment alone is padded once more
        x = [functional.pad(t, (0, 0, 0, 0, 0, -n % s)).unflatten(1, (-1, s))
             for t in tensors]
        x = [functional.pad(t, (0, 0, 0, 0, 0, long - s)).flatten(0, 1)
             for t in x]
        o = torch.zeros_like(x[0])
        lse = torch.full_like(x[0][..., 0], -1e8, dtype=torch.float32)
        share = -(-heads // r)
        for phase in range(-(-heads // share)):
            at = (slice(None), slice(phase, None, r),
                  slice(phase * share, (phase + 1) * share))
            o[at], found = self._flash(*(t[at] for t in x))
            lse[at] = found.detach()
        back = lambda t: t[:, :s].unflatten(0, (batch, -1)).flatten(1, 2)[:, :n]
        return back(o), back(lse)

    def forward(self, query, key, value):
        tensors = [p(x).unflatten(-1, (self.num_heads, -1)) for p, x in (
            (self.q_proj, query), (self.k_proj, key), (self.v_proj, value))]
        outs, lses = zip(*(self._branch(tensors, s, r)
                           for s, r in zip(SEGMENTS, DILATIONS)))
        weights = torch.stack(lses).softmax(0)
        x = sum(o * w[..., None].to(o.dtype) for o, w in zip(outs, weights))
        return self.out_proj(self.inner_attn_ln(x.flatten(2))), None


class Layer(nn.Module):
    """torchscale's encoder layer: norms before and inside."""

    def __init__(self, width, heads):
        super().__init__()
        self.self_attn_layer_norm = nn.LayerNorm(width)
        self.self_attn = DilatedAttention(width, heads)
        self.final_layer_norm = nn.LayerNorm(width)
        self.ffn = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(),
                                 nn.LayerNorm(4 * width),
                                 nn.Linear(4 * width, width))

    def forward(self, x):
        y = self.self_attn_layer_norm(x)
        x = x + self.self_attn(y, y, y)[0]
        return x + self.ffn(self.final_layer_norm(x))


class SlideEncoder(nn.Module):
    """Tile embeddings [B, tiles, 1536] to one embedding of the slide."""

    def __init__(self, layers=12, width=768, heads=16):
        super().__init__()
        self.embed, self.norm = nn.Linear(1536, width), nn.LayerNorm(width)
        self.first = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))

    def forward(self, tiles):
        first = self.first.expand(len(tiles), -1, -1)
        x = torch.cat([first, self.embed(tiles)], 1)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)[:, 0]


# ---- the published encoder -------------------------------------------------


def _flash(q, k, v, dropout=0.0, bias=None, softmax_scale=None,
           is_causal=False):
    """What torchscale takes of flash-attn, by PyTorch's own kernel."""
    if dropout or bias is not None or softmax_scale is not None or is_causal:
        raise ValueError("the slide encoder asks for plain attention alone")
    o, lse = DilatedAttention._flash(q, k, v)
    return o, lse.transpose(1, 2)


def published(o):
    """The encoder of a checkout, and the call of it. flash-attn is the one
    package that may lack: PyTorch's kernel takes its place."""
    sys.path.insert(0, o.checkout)
    numpy.set_printoptions(legacy="1.25")  # it evaluates str(list of integers)
    sys.modules.pop("gigapath", None)      # where this file was imported
    try:
        from gigapath import slide_encoder
    except ImportError as error:
        raise SystemExit(f"{o.checkout}: {error}; is it a checkout of "
                         "prov-gigapath, and are its packages installed? pip "
                         "install einops fairscale huggingface_hub timm")
    for name, module in list(sys.modules.items()):
        if name.endswith("torchscale.component.multihead_attention"):
            module.flash_attn_func = module.flash_attn_func or _flash
    model = slide_encoder.LongNetViT(in_chans=1536, embed_dim=768,
                                     depth=o.layers, dropout=0.0,
                                     drop_path_rate=0.0).to(o.device)
    at = torch.randint(1000, (1, o.tiles, 2), device=o.device) * 256.0
    return model, lambda tiles: model(tiles, at[:, :tiles.shape[1]])[0]


# ---- comparison ------------------------------------------------------------


def synchronise(o):
    if o.device.startswith("cuda"):
        torch.cuda.synchronize()


def measured(call, model, tiles, o):
    """Seconds, the embedding, and all gradients in one vector."""
    half = {"f32": None, "bf16": torch.bfloat16, "f16": torch.float16}[o.dtype]
    cast = torch.autocast(torch.device(o.device).type, half,
                          enabled=half is not None)
    with cast, torch.set_grad_enabled(o.backward):
        call(tiles[:, :64])  # warms up and compiles
        synchronise(o)
        began = time.perf_counter()
        y = call(tiles)
    found = None
    if o.backward:
        along = torch.randn(y.shape, generator=torch.Generator().manual_seed(2))
        grads = torch.autograd.grad((y.float() * along.to(y.device)).sum(),
                                    list(model.parameters()), allow_unused=True)
        found = torch.cat([g.float().flatten() for g in grads if g is not None])
    synchronise(o)
    return time.perf_counter() - began, y.detach().float(), found


def apart(a, b):
    return float((a - b).norm() / b.norm())


def compare(o):
    """Times and distances of PyTorch's attention and of dil's; a dict."""
    torch.manual_seed(o.seed)
    if o.checkout:
        model, call = published(o)
    else:
        model = call = SlideEncoder(o.layers).to(o.device)
    model.eval()
    tiles = torch.randn(1, o.tiles, 1536, device=o.device)
    theirs = measured(call, model, tiles, o)
    count = dil.torch.patch(model, zero_keys=not o.no_zero_keys)
    ours = measured(call, model, tiles, o)
    found = {"attentions": count, "pytorch": theirs[0], "dil": ours[0],
             "output": apart(ours[1], theirs[1])}
    if o.backward:
        found["gradients"] = apart(ours[2], theirs[2])
    return found


def options(arguments=None):
    p = argparse.ArgumentParser(description="GigaPath's slide encoder, by dil.")
    add = p.add_argument
    add("--tiles", type=int, default=10000, help="of the slide")
    add("--layers", type=int, default=12)
    add("--backward", action="store_true", help="gradients as well")
    add("--dtype", choices=("f32", "bf16", "f16"), default="f32",
        help="bf16 and f16: by autocast")
    add("--no-zero-keys", action="store_true",
        help="attends as the paper says, not to torchscale's padding")
    add("--checkout", help="of prov-gigapath, to run the published code")
    add("--device", default="cpu")
    add("--seed", type=int, default=1)
    return p.parse_args(arguments)


def main():
    o = options()
    found = compare(o)
    what = "forward and backward" if o.backward else "forward"
    print(f"{found['attentions']} attentions patched; {o.tiles} tiles, "
          f"{o.dtype}, {what} on {o.device}")
    print(f"PyTorch {found['pytorch']:.2f} s, dil {found['dil']:.2f} s: "
          f"{found['pytorch'] / found['dil']:.2f} times as fast")
    print("relative difference of the slide's embedding: "
          f"{found['output']:.1e}")
    if o.backward:
        print(f"relative difference of all gradients: {found['gradients']:.1e}")


if __name__ == "__main__":
    main()
