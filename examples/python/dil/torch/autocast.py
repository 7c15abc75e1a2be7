"""Projections around an attention, with fewer passes over memory than autocast
takes on a GPU.

In: rows and the modules that project them. Out: what the modules compute, rounded
as often. Autocast rounds rows again for each projection that they go through. It
widens the rows of a layer norm, norms them in f32 and rounds them for the next
projection: here the norm is one pass, and its gain and bias go into the weights of
the projection, which are small.
"""

import torch
from torch import nn
from torch.nn import functional


def _is_plain(module, kind):
    """Whether nobody would see that a module is not called."""
    return type(module) is kind and not (
        module._forward_hooks or module._forward_pre_hooks
        or module._backward_hooks or module._backward_pre_hooks
        or "forward" in module.__dict__)


def _rounds(x):
    """Whether autocast is on for a tensor: on a GPU, to a type of 16 bits."""
    return (x.is_cuda and torch.is_autocast_enabled("cuda")
            and torch.get_autocast_dtype("cuda") in (torch.float16, torch.bfloat16))


def project_all(projections, rows):
    """[project(x), ...]. Rows that are one tensor are rounded once."""
    if (all(x is rows[0] for x in rows) and _rounds(rows[0])
            and all(_is_plain(project, nn.Linear) for project in projections)):
        rows = [rows[0].to(torch.get_autocast_dtype("cuda"))] * len(rows)
    return [project(x) for project, x in zip(projections, rows)]


def _folds(norm, project, x):
    return (_rounds(x) and x.dtype == torch.get_autocast_dtype("cuda")
            and _is_plain(project, nn.Linear) and _is_plain(norm, nn.LayerNorm)
            and norm.weight is not None
            and norm.normalized_shape == (project.in_features,)
            and norm.weight.dtype == project.weight.dtype == torch.float32)


def norm_and_project(norm, project, x):
    """project(norm(x)) of x [..., width]; norm may be None."""
    if norm is None:
        return project(x)
    if not _folds(norm, project, x):
        return project(norm(x))
    with torch.autocast("cuda", enabled=False):
        x = functional.layer_norm(x, norm.normalized_shape, eps=norm.eps)
        weight, bias = project.weight * norm.weight, project.bias
        if norm.bias is not None:
            moved = project.weight @ norm.bias
            bias = moved if bias is None else bias + moved
        return functional.linear(x, weight.to(x.dtype),
                                 None if bias is None else bias.to(x.dtype))
