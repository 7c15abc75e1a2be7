"""torch_readme.py - the Python code of examples/python/README.md runs. Prints
`ok NAME` or `not ok NAME` a test."""

import os
import re
import sys

from cases import run_tests

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


if __name__ == "__main__":
    sys.exit(run_tests(globals()))
