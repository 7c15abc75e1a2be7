"""torch_train.py - the model of examples/python/train_longnet.py: it learns,
its curve is that of PyTorch's gathers, and a run that goes on draws the same
curve. Prints `ok NAME` or `not ok NAME` a test."""

import os
import sys
import tempfile

import cases  # noqa: F401  the folder of the examples
import train_longnet as example
import torch

from cases import run_tests

SMALL = ["--layers", "2", "--width", "64", "--length", "200", "--segments",
         "32", "64", "128", "--batch", "2", "--quiet", "--warmup", "5"]


def losses(*more):
    return example.train(example.options(SMALL + list(more))).losses


def test_the_curve_of_gathers():
    ours = losses("--steps", "50")
    theirs = losses("--steps", "50", "--attention", "gathers")
    gap = max(abs(a - b) for a, b in zip(ours, theirs))
    print(f"# 50 steps: loss {ours[0]:.3f} to {ours[-1]:.3f}, gap {gap:.1e}")
    assert gap < 1e-3, gap
    assert ours[-1] < 3.2 < 5 < ours[0]


def test_a_run_goes_on():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "a.pt")
        whole = losses("--steps", "12")
        losses("--steps", "7", "--save", path)
        assert losses("--steps", "12", "--resume", path) == whole


def test_options_keep_the_function():
    plain = losses("--steps", "3")
    assert losses("--steps", "3", "--checkpointing") == plain
    for half in ("bf16", "f16"):  # f16: with a scaler of the loss
        other = losses("--steps", "3", "--autocast", half)
        assert max(abs(a - b) for a, b in zip(plain, other)) < 0.05, half


def test_sampling_is_the_whole_pass():
    """The bytes of highest probability, by the cache and without it."""
    o = example.options(SMALL + ["--steps", "10", "--sample", "40",
                                 "--temperature", "1e-6"])
    model, text = example.train(o).model, example.read(o)[:30].tolist()
    written = example.sample(model, o, text).encode()[30:]
    out = torch.tensor([list(text)])
    with torch.no_grad():
        for byte in written:
            assert model(out)[0, -1].argmax() == byte
            out = torch.cat([out, torch.tensor([[byte]])], 1)
    assert len(written) == 40


def test_a_picture_of_the_loss():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "loss.svg")
        example.plot([5.5, 4.0, 3.0], path)
        with open(path) as file:
            assert file.read().count("polyline") == 1


if __name__ == "__main__":
    sys.exit(run_tests(globals()))
