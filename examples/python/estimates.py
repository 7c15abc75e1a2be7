"""Estimates of the host's own: XAttention's and Quest's, on a real text.

Each paper's estimate is a few lines of NumPy, which a call of examples/xattention.dil
or examples/quest.dil takes as its gate. What the kernel chose, and some of its rows,
are compared with the paper's rule in plain words.

    python3 examples/python/estimates.py
"""

import os
import sys

import numpy

import dil
from longnet import load, root

BLOCK, STRIDE, SHARE = 48, 8, 0.9   # of xattention.dil
PAGE, PAGES = 16, 16                # of quest.dil


def antidiagonals(q, k):
    """XAttention (arXiv 2503.16428), algorithm 1: sums along each antidiagonal of a
    square of STRIDE, a softmax of their means, and its sums over blocks."""
    n, heads, width = q.shape
    tiles, each = n // STRIDE, BLOCK // STRIDE
    rows = q.reshape(tiles, STRIDE, heads, width)
    keys = k.reshape(tiles, STRIDE, heads, width)[:, ::-1]
    score = numpy.einsum("tshd,ushd->htu", rows, keys, optimize=True)
    score = score / (STRIDE * width ** 0.5)
    score[:, numpy.triu(numpy.ones((tiles, tiles), bool), 1)] = -numpy.inf
    weight = numpy.exp(score - score.max(-1, keepdims=True))
    weight /= weight.sum(-1, keepdims=True)
    blocks = n // BLOCK
    return weight.reshape(heads, blocks, each, blocks, each).sum((2, 4))


def page_bounds(q, k):
    """Quest (arXiv 2406.10774): no score of a page's keys exceeds the sum over
    dimensions of the larger of q * smallest key and q * largest key."""
    n, heads, width = k.shape
    pages = k.reshape(n // PAGE, PAGE, heads, width)
    low, high = pages.min(1), pages.max(1)
    bound = (numpy.einsum("nhd,phd->hnp", numpy.maximum(q, 0), high, optimize=True) +
             numpy.einsum("nhd,phd->hnp", numpy.minimum(q, 0), low, optimize=True))
    return bound / width ** 0.5


def xattention_rule(share, block):
    """The fewest earlier blocks, best first, that reach the share of what is
    estimated before the diagonal; and the diagonal, which is kept in any case."""
    earlier = share[:block].astype("float64")
    best = numpy.argsort(-earlier, kind="stable")
    reached = numpy.cumsum(earlier[best]) >= SHARE * earlier.sum()
    return {block, *best[:int(reached.argmax()) + 1 if block else 0]}


def quest_rule(bound, row):
    """The query's own page, and the best of those before it."""
    own = row // PAGE
    return {own, *numpy.argsort(-bound[:own], kind="stable")[:PAGES - 1]}


def attended(q, k, v, row, head, blocks, size):
    """A row of plain attention to the keys of some blocks."""
    keys = numpy.concatenate([numpy.arange(b * size, (b + 1) * size)
                              for b in sorted(blocks)])
    keys = keys[keys <= row]
    score = k[keys, head].astype("float64") @ q[row, head] / q.shape[-1] ** 0.5
    weight = numpy.exp(score - score.max())
    return weight / weight.sum() @ v[keys, head]


def compare(name, gate, estimate, rule, sizes):
    """Runs a pattern, compares its lists with the rule and rows with attention."""
    q, k, v = load("q"), load("k"), load("v")
    kernel = dil.Program(path=os.path.join(root, name + ".dil")).kernel()
    gate = numpy.ascontiguousarray(gate[None], "float32")
    o, ((rows, cols),) = kernel(q, k, v, inputs={"gate": gate}, selection=True)
    query_block, key_block = sizes
    draw = numpy.random.default_rng(1)
    worst = wrong = 0
    for row in draw.integers(0, q.shape[1], 200):
        for head in (0, 5, 11):
            block = row // query_block
            begin, end = rows[0, head, block:block + 2]
            chosen = set(cols[0, head, begin:end].tolist())
            wrong += chosen != rule(estimate[head, block], block)
            right = attended(q[0], k[0], v[0], row, head, chosen, key_block)
            worst = max(worst, abs(o[0, row, head] - right).max())
    print(f"{name}: {rows[0, :, -1].mean() / gate.shape[2]:.1f} of {gate.shape[3]} "
          f"blocks a query block; {wrong} of 600 lists differ from the paper's rule; "
          f"largest difference of 600 rows: {worst:.1e}")
    return wrong == 0 and worst < 2e-5, (rows, cols)


def show_pages(lists, row, head):
    """The words of the pages that a query chose."""
    with open(os.path.join(root, "data", "tokens.txt"), encoding="utf-8") as file:
        words = file.read().splitlines()
    rows, cols = lists
    pages = cols[0, head, rows[0, head, row]:rows[0, head, row + 1]]
    print(f"'{words[row]}' (token {row}) looks at the pages of:")
    for page in pages[:6]:
        print("   ", " ".join(words[page * PAGE:(page + 1) * PAGE]))


def main():
    q, k = load("q")[0], load("k")[0]
    share, bound = antidiagonals(q, k), page_bounds(q, k).astype("float32")
    gate = numpy.log(numpy.maximum(share, 1e-30))  # a softmax gives the shares back
    good, _ = compare("xattention", gate, share, xattention_rule, (BLOCK, BLOCK))
    also, lists = compare("quest", bound, bound, quest_rule, (1, PAGE))
    show_pages(lists, 1200, 5)
    return 0 if good and also else 4


if __name__ == "__main__":
    sys.exit(main())
