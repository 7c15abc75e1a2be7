"""gathers.py - dilated attention by gathers of plain PyTorch, as host code
writes it, and what the tests of modules and models share."""

import math

import torch


def rejects(kind, words, call, *args, **named):
    try:
        call(*args, **named)
    except kind as error:
        assert words in str(error), f"got: {error}"
        return
    raise AssertionError(f"nothing was raised: {words}")


def near(a, b, most, what=""):
    """The distance of a from b, relative to b's norm."""
    a, b = a.detach(), b.detach()
    assert a.shape == b.shape, (a.shape, b.shape)
    assert torch.isfinite(a).all(), f"{what} is not finite"
    a, b = a.double(), b.double()
    off = float((a - b).norm() / b.norm().clamp_min(1e-30))
    assert off <= most, f"{what} off by {off:.2e}, allowed {most:.0e}"
    return off


# ---- dilated attention by gathers --------------------------------------------

PHASES = {
    "cycle": lambda h, r, heads, branch: h % r,
    "block": lambda h, r, heads, branch: h // -(-heads // r),
    "branch": lambda h, r, heads, branch: branch % r,
}


def shares(heads, groups):
    """The heads of each branch where each has its own."""
    sizes = [heads // groups + (g < heads % groups) for g in range(groups)]
    return [range(sum(sizes[:g]), sum(sizes[:g + 1])) for g in range(groups)]


def _segment(q, k, v, causal, hidden):
    """Dense attention of gathered rows [B, n, D]: o and lse."""
    scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
    if causal:
        scores = scores + scores.new_full(scores.shape[1:], -math.inf).triu(1)
    if hidden is not None:
        scores = scores.masked_fill(hidden[:, None], -math.inf)
    none = (scores == -math.inf).all(-1)
    scores = scores.masked_fill(none[..., None], 0)
    lse = scores.logsumexp(-1)
    weights = (scores - lse[..., None]).exp().masked_fill(none[..., None], 0)
    return weights @ v, lse.masked_fill(none, -math.inf)


def _branch(q, k, v, s, r, phase_of, heads, causal, hidden):
    n, repeat = q.shape[1], q.shape[2] // k.shape[2]
    o = q.new_zeros((*q.shape[:3], v.shape[3]))
    lse = q.new_full(q.shape[:3], -math.inf)
    for h in heads:
        for first in range(0, n, s):
            rows = slice(first + phase_of(h), min(first + s, n), r)
            if rows.start >= rows.stop:
                continue
            o[:, rows, h], lse[:, rows, h] = _segment(
                q[:, rows, h], k[:, rows, h // repeat], v[:, rows, h // repeat],
                causal, None if hidden is None else hidden[:, rows])
    return o, lse


def gathered(q, k, v, pairs, phase="cycle", causal=False, combine="softmax",
             split=False, detached=False, hidden=None, with_lse=False):
    """Dilated attention of q, k, v [B, N, H, D] as host code writes it: rows of
    each segment gathered, dense attention, rows scattered, outputs mixed.
    with_lse: o and lse [B, N, H] of the only branch."""
    heads, outs, lses = q.shape[2], [], []
    for at, (s, r) in enumerate(pairs):
        served = shares(heads, len(pairs))[at] if split else range(heads)
        o, lse = _branch(q, k, v, s, r,
                         lambda h: PHASES[phase](h, r, heads, at), served,
                         causal, hidden)
        outs.append(o), lses.append(lse)
    if combine == "mean":
        return sum(outs) / len(pairs)
    if with_lse:
        return outs[0], lses[0]
    lses = torch.stack(lses)
    top = lses.amax(0).clamp_min(-1e30).detach()
    weights = (lses - top).exp()
    weights = weights / weights.sum(0).clamp_min(1e-30)
    weights = weights.detach() if detached else weights
    return sum(o * w[..., None] for o, w in zip(outs, weights))
