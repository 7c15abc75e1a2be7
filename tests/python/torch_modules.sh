#!/bin/sh
# torch_modules.sh - modules of dilated attention. In: BUILD. Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh
. tests/support/python.sh
leave_unless_python torch_modules numpy torch
python3 tests/python/torch_modules.py
