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
    kind = getattr(transformers, name.removesuffix("Text") + "ForCausalLM")
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
    if keep is None or keep.dim() != 2:
        keep = torch.ones(a.shape[:2])
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
    m = model("Llama4Text", head_dim=16, attention_chunk_size=16,
              num_local_experts=2, num_experts_per_tok=1,
              intermediate_size_mlp=128, no_rope_layers=[1, 0],
              layer_types=["chunked_attention", "full_attention"])
    compared(m, input_ids=tokens(), attention_mask=padded())
    at = torch.cat([torch.arange(n) for n in (30, 50, 20)])[None]
    compared(m, input_ids=tokens(1), position_ids=at, use_cache=False)


def by_table(function, queries=40, keys=40, q_offset=0, kv_offset=0, **call):
    """dil's reading of a mask function, beside transformers' own table."""
    call = {"q_offset": q_offset, "kv_offset": kv_offset,
            "mask_function": function, **call}
    torch.manual_seed(3)
    q = torch.randn(2, 4, queries, 16)
    k, v = torch.randn(2, 2, 4, keys, 16).unbind()
    mask = dil.hf._mask(2, queries, keys, **call)
    o, _ = dil.hf._attend(None, "dil", torch.nn.Module(), q, k, v, mask)
    table = masking_utils.sdpa_mask(2, queries, keys, allow_is_causal_skip=False,
                                    **call)
    wide = torch.nn.functional.scaled_dot_product_attention(q, k, v, table)
    some = table.any(-1).expand(2, 4, queries)
    near(o.transpose(1, 2)[some], wide[some], 2e-6)
    return mask


def test_masks_one_or_the_other():
    causal = masking_utils.causal_mask_function
    chunked = masking_utils.chunked_causal_mask_function(
        16, torch.tensor([0, 5]))
    slides = masking_utils.sliding_window_causal_mask_function(8)
    near_by = masking_utils.sliding_window_bidirectional_mask_function(5)
    block = torch.full((2, 40), -1)
    block[0, 5:19], block[0, 30:], block[1, 8:12] = 0, 1, 0
    blocks = masking_utils.blockwise_overlay(block)
    either, both = masking_utils.or_masks, masking_utils.and_masks
    for function in (chunked, either(causal, near_by), either(chunked, blocks),
                     either(slides, blocks), either(near_by, chunked, blocks),
                     both(either(slides, blocks), near_by),
                     both(either(near_by, causal),
                          masking_utils.bidirectional_mask_function)):
        by_table(function)
        by_table(function, attention_mask=padded(2, 40).bool())
    for function in (chunked, either(slides, blocks)):  # with earlier keys
        by_table(function, 3, 40, 37)
        by_table(function, 3, 30, 37, 10)
        assert by_table(function, 3, 40, 20).lengths.tolist() == [23, 23]
    assert by_table(chunked, 40).terms and by_table(slides, 40).left == 7
    fails("DIL_USAGE", "wants the last query at the last key", dil.hf._mask, 2, 3,
          40, q_offset=20, mask_function=either(near_by, blocks))


def test_packed_masks_of_all_kinds():
    at = torch.cat([torch.arange(n) for n in (10, 25, 5)]).expand(2, -1)
    document = masking_utils.find_packed_sequence_indices(at)
    start = torch.zeros(2, dtype=torch.int64)
    slides = masking_utils.sliding_window_causal_mask_function(8)
    chunked = masking_utils.chunked_causal_mask_function(7, start)
    for function in (slides, chunked, masking_utils.or_masks(
            slides, masking_utils.chunked_overlay(7, start))):
        by_table(masking_utils.and_masks(
            masking_utils.remap_positions_for_packed_sequence(function, at),
            masking_utils.packed_sequence_mask_function(document)))


def test_blocks_of_gemma3():
    """Tokens of an image see each other, those of text what came before."""
    m = model("Gemma3Text", head_dim=16, sliding_window=16,
              query_pre_attn_scalar=16,
              layer_types=["sliding_attention", "full_attention"])
    x = tokens(2, 40)
    block = torch.full((2, 40), -1)
    block[:, 6:20], block[1, 25:33] = 0, 1
    found = []
    for way in ("eager", "dil"):
        m.set_attn_implementation(way)
        named = {"config": m.config, "inputs_embeds": torch.zeros(2, 40, 64),
                 "attention_mask": padded(2, 40), "cache": None,
                 "block_sequence_ids": block}
        masks = {"full_attention": masking_utils.create_causal_mask(**named),
                 "sliding_attention":
                     masking_utils.create_sliding_window_causal_mask(**named)}
        with torch.no_grad():
            found.append(m.model(input_ids=x, attention_mask=masks)[0])
    keep = padded(2, 40).bool()
    near(found[1][keep], found[0][keep], 2e-6)


