"""torch_projections.py - the projections around an attention under autocast on a
GPU, beside PyTorch's modules and float64. Prints `ok NAME` or `not ok NAME` a test."""

import copy
import sys

import torch

from cases import run_gpu_tests
from dil.torch.autocast import norm_and_project, project_all

HALVES = torch.bfloat16, torch.float16


def normed(dtype):
    """A norm and a projection with their rows, which are of that dtype."""
    norm, project = torch.nn.LayerNorm(96).cuda(), torch.nn.Linear(96, 64).cuda()
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter, 1)
    return norm, project, torch.randn(2, 300, 96, device="cuda", dtype=dtype)


def test_a_norm_goes_into_the_projection_behind_it():
    """As near to f64 as the two modules are, with gradients of all that they have;
    and the two modules themselves where somebody looks on."""
    for dtype in HALVES:
        norm, project, x = normed(dtype)
        x.requires_grad_()
        along = torch.randn(2, 300, 64, device="cuda")
        own = [x, *norm.parameters(), *project.parameters()]
        with torch.autocast("cuda", dtype):
            y = norm_and_project(norm, project, x)
            plain = project(norm(x))
        found = [y, *torch.autograd.grad(y.float(), own, along)]
        theirs = [plain, *torch.autograd.grad(plain.float(), own, along)]
        x64, n64, p64 = (copy.deepcopy(m).double() for m in (x.detach(), norm, project))
        y64 = p64(n64(x64.requires_grad_()))
        right = [y64, *torch.autograd.grad(
            y64, [x64, *n64.parameters(), *p64.parameters()], along.double())]
        assert y.dtype == plain.dtype == dtype and not torch.equal(y, plain)
        for mine, other, true in zip(found, theirs, right):
            off = [float((a.double() - true).detach().norm() / true.detach().norm())
                   for a in (mine, other)]
            assert off[0] < 1.5 * off[1] + 1e-6, off
        seen = []
        norm.register_forward_hook(lambda *_: seen.append(1))
        with torch.autocast("cuda", dtype):
            assert torch.equal(norm_and_project(norm, project, x), plain) and seen
    norm, project, x = normed(torch.float32)
    assert torch.equal(norm_and_project(norm, project, x), project(norm(x)))
    assert torch.equal(norm_and_project(None, project, x), project(x))


def test_rows_are_rounded_once_for_three_projections():
    """The bits of three projections, also where one of them is looked at."""
    x = torch.randn(2, 300, 96, device="cuda")
    parts = [torch.nn.Linear(96, 64).cuda() for _ in range(3)]
    seen = []
    for turn in range(2):
        with torch.autocast("cuda", torch.bfloat16):
            made, plain = project_all(parts, [x] * 3), [p(x) for p in parts]
        assert all(map(torch.equal, made, plain)), turn
        parts[1].register_forward_pre_hook(lambda _, rows: seen.append(rows[0].dtype))
    assert seen == [torch.float32] * 2
    assert all(map(torch.equal, project_all(parts, [x] * 3), [p(x) for p in parts]))


if __name__ == "__main__":
    sys.exit(run_gpu_tests(globals()))
