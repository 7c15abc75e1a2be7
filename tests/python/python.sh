#!/bin/sh
# python.sh - the Python host and its example. In: BUILD. Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh
if ! python3 -c 'import numpy' 2>/dev/null; then
  echo "ok skipped: python3 has no NumPy"
  exit 0
fi
DIL_LIBRARY=$BUILD/libdil.so
DIL_MODULE_DIR=$BUILD
export DIL_LIBRARY DIL_MODULE_DIR
case $(nm -D "$BUILD/libdil.so" 2>/dev/null) in
*__asan_init* | *__tsan_init*)
  echo "ok skipped: a library under a sanitizer cannot be loaded by python3"
  exit 0 ;;
esac
python3 tests/python/python.py || bad=1
is "longnet.py" python3 examples/python/longnet.py
exit $bad
