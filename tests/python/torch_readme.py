"""torch_readme.py - the Python code of README.md and of examples/python/README.md
runs. Prints `ok NAME` or `not ok NAME` a test."""

import os
import re
import sys

import torch

from cases import Skipped, readme_python, run_tests
from torch_patch import DilatedAttention
import dil.torch

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
PAGE = os.path.join(ROOT, "examples", "python", "README.md")


def page():
    with open(PAGE) as file:
        return file.read()


def test_code_runs():
    names, blocks = {}, re.findall(r"```python\n(.*?)```", page(), re.S)
    assert len(blocks) == 4, len(blocks)
    for block in blocks:
        exec(compile(block, PAGE, "exec"), names)
    assert names["q"].grad.shape == (1, 1000, 12, 64)
    assert names["y"].shape == (2, 8, 300, 64)
    assert names["o"].shape == (2, 1, 12, 64)


def test_files_exist():
    found = re.findall(r"\]\((\S+)\)", page())
    assert len(found) > 5
    for path in found:
        path = path.split("#")[0]
        assert os.path.exists(os.path.join(os.path.dirname(PAGE), path)), path


def test_the_readme():
    activated = torch.nn.attention
    q, k, v = (torch.randn(2, 50, 12, 64).requires_grad_() for _ in "qkv")
    seen = {"q": q, "k": k, "v": v, "torch": torch,
            "model": torch.nn.Sequential(DilatedAttention())}
    try:
        exec(readme_python(1), seen)
        assert activated.current_flash_attention_impl() == "dil"
    finally:
        activated.restore_flash_attention_impl()
    right = dil.torch.attention(q, k, v, os.path.join(ROOT, "examples/longnet.dil"))
    assert torch.equal(seen["o"], right)
    assert seen["o"].requires_grad


def test_the_readme_of_transformers():
    try:
        import transformers
    except ImportError:
        raise Skipped("transformers is not installed") from None
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=64, num_hidden_layers=1, vocab_size=99,
        num_attention_heads=4)
    seen = {"config": config,
            "AutoModelForCausalLM": transformers.AutoModelForCausalLM}
    exec(readme_python(2), seen)
    words = torch.randint(99, (1, 30))
    found = seen["model"](words).logits
    seen["model"].set_attn_implementation("sdpa")
    right = seen["model"](words).logits
    assert (found - right).norm() / right.norm() < 2e-5


if __name__ == "__main__":
    sys.exit(run_tests(globals()))
