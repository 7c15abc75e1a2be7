"""hf.py - dil.hf in models of transformers with random weights, beside their
own attention. Prints `ok NAME` or `not ok NAME` a test."""

import sys

import torch
import transformers
from transformers import masking_utils

from cases import fails, run_tests
from gathers import near
import dil.hf
import dil.torch

SMALL = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 128,
         "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 256,
         "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
dil.hf.use()


def model(name, **more):
    torch.manual_seed(7)
    config = getattr(transformers, name + "Config")(**{**SMALL, **more})
    kind = getattr(transformers, name + "ForCausalLM")
    return kind(config).eval()


def tokens(rows=2, length=100):
    torch.manual_seed(8)
    return torch.randint(3, 97, (rows, length))


def padded(rows=2, length=100, left=True):
    keep = torch.ones(rows, length, dtype=torch.long)
    if left:
        keep[1, :17] = 0
    else:
        keep[1, 80:] = 0
    return keep


def logits(m, way, *arguments, **named):
    m.set_attn_implementation(way)
    with torch.no_grad():
        return m(*arguments, **named).logits


def compared(m, beside="sdpa", most=2e-6, **call):
    """Logits where the padding says that there are tokens."""
    a, b = (logits(m, way, **call) for way in ("dil", beside))
    keep = call.get("attention_mask")
    keep = torch.ones(a.shape[:2]) if keep is None else keep
    near(a[keep.bool()], b[keep.bool()], most)


def test_llama_whole_and_padded():
    m = model("Llama")
    compared(m, input_ids=tokens())
    for left in (True, False):
        compared(m, input_ids=tokens(), attention_mask=padded(left=left))


def test_mistral_slides():
    m = model("Mistral", sliding_window=32)
    compared(m, input_ids=tokens())
    compared(m, input_ids=tokens(), attention_mask=padded())


def test_generation():
    for m in (model("Llama"), model("Mistral", sliding_window=32)):
        for cache in ("dynamic", "static"):
            for x, keep in ((tokens(1, 40), None),
                            (tokens(2, 40), padded(2, 40))):
                out = []
                for way in ("sdpa", "dil"):
                    m.set_attn_implementation(way)
                    out.append(m.generate(
                        x, attention_mask=keep, max_new_tokens=8,
                        do_sample=False, cache_implementation=cache,
                        disable_compile=True))
                assert torch.equal(*out), (type(m).__name__, cache)


def test_packed_sequences():
    at = torch.cat([torch.arange(n) for n in (30, 50, 20)])[None]
    call = {"input_ids": tokens(1), "position_ids": at, "use_cache": False}
    m = model("Llama")
    compared(m, **call)
    parts = [logits(m, "dil", x) for x in tokens(1).split([30, 50, 20], 1)]
    near(logits(m, "dil", **call), torch.cat(parts, 1), 2e-6)
    compared(model("Mistral", sliding_window=16), **call)


