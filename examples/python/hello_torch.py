"""dil in PyTorch, the ways that the README shows: a function with gradients,
every scaled_dot_product_attention of a model, and a model of transformers where
that is installed. Each is compared with PyTorch's own attention.

    python3 examples/python/hello_torch.py
"""

import sys
import time

sys.path.append(sys.path.pop(0))  # an installed dil goes before that beside this

import torch
from torch.nn.attention import (activate_flash_attention_impl,
                                restore_flash_attention_impl)

import dil.torch

SINKS = """pattern sinks { heads 1; head_dim 1; dtype f32; causal;
  mask i - j < 256 || j < 4; branch { } }"""  # sizes are those of the tensors
TOLERANCE = 2e-5
bad = []


def tell(name, difference, seconds, sizes):
    good = difference < TOLERANCE
    bad.extend([] if good else [name])
    print(f"{name:36s} {sizes:26s} {seconds * 1e3:7.1f} ms   "
          f"difference {difference:.1e}{'' if good else '   BAD'}", flush=True)


def timed(call):
    call()  # makes the kernels
    began = time.perf_counter()
    result = call()
    return result, time.perf_counter() - began


def apart(a, b):
    """The largest relative distance of two lists of tensors."""
    with torch.no_grad():
        return max(float((x - y).norm() / y.norm()) for x, y in zip(a, b))


def rows(count=1500, heads=8, head_dim=64):
    return [torch.randn(1, count, heads, head_dim).requires_grad_()
            for _ in range(3)]


def a_function():
    q, k, v = x = rows()
    at = torch.arange(q.shape[1])
    kept = ((at[:, None] >= at)
            & ((at[:, None] - at < 256) | (at[None] < 4)))

    def ours():
        o = dil.torch.attention(q, k, v, SINKS)
        return o, *torch.autograd.grad(o.square().sum(), x)

    def theirs():
        o = torch.nn.functional.scaled_dot_product_attention(
            *(y.transpose(1, 2) for y in x), attn_mask=kept).transpose(1, 2)
        return o, *torch.autograd.grad(o.square().sum(), x)

    found, seconds = timed(ours)
    tell("dil.torch.attention and gradients", apart(found, theirs()), seconds,
         str(tuple(q.shape)))


def every_attention():
    x = torch.randn(1, 1000, 256)
    layer = torch.nn.TransformerEncoderLayer(256, 4, batch_first=True, dropout=0.0)

    def call():
        return layer(x.requires_grad_())

    right = call()
    activate_flash_attention_impl("dil")
    found, seconds = timed(call)
    restore_flash_attention_impl()
    tell("scaled_dot_product_attention", apart([found], [right]), seconds,
         str(tuple(x.shape)))


def a_model():
    try:
        import transformers
    except ImportError:
        print("transformers is not installed: `make deps-python`")
        return
    import dil.hf
    dil.hf.use()
    config = transformers.LlamaConfig(
        hidden_size=128, intermediate_size=256, num_hidden_layers=2, vocab_size=256,
        num_attention_heads=8, num_key_value_heads=2)
    model = transformers.LlamaForCausalLM(config).eval()
    words = torch.randint(256, (1, 700))
    with torch.no_grad():
        right = model(words).logits
        model.set_attn_implementation("dil")
        found, seconds = timed(lambda: model(words).logits)
    tell("a Llama of transformers", apart([found], [right]), seconds,
         str(tuple(words.shape)))


def main():
    torch.manual_seed(1)
    print(f"dil {dil.version} of {dil.__file__}, PyTorch {torch.__version__}")
    a_function()
    every_attention()
    a_model()
    return 4 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
