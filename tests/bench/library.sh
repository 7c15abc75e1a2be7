#!/bin/sh
# library.sh - what building ahead of time costs: one pattern through the
# compiler at run time and out of a standalone library, in turn in one process,
# by the thread's own time. In: BUILD. Out: a line a length.
set -eu
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
case $BUILD in /*) ;; *) BUILD=$PWD/$BUILD ;; esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/include"
for header in compiler/dil.h runtime/dilrt.h runtime/dlpack.h runtime/status.def; do
  ln -s "$PWD/$header" "$work/include"
done
mkdir "$work/inc"
ln -s "$work/include" "$work/inc/dil"
pattern=tests/bench/longnet_f32.dil
"$BUILD/dil" build $pattern -o "$work/liblongnet_f32" --standalone
${CC:-cc} -O2 -Wall -Wextra -I"$work/inc" -I"$work" -o "$work/turns" \
  tests/bench/library.c "$work/liblongnet_f32.so" -L"$BUILD" -ldil -ldilrt \
  -Wl,-rpath,"$BUILD:$work"
for sizes in "1 20000" "256 600" "2048 100"; do
  # shellcheck disable=SC2086 # two words
  DIL_CACHE=off "$work/turns" $pattern $sizes
done
