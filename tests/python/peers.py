"""peers.py - published code beside which dil is tested: checkouts of
torchscale, prov-gigapath and dilated-attention-pytorch in the folder that
DIL_PEERS names. Packages that they import and do not need here are stood in
for."""

import importlib.machinery
import importlib.util
import os
import sys
import types

import numpy
import torch

from cases import Skipped

TORCHSCALE, GIGAPATH, FKODOM = "torchscale", "prov-gigapath", \
    "dilated-attention-pytorch"


def checkout(*names):
    """The first of these checkouts, or Skipped with a word."""
    folder = os.environ.get("DIL_PEERS")
    if not folder:
        raise Skipped("DIL_PEERS names no folder of checkouts")
    for name in names:
        path = os.path.join(folder, name)
        if os.path.isdir(path):
            return path
    raise Skipped(f"{folder} has no {' and no '.join(names)}")


def _is_installed(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:  # its parent is a stand-in
        return False


def _stand_in(name, **members):
    """A module that is not installed, with these names alone."""
    if name in sys.modules or _is_installed(name):
        return
    parent, _, last = name.rpartition(".")
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    vars(module).update(members)
    sys.modules[name] = module
    if parent:
        setattr(sys.modules[parent], last, module)


def _drop_path(x, p=0.0, training=False):
    assert not (p and training), "the tests drop no paths"
    return x


def flash(q, k, v, dropout=0.0, bias=None, softmax_scale=None, is_causal=False):
    """What torchscale wants of flash-attn: o [B, N, H, D] and lse [B, H, N]."""
    assert bias is None and not dropout
    o, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        *(x.transpose(1, 2) for x in (q, k, v)), 0.0, is_causal,
        scale=softmax_scale)
    return o.transpose(1, 2), lse


def torchscale():
    """torchscale's package, GigaPath's copy where there is one."""
    path = checkout(GIGAPATH, TORCHSCALE)
    if path.endswith(GIGAPATH):
        sys.path.insert(0, path)
        path = os.path.join(path, "gigapath")
    sys.path.insert(0, path)
    numpy.set_printoptions(legacy="1.25")  # GigaPath evals str([numpy.int64])
    same = lambda x, *rest, **named: x
    _stand_in("fairscale")
    _stand_in("fairscale.nn", checkpoint_wrapper=same, wrap=same)
    _stand_in("huggingface_hub")
    _stand_in("timm")
    _stand_in("timm.models")
    _stand_in("timm.models.registry", register_model=same)
    _stand_in("timm.models.layers", drop_path=_drop_path)
    try:
        import torchscale.component.multihead_attention as multihead
    except ImportError as error:
        raise Skipped(str(error)) from None
    multihead.flash_attn_func = flash
    return sys.modules["torchscale"]


def gigapath():
    """gigapath.slide_encoder, over flash()."""
    checkout(GIGAPATH)
    torchscale()
    sys.modules.pop("gigapath", None)  # an example of dil's has the same name
    import gigapath.slide_encoder as encoder
    for name, module in list(sys.modules.items()):
        if name.endswith("torchscale.component.multihead_attention"):
            module.flash_attn_func = flash
    return encoder


def fkodom():
    """dilated_attention_pytorch over plain attention in xformers' place."""
    sys.path.insert(0, checkout(FKODOM))

    class LowerTriangularMask:
        pass

    def memory_efficient_attention(query, key, value, op=None, attn_bias=None):
        x = torch.nn.functional.scaled_dot_product_attention(
            *(x.transpose(1, 2) for x in (query, key, value)),
            is_causal=attn_bias is not None)
        return x.transpose(1, 2)

    _stand_in("xformers")
    _stand_in("xformers.ops", AttentionOp=object,
              LowerTriangularMask=LowerTriangularMask,
              memory_efficient_attention=memory_efficient_attention)
    try:
        import dilated_attention_pytorch.dilated_attention as found
    except ImportError as error:
        raise Skipped(str(error)) from None
    return found
