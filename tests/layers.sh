#!/bin/sh
# layers.sh - data flows down only; proved by what the sources include and by
# what the built libraries ask of others. In: BUILD. Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/.." || exit 70
bad=0

rule() { # name, offending text: none is good
  if [ -z "$2" ]; then
    echo "ok $1"
  else
    echo "not ok $1"
    echo "$2" | head -20
    bad=1
  fi
}

includes() { # extended pattern of what must not be included, folders...
  pattern=$1
  shift
  grep -rnE "^ *# *include *[<\"]($pattern)" "$@" --include='*.[chly]' || true
}

undefined() { nm -D --undefined-only "$1" | awk '{ print $NF }'; }
defined() { nm -D --defined-only "$1" | awk '{ print $NF }'; }

core=$(ls compiler/*.[ch] grammar/*.[ly])
llvm='llvm|llvm-c|clang'
cuda='cuda|nvrtc|nccl|nvml|cublas|cudnn'

rule "the run time includes nothing of the compiler" \
  "$(includes '(\.\./)*(compiler/|all\.h|backend\.h|driver\.h|dil\.h)' runtime)"
# shellcheck disable=SC2086 # a list of paths without spaces
rule "the compiler core includes neither LLVM nor CUDA" \
  "$(includes "($llvm|$cuda)" $core)"
rule "the run time includes neither LLVM nor CUDA" \
  "$(includes "($llvm|$cuda)" runtime | grep -v '^runtime/cuda/')"
rule "only compiler/cpu includes llvm-c" \
  "$(includes "($llvm)" compiler grammar runtime tests |
    grep -v '^compiler/cpu/')"
rule "no C++" "$(git ls-files | grep -E '\.(cc|cpp|cxx|hpp)$')"

# Undefined symbols of ours: those that some library of ours defines.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
defined "$BUILD/libdil.so" | sort >"$work/dil"
defined "$BUILD/libdilrt.so" | sort >"$work/rt"
comm -23 "$work/dil" "$work/rt" >"$work/core"
undefined "$BUILD/libdilrt.so" | sort >"$work/asked-rt"
undefined "$BUILD/dil-cpu.so" | sed 's/@.*//' | sort >"$work/asked-cpu"
rule "libdilrt.so needs nothing of the compiler" \
  "$(comm -12 "$work/asked-rt" "$work/core")"
rule "libdilrt.so needs no LLVM" "$(grep -E '^LLVM|^_ZN4llvm' "$work/asked-rt")"
rule "libdil.so needs no LLVM" \
  "$(undefined "$BUILD/libdil.so" | grep -E '^LLVM|^_ZN4llvm')"
rule "dil-cpu.so asks its host for dil_fail alone" \
  "$(comm -12 "$work/asked-cpu" "$work/dil" | grep -vx dil_fail)"
asked() { undefined "$BUILD/$1" | sed 's/@.*//' | sort; }
rule "dil-gpu.so asks its host for messages alone" \
  "$(asked dil-gpu.so | grep -vE '^dil_fail$|^dil_last_error$' |
    comm -12 - "$work/dil")"
rule "dilrt-cuda.so asks its host for messages and checks alone" \
  "$(asked dilrt-cuda.so | grep -vE '^dil_fail$|^run_check$' |
    comm -12 - "$work/dil")"
# Besides those only the C library's and, under a sanitizer, its own.
for name in libc.so.6 libm.so.6; do
  defined "$(${CC:-cc} -print-file-name=$name)" | sed 's/@.*//'
done | sort -u >"$work/libc"
rule "every other symbol of the GPU parts is there" \
  "$(for part in dil-gpu.so dilrt-cuda.so; do
    nm -D --undefined-only "$BUILD/$part" | awk '$1 == "U" { print $2 }' |
      sed 's/@.*//' | grep -vxFf "$work/libc" |
      grep -vxE 'dil_fail|dil_last_error|run_check|__(a|ub|t)san_.*'
  done)"
rule "the GPU parts are linked to neither CUDA nor NVRTC" \
  "$(for part in dil-gpu.so dilrt-cuda.so; do
    readelf -d "$BUILD/$part" | grep -iE 'needed.*(cuda|nvrtc)'
  done)"
rule "the program is not linked to LLVM" \
  "$(readelf -d "$BUILD/dil" | grep -i 'needed.*llvm')"
exit $bad
