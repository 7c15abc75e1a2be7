"""torch_modules.py - dil.torch.modules beside gathers of plain PyTorch, in
float64 where values count. Prints `ok NAME` or `not ok NAME` a test."""

import copy
import io
import math
import sys

import torch

from cases import fails, run_tests
from gathers import gathered, near, rejects
import dil.torch
from dil.torch import modules

PAIRS = ((16, 1), (32, 2), (64, 4))
WAYS = {"longnet": {}, "torchscale": {"phase": "block"},
        "headgroup": {"phase": "branch", "combine": "mean", "split": True}}
small = {"segment_lengths": [8, 16], "dilation_rates": [1, 2]}


def leaves(n=100, heads=6, kv=6, d=16, batch=2):
    torch.manual_seed(3)
    return [torch.randn(batch, n, h, d).requires_grad_()
            for h in (heads, kv, kv)]


def compared(module, tensors, way, causal=False, hidden=None, detached=False):
    """Output and gradients of a module beside the gathers'."""
    o = module(*tensors, is_causal=causal, key_padding_mask=hidden)
    wide = [x.detach().double().requires_grad_() for x in tensors]
    expected = gathered(*wide, module.pairs, causal=causal, hidden=hidden,
                        detached=detached, **way)
    near(o, expected, 2e-6, "o")
    do = torch.randn_like(o)
    found = torch.autograd.grad(o, tensors, do)
    for name, a, b in zip("qkv", found,
                          torch.autograd.grad(expected, wide, do.double())):
        near(a, b, 3e-6, "d" + name)


def test_attention_is_the_gathers():
    segments, rates = zip(*PAIRS)
    for mode, way in WAYS.items():
        module = modules.DilatedAttention(segments, rates, mode=mode)
        for causal in (False, True):
            compared(module, leaves(), way, causal)
        compared(module, leaves(heads=8, kv=2), way, True)
        compared(module, leaves(n=5, heads=4, kv=4), way)


def test_detached_weights():
    module = modules.DilatedAttention(*zip(*PAIRS), mode="torchscale",
                                      gradient="detached")
    compared(module, leaves(), WAYS["torchscale"], detached=True)
    one = modules.DilatedAttention([32], [1], gradient="detached")
    compared(one, leaves(), {})


def test_padding_is_not_seen():
    hidden = torch.zeros(2, 100, dtype=torch.bool)
    hidden[0, 90:] = True
    hidden[1, 3:40:5] = True
    for mode in ("longnet", "torchscale"):
        module = modules.DilatedAttention(*zip(*PAIRS), mode=mode)
        compared(module, leaves(), WAYS[mode], True, hidden)


def test_a_scale_of_ones_own():
    q, k, v = leaves(heads=4, kv=4)
    module = modules.DilatedAttention([32], [1], softmax_scale=0.5)
    near(module(q, k, v), gathered(q * 2, k, v, [(32, 1)]), 2e-6)


def test_dropout_while_training():
    q, k, v = leaves(heads=4, kv=4)
    module = modules.DilatedAttention([32], [1], attention_dropout=0.5)
    plain = modules.DilatedAttention([32], [1])
    torch.manual_seed(5)
    a, b = module(q, k, v), module(q, k, v)
    torch.manual_seed(5)
    assert torch.equal(module(q, k, v), a) and not torch.equal(a, b)
    assert torch.equal(module.eval()(q, k, v), plain(q, k, v))


def test_keys_are_those_of_the_peers():
    module = modules.MultiheadDilatedAttention(32, 4, [1], [8])
    assert list(module.state_dict()) == [
        f"{part}.{kind}" for part in ("q_proj", "k_proj", "v_proj", "norm",
                                      "out_proj") for kind in ("weight", "bias")]
    # In this order, so that the state of an optimizer fits as well.
    parts = lambda m: list(dict.fromkeys(
        name.split(".")[0] for name in m.state_dict()))
    feed = lambda first: [f"norm{first}", "linear1", f"norm{first + 1}",
                          "linear2"]
    layer = modules.LongNetEncoderLayer(32, 4, **small)
    assert parts(layer) == ["norm1", "self_attn", *feed(2)], parts(layer)
    layer = modules.LongNetDecoderLayer(32, 4, **small)
    assert parts(layer) == ["norm1", "self_attn", "norm2", "multihead_attn",
                            *feed(3)], parts(layer)


