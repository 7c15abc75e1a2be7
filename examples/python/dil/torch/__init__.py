"""dil in PyTorch: attention with gradients, for processors and GPUs.

    import dil.torch
    o = dil.torch.attention(q, k, v, "longnet.dil")    # q: [B, N, H, D]

The dtype, the device and the sizes are those of the tensors. Autograd,
autocast, torch.compile and activation checkpointing know the function, and a
mistake is a `dil.Error` with dil's own text.
"""

import torch as _torch
from torch.compiler import assume_constant_result as _constant

from dil import Error, _layout
from . import ops
from .plan import Plan, find as _find
from .selection import attention_selection

__all__ = ["Error", "Plan", "Ring", "attention", "chosen_blocks",
           "keep_for_gradients", "modules", "ops", "patch", "unpatch"]


def keep_for_gradients(kept):
    """Whether calls from now on keep what their gradients would make again: the blocks
    that a plan chooses, and on a GPU the outputs of branches in float32, where each
    has a softmax of its own or the plan says `gradient detached`. It begins as True.
    Gradients are the same; without it they take longer and calls less memory. So it is
    in a call for which a GPU has no such memory left."""
    ops.saving = bool(kept)


@_constant
def _named(source):
    """The plan of a text, a path or a preset, as torch.compile may know it."""
    plan = _find(source)
    return plan.name, plan.input_names, plan.has_dropout, plan.has_lse


def _known(plan):
    """Name, names of inputs, whether it drops, whether it has lse."""
    if isinstance(plan, Plan):
        return plan.name, plan.input_names, plan.has_dropout, plan.has_lse
    return _named(plan)


def _in_order(name, input_names, given):
    """The inputs of a call in the plan's order."""
    if not given and not input_names:
        return ()
    given = given or {}
    for key in given:
        if key not in input_names:
            raise Error("DIL_USAGE", f"plan '{name}' has no input '{key}'; it "
                        f"has {', '.join(input_names) or 'none'}")
    for key in input_names:
        if key not in given:
            raise Error("DIL_USAGE", f"input '{key}' is not given")
    return [given[key] for key in input_names]


def _int32(x, q):
    if not isinstance(x, _torch.Tensor):
        x = _torch.tensor(x, device=q.device)
    if x.dtype == _torch.int64:  # what does not fit stays outside of all tensors
        x = x.clamp(-2 ** 31, 2 ** 31 - 1).to(_torch.int32)
    return x


def _lies(q, offsets_q, offsets_k, longest_q, longest_k, pages):
    """The layout of a call."""
    if offsets_q is offsets_k is longest_q is longest_k is pages is None:
        return _layout.PLAIN
    return _layout.layout(lambda name, x: _int32(x, q), offsets_q, offsets_k,
                          longest_q, longest_k, pages)


def _seed(seed, device):
    """The seed as a tensor, so that a compiled call draws anew. Without one
    PyTorch's generator of the device draws it, so that a captured graph does."""
    if isinstance(seed, _torch.Tensor):
        return seed
    if seed is not None:
        signed = (seed + 2 ** 63) % 2 ** 64 - 2 ** 63
        return _torch.full((), signed, dtype=_torch.int64)
    return _torch.randint(2 ** 63 - 1, (), dtype=_torch.int64, device=device)


def attention(q, k, v, plan, *, inputs=None, train=False, seed=None, scale=None,
              lengths=None, lse=False, offsets_q=None, offsets_k=None,
              longest_q=None, longest_k=None, pages=None):
    """Attention of q [B, N, H, D] over k [B, M, Hkv, D], v [B, M, Hkv, Dv].

    `plan`: a Plan, or what Plan takes first: a text, a path or the name of a
    preset, which is read once. `inputs`: the pattern's inputs by name.
    `train`: dropout applies, by the seed, an integer or a tensor of one int64;
    PyTorch's generator of q's device draws one where none is given. A captured
    graph reads a tensor on its device at each replay; an integer is the same in
    all. `scale`: of a pattern that says `scale runtime`, and of no other.
    `lengths`: the keys that each batch row has, [B]; queries are aligned with the
    end of the keys.
    `offsets_q`: q [1, T, H, D] holds documents, and document b has the rows
    offsets_q[b] to offsets_q[b + 1] - 1; [B + 1]. `offsets_k`: the same of k and v,
    where it differs. `longest_q`, `longest_k`: rows of the longest document, which
    must be given where offsets are on a GPU. `pages`: k and v are a cache
    [pages, rows, Hkv, D], of which pages[b, j / rows] has key j of batch row b;
    [B, n], with `lengths` and without gradients.
    Returns o [B, N, H, Dv], or with `lse` o and lse, float32 [B, H, N]. Both
    have gradients.
    """
    name, names, drops, has_lse = _known(plan)
    if lse and not has_lse:
        raise Error("DIL_USAGE", f"plan '{name}' has no lse: its branches have a "
                    "softmax each")
    o, log_sums = ops.attend(
        q, k, v, _in_order(name, names, inputs), name,
        None if lengths is None else _int32(lengths, q), scale,
        _seed(seed, q.device) if train and drops else None, train, lse,
        _lies(q, offsets_q, offsets_k, longest_q, longest_k, pages))
    return (o, log_sums) if lse else o


def chosen_blocks(q, k, v, plan, *, inputs=None, scale=None, lengths=None):
    """The blocks of keys that attention() of these chooses: for each `keep top` and
    `keep mass` of the plan a pair of int32 lists, rows [B, H, nbq + 1] and cols
    [B, H, ...]. Block r of queries has the blocks of keys cols[rows[r]] to
    cols[rows[r + 1] - 1]. A plan with `keep from` can take them as inputs. It is an
    op, dil::attention_selection, as torch.compile and autocast know it."""
    name, names, *_ = _known(plan)
    lists = attention_selection(q, k, v, _in_order(name, names, inputs), name,
                                None if lengths is None else _int32(lengths, q),
                                scale)
    return list(zip(lists[::2], lists[1::2]))


from . import modules, sdpa  # noqa: E402  they call attention
from .patch import patch, unpatch  # noqa: E402


def __getattr__(name):
    """Ring needs torch.distributed, which a call alone does not."""
    if name != "Ring":
        raise AttributeError(f"module 'dil.torch' has no attribute {name!r}")
    from .ring import Ring
    return Ring
