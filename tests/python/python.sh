#!/bin/sh
# python.sh - the Python host, its calls and its example. In: BUILD. Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh
. tests/support/python.sh
leave_unless_python python numpy
python3 tests/python/python.py || bad=1
python3 tests/python/calls.py || bad=1
is "longnet.py" python3 examples/python/longnet.py
is "estimates.py" python3 examples/python/estimates.py
exit $bad
