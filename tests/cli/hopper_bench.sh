#!/bin/sh
# hopper_bench.sh - gpu/hopper_bench, which checks and times Hopper kernels by
# themselves: that it makes, loads, runs and compares them, on an emulated
# device (emulator/README.md). In: BUILD, TMP. Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh
leave_unless_emulated "kernels by themselves"
export LD_LIBRARY_PATH="$BUILD/emulator"
bench=$BUILD/tests/gpu/hopper_bench

is "kernels of two cuts are made" "$bench" make "$TMP" 64_3_128_4_1 \
  64_2_64_3_1-low
is "and checked" "$bench" check "$TMP" tiny
cp "$TMP/said" "$TMP/checked"
is "each in each case" sh -c "[ \$(grep -c ' right: error' '$TMP/checked') = 4 ]"
too_large() {
  not "$bench" make "$TMP" 64_4_256_9_1
}
is "a cut that does not fit is told" says "64_4_256_9_1': 629760 bytes" too_large
exit $bad
