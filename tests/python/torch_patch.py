"""torch_patch.py - dil.torch.patch on modules of the published shape, and on
the published code itself where DIL_PEERS names a folder of checkouts. Prints
`ok NAME` or `not ok NAME` a test."""

import copy
import io
import sys
import types
import warnings

import torch
from torch import nn
from torch.nn import functional

from cases import fails, run_tests
from gathers import gathered, near
import dil.torch
import gigapath
import peers

# ---- modules of the published shape ------------------------------------------


def zero_keys(q, k, v, pairs):
    """torchscale's attention where r divides s: each branch by itself sees
    zeros to the end of its last segment, and rows mix by their denominators."""
    n, outs, lses = q.shape[1], [], []
    for s, r in pairs:
        end = -(-n // s) * s if n > s else -(-n // r) * r
        x = [functional.pad(y, (0, 0, 0, 0, 0, end - n)) for y in (q, k, v)]
        s = s if n > s else end
        o, lse = gathered(*x, [(s, r)], phase="block", with_lse=True)
        outs.append(o[:, :n]), lses.append(lse[:, :n])
    weights = torch.stack(lses).softmax(0).detach()
    return sum(o * w[..., None] for o, w in zip(outs, weights))


class DilatedAttention(nn.Module):
    """The fields of torchscale's, and its function by gathers."""

    def __init__(self, segments=(16, 32, 64), ratios=(1, 2, 4), dim=64, heads=4,
                 dropout=0.0, **args):
        super().__init__()
        self.args = types.SimpleNamespace(segment_length=list(segments),
                                          dilated_ratio=list(ratios), **args)
        self.num_heads, self.dropout, self.xpos = heads, dropout, None
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            setattr(self, name, nn.Linear(dim, dim))
        self.inner_attn_ln = nn.LayerNorm(dim)

    def forward(self, query, key, value, key_padding_mask=None,
                is_causal=False):
        q, k, v = (p(x).unflatten(-1, (self.num_heads, -1)) for p, x in (
            (self.q_proj, query), (self.k_proj, key), (self.v_proj, value)))
        pairs = list(zip(self.args.segment_length, self.args.dilated_ratio))
        if is_causal:
            x = gathered(q, k, v, pairs, "block", True, detached=True)
        else:
            x = zero_keys(q, k, v, pairs)
        return self.out_proj(self.inner_attn_ln(x.flatten(2))), None


def model(layers=2, **options):
    torch.manual_seed(6)
    return nn.ModuleList(DilatedAttention(**options)
                         for _ in range(layers)).eval()


def patched(m, **options):
    """Of a copy; its warning, too."""
    made = copy.deepcopy(m)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert dil.torch.patch(made, **options) == len(m)
    return made, " ".join(str(w.message) for w in said)


def gradient_gap(y, z, ours, theirs):
    """The distance of all gradients of ours from theirs, relative."""
    do = torch.randn_like(y)
    found, wanted = (
        torch.autograd.grad(out, list(m.parameters()), do, allow_unused=True)
        for out, m in ((y, ours), (z, theirs)))
    pairs = [(a, b) for a, b in zip(found, wanted) if b is not None]
    return near(torch.cat([a.flatten() for a, _ in pairs]),
                torch.cat([b.flatten() for _, b in pairs]), 3e-6, "gradients")


def same(a, b, x, **call):
    """Outputs and gradients of two modules."""
    y, z = a(x, x, x, **call)[0], b(x, x, x, **call)[0]
    near(y, z, 3e-6, "output")
    gradient_gap(y, z, a, b)


def test_the_same_function_with_zero_keys():
    m = model()
    other, said = patched(m)
    assert said == ""
    for n in (128, 127, 100, 65, 50, 17, 3, 1):
        same(other[0], m[0], torch.randn(2, n, 64))
        same(other[0], m[0], torch.randn(1, n, 64), is_causal=True)


def test_heads_no_multiple_of_the_dilation():
    m = model(dim=60, heads=6, segments=(16, 48), ratios=(1, 8))
    for n in (100, 47, 20):
        same(patched(m)[0][0], m[0], torch.randn(1, n, 60))
    m = model(dim=32, heads=2, segments=(16, 48), ratios=(1, 8))
    same(patched(m)[0][0], m[0], torch.randn(1, 100, 32))


def test_a_dilation_that_does_not_divide():
    """The formula, with zeros to the segment's end: torchscale misplaces rows,
    and this test's own module does not."""
    m = model(1, segments=(16, 30), ratios=(1, 4))
    other, said = patched(m)
    assert said.count("dilation 4 does not divide segment 30") == 1, said
    for n in (60, 59, 31, 29, 100):
        same(other[0], m[0], torch.randn(1, n, 64))


def test_without_zero_keys_it_is_the_paper():
    m, x = model(), torch.randn(1, 100, 64)
    other, said = patched(m, zero_keys=False, gradient="exact")
    assert "do not see the zeros" in said and "as constants" in said
    rows = lambda p: p(x).unflatten(-1, (4, -1))
    y = gathered(rows(m[0].q_proj), rows(m[0].k_proj), rows(m[0].v_proj),
                 [(16, 1), (32, 2), (64, 4)], phase="block")
    y = m[0].out_proj(m[0].inner_attn_ln(y.flatten(2)))
    near(other[0](x, x, x)[0], y, 3e-6)


def test_padding_is_honoured_on_request():
    m, x = model(1), torch.randn(2, 64, 64)
    hidden = torch.zeros(2, 64, dtype=torch.bool)
    hidden[1, 40:] = True
    ignores, honours = patched(m)[0][0], patched(m, padding="honour")[0][0]
    plain = ignores(x, x, x)[0]
    assert torch.equal(ignores(x, x, x, key_padding_mask=hidden)[0], plain)
    y = honours(x, x, x, key_padding_mask=hidden)[0]
    rows = lambda p: p(x).unflatten(-1, (4, -1))
    z = gathered(rows(m[0].q_proj), rows(m[0].k_proj), rows(m[0].v_proj),
                 [(16, 1), (32, 2), (64, 4)], phase="block", hidden=hidden)
    z = m[0].out_proj(m[0].inner_attn_ln(z.flatten(2)))
    near(y[:, :40], z[:, :40], 3e-6)


def test_decoding_row_by_row():
    other, x = patched(model(1))[0][0], torch.randn(2, 70, 64)
    with torch.no_grad():
        whole, state = other(x, x, x, is_causal=True)[0], {}
        parts = [other(y, y, y, incremental_state=state, is_causal=True)[0]
                 for y in x.split([30] + [1] * 40, 1)]
    near(torch.cat(parts, 1), whole, 3e-6)
    assert state["prev_key"].shape == (2, 4, 70, 16)


def test_unpatch_and_copies():
    m, x = model(), torch.randn(1, 30, 64)
    own = m[0](x, x, x)[0]
    other, _ = patched(m)
    y = other[0](x, x, x)[0]
    file = io.BytesIO()
    torch.save(other, file)
    file.seek(0)
    for twin in (copy.deepcopy(other), torch.load(file, weights_only=False)):
        with torch.no_grad():
            twin[0].out_proj.bias += 1
        near(twin[0](x, x, x)[0], y + 1, 1e-6)
    assert dil.torch.patch(other) == 2  # a second time
    assert dil.torch.unpatch(other) == 2 and dil.torch.unpatch(other) == 0
    assert torch.equal(other[0](x, x, x)[0], own)
    assert list(other.state_dict()) == list(m.state_dict())


def test_autocast():
    m, x = patched(model())[0][0], torch.randn(1, 60, 64)
    with torch.autocast("cpu", torch.bfloat16):
        near(m(x, x, x)[0].float(), m(x, x, x)[0].float(), 0)
        y = m(x, x, x)[0]
    near(y.float(), m(x, x, x)[0], 3e-2)


def test_what_differs_is_said_once():
    _, said = patched(model(dropout=0.1), padding="honour")
    assert said.count("attention dropout draws other numbers") == 1, said
    assert "torchscale attends to padded keys" in said


def test_what_cannot_be_is_refused():
    fails("DIL_USAGE", "no dilated attention that a patch knows",
          dil.torch.patch, nn.Linear(2, 2))
    fails("DIL_USAGE", "seq_parallel splits one sequence", dil.torch.patch,
          model(seq_parallel=True))
    for name in ("zero_keys", "padding", "gradient"):
        fails("DIL_USAGE", f"{name} must be one of", dil.torch.patch, model(),
              **{name: "some"})
    m, x = patched(model())[0][0], torch.randn(1, 8, 64)
    fails("DIL_USAGE", "no attn_mask and no rel_pos", m, x, x, x,
          attn_mask=torch.zeros(8, 8))


def test_the_example_of_gigapath():
    o = gigapath.options(["--tiles", "1100", "--layers", "2", "--backward"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = gigapath.compare(o)
    assert found["attentions"] == 2
    assert found["output"] < 3e-6 and found["gradients"] < 3e-6, found


# ---- torchscale and GigaPath themselves --------------------------------------


def longnet_layer(kind, **options):
    peers.torchscale()
    from torchscale.architecture import config
    from torchscale.model import LongNet
    torch.manual_seed(8)
    args = {"embed_dim": 96, "ffn_embed_dim": 192, "attention_heads": 12,
            "layers": 2}
    made = getattr(config, kind.capitalize() + "Config")(
        **{f"{kind}_{name}": value for name, value in args.items()},
        flash_attention=True, segment_length="[64, 128, 256]",
        dilated_ratio="[1, 2, 4]", **options)
    return getattr(LongNet, f"LongNet{kind.capitalize()}Layer")(made, 0).eval()


def test_torchscale_encoder_layer():
    m = nn.ModuleList([longnet_layer("encoder")])
    other, _ = patched(m)
    for n in (512, 500, 300, 65, 7):
        x, mask = torch.randn(2, n, 96), torch.zeros(2, n, dtype=torch.bool)
        y, z = other[0](x, mask)[0], m[0](x, mask)[0]
        near(y, z, 3e-6, f"{n} rows")
        gradient_gap(y, z, other, m)


def test_torchscale_decoder_layer_with_xpos():
    m = nn.ModuleList([longnet_layer("decoder", xpos_rel_pos=True)])
    other, _ = patched(m)
    for n in (512, 300):
        x = torch.randn(2, n, 96)
        near(other[0](x)[0], m[0](x)[0], 5e-6)
    x, state = torch.randn(2, 80, 96), {}
    with torch.no_grad():  # where torchscale's own decoding fails
        whole = other[0](x)[0]
        parts = [other[0](y, incremental_state=state)[0]
                 for y in x.split([50] + [1] * 30, 1)]
    near(torch.cat(parts, 1), whole, 1e-5)


def test_weights_of_torchscale_in_our_modules():
    m = longnet_layer("encoder")
    ours = dil.torch.modules.LongNetEncoderLayer(
        96, 12, [64, 128, 256], [1, 2, 4], 192, 0.0, "gelu",
        mode="torchscale").eval()
    ours.load_state_dict(dil.torch.modules.from_torchscale(m.state_dict()))
    x = torch.randn(2, 512, 96)
    near(ours(x), m(x, None)[0], 5e-6)
    m = longnet_layer("decoder", xpos_rel_pos=True)
    turn, xpos = dil.torch.modules.XPos(8), m.self_attn.xpos
    q, k = torch.randn(2, 200, 12, 8), torch.randn(2, 200, 12, 8)
    flat = lambda a: a.transpose(1, 2).flatten(0, 1)
    near(flat(turn(q, 0)) @ flat(turn(k, 0, True)).transpose(1, 2),
         xpos(flat(q)) @ xpos(flat(k), downscale=True).transpose(1, 2), 1e-5)


def test_gigapath_slide_encoder():
    encoder = peers.gigapath()
    torch.manual_seed(9)
    m = encoder.LongNetViT(in_chans=32, embed_dim=256, depth=8, slide_ngrids=50,
                           dropout=0.0, drop_path_rate=0.0).eval()
    theirs = copy.deepcopy(m)
    x, at = torch.randn(1, 1100, 32), torch.randint(50, (1, 1100, 2)) * 256.0
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert dil.torch.patch(m) == 8
    assert "dilation 8 does not divide segment 185363" in str(said[-1].message)
    y, z = m(x, at)[0], theirs(x, at)[0]
    off, gap = near(y, z, 3e-6), gradient_gap(y, z, m, theirs)
    print(f"# slide encoder of 8 layers: outputs {off:.1e}, gradients "
          f"{gap:.1e}")


def test_gigapath_over_a_checkout():
    folder = peers.checkout(peers.GIGAPATH)
    peers.gigapath()  # stands in for packages that are not installed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = gigapath.compare(gigapath.options(
            ["--tiles", "300", "--layers", "3", "--backward", "--checkout",
             folder]))
    assert found["attentions"] == 3
    assert found["output"] < 3e-6 and found["gradients"] < 3e-6, found
    wrong = gigapath.options(["--checkout", "/nowhere"])
    keep = {name: sys.modules.pop(name) for name in list(sys.modules)
            if name.split(".")[0] == "gigapath"}
    path, sys.path[:] = sys.path[:], []
    try:
        gigapath.published(wrong)
    except SystemExit as error:
        assert "is it a checkout of prov-gigapath" in str(error)
    else:
        raise AssertionError("no checkout, and no error")
    finally:
        sys.path[:] = path
        sys.modules.update(keep)


# ---- dilated-attention-pytorch -----------------------------------------------


def test_fkodoms_attention():
    theirs = peers.fkodom()
    torch.manual_seed(11)
    for heads, segments, rates in (
            (8, [16, 32], [1, 2]), (12, [16, 32, 64], [1, 2, 4]),
            (10, [16, 32, 64], [1, 2, 6]), (1, [16, 32], [1, 2])):
        m = nn.ModuleList([theirs.DilatedAttention(segments, rates)])
        other, said = patched(m)
        assert said == ""
        q, k, v = (torch.randn(2, 128, heads, 16) for _ in "qkv")
        v = v + 3  # keeps the divisor, a sum over the rows, away from 0
        for causal in (False, True):
            y, z = (a[0](q, k, v, is_causal=causal) for a in (other, m))
            near(y, z, 1e-5)
        q.requires_grad_()
        y = other[0](q, k, v)
        step, do = torch.randn_like(q) * 1e-3, torch.randn_like(y)
        with torch.no_grad():  # theirs writes where autograd forbids it
            ends = [m[0](q + t, k, v) for t in (step, -step)]
        along = ((ends[0] - ends[1]).double() * do).sum() / 2
        found = (torch.autograd.grad(y, q, do)[0].double() * step).sum()
        assert abs(found - along) < 2e-2 * abs(along), (found, along)


def test_weights_of_fkodom_in_our_modules():
    found = peers.fkodom()
    theirs = found.MultiheadDilatedAttention(64, 4, [1, 2], [16, 32])
    ours = dil.torch.modules.MultiheadDilatedAttention(64, 4, [1, 2], [16, 32])
    ours.load_state_dict(theirs.state_dict())
    from dilated_attention_pytorch import transformer
    for kind in "Encoder", "Decoder":
        theirs, ours = (getattr(module, f"{name}{kind}Layer")(
            64, 4, [16, 32], [1, 2]) for module, name in (
                (transformer, "DilatedTransformer"),
                (dil.torch.modules, "LongNet")))
        ours.load_state_dict(theirs.state_dict())
        names = [[name for name, _ in m.named_parameters()]
                 for m in (theirs, ours)]
        assert names[0] == names[1], names


if __name__ == "__main__":
    sys.exit(run_tests(globals()))
