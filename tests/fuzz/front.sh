#!/bin/sh
# front.sh - builds the front end's libFuzzer target with clang and runs it
# for SECONDS_EACH seconds. In: BUILD, a folder of its own. Skipped with a word
# where clang or its fuzzer library is not installed.
set -eu
cd "$(dirname "$0")/../.."
compiler=
for name in clang-19 clang; do
  ! command -v $name >/dev/null || { compiler=$name; break; }
done
if [ -z "$compiler" ] || ! echo 'int LLVMFuzzerTestOneInput(void);
    int LLVMFuzzerTestOneInput(void) { return 0; }' |
  $compiler -fsanitize=fuzzer -x c - -o /dev/null 2>/dev/null; then
  echo "front: skipped, no clang with libFuzzer here"
  exit 0
fi
sanitizers=address,undefined,fuzzer-no-link
make --no-print-directory -s BUILD="$BUILD" CC=$compiler CI= \
  OPT="-O1 -g -fno-omit-frame-pointer -fsanitize=$sanitizers" \
  "$BUILD/tests/fuzz/fuzz_front"
mkdir -p "$BUILD/corpus"
cp examples/*.dil "$BUILD/corpus"
"$BUILD/tests/fuzz/fuzz_front" -max_total_time="${SECONDS_EACH:-60}" \
  -max_len=2048 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
  -verbosity=0 -artifact_prefix="$BUILD/" "$BUILD/corpus"
