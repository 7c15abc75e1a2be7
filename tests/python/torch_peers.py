"""torch_peers.py - the own tests of dilated-attention-pytorch, its classes
replaced by dil's. All pass that do not demand an error which dil does not make.
Wants DIL_PEERS, a folder of checkouts, and pytest. Prints `ok NAME` or `not ok
NAME`."""

import os
import re
import sys

from cases import Skipped, run_tests
import peers
from dil.torch import modules

# What its tests of causal attention on a processor want; dil computes it.
DEMANDED = re.compile("DID NOT RAISE .*NotImplementedError")


class DilatedAttention(modules.DilatedAttention):
    """The peer's meaning: each branch serves heads of its own."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, mode="headgroup", **named)


class MultiheadDilatedAttention(modules.MultiheadDilatedAttention):
    def __init__(self, *arguments, **named):
        super().__init__(*arguments, mode="headgroup", **named)


class Results:
    """What pytest reports: how many pass, and the text of each failure."""

    def __init__(self):
        self.passed, self.failed = 0, {}

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.failed[report.nodeid] = str(report.longrepr)
        elif report.when == "call" and report.passed:
            self.passed += 1


def replaced():
    """The peer's modules with dil's classes, imported before its tests are."""
    peers.torchscale()
    found = peers.fkodom()
    from dilated_attention_pytorch import transformer
    for module in (found, transformer):
        module.MultiheadDilatedAttention = MultiheadDilatedAttention
    found.DilatedAttention = DilatedAttention


def test_dilated_attention_pytorch():
    folder = peers.checkout(peers.FKODOM)
    try:
        import pytest
    except ImportError:
        raise Skipped("pytest is not installed") from None
    replaced()
    results = Results()
    pytest.main(["-qq", "--no-summary", "--tb=line", "-p", "no:cacheprovider",
                 "-c", os.devnull, "--rootdir", folder,
                 os.path.join(folder, "tests")], plugins=[results])
    others = {name: text for name, text in results.failed.items()
              if not DEMANDED.search(text)}
    assert not others, others
    assert results.passed > 100, results.passed
    print(f"# {results.passed} pass, {len(results.failed)} demand an error of "
          "causal attention on a processor")


if __name__ == "__main__":
    sys.exit(run_tests(globals()))