def test_prepared_masks_of_pairs():
    m, x = model("Llama"), tokens()
    torch.manual_seed(5)
    table = (torch.rand(2, 1, 100, 100) < 0.3) | torch.eye(100, dtype=torch.bool)
    compared(m, input_ids=x, attention_mask=table)
    compared(m, input_ids=x, attention_mask=table[:1])
    compared(m, input_ids=x, attention_mask=table.expand(2, 4, 100, 100))
    added = torch.where(table, torch.randn(2, 4, 100, 100),
                        torch.finfo(torch.float32).min)
    for beside in ("sdpa", "eager"):
        compared(m, beside, input_ids=x, attention_mask=added)
        compared(m, beside, input_ids=x, attention_mask=added[:, :1])
    fails("DIL_USAGE", "must be [2 or 1, 4 or 1, 100, 100]", logits, m, "dil", x,
          attention_mask=table[:, :, :50])
    fails("DIL_USAGE", "a mask of torch.int64", logits, m, "dil", x,
          attention_mask=table.long())


def test_position_bias_of_t5():
    torch.manual_seed(7)
    m = transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=97, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4,
        pad_token_id=0, eos_token_id=1, decoder_start_token_id=0,
        dropout_rate=0.0))
    call = {"input_ids": tokens(2, 50), "labels": tokens(2, 30),
            "attention_mask": padded(2, 50, left=False)}
    call["attention_mask"][1, 40:] = 0
    found = []
    for way in ("eager", "dil"):
        m.set_attn_implementation(way)
        m.zero_grad()
        out = m(**call)
        out.loss.backward()
        bias = [layers.block[0].layer[0].SelfAttention
                .relative_attention_bias.weight.grad.flatten()
                for layers in (m.encoder, m.decoder)]
        found.append((out.logits.detach(), torch.cat(bias)))
    near(found[1][0], found[0][0], 2e-6)
    near(found[1][1], found[0][1], 1e-4, "gradient of the bias")
    found = []
    for way in ("eager", "dil"):
        m.set_attn_implementation(way)
        found.append(m.eval().generate(tokens(2, 50), max_new_tokens=8,
                                       do_sample=False))
    assert torch.equal(*found)


# Models of a dozen makers: masks, padding, packing and decoding of each.
OTHERS = {
    "Qwen2": {"use_sliding_window": True, "sliding_window": 16,
              "max_window_layers": 1},
    "Qwen3": {"head_dim": 16}, "Phi": {}, "Phi3": {"sliding_window": 16},
    "Gemma3Text": {"head_dim": 16, "sliding_window": 16,
                   "query_pre_attn_scalar": 16,
                   "layer_types": ["sliding_attention", "full_attention"]},
    "Cohere2": {"sliding_window": 16,
                "layer_types": ["sliding_attention", "full_attention"]},
    "Olmo2": {}, "GPTNeoX": {}, "SmolLM3": {},
    "DeepseekV3": {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
                   "qk_nope_head_dim": 8, "v_head_dim": 12,
                   "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1,
                   "topk_group": 1, "moe_intermediate_size": 32,
                   "first_k_dense_replace": 1, "num_key_value_heads": 4},
}


def test_other_models():
    x, at = tokens(2, 40), torch.cat([torch.arange(n) for n in (12, 28)])[None]
    for name, more in OTHERS.items():
        m = model(name, **more)
        compared(m, "eager", input_ids=x, attention_mask=padded(2, 40))
        compared(m, "eager", input_ids=x[:1], position_ids=at, use_cache=False)
        found, losses = [], []
        for way in ("eager", "dil"):
            m.set_attn_implementation(way)
            found.append(m.generate(x, attention_mask=padded(2, 40),
                                    max_new_tokens=4, do_sample=False))
            m.zero_grad()
            m(input_ids=x[:1], labels=x[:1], position_ids=at,
              use_cache=False).loss.backward()
            losses.append(torch.cat([p.grad.flatten() for p in m.parameters()
                                     if p.grad is not None]))
        assert torch.equal(*found), name
        near(losses[1], losses[0], 5e-6, f"gradients of {name}")


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
    def odd(batch, head, i, j):
        return i % 2 == j % 2
    fails("DIL_USAGE", "mask function 'test_mistakes_are_named.<locals>.odd'",
          dil.hf._mask, 1, 8, 8, mask_function=masking_utils.and_masks(
              masking_utils.causal_mask_function, odd))
    fails("DIL_USAGE", "test_mistakes_are_named.<locals>.odd'", dil.hf._mask, 1,
          8, 8, mask_function=masking_utils.or_masks(
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
    fails("DIL_USAGE", "position_bias [1, 1, 4, 3] does not fit", dil.hf._attend,
          None, "dil", torch.nn.Module(), *[torch.zeros(1, 1, 4, 8)] * 3, None,
          position_bias=torch.zeros(1, 1, 4, 3))
    fails("DIL_USAGE", "continuous batching", dil.hf._attend, None, "dil",
          torch.nn.Module(), *[torch.zeros(1, 1, 4, 8)] * 3, None,
          cache=object())
    fails("DIL_USAGE", "the caller prepared a mask", logits, m, "near", x,
          attention_mask=torch.ones(2, 1, 100, 100, dtype=torch.bool))
    fails("DIL_INPUT", "did you mean", dil.hf.use,
          "pattern p { heads 1; head_dim 8; dtype f32; branch { dilaton 2; } }")


if __name__ == "__main__":
    sys.exit(run_tests(globals()))
