"""The op dil::attention_selection: the blocks of keys that a call chooses.

In: tensors and the name of a plan. Out: lists of int32, two for each `keep top`
and `keep mass`: rows [B, H, nbq + 1] and cols [B, H, ...]. They have no
gradients, and how long they are a compiler learns when the call has run.
"""

import torch
from torch import _C, library

from .ops import (_check, _kernel, _library, _refuse, _stream,
                  cast_with_autocast, refuse_vmap)
from .plan import named

_library.define(
    "attention_selection"
    "(Tensor q, Tensor k, Tensor v, Tensor[] inputs, str plan,"
    " Tensor? lengths=None, float? scale=None) -> Tensor[]")

attention_selection = torch.ops.dil.attention_selection.default


def _selection(q, k, v, inputs, plan, lengths=None, scale=None):
    plan = named(plan)
    kernel = _kernel(q, k, v, inputs, plan)
    _check(q, k, v, inputs, plan, lengths)
    with torch.no_grad():  # as autograd, which is above, has it
        _, pairs = kernel(q, k, v, dict(zip(plan.input_names, inputs)),
                          scale=scale, lengths=lengths, selection=True,
                          stream=_stream(q) if q.is_cuda else None)
    return [one for pair in pairs for one in pair]


def _fake(q, k, v, inputs, plan, lengths=None, scale=None):
    plan = named(plan)
    _check(q, k, v, inputs, plan, lengths)
    if not plan.list_count:
        _refuse(f"plan '{plan.name}' chooses no blocks: a selection wants a "
                "`keep top` or `keep mass`")
    size = library.get_ctx().new_dynamic_size
    return [q.new_empty((q.shape[0], q.shape[2], size()), dtype=torch.int32)
            for _ in range(plan.list_count)]


def _below_autograd(keyset, *call):
    with _C._AutoDispatchBelowAutograd():
        return attention_selection.redispatch(
            keyset & _C._after_autograd_keyset, *call)


for _device in ("CPU", "CUDA"):
    _library.impl("attention_selection", _selection, _device)
_library.impl("attention_selection", _below_autograd, "Autograd", with_keyset=True)
library.register_fake("dil::attention_selection", _fake, lib=_library)
cast_with_autocast(attention_selection)
refuse_vmap(attention_selection)