def test_gain_of_magneto():
    torch.manual_seed(1)
    module = modules.MultiheadDilatedAttention(256, 4, [1], [8], gamma_init=3.0)
    plain = math.sqrt(2 / 512)
    for linear, gain in ((module.q_proj, 1), (module.v_proj, 3),
                         (module.out_proj, 3)):
        assert abs(linear.weight.std() / (gain * plain) - 1) < 0.02
        assert not linear.bias.any()


def multihead(module, x, y, causal):
    """The module by its parts and the gathers."""
    rows = lambda a: a.unflatten(-1, (module.num_heads, -1))
    o = gathered(rows(module.q_proj(x)), rows(module.k_proj(y)),
                 rows(module.v_proj(y)), module.attention.pairs, causal=causal)
    o = o.flatten(2)
    return module.out_proj(o if module.norm is None else module.norm(o))


def test_multihead_self_and_cross():
    torch.manual_seed(2)
    for norm in (True, False):
        module = modules.MultiheadDilatedAttention(64, 4, [1, 2], [16, 32],
                                                   layer_norm=norm)
        x, y = torch.randn(2, 50, 64), torch.randn(2, 50, 64)
        o, nothing = module(x, x, x, is_causal=True)
        assert nothing is None
        near(o, multihead(module, x, x, True), 5e-6, "self")
        near(module(x, y, y)[0], multihead(module, x, y, False), 5e-6, "cross")
        found = torch.autograd.grad(o.square().sum(), list(module.parameters()))
        wanted = torch.autograd.grad(
            multihead(module, x, x, True).square().sum(),
            list(module.parameters()))
        names = [name for name, _ in module.named_parameters()]
        k_bias = names.index("k_proj.bias")
        for at, (a, b) in enumerate(zip(found, wanted)):
            if at != k_bias:  # 0 but for rounding: softmax does not see it
                near(a, b, 2e-5, f"parameter {at}")


def test_xpos_sees_distances_alone():
    torch.manual_seed(2)
    turn = modules.XPos(16)
    q, k = torch.randn(1, 40, 2, 16), torch.randn(1, 40, 2, 16)

    def scores(first, skip=0):
        return torch.einsum("bihd,bjhd->bhij", turn(q[:, skip:], first),
                            turn(k[:, skip:], first, True))

    near(scores(0), scores(-200), 1e-5)
    near(scores(0)[..., 20:, 20:], scores(20, 20), 1e-6)
    rejects(ValueError, "take a larger base", turn, q, 200000)
    rejects(ValueError, "must be even", modules.XPos, 5)


def encoder(**options):
    torch.manual_seed(4)
    return modules.LongNetEncoder(2, 64, 4, [16, 32, 64], [1, 2, 4], 128,
                                  dropout=0.0, **options).eval()


def test_decoding_is_the_whole_pass():
    x = torch.randn(2, 90, 64)
    for options in ({}, {"xpos_scale_base": 64}, {"mode": "torchscale"}):
        model = encoder(**options)
        with torch.no_grad():
            whole = model(x, is_causal=True)
            cache, parts = model.new_cache(), []
            for first, last in [(0, 20), (20, 21), (21, 70)] + [
                    (i, i + 1) for i in range(70, 90)]:
                parts.append(model(x[:, first:last], is_causal=True,
                                   cache=cache))
            near(torch.cat(parts, 1), whole, 1e-5, str(options))
            assert len(cache[0]) == 90


def test_decoder_with_a_memory():
    model = decoder().eval()
    x, memory = torch.randn(2, 40, 64), torch.randn(2, 40, 64)
    with torch.no_grad():
        whole, cache = model(x, memory), model.new_cache()
        first = model(x[:, :25], memory[:, :25], cache=cache)
        assert first.shape == (2, 25, 64)
        layer = model.layers[0]
        y = x + layer.self_attn(*[layer.norm1(x)] * 3, True)[0]
        y = y + multihead(layer.multihead_attn, layer.norm2(y), memory, False)
        z = layer.norm4(torch.relu(layer.linear1(layer.norm3(y))))
        near(layer(x, memory), y + layer.linear2(z), 5e-6)
    assert whole.shape == x.shape


def decoder(**options):
    torch.manual_seed(4)
    return modules.LongNetDecoder(2, 64, 4, [16, 32], [1, 2], dropout=0.0,
                                  **options).train()


