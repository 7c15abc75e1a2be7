#!/bin/sh
# gpu_host.sh - the public interface on a GPU's context; without a GPU, on the
# emulated one (emulator/README.md). In: BUILD, TMP. Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh
leave_unless_emulated "a host on a GPU"
LD_LIBRARY_PATH=$BUILD/emulator DIL_MODULE_DIR=$BUILD \
  exec "$BUILD/tests/library/gpu_host" compute
