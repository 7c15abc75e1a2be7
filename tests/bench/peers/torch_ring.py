"""LongNet over several GPUs as its authors do it (Ding et al., 2023, 3.1): each
process holds a shard of the sequence; a branch whose segments are longer than
that gathers the selected keys and values of all ranks, and attends to them.

  torchrun --nproc-per-node R torch_ring.py ROWS HEADS WIDTH ROUNDS S:R,S:R,... \
      [backward]

ROWS are a rank's own. With `backward` a round makes the gradients of q, k and v, and
the run forward is not timed. Gradients of gathered rows are scattered back as sums,
and the weights of branches are constants, as in torchscale. Rank 0 prints one line of
JSON: milliseconds of each round, the slowest rank's, and the most memory that PyTorch
held."""
import json
import os
import sys

import torch
import torch.distributed as dist

NEVER = -1e30                      # log-denominator of a row not selected


def attend(q, k, v):
    """[B, rows, H, D] to output and log of the denominator, by cuDNN."""
    made = torch.ops.aten._scaled_dot_product_cudnn_attention(
        *(x.transpose(1, 2) for x in (q, k, v)), None, True, 0.0, False, False)
    return made[0].transpose(1, 2), made[1].reshape(
        q.shape[0], q.shape[2], q.shape[1]).transpose(1, 2)


def chosen(rows, dilation, heads, device):
    """The rows that each head selects, and the heads, [rows / dilation, H]."""
    head = torch.arange(heads, device=device)
    row = torch.arange(0, rows, dilation, device=device)[:, None] + (
        head % dilation)
    return row, head.expand_as(row)


def local_branch(q, k, v, segment, dilation):
    rows, H, D = q.shape[1:]
    parts = [x.reshape(-1, segment, H, D) for x in (q, k, v)]
    if dilation == 1:
        o, lse = attend(*parts)
        return o.reshape(1, rows, H, D), lse.reshape(1, rows, H)
    at = chosen(segment, dilation, H, q.device)
    o, lse = attend(*(x[:, at[0], at[1]] for x in parts))
    whole = o.new_zeros(rows // segment, segment, H, D)
    logs = lse.new_full((rows // segment, segment, H), NEVER)
    whole[:, at[0], at[1]], logs[:, at[0], at[1]] = o, lse
    return whole.view(1, rows, H, D), logs.view(1, rows, H)


class Gathered(torch.autograd.Function):
    """The rows of all ranks; backward each rank gets the sums of its own."""

    @staticmethod
    def forward(ctx, mine):
        every = mine.new_empty((dist.get_world_size(),) + mine.shape)
        dist.all_gather_into_tensor(every, mine)
        return every

    @staticmethod
    def backward(ctx, grad):
        own = grad.new_empty(grad.shape[1:])
        dist.reduce_scatter_tensor(own, grad.contiguous())
        return own


def gathered_branch(q, k, v, segment, dilation):
    rows, H, D = q.shape[1:]
    at = chosen(rows, dilation, H, q.device)
    mine = torch.stack((k[0][at], v[0][at]))
    every = Gathered.apply(mine)
    first = dist.get_rank() * rows // segment * segment // rows
    some = every[first:first + max(segment // rows, 1)]
    o, lse = attend(q[0][at][None], some[:, 0].reshape(1, -1, H, D),
                    some[:, 1].reshape(1, -1, H, D))
    whole = o.new_zeros(1, rows, H, D)
    logs = lse.new_full((1, rows, H), NEVER)
    whole[0][at], logs[0][at] = o[0], lse[0]
    return whole, logs


def longnet(q, k, v, branches):
    rows = q.shape[1]
    parts = [(local_branch if s <= rows else gathered_branch)(q, k, v, s, r)
             for s, r in branches]
    weights = torch.softmax(torch.stack([lse for _, lse in parts]).detach(), 0)
    return sum(w[..., None].to(q.dtype) * o
               for w, (o, _) in zip(weights, parts))


def main():
    rows, heads, width, rounds = map(int, sys.argv[1:5])
    branches = [tuple(map(int, b.split(":"))) for b in sys.argv[5].split(",")]
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    all_rows = rows * dist.get_world_size()
    branches = [(min(s, all_rows), r) for s, r in branches]
    q, k, v = (torch.randn(1, rows, heads, width, device="cuda",
                           dtype=torch.bfloat16) for _ in range(3))
    times, backward = [], "backward" in sys.argv[6:]
    for x in (q, k, v):
        x.requires_grad_(backward)
    d = torch.randn_like(q)
    with torch.set_grad_enabled(backward):
        for i in range(rounds + 2):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in "ab")
            o = longnet(q, k, v, branches) if backward else None
            dist.barrier()
            begin.record()
            if backward:
                torch.autograd.grad(o, (q, k, v), d)
            else:
                longnet(q, k, v, branches)
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end))
    slowest = torch.tensor(times[2:], device="cuda")
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    if rank == 0:
        print(json.dumps({"ms": slowest.tolist(),
                          "bytes": torch.cuda.max_memory_allocated()}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
