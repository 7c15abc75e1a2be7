#!/bin/sh
# torch_packed.sh - packed documents and pages in PyTorch. In: BUILD. Out: ok / not
# ok lines.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh
. tests/support/python.sh
leave_unless_python torch_packed numpy torch
python3 tests/python/torch_packed.py
