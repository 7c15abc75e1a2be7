#!/bin/sh
# gpu_host.sh - the public interface on a GPU's context; without a GPU, on the
# emulated one (emulator/README.md). In: BUILD, TMP. Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/.." || exit 70

if nm -D "$BUILD/libdilrt.so" | grep -q '__[at]san_init'; then
  echo "ok a host on a GPU: left to the plain build"
  exit 0
fi
if ! command -v c++ >/dev/null; then
  echo "ok a host on a GPU: left out, there is no C++ compiler"
  exit 0
fi
LD_LIBRARY_PATH=$BUILD/emulator DIL_MODULE_DIR=$BUILD \
  exec "$BUILD/tests/library/gpu_host" compute
