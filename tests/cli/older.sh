#!/bin/sh
# older.sh - the libraries that make a GPU pass for an older chip
# (older/older.h), as far as they go without a GPU: in front of the emulated
# driver, and of NVRTC where there is one. In: DIL, BUILD, TMP. Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh
leave_unless_emulated "older chips"
export DIL_CACHE=off OLDER_CUDA="$BUILD/emulator/libcuda.so.1" FAKE_CHIP=90
export OLDER_NVRTC="$BUILD/emulator/libnvrtc.so.13"
older() { # chip, command...
  OLDER_CHIP=$1
  export OLDER_CHIP
  shift
  LD_LIBRARY_PATH="$BUILD/older:${LD_LIBRARY_PATH:-}" "$@"
}

is "a device of sm_90 passes for sm_80" says ", sm_80, 4 processors" \
  older 80 "$DIL" doctor
is "and for sm_89, with less shared memory" says "general f32 64x32 d64" \
  older 89 "$DIL" explain examples/dense.dil --seq 64 --device cuda

# Where the loader finds NVRTC, by what it says that it opens.
OLDER_NVRTC=$(LD_DEBUG=files "$DIL" doctor 2>&1 |
  sed -n 's/.*calling init: \(.*libnvrtc\.so\.13\)$/\1/p' | head -n 1)
if [ ! "$OLDER_NVRTC" ]; then
  echo "ok PTX in place of cubins: left out, there is no NVRTC 13 here"
  exit $bad
fi
is "a cubin for sm_80 is made" older 80 "$DIL" build examples/dense.dil \
  --cuda sm_80 --emit=cubin -o "$TMP/dense"
is "and is PTX for sm_80" grep -q '^\.target sm_80' "$TMP/dense.sm_80.cubin"
exit $bad
