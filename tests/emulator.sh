#!/bin/sh
# emulator.sh - GPU kernels where there is no GPU: a share of the numeric suites
# and random patterns on the emulated device (emulator/README.md). In: BUILD,
# TMP, FUZZ_SEED, EMULATED_SHARE (one of so many groups of comparisons). Out:
# ok / not ok lines.
set -u
cd "$(dirname "$0")/.." || exit 70
if [ "$(uname -m)" != x86_64 ] || ! command -v c++ >/dev/null; then
  echo "ok the emulator: left out, it wants x86-64 and a C++ compiler"
  exit 0
fi
if nm -D "$BUILD/libdilrt.so" | grep -q '__[at]san_init'; then
  echo "ok the emulator: left to the plain build"
  exit 0
fi
share=${EMULATED_SHARE:-48}
seed=${FUZZ_SEED:-1}
export LD_LIBRARY_PATH="$BUILD/emulator" DIL_TEST_DEVICE=cuda CK_FORK=no
bad=0

# One line a run, then what went wrong.
tell() { # name
  if grep -q '^100%: Checks\|^ok ' "$TMP/$1" && ! grep -q '^not ok' "$TMP/$1"
  then
    echo "ok $1"
  else
    echo "not ok $1"
    head -c 3000 "$TMP/$1"
    bad=1
  fi
}

# Two chips at once, a processor each.
for chip in 80 86; do
  {
    export FAKE_CHIP=$chip EMULATED_SEED="$seed"
    for suite in edges numeric; do
      DIL_TEST_SHARE=$((seed % share))/$share "$BUILD/tests/test_$suite" \
        >"$TMP/$suite-$chip" 2>&1
    done
    "$BUILD/tests/fuzz/fuzz_pattern" --count 12 --seed "$seed" \
      >"$TMP/fuzz-$chip" 2>&1
  } &
done
wait
for suite in edges numeric fuzz; do
  for chip in 80 86; do tell $suite-$chip; done
done
exit $bad
