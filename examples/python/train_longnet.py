"""A byte-level LongNet language model that learns a text:
examples/data/tokens.txt, or any file.

    python3 examples/python/train_longnet.py --steps 200
    python3 examples/python/train_longnet.py --text book.txt --length 16384 \\
        --segments 2048 4096 8192 --device cuda --autocast bf16 --checkpointing

    torchrun --nproc-per-node 2 examples/python/train_longnet.py --ring 2 \\
        --steps 50

With --ring each process has a part of every piece, and attention runs on all of
them: the curve is that of one process but for rounding. With --device cuda each
has a GPU of its own.

A step takes random pieces of the text, the same ones for the same --seed and
step, so that a run that goes on with --resume draws the curve of one that never
stopped. With --attention gathers PyTorch gathers the rows of each segment
instead, and the curve is the same but for rounding.
"""

import argparse
import math
import os
import sys
import time

# PyTorch's threads would go on spinning where dil's threads want the cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
import torch
from torch import nn
from torch.nn import functional

import dil.torch
from dil.torch import modules

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data")
AUTOCAST = {"none": None, "bf16": torch.bfloat16, "f16": torch.float16}

# ---- the model -------------------------------------------------------------


class LongNetLM(nn.Module):
    """Bytes in, logits of the next byte out."""

    def __init__(self, o):
        super().__init__()
        self.embedding = nn.Embedding(256, o.width)
        self.longnet = modules.LongNetEncoder(
            o.layers, o.width, o.heads, o.segments, o.dilations,
            dropout=o.dropout, activation="gelu", xpos_scale_base=o.xpos,
            checkpoint=o.checkpointing)
        self.out = nn.Linear(o.width, 256)
        if o.attention == "gathers":
            for layer in self.longnet.layers:
                layer.self_attn.attention = GatheredAttention(
                    o.segments, o.dilations)

    def forward(self, tokens, cache=None):
        x = self.longnet(self.embedding(tokens), is_causal=True, cache=cache)
        return self.out(x)


