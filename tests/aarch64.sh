#!/bin/sh
# aarch64.sh - nothing but the x86 folders knows x86-64: every other source of
# the compiler and the run time passes the syntax check of a compiler for
# AArch64. In: BUILD, TMP; the compiler is aarch64-linux-gnu-gcc. Out: a line
# for each source that fails, and one for all.
set -u
cd "$(dirname "$0")/.." || exit 70
. tests/support/ok.sh
cross=aarch64-linux-gnu-gcc
if ! command -v $cross >/dev/null; then
  echo "ok skipped: no $cross"
  exit 0
fi

# Headers of libraries are the same for all architectures, or near enough.
llvm=$(${LLVM:-llvm-config-19} --includedir 2>/dev/null)
native=$(${cc} -print-multiarch 2>/dev/null)
flags="-std=gnu11 -D_GNU_SOURCE -fsyntax-only -Werror=implicit-function-declaration
  -I. -I$BUILD -I$BUILD/include/dil -I$BUILD/grammar -idirafter /usr/include
  -idirafter /usr/include/$native ${llvm:+-isystem $llvm}"

sources() {
  git ls-files compiler runtime | grep '\.c$' | grep -v '/x86/' |
    grep -v '^runtime/link/mpi/' |
    if [ -e "$llvm/llvm-c/Core.h" ]; then cat; else
      grep -v '^compiler/codegen/cpu/'
    fi
}

check() { # source: its name and what was said, where it fails
  # shellcheck disable=SC2086 # flags are words
  said=$($cross $flags "$1" 2>&1) || printf '%s\n%s\n' "$1" "$said"
}

if [ "${1:-}" = --one ]; then
  shift
  for source; do check "$source"; done
  exit 0
fi
sources | xargs -P 2 -n 20 "tests/${0##*/}" --one >"$TMP/failed"
is "$(sources | wc -l) sources are free of x86-64" not test -s "$TMP/failed"
head -c 4000 "$TMP/failed"
exit $bad
