#!/bin/sh
# torch_ops.sh - dil.torch on PyTorch. In: BUILD. Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh
. tests/support/python.sh
leave_unless_python torch_ops numpy torch
python3 tests/python/torch_ops.py
