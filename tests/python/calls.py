"""calls.py - calls of the Python host that are more than q, k and v: documents packed
one after the other, caches of pages, chosen blocks. Prints `ok NAME` or `not ok NAME`
a test."""

import sys

import numpy

from cases import fails, off, run_tests
import dil

CAUSAL = "pattern p { heads 4; head_dim 16; dtype f32; causal; branch { } }"
LISTED = """pattern p { heads 4; head_dim 16; dtype f32; causal; block 1, 32;
  input rows : i32[B, H, nbq + 1]; input cols : i32[B, H, *];
  keep from rows, cols; branch { } }"""
random = numpy.random.default_rng(7)


def tensors(batch=1, rows=50):
    return [random.standard_normal((batch, rows, 4, 16)).astype("float32")
            for _ in "qkv"]


def moba(**more):
    return dil.attention("moba", heads=4, head_dim=16, dtype="f32",
                         defines={"size": 32, "blocks": 3}, **more)


def test_packed_documents():
    """Documents one after the other, both ways, are as calls of their own."""
    kernel = dil.Program(CAUSAL).kernel(backward=True)
    rows, keys = [0, 20, 20, 33, 48], [0, 25, 30, 50, 65]
    q, k, v, d_o = (random.standard_normal((1, n, 4, 16)).astype("float32")
                    for n in (50, 65, 65, 50))
    o, lse = kernel(q, k, v, lse=True, offsets_q=rows, offsets_k=keys)
    made = kernel.backward(d_o, q, k, v, o, lse, offsets_q=numpy.array(rows),
                           offsets_k=numpy.array(keys, "int32"))
    assert not o[:, 48:].any() and (lse[..., 48:] == -numpy.inf).all()
    for a, b, c, d in zip(rows, rows[1:], keys, keys[1:]):
        if a == b:
            assert not made["k"][:, c:d].any()
            continue
        own = q[:, a:b], k[:, c:d], v[:, c:d]
        one, sums = kernel(*own, lse=True)
        assert off(o[:, a:b], one) < 1e-6 and off(lse[..., a:b], sums) < 1e-6
        right = kernel.backward(d_o[:, a:b], *own, one, sums)
        for name, x in made.items():
            part = x[:, a:b] if name == "q" else x[:, c:d]
            assert off(part, right[name]) < 1e-5, name
    one = kernel(q, k[:, :50], v[:, :50], offsets_q=rows)
    given = kernel(q, k[:, :50], v[:, :50], offsets_q=numpy.array(rows),
                   longest_q=40)
    assert numpy.array_equal(one, given)


def test_pages_of_a_cache():
    kernel = dil.Program(CAUSAL).kernel()
    q = random.standard_normal((2, 1, 4, 16)).astype("float32")
    pool = [random.standard_normal((7, 8, 4, 16)).astype("float32")
            for _ in range(2)]
    pages = numpy.array([[3, 0, 5], [6, 3, -1]])
    o, lse = kernel(q, *pool, lse=True, pages=pages, lengths=[20, 15])
    k, v = (x[numpy.maximum(pages, 0)].reshape(2, 24, 4, 16) for x in pool)
    right, sums = kernel(q, k, v, lse=True, lengths=[20, 15])
    assert numpy.array_equal(o, right) and numpy.array_equal(lse, sums)


def test_wrong_layouts_are_refused():
    kernel = dil.Program(CAUSAL).kernel(backward=True)
    q, k, v = tensors()
    pages = numpy.zeros((1, 2), "int32")

    def refused(words, **named):
        fails("DIL_USAGE", words, kernel, q, k, v, **named)

    for name in ("offsets_k", "longest_q", "longest_k"):
        refused(f"{name} is given, and offsets_q is not", **{name: 5})
    refused("offsets_q falls at element 2", offsets_q=[0, 30, 20])
    refused("offsets_q must be i32", offsets_q=numpy.zeros((2, 2), "int32"))
    refused("offsets_q must be integers, got [0, 1.5]", offsets_q=[0, 1.5])
    refused("offsets_k has 3 elements, and offsets_q 2", offsets_q=[0, 50],
            offsets_k=[0, 20, 50])
    refused("lengths cannot be used with offsets_q", offsets_q=[0, 50],
            lengths=[50])
    refused("longest_q", offsets_q=[0, 50], longest_q=20)
    refused("pages want lengths", pages=pages)
    refused("pages must be i32", pages=pages[0], lengths=[50])
    refused("pages must be integers", pages=[[0, 1]], lengths=[50])


def test_chosen_blocks():
    """Another call takes the lists, and gives the same rows."""
    q, k, v = tensors(2, 200)
    o, lse, ((rows, cols),) = moba()(q, k, v, lse=True, selection=True)
    assert rows.shape == (2, 4, 201) and rows.dtype == cols.dtype == numpy.int32
    assert (numpy.diff(rows) == numpy.minimum(numpy.arange(200) // 32 + 1, 3)).all()
    own = cols[0, 0][rows[0, 0, 150]:rows[0, 0, 151]]
    assert len(own) == 3 and own[-1] == 150 // 32 and (numpy.diff(own) > 0).all()
    assert numpy.array_equal(o, moba()(q, k, v))
    kernel = dil.Program(LISTED).kernel()
    right, sums = kernel(q, k, v, {"rows": rows, "cols": cols}, lse=True)
    assert off(o, right) < 1e-6 and off(lse, sums) < 1e-6
    alone, lists = moba()(q, k, v, selection=True)
    assert numpy.array_equal(alone, o) and numpy.array_equal(lists[0][1], cols)


def test_where_nothing_is_chosen():
    kernel = dil.Program(CAUSAL).kernel()
    fails("DIL_USAGE", "kernel 'p' chooses no blocks", kernel, *tensors(),
          selection=True)
    fails("DIL_UNSUPPORTED", "do not go with", moba(), *tensors(), selection=True,
          offsets_q=[0, 50])


if __name__ == "__main__":
    sys.exit(run_tests(globals()))
