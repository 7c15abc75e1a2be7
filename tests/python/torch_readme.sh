#!/bin/sh
# torch_readme.sh - the code of README.md and of the guide to PyTorch. In: BUILD.
# Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh
. tests/support/python.sh
leave_unless_python torch_readme numpy torch
python3 tests/python/torch_readme.py