def test_checkpointing_changes_no_gradient():
    x, y = torch.randn(2, 1, 70, 64)
    for make, call in ((encoder, (x, True)), (decoder, (x, y))):
        grads = [torch.autograd.grad(m(*call).square().sum(),
                                     list(m.parameters()))
                 for m in (make().train(), make(checkpoint=True).train())]
        assert all(torch.equal(a, b) for a, b in zip(*grads)), make


def test_copies_and_files():
    model, x = encoder(xpos_scale_base=512), torch.randn(1, 33, 64)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert torch.equal(other(x), model(x))


def test_names_of_torchscale():
    names = ["layers.0.self_attn.inner_attn_ln.weight",
             "layers.0.self_attn.q_proj.bias",
             "layers.0.self_attn_layer_norm.weight",
             "layers.0.ffn.fc1.weight", "layers.0.ffn.ffn_layernorm.bias",
             "layers.0.final_layer_norm.weight", "layer_norm.weight",
             "inner_attn_ln.bias", "output_projection.weight"]
    assert list(modules.from_torchscale(dict.fromkeys(names))) == [
        "layers.0.self_attn.norm.weight", "layers.0.self_attn.q_proj.bias",
        "layers.0.norm1.weight", "layers.0.linear1.weight",
        "layers.0.norm3.bias", "layers.0.norm2.weight",
        "norm.weight", "norm.bias", "output_projection.weight"]


def test_brain_floats():
    x = torch.randn(1, 300, 64)
    for options in ({}, {"xpos_scale_base": 64}):
        module = encoder(**options).to(torch.bfloat16)
        near(module(x.bfloat16()), encoder(**options)(x), 3e-2)
    with torch.autocast("cpu", torch.bfloat16):
        near(encoder()(x), encoder()(x.bfloat16().float()), 3e-2)


def test_compiles_as_one_graph():
    model = encoder()
    compiled = torch.compile(model, fullgraph=True, dynamic=True,
                             backend="aot_eager")
    for n in (64, 77, 90):
        x = torch.randn(1, n, 64)
        near(compiled(x, is_causal=True), model(x, is_causal=True), 1e-6)


def test_made_on_a_device():
    layer = modules.LongNetEncoderLayer(32, 4, **small, device="meta",
                                        dtype=torch.bfloat16, xpos_scale_base=9)
    assert {x.device.type for x in layer.state_dict().values()} == {"meta"}
    assert layer.linear1.weight.dtype == torch.bfloat16


def test_mistakes_are_named():
    make = modules.DilatedAttention
    rejects(ValueError, "same length", make, (4, 8), (1,))
    rejects(ValueError, "cannot be empty", make, (), ())
    rejects(ValueError, "at least 1", make, (4,), (0,))
    rejects(ValueError, "mode must be one of", make, (4,), (1,), mode="paper")
    rejects(ValueError, "'exact' or 'detached'", make, (4,), (1,),
            gradient="none")
    rejects(ValueError, "at least 0 and below 1", make, (4,), (1,),
          attention_dropout=1.0)
    rejects(ValueError, "dil makes its own", make, (4,), (1,), op=object())
    rejects(ValueError, "divisible", modules.MultiheadDilatedAttention, 30, 4,
            [1], [8])
    rejects(ValueError, "activation must be", modules.LongNetEncoderLayer, 32,
            4, **small, activation="sine")
    q, k, v = leaves()
    module = make(*zip(*PAIRS))
    rejects(ValueError, "query must be", module, q[0], k, v)
    rejects(ValueError, "must be bool", module, q, k, v,
          key_padding_mask=torch.zeros(2, 100))
    many = modules.MultiheadDilatedAttention(32, 4, [1], [8])
    rejects(ValueError, "query must be [batch, rows, 32]", many,
            *[torch.randn(1, 4, 8)] * 3)
    fails("DIL_USAGE", "one dtype", module, q.bfloat16(), k, v)
    model = encoder()
    rejects(ValueError, "torch.no_grad()", model, torch.randn(1, 4, 64),
          is_causal=True, cache=model.new_cache())
    cache = model.new_cache()
    with torch.no_grad():
        model(torch.randn(1, 4, 64), is_causal=True, cache=cache)
        rejects(ValueError, "begin a new cache", model, torch.randn(2, 4, 64),
              is_causal=True, cache=cache)


if __name__ == "__main__":
    sys.exit(run_tests(globals()))
