#!/bin/sh
# wheel.sh - the wheel of `make wheel` in an environment of its own, where no
# program is at hand: no compiler, no build. In: TMP. Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh
. tests/support/python.sh
leave_unless_python wheel numpy venv
wheel=$(ls dist/dil-*.whl 2>/dev/null) ||
  leave wheel "skipped, there is none: \`make wheel\`"
is "the wheel can be installed" sh -c "
  python3 -m venv --system-site-packages '$TMP/venv' &&
  '$TMP/venv/bin/pip' install -q --no-index --no-deps '$wheel'"
cat >"$TMP/use.py" <<'E2'
import os
import numpy
import dil

q = numpy.ones((1, 9, 2, 8), "float32")
o = dil.attention("dense", heads=2, head_dim=8, dtype="f32")(q, q, q)
assert (o == 1).all() and dil._quick.extension
own = os.path.join(os.path.dirname(dil.__file__), "lib")
loaded = {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
ours = [path for path in loaded
        if os.path.basename(path).startswith(("dil", "libdil", "libLLVM"))]
assert os.path.join(own, "dil-cpu.so") in ours, loaded
assert all(os.path.dirname(path) == own for path in ours), ours
E2
is "and computes with its own libraries and LLVM alone" \
  env -u DIL_LIBRARY -u DIL_MODULE_DIR -u PYTHONPATH DIL_CACHE=off \
  PATH=/nowhere "$TMP/venv/bin/python" "$TMP/use.py"
exit $bad
