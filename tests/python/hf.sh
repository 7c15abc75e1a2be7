#!/bin/sh
# hf.sh - dil in transformers. In: BUILD. Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh
. tests/support/python.sh
leave_unless_python hf numpy torch transformers
python3 tests/python/hf.py
