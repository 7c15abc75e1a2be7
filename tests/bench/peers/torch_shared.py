"""What the peers on a GPU share: attention with its log-denominator, the
measure of a first call, and the definition in float64 on some rows."""
import math
import time

import torch

ROWS = 48                          # checked


def attend(q, k, v, causal, backend):
    """[B, H, rows, D] to output and log of the denominator."""
    aten = torch.ops.aten
    if backend == "flash":
        made = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal,
                                                        False)
    else:
        made = aten._scaled_dot_product_cudnn_attention(q, k, v, None, True,
                                                        0.0, causal, False)
    return made[0], made[1].reshape(q.shape[:3])


def random_inputs(*shape):
    torch.manual_seed(1)
    return [torch.randn(shape, device="cuda", dtype=torch.bfloat16)
            for _ in range(3)]


def measured(run):
    """(output, seconds of the first call, most bytes beyond what was there before
    the second, the output among them)."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    torch.cuda.synchronize()
    first = time.perf_counter() - start
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    output = run()
    torch.cuda.synchronize()
    return output, first, torch.cuda.max_memory_allocated() - before


def bytes_of(tensor):
    return tensor.numel() * tensor.element_size()


def first_call(run, check=None):
    """(run, seconds of the first call, bytes beyond the output, error)."""
    with torch.no_grad():
        output, first, most = measured(run)
    error = check(output) if check else None
    return run, first, most - bytes_of(output), error


def gradients_call(forward, inputs):
    """(run, nothing measured of its first call, no error) of the gradients alone of
    `forward`, which takes no arguments and reads the inputs. first_call would forget
    the graph."""
    for x in inputs:
        x.requires_grad_()
    output = forward()
    along = torch.randn_like(output)
    run = lambda: torch.autograd.grad(output, inputs, along, retain_graph=True)
    run()
    return run, 0.0, 0, None


def training_call(forward, inputs):
    """(run, seconds of the first call, bytes beyond the gradients, no error) of
    a training step: `forward` of the inputs, then their gradients. PyTorch gives
    a log-denominator no gradient, so that the branches' weights stand still."""
    inputs = [x.requires_grad_() for x in inputs]
    along = torch.randn_like(forward(*inputs).detach())

    def run():
        return torch.autograd.grad(forward(*inputs), inputs, along)

    gradients, first, most = measured(run)
    return in_graph(run), first, most - sum(map(bytes_of, gradients)), None


def in_graph(run):
    """The replay of a call, so that short ones do not wait for the host."""
    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        run()
    side.synchronize()
    with torch.cuda.graph(graph, stream=side):
        run()

    def replay(kept=run):          # what the graph reads stays as long as it
        graph.replay()
    return replay


def keys_of(case, head, row, distinct):
    """The keys of a row, once for each branch that reaches them."""
    keys = []
    for segment, dilation in zip(case.segments, case.dilations):
        phase = head % dilation
        start = row // segment * segment
        if (row - start) % dilation != phase:
            continue
        end = min(start + segment, row + 1 if case.causal else case.queries)
        keys += range(start + phase, end, dilation)
    return sorted(set(keys)) if distinct else keys


def error_of(case, output, q, k, v, distinct=False):
    """Relative L2 distance to float64 on some rows; all are [N, H, D]."""
    wrong = size = 0.0
    for i in range(ROWS):
        row, head = i * 7919 * 31 % case.queries, i * 5 % case.heads
        keys = torch.tensor(keys_of(case, head, row, distinct), device="cuda")
        if not len(keys):
            continue
        scores = (k[keys, head].double() @ q[row, head].double()
                  / math.sqrt(case.width))
        want = torch.softmax(scores, 0) @ v[keys, head].double()
        wrong += (output[row, head].double() - want).square().sum().item()
        size += want.square().sum().item()
    return math.sqrt(wrong / size) if size else None
