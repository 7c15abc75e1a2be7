"""cases.py - what the suites of the Python host share: where the host is, how
its tests run, and how far two tensors are apart."""

import os
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor

import numpy

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "..", "..", "examples", "python"))
import dil


def readme_python(index):
    """A block of Python in the README."""
    here = os.path.dirname(os.path.abspath(__file__))
    text = open(os.path.join(here, "..", "..", "README.md")).read()
    return text.split("```python\n")[1 + index].split("```")[0]


def off(a, b):
    return numpy.linalg.norm(a - b) / numpy.linalg.norm(b)


def fails(status, words, call, *args, **named):
    try:
        call(*args, **named)
    except dil.Error as error:
        assert error.status == status, error.status
        assert words in str(error), str(error)
        return
    raise AssertionError("nothing was raised")


def on_four_threads(work):
    """work() on four threads at once; what one raises, the test raises."""
    with ThreadPoolExecutor(4) as crowd:
        for one in [crowd.submit(work) for _ in range(4)]:
            one.result()


class Skipped(Exception):
    """What this machine lacks for a test."""


def run_tests(names):
    """Every test_ function, or those that the command line names; prints `ok
    NAME` or `not ok NAME`, and returns the exit status."""
    bad, chosen = 0, sys.argv[1:]
    for name, test in sorted(names.items()):
        if not name.startswith("test_") or chosen and name[5:] not in chosen:
            continue
        try:
            test()
            print("ok", name[5:])
        except Skipped as reason:
            print(f"ok {name[5:]} skipped: {reason}")
        except Exception:
            traceback.print_exc(file=sys.stdout)
            print("not ok", name[5:])
            bad = 1
    return bad


def run_gpu_tests(names):
    """The same of tests for a GPU, with random numbers of one seed; skips all where
    PyTorch sees none."""
    import torch
    if not torch.cuda.is_available():
        print("ok skipped: PyTorch sees no GPU")
        return 0
    torch.manual_seed(7)
    return run_tests(names)
