#!/bin/sh
# torch_peers.sh - tests of published modules on those of dil. In: BUILD; DIL_PEERS,
# a folder of checkouts, or nothing. Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh
. tests/support/python.sh
leave_unless_python torch_peers numpy torch
python3 tests/python/torch_peers.py
