#!/bin/sh
# tsan.sh - the threads under ThreadSanitizer: suites in which several meet, and
# kernels that share a pool. In: BUILD, a build with -fsanitize=thread.
set -eu
cd "$(dirname "$0")/.."
TSAN_OPTIONS="halt_on_error=1 exitcode=66 ${TSAN_OPTIONS:-}"
export TSAN_OPTIONS
BUILD=$BUILD tests/run.sh thread runtime ring linked_ranks stream cli_stream host \
  many_threads backward plan pool observe cache cache_faults
for case in 'longnet_text --seq 300' 'union --seq 1000' \
  'decode_gqa --seq 2 --keys 3000' 'headsplit_mean --seq 300'; do
  echo "$case on 4 threads"
  # shellcheck disable=SC2086 # an example and its options
  set -- $case
  example=$1
  shift
  "$BUILD/dil" run "examples/$example.dil" "$@" --random 1 --threads 4 \
    --check --repeat 3
done