def test_compiled_as_one_graph():
    m, x = model("Mistral", sliding_window=32), tokens()
    plain = logits(m, "dil", x, attention_mask=padded())
    ahead = torch.compile(m, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        near(ahead(x, attention_mask=padded()).logits, plain, 1e-6)


def test_generation_compiled():
    out = []
    for way in ("sdpa", "dil"):
        m = model("Llama")
        m.set_attn_implementation(way)
        m.forward = torch.compile(m.forward, backend="aot_eager",
                                  fullgraph=True)
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        out.append(m.generate(
            tokens(2, 40), attention_mask=padded(2, 40), max_new_tokens=8,
            do_sample=False, cache_implementation="static",
            disable_compile=True))
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        assert graphs == 2, graphs  # the prompt's, and that of all further rows
    assert torch.equal(*out)


def test_encoders_see_both_sides():
    torch.manual_seed(7)
    config = transformers.BertConfig(
        vocab_size=97, hidden_size=64, num_hidden_layers=2,
        num_attention_heads=4, intermediate_size=128)
    m = transformers.BertForMaskedLM(config).eval()
    compared(m, input_ids=tokens())
    compared(m, input_ids=tokens(), attention_mask=padded(left=False))


def test_soft_caps_of_gemma():
    m = model("Gemma2", head_dim=16, attn_logit_softcapping=2.0,
              sliding_window=32, query_pre_attn_scalar=32)
    compared(m, "eager", input_ids=tokens(), attention_mask=padded())


def gpt_oss():
    m = model("GptOss", head_dim=16, num_local_experts=2, num_experts_per_tok=1,
              sliding_window=32,
              layer_types=["sliding_attention", "full_attention"])
    with torch.no_grad():
        for layer in m.model.layers:
            layer.self_attn.sinks.normal_()
    return m


def test_sinks_of_gpt_oss():
    m = gpt_oss()
    compared(m, "eager", most=5e-6, input_ids=tokens(), attention_mask=padded())
    grads = []
    for way in ("eager", "dil"):
        m.set_attn_implementation(way)
        m.zero_grad()
        m(input_ids=tokens(), labels=tokens()).loss.backward()
        grads.append([layer.self_attn.sinks.grad.clone()
                      for layer in m.model.layers])
    for a, b in zip(*grads):
        near(b, a, 1e-4, "gradient of the sinks")


def test_chunks_of_llama4():
    function = masking_utils.chunked_causal_mask_function(
        16, torch.tensor([0, 5]))
    mask = dil.hf._mask(2, 40, 40, mask_function=function)
    module = torch.nn.Module()
    torch.manual_seed(3)
    q, k, v = (torch.randn(2, 4, 40, 16) for _ in "qkv")
    o, _ = dil.hf._attend(None, "dil", module, q, k, v, mask)
    table = masking_utils.sdpa_mask(2, 40, 40, mask_function=function,
                                    allow_is_causal_skip=False)
    wide = torch.nn.functional.scaled_dot_product_attention(q, k, v, table)
    near(o, wide.transpose(1, 2), 2e-6)


def test_gradients():
    m, x = model("Llama"), tokens()
    found = []
    for way in ("sdpa", "dil"):
        m.set_attn_implementation(way)
        m.zero_grad()
        m(input_ids=x, labels=x, attention_mask=padded()).loss.backward()
        found.append(torch.cat([p.grad.flatten() for p in m.parameters()]))
    near(found[1], found[0], 5e-6)


def test_dropout_while_training():
    m, x = model("Llama", attention_dropout=0.3).train(), tokens()
    m.set_attn_implementation("dil")
    torch.manual_seed(1)
    a, b = m(x).logits, m(x).logits
    torch.manual_seed(1)
    assert torch.equal(m(x).logits, a) and not torch.equal(a, b)


SINKS = """pattern sinks {{ heads 8; head_dim 64; dtype bf16; causal; {}
    mask i - j < 16 || j < 4; branch {{ }} }}"""
PADDED = "input padding : u8[B, M]; mask padding[b, j] == 0;"


def test_a_pattern_of_ones_own():
    dil.hf.use(SINKS.format(""), name="near")
    dil.hf.use(SINKS.format("scale runtime; " + PADDED), name="near_padded")
    m, x = model("Llama"), tokens()
    at = torch.arange(100)
    keep = (at[:, None] - at < 16) | (at < 4)
    table = (keep & (at <= at[:, None])).expand(2, 1, 100, 100)
    near(logits(m, "near", x), logits(m, "sdpa", x, attention_mask=table), 2e-6)
    fails("DIL_USAGE", "the batch is padded", logits, m, "near", x,
          attention_mask=padded())
    shown = padded()
    part = logits(m, "near_padded", x, attention_mask=shown)
    table = table & shown.bool()[:, None, None]
    table = table | torch.eye(100, dtype=torch.bool)  # no row without a key
    near(part[1, 17:], logits(m, "sdpa", x, attention_mask=table)[1, 17:], 2e-6)


def test_mistakes_are_named():
    m, x = model("Llama"), tokens()
    fails("DIL_USAGE", "a prepared mask [2, 1, 100, 100]", logits, m, "dil", x,
          attention_mask=torch.ones(2, 1, 100, 100, dtype=torch.bool))
    def odd(batch, head, i, j):
        return i % 2 == j % 2
    fails("DIL_USAGE", "mask function 'test_mistakes_are_named.<locals>.odd'",
          dil.hf._mask, 1, 8, 8, mask_function=masking_utils.and_masks(
              masking_utils.causal_mask_function, odd))
    fails("DIL_USAGE", "'or_masks.<locals>.or_mask'", dil.hf._mask, 1, 8, 8,
          mask_function=masking_utils.or_masks(
              masking_utils.causal_mask_function, odd))
    fails("DIL_USAGE", "an attention of transformers itself", dil.hf.use,
          name="sdpa")
    dil.hf.use(SINKS.format(""), name="near")
    dropping = model("Llama", attention_dropout=0.1).train()
    dropping.set_attn_implementation("near")
    fails("DIL_USAGE", "has no dropout", dropping, x)
    fails("DIL_USAGE", "slides a window", logits,
          model("Mistral", sliding_window=32), "near", x)
    fails("DIL_USAGE", "learned sinks", logits, gpt_oss(), "near", x)
    fails("DIL_USAGE", "caps its scores", logits,
          model("Gemma2", head_dim=16, query_pre_attn_scalar=16,
                layer_types=["full_attention"] * 2), "near", x)
    fails("DIL_USAGE", "scale runtime", logits,
          model("Gemma2", head_dim=16, query_pre_attn_scalar=64,
                attn_logit_softcapping=None,
                layer_types=["full_attention"] * 2), "near", x)
    fails("DIL_USAGE", "output_attentions wants", dil.hf._attend, None, "dil",
          torch.nn.Module(), *[torch.zeros(1, 1, 4, 8)] * 3, None,
          output_attentions=True)
    fails("DIL_USAGE", "position_bias", dil.hf._attend, None, "dil",
          torch.nn.Module(), *[torch.zeros(1, 1, 4, 8)] * 3, None,
          position_bias=torch.zeros(1, 1, 4, 4))
    fails("DIL_INPUT", "did you mean", dil.hf.use,
          "pattern p { heads 1; head_dim 8; dtype f32; branch { dilaton 2; } }")


if __name__ == "__main__":
    sys.exit(run_tests(globals()))