def join_ring(o):
    """The ring of the processes that torchrun has started, or None."""
    if not o.ring:
        return None
    if o.attention != "dil":
        raise SystemExit("--ring goes with --attention dil: no other attention "
                         "reads the rows of other processes")
    on_gpus = torch.device(o.device).type == "cuda"
    if on_gpus:  # each process has its own, as torchrun numbers them
        o.device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
        torch.cuda.set_device(o.device)
    torch.distributed.init_process_group("nccl" if on_gpus else "gloo")
    if torch.distributed.get_world_size() != o.ring:
        raise SystemExit(f"--ring {o.ring} wants as many processes, and there are "
                         f"{torch.distributed.get_world_size()}: torchrun "
                         f"--nproc-per-node {o.ring}")
    threads = max(1, (os.cpu_count() or 1) // o.ring)
    torch.set_num_threads(threads)
    return dil.torch.Ring("longnet", layout="zigzag")


class GatheredAttention(nn.Module):
    """What models write without dil: each branch gathers the rows of its
    segments, attends densely, scatters, and the branches mix by their
    denominators."""

    def __init__(self, segments, dilations):
        super().__init__()
        self.pairs = list(zip(segments, dilations))

    @staticmethod
    def _dense(q, k, v):
        """Causal attention of [..., N, H, D]: o and lse."""
        scores = torch.einsum("...ihd,...jhd->...hij", q, k)
        scores = scores / math.sqrt(q.shape[-1])
        future = torch.ones(scores.shape[-2:], dtype=torch.bool,
                            device=q.device).triu(1)
        scores = scores.masked_fill(future, -math.inf)
        lse = scores.logsumexp(-1)
        weights = (scores - lse[..., None]).exp()
        o = torch.einsum("...hij,...jhd->...ihd", weights, v)
        return o, lse.transpose(-1, -2)

    def _branch(self, tensors, s, r):
        batch, n, heads, _ = tensors[0].shape
        s = min(s, n)
        end = -(-n // s) * s
        x = [functional.pad(t, (0, 0, 0, 0, 0, end - n)).unflatten(1, (-1, s))
             for t in tensors]
        o = torch.zeros_like(x[2])
        lse = x[0].new_full(x[0].shape[:-1], -1e30)
        for phase in range(min(r, heads, s)):
            at = (slice(None), slice(None), slice(phase, None, r),
                  slice(phase, None, r))
            o[at], lse[at] = self._dense(*(t[at] for t in x))
        return o.flatten(1, 2)[:, :n], lse.flatten(1, 2)[:, :n]

    def forward(self, query, key, value, is_causal=True, key_padding_mask=None):
        if query.shape[1] != key.shape[1] or not is_causal:
            raise ValueError("gathers know whole causal sequences alone: "
                             "sample with --attention dil")
        outs, lses = zip(*(self._branch((query, key, value), s, r)
                           for s, r in self.pairs))
        weights = torch.stack(lses).softmax(0)
        return sum(o * w[..., None].to(o.dtype) for o, w in zip(outs, weights))


# ---- training --------------------------------------------------------------


def pieces(text, o, step):
    """Random pieces of a text [batch, length + 1]; the step decides which."""
    dice = torch.Generator().manual_seed(o.seed * 1_000_003 + step)
    first = torch.randint(len(text) - o.length, (o.batch,), generator=dice)
    return torch.stack([text[at:at + o.length + 1] for at in first])


def loss_of(model, tokens, o, ring=None):
    """The mean over all bytes; of a ring this process's part of it."""
    tokens = tokens.to(o.device, torch.long)
    asked, answers = tokens[:, :-1], tokens[:, 1:]
    if ring:
        asked, answers = ring.shard(asked), ring.shard(answers)
    half = AUTOCAST[o.autocast]
    with torch.autocast(torch.device(o.device).type, half,
                        enabled=half is not None):
        logits = model(asked)
    sums = functional.cross_entropy(logits.float().flatten(0, 1),
                                    answers.flatten(), reduction="sum")
    return sums / (tokens.shape[0] * (tokens.shape[1] - 1))


def add_up(model, loss):
    """The gradients and the loss of all processes: each has those of its rows."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            torch.distributed.all_reduce(parameter.grad)
    loss = loss.detach().clone()
    torch.distributed.all_reduce(loss)
    return loss


def rate(o, step):
    """Warms up, then falls along a cosine to a tenth."""
    if step < o.warmup:
        return o.rate * (step + 1) / o.warmup
    past = min((step - o.warmup) / max(o.decay - o.warmup, 1), 1)
    return o.rate * (0.55 + 0.45 * math.cos(math.pi * past))


class Trainer:
    """Model, optimizer, and the losses so far; a checkpoint holds all three."""

    def __init__(self, o):
        self.o, self.losses, self.ring = o, [], join_ring(o)
        torch.manual_seed(o.seed)
        self.model = LongNetLM(o).to(o.device)
        for layer in self.model.longnet.layers if self.ring else ():
            layer.self_attn.attention.ring = self.ring
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), betas=(0.9, 0.98), weight_decay=0.01)
        self.scaler = torch.amp.GradScaler(torch.device(o.device).type,
                                           enabled=o.autocast == "f16")
        if o.resume:
            self.restore(o.resume)

    def parts(self):
        return {"model": self.model, "optimizer": self.optimizer,
                "scaler": self.scaler}

    def save(self, path):
        state = {name: part.state_dict() for name, part in self.parts().items()}
        torch.save({**state, "losses": self.losses}, path + ".new")
        os.replace(path + ".new", path)

    def restore(self, path):
        state = torch.load(path, map_location=self.o.device, weights_only=True)
        for name, part in self.parts().items():
            part.load_state_dict(state[name])
        self.losses = state["losses"]

    def step(self, text):
        step = len(self.losses)
        for group in self.optimizer.param_groups:
            group["lr"] = rate(self.o, step)
        loss = loss_of(self.model, pieces(text, self.o, step), self.o,
                       self.ring)
        self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()
        if self.ring:
            loss = add_up(self.model, loss)
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.losses.append(float(loss.detach()))


def leads():
    """Whether this process reports and writes: the first of a ring does."""
    return not torch.distributed.is_initialized() or \
        torch.distributed.get_rank() == 0


def progress(o, losses, began, first):
    """A bar on a terminal, a line every 20 steps elsewhere."""
    done = len(losses)
    speed = (done - first) * o.batch * o.length / (time.perf_counter() - began)
    bar = "#" * (30 * done // o.steps)
    line = (f"step {done:5d}/{o.steps} [{bar:30s}] loss {losses[-1]:.3f}  "
            f"{speed:,.0f} tokens/s")
    if sys.stdout.isatty():
        print("\r" + line, end="\n" if done == o.steps else "", flush=True)
    elif done % 20 == 0 or done == o.steps or done == 1:
        print(line, flush=True)


def train(o):
    """Runs to step o.steps; returns the trainer."""
    text = read(o)
    trainer, began = Trainer(o), time.perf_counter()
    first = len(trainer.losses)
    trainer.model.train()
    while len(trainer.losses) < o.steps:
        trainer.step(text)
        if not o.quiet and leads():
            progress(o, trainer.losses, began, first)
        if o.save and leads() and len(trainer.losses) % o.save_every == 0:
            trainer.save(o.save)
    if o.save and leads():
        trainer.save(o.save)
    return trainer


def read(o):
    """The text as bytes in a tensor."""
    if o.text:
        with open(o.text, "rb") as file:
            found = file.read()
    else:  # word pieces, one a line; ## goes on with a word
        with open(os.path.join(DATA, "tokens.txt"), "rb") as file:
            found = file.read().replace(b"\n##", b"").replace(b"\n", b" ")
    if len(found) <= o.length:
        raise SystemExit(f"the text has {len(found)} bytes: --length must be "
                         "less")
    return torch.frombuffer(bytearray(found), dtype=torch.uint8)


# ---- afterwards ------------------------------------------------------------


@torch.no_grad()
def sample(model, o, prompt):
    """Bytes one by one: each attends to the keys of all earlier ones."""
    model.eval()
    dice = torch.Generator(o.device).manual_seed(o.seed)
    cache, out = model.longnet.new_cache(), list(prompt)
    step = torch.tensor([out], device=o.device)
    for _ in range(o.sample):
        logits = model(step, cache)[0, -1].float() / o.temperature
        step = torch.multinomial(logits.softmax(-1), 1, generator=dice)[None]
        out.append(int(step))
    return bytes(out).decode("utf-8", "replace")


def plot(losses, path, width=640, height=360, edge=40):
    """The curve of the loss as an SVG picture."""
    top = max(6.0, *losses)
    x = lambda i: edge + (width - 2 * edge) * i / max(len(losses) - 1, 1)
    y = lambda loss: edge + (height - 2 * edge) * (1 - loss / top)
    line = " ".join(f"{x(i):.1f},{y(loss):.1f}"
                    for i, loss in enumerate(losses))
    marks = "".join(
        f'<text x="{edge - 8}" y="{y(v) + 4:.0f}" text-anchor="end">{v}</text>'
        f'<path d="M{edge} {y(v):.0f}H{width - edge}" stroke="#ddd"/>'
        for v in range(int(top) + 1))
    with open(path, "w") as file:
        file.write(
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" '
            f'height="{height}" font-family="sans-serif" font-size="12"><rect '
            f'width="{width}" height="{height}" fill="white"/>{marks}<polyline '
            f'points="{line}" fill="none" stroke="#2060c0" '
            f'stroke-width="1.5"/><text x="{width // 2}" y="{height - 10}" '
            f'text-anchor="middle">loss over {len(losses)} '
            'steps</text></svg>\n')


def options(arguments=None):
    p = argparse.ArgumentParser(description="Trains a byte-level LongNet.")
    add = p.add_argument
    add("--text", help="a file to learn; examples/data/tokens.txt if not given")
    add("--layers", type=int, default=4)
    add("--width", type=int, default=128)
    add("--heads", type=int, default=4)
    add("--segments", type=int, nargs="+", default=[64, 128, 512])
    add("--dilations", type=int, nargs="+", default=[1, 2, 4])
    add("--length", type=int, default=512, help="bytes of a piece")
    add("--batch", type=int, default=4, help="pieces of a step")
    add("--steps", type=int, default=200, help="up to this step")
    add("--rate", type=float, default=2e-3, help="the highest learning rate")
    add("--warmup", type=int, default=20, help="steps until then")
    add("--decay", type=int, default=1000, help="the step of the lowest rate")
    add("--dropout", type=float, default=0.0)
    add("--xpos", type=int, default=512, help="scale base of the positions")
    add("--autocast", choices=AUTOCAST, default="none")
    add("--checkpointing", action="store_true",
        help="computes layers again in the backward pass, to save memory")
    add("--attention", choices=("dil", "gathers"), default="dil")
    add("--ring", type=int, default=0,
        help="processes that share each piece; torchrun starts them")
    add("--device", default="cpu")
    add("--seed", type=int, default=1)
    add("--save", help="a checkpoint to write")
    add("--save-every", type=int, default=100, help="steps between checkpoints")
    add("--resume", help="a checkpoint to go on from")
    add("--plot", default="loss.svg", help="a picture of the loss to write")
    add("--sample", type=int, default=200, help="bytes to write at the end")
    add("--temperature", type=float, default=0.7)
    add("--quiet", action="store_true", help="no progress bar")
    return p.parse_args(arguments)


def main():
    o, began = options(), time.perf_counter()
    trainer = train(o)
    losses = trainer.losses
    if o.ring:
        torch.distributed.barrier()
        for layer in trainer.model.longnet.layers:
            layer.self_attn.attention.ring = None
        torch.distributed.destroy_process_group()
        if trainer.ring.rank:
            return
    parameters = sum(p.numel() for p in trainer.model.parameters())
    print(f"{parameters:,} parameters, {len(losses)} steps in "
          f"{time.perf_counter() - began:.0f} s: loss {losses[0]:.2f} to "
          f"{sum(losses[-10:]) / len(losses[-10:]):.2f}")
    if o.plot:
        plot(losses, o.plot)
        print("the curve is in", o.plot)
    if o.sample and o.attention == "dil":
        print(sample(trainer.model, o, read(o)[:64].tolist()))


if __name__ == "__main__":
    main()
