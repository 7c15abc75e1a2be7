#!/bin/sh
# tsan.sh - the threads under ThreadSanitizer: the pool's suite, and kernels
# that share the pool. In: BUILD, a build with -fsanitize=thread.
set -eu
cd "$(dirname "$0")/.."
TSAN_OPTIONS="halt_on_error=1 exitcode=66 ${TSAN_OPTIONS:-}"
export TSAN_OPTIONS
BUILD=$BUILD tests/run.sh thread runtime
for pattern in longnet_text union decode_gqa headsplit_mean; do
  echo "$pattern on 4 threads"
  "$BUILD/dil" run "examples/$pattern.dil" --seq 300 --random 1 --threads 4 \
    --check --repeat 3
done
