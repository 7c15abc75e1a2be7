#!/bin/sh
# torch_sdpa.sh - dil under PyTorch's own attention. In: BUILD. Out: ok / not ok
# lines.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh
. tests/support/python.sh
leave_unless_python torch_sdpa numpy torch
python3 tests/python/torch_sdpa.py
