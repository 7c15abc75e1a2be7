#!/bin/sh
# torch_train.sh - a language model that learns. In: BUILD. Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh
. tests/support/python.sh
leave_unless_python torch_train numpy torch
python3 tests/python/torch_train.py
