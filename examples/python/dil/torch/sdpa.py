"""dil under every scaled_dot_product_attention of a program.

    torch.nn.attention.activate_flash_attention_impl("dil")
    ...
    torch.nn.attention.restore_flash_attention_impl()

PyTorch's flash kernels are registered anew: dense and causal attention, on
processors and GPUs, with gradients. Calls that dil cannot serve (masks,
dropout, head sizes above 256) go on to the kernels that stood there before.
"""

import functools

import torch
from torch.library import Library
from torch.nn import attention as registry

from . import ops
from .plan import find

NAME = "dil"
_CPU = "_scaled_dot_product_flash_attention_for_cpu"
_CUDA = "_scaled_dot_product_flash_attention"
_TYPES = (torch.float32, torch.float16, torch.bfloat16)
HEAD_DIM_MOST = 256  # of dil's kernels


@functools.lru_cache(maxsize=None)
def _plan(heads, kv_heads, head_dim, value_dim, causal):
    # Row 0 of SDPA's causal attention stands at key 0, as dil's does where
    # there are as many queries as keys.
    return find(f"pattern sdpa {{ heads {heads} kv {kv_heads}; "
                f"head_dim {head_dim} value {value_dim}; dtype f32; "
                f"scale runtime; {'causal; ' if causal else ''}"
                "branch { } }").name


def _can(query, key, value, dropout, causal, mask=None):
    """Whether dil computes this call."""
    return (not dropout and mask is None and query.dim() == 4
            and query.dtype in _TYPES
            and key.dtype == value.dtype == query.dtype
            and (not causal or query.shape[2] == key.shape[2])
            and max(query.shape[3], value.shape[3]) <= HEAD_DIM_MOST
            and query.shape[1] % key.shape[1] == 0
            and all(x.stride(3) == 1 and x.numel()
                    for x in (query, key, value)))


def _call(query, key, value, causal, scale):
    """What the op wants besides q, k and v [B, N, H, D]."""
    plan = _plan(query.shape[1], key.shape[1], query.shape[3], value.shape[3],
                 causal)
    scale = query.shape[3] ** -0.5 if scale is None else scale
    return plan, None, scale, None, False


def _turn(*tensors):
    return [x.transpose(1, 2) for x in tensors]


def _forward(query, key, value, causal, scale):
    o, lse = ops.attention(*_turn(query, key, value), [],
                           *_call(query, key, value, causal, scale))
    return o.transpose(1, 2), lse


def _backward(grad, query, key, value, o, lse, causal, scale):
    rows = _turn(query, key, value, o)
    found = torch.ops.dil.attention_backward.default(
        grad.transpose(1, 2), None, *rows, lse, [],
        *_call(query, key, value, causal, scale), [True] * 3)
    return tuple(_turn(*found))


class _Override:
    """One kernel of PyTorch, replaced until remove()."""

    def __init__(self, library, name, device, kernel):
        self.old = torch.library.get_kernel("aten::" + name, device)
        key = getattr(torch._C.DispatchKey, device)
        self.keys = torch._C.DispatchKeySet(key)
        library.impl(name, functools.partial(kernel, self), device,
                     allow_override=True)

    def call(self, *arguments, **named):
        return self.old.call_boxed(self.keys, *arguments, **named)


def _cpu(old, query, key, value, dropout_p=0.0, is_causal=False, *,
         attn_mask=None, scale=None):
    if _can(query, key, value, dropout_p, is_causal, attn_mask):
        return _forward(query, key, value, is_causal, scale)
    return old.call(query, key, value, dropout_p, is_causal,
                    attn_mask=attn_mask, scale=scale)


def _cpu_backward(old, grad_out, query, key, value, out, logsumexp, dropout_p,
                  is_causal, *, attn_mask=None, scale=None):
    if _can(query, key, value, dropout_p, is_causal, attn_mask):
        return _backward(grad_out, query, key, value, out, logsumexp, is_causal,
                         scale)
    return old.call(grad_out, query, key, value, out, logsumexp, dropout_p,
                    is_causal, attn_mask=attn_mask, scale=scale)


def _cuda(old, query, key, value, dropout_p=0.0, is_causal=False,
          return_debug_mask=False, *, scale=None):
    if return_debug_mask or not _can(query, key, value, dropout_p, is_causal):
        return old.call(query, key, value, dropout_p, is_causal,
                        return_debug_mask, scale=scale)
    o, lse = _forward(query, key, value, is_causal, scale)
    none = query.new_empty(0, dtype=torch.int32)
    state = torch.zeros(2, dtype=torch.uint64, device=query.device)
    return (o, lse, none, none, query.shape[2], key.shape[2], state,
            torch.zeros((), dtype=torch.uint64, device=query.device),
            query.new_empty(0))


def _cuda_backward(old, grad_out, query, key, value, out, logsumexp, cum_seq_q,
                   cum_seq_k, max_q, max_k, dropout_p, is_causal, philox_seed,
                   philox_offset, *, scale=None):
    if _can(query, key, value, dropout_p, is_causal):
        return _backward(grad_out, query, key, value, out, logsumexp, is_causal,
                         scale)
    return old.call(grad_out, query, key, value, out, logsumexp, cum_seq_q,
                    cum_seq_k, max_q, max_k, dropout_p, is_causal, philox_seed,
                    philox_offset, scale=scale)


class _Active:
    """The handle that PyTorch keeps while "dil" is active."""

    def __init__(self):
        self.libraries, self.overrides = [], []
        self._take("CPU", {_CPU: _cpu, _CPU + "_backward": _cpu_backward})
        if torch.cuda.is_available():
            self._take("CUDA", {_CUDA: _cuda,
                                _CUDA + "_backward": _cuda_backward})

    def _take(self, device, kernels):
        library = Library("aten", "IMPL", device)
        self.libraries.append(library)
        for name, kernel in kernels.items():
            self.overrides.append(_Override(library, name, device, kernel))

    def remove(self):
        for library in self.libraries:
            library._destroy()
        self.libraries, self.overrides = [], []


if hasattr(registry, "register_flash_attention_impl"):  # PyTorch 2.11
    registry.register_flash_attention_impl(NAME, register_fn=_Active)
