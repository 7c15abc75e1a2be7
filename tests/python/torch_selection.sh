#!/bin/sh
# torch_selection.sh - chosen blocks in PyTorch. In: BUILD. Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh
. tests/support/python.sh
leave_unless_python torch_selection numpy torch
python3 tests/python/torch_selection.py
