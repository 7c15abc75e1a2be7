#!/bin/sh
# gpu_host.sh - the public interface on a GPU's context; without a GPU, on the
# emulated one (emulator/README.md). In: BUILD, TMP. Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh
leave_unless_emulated "a host on a GPU"
LD_LIBRARY_PATH=$BUILD/emulator
DIL_MODULE_DIR=$BUILD
export LD_LIBRARY_PATH DIL_MODULE_DIR
DIL_CACHE=off "$BUILD/tests/library/gpu_host" leave || bad=1
"$BUILD/tests/library/gpu_host" compute || bad=1
exit $bad
