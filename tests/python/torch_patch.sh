#!/bin/sh
# torch_patch.sh - dil in published models. In: BUILD; DIL_PEERS, a folder of their
# checkouts, or nothing. Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh
. tests/support/python.sh
leave_unless_python torch_patch numpy torch
python3 tests/python/torch_patch.py
