#!/bin/sh
# torch_ring.sh - rings of processes in PyTorch. In: BUILD. Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh
. tests/support/python.sh
leave_unless_python torch_ring numpy torch
OMP_NUM_THREADS=1 python3 tests/python/torch_ring.py
