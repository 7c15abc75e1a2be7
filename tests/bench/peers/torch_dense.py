"""Dense attention of as many pairs on contiguous data: the best that gathered
rows can meet. A batch row stands for each segment."""
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from torch_shared import first_call, random_inputs

KERNELS = {"cudnn": SDPBackend.CUDNN_ATTENTION,
           "flash": SDPBackend.FLASH_ATTENTION}


def error_of(output, q, k, v):
    """Relative L2 distance to float64, on the first rows of one head."""
    rows = slice(0, 64)
    one = [x[0, 0].double() for x in (q[:, :, rows], k, v)]
    scores = one[0] @ one[1].T / q.shape[-1] ** 0.5
    want = torch.softmax(scores, -1) @ one[2]
    got = output[0, 0, rows].double()
    return ((got - want).norm() / want.norm()).item()


def gradients(run, inputs):
    """The backward of a call alone: its graph is kept."""
    inputs = [x.requires_grad_() for x in inputs]
    output = run()
    along = torch.randn_like(output)

    def backward():
        return torch.autograd.grad(output, inputs, along, retain_graph=True)
    backward()
    return backward, 0.0, 0, None


def ways(case, compiled):
    keys = case.segments[0] // case.dilations[0]
    batch = case.queries // case.segments[0]
    q, k, v = random_inputs(batch, case.heads, keys, case.width)

    def way(kernel):
        def run():
            with sdpa_kernel(kernel):
                return torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, is_causal=case.causal)
        if case.backward:
            return lambda: gradients(run, (q, k, v))
        return lambda: first_call(run, lambda o: error_of(o, q, k, v))

    for name, kernel in KERNELS.items():
        yield name, way(kernel)
