#!/bin/sh
# layers.sh - data flows down only; proved by what the sources include, by what
# the objects call (both against layers.txt) and by what the built libraries ask
# of others. In: BUILD. Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/.." || exit 70
bad=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

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

# ---- which folder may use which ---------------------------------------------

# The rows of layers.txt as lines `FOLDER FOLDER`; `:` or `!` chooses them.
rows() { # separators
  awk -v which="$1" '
    /^#/ { next }
    /^[^ ]/ {
      from = $1; mark = $2 == "!" ? "!" : ":"; sub(/:$/, "", from); $1 = ""
      if (mark == "!") $2 = ""
    }
    index(which, mark) { for (i = 1; i <= NF; i++) if ($i) print from, $i }' \
    tests/layers.txt
}
house=$(git ls-files compiler grammar runtime templates |
  grep -E '\.([chly]|def|cuh?)$')
built=$(git ls-files compiler runtime | sed -n "s,\(.*\)\.c$,$BUILD/\1.o,p" |
  while read -r object; do [ ! -e "$object" ] || echo "$object"; done)
# shellcheck disable=SC2086 # lists of paths without spaces
{
  awk -v build="$BUILD" -f tests/support/arrows.awk $house
  nm -A -g $built "$BUILD"/grammar/*.o |
    awk -v build="$BUILD" -v symbols=1 -f tests/support/arrows.awk
} | sort -u >"$work/used"
rows ':!' | sort -u >"$work/allowed"
rule "no folder includes or calls another but as layers.txt says" \
  "$(comm -23 "$work/used" "$work/allowed" | sed 's/ / -> /')"
rule "layers.txt allows nothing that no folder does" \
  "$(comm -13 "$work/used" "$work/allowed" | sed 's/ / -> /')"
rule "arrows of layers.txt point down, so that none close a circle" \
  "$(awk 'NR == FNR { if (/^[^# ]/) { sub(/:$/, "", $1)
            if (!($1 in floor)) floor[$1] = FNR }; next }
          !($1 in floor) || !($2 in floor) { print $0 ": no such row"; next }
          marked != ($2 in floor && floor[$2] < floor[$1]) { print }' \
    tests/layers.txt marked=0 - <<END
$(rows ':')
END
    awk 'NR == FNR { if (/^[^# ]/) { sub(/:$/, "", $1)
           if (!($1 in floor)) floor[$1] = FNR }; next }
         floor[$2] > floor[$1] { print $0 ": needs no !" }' \
    tests/layers.txt - <<END
$(rows '!')
END
  )"

# ---- how includes and guards are written -------------------------------------

# The sources whose includes follow the rule; hosts include what is installed.
ours=$(git ls-files compiler grammar runtime templates tests |
  grep -E '\.([chly]|def|cuh?)$' |
  grep -vE '^(compiler/dil\.h|tests/(library|golden|bench/library\.c))')
# shellcheck disable=SC2086
rule "an include is a bare name in its own folder, else a path from the top" \
  "$({ git ls-files; (cd "$BUILD" && find . -name '*.h' -o -name '*.inc') |
    sed 's,^\./,,'; } | awk '
    NR == FNR { have[$0]; next }
    /^ *# *include *"/ {
      split($0, part, "\""); name = part[2]; here = FILENAME
      sub(/[^\/]*$/, "", here)
      own = name !~ /\// ? here name : ""
      if (own != "" && (own in have || name ~ /^lib/ || name == "interface.h"))
        next
      folder = name; sub(/[^\/]*$/, "", folder)
      bare = folder == here && !/\.inc"/ && here !~ /^(templates|grammar)\//
      if (own != "" || !(name in have) || bare) print FILENAME ": " name
    }' - $ours)"
rule "a guard is the path of its header" \
  "$(for file in $(echo "$ours" | grep -E '\.(h|cuh)$' |
    grep -vE '^runtime/(dilrt|dlpack)\.h$'); do
    guard=DIL_$(echo "${file%.*}" | tr a-z/.- A-Z___)_H
    grep -qx '#pragma once' "$file" ||
      { grep -qx "#ifndef $guard" "$file" && grep -qx "#define $guard" "$file"; } ||
      echo "$file: not $guard"
  done)"

# A tag names one thing: hosts that stand alone and goldens have their own.
# shellcheck disable=SC2046
rule "the tag of a struct, a union or an enum is defined once" \
  "$(awk '
    match($0, /^(typedef |static )*(struct|union|enum) [A-Za-z_0-9]+ *\{/) {
      tag = substr($0, 1, RLENGTH)
      sub(/ *\{$/, "", tag)
      sub(/.* /, "", tag)
      if (tag in first) print FILENAME ": " tag " is in " first[tag] ", too"
      else first[tag] = FILENAME
    }' $(git ls-files compiler grammar runtime tests | grep -E '\.[chly]$' |
    grep -vE '^tests/(golden|library|emulator/chip\.h)'))"

# In comments of sources and in documents; templates name theirs by x.cuh.
# shellcheck disable=SC2046
rule "a file that a comment or a document names is there" \
  "$({ git ls-files; echo dil/dil.h x.cuh grammar/parser.h grammar/scanner.h \
    interface.h compiler/codegen/gpu/emit/templates.inc | tr ' ' '\n'; } | awk '
    NR == FNR {
      for (name = "/" $0; sub(/^[^\/]*\//, "", name);) have[name]
      next
    }
    FILENAME !~ /\.md$/ && !/^ *(\/\*|\* |\/\/|# [a-zA-Z])/ { next }
    /^ *# *include/ { next }
    {
      for (text = $0; match(text, name_of);) {
        name = substr(text, RSTART, RLENGTH)
        text = substr(text, RSTART + RLENGTH)
        gsub(/^[.\/]+/, "", name)
        if (text !~ /^[A-Za-z0-9_(-]/ && text !~ /^\.[a-z]/ &&
            name !~ /\*/ && !(name in have))
          print FILENAME ":" FNR ": " name
      }
    }' - name_of='[A-Za-z0-9_./*-]*[A-Za-z0-9_][.](cuh|cu|def|sh|c|h)' \
    $(git ls-files compiler runtime grammar templates tests Makefile '*.m[dk]' |
      grep -E '\.([chly]|def|cuh?|sh|awk|m[dk])$|Makefile$' |
      grep -vE '^tests/(golden|abi)/'))"

# ---- libraries of others ----------------------------------------------------

core=$(git ls-files compiler grammar | grep -E '\.([chly]|def)$' |
  grep -v '^compiler/codegen/[cg]pu/')
mpi=$([ ! -e "$BUILD/dilrt-mpi.so" ] || echo dilrt-mpi.so)
llvm='llvm|llvm-c|clang'
cuda='cuda|nvrtc|nccl|nvml|cublas|cudnn'

rule "the run time includes nothing of the compiler" \
  "$(includes '(compiler/|dil\.h)' runtime)"
# shellcheck disable=SC2086 # a list of paths without spaces
rule "the compiler core includes neither LLVM nor CUDA" \
  "$(includes "($llvm|$cuda)" $core)"
# shellcheck disable=SC2086
rule "the compiler core includes nothing of a GPU's families" \
  "$(includes 'runtime/cuda/(hopper|general)' $core)"
rule "the run time includes neither LLVM nor CUDA" \
  "$(includes "($llvm|$cuda)" runtime |
    grep -v -e '^runtime/cuda/' -e '^runtime/link/nccl/')"
rule "only runtime/api/ffi_call.c includes libffi" \
  "$(includes 'ffi\.h' compiler grammar runtime tests | grep -v '^runtime/api/ffi_call.c:')"
rule "only the program is linked to libffi" \
  "$(for file in libdil.so libdilrt.so dil-cpu.so dil-gpu.so dilrt-cuda.so dilrt-nccl.so $mpi; do
    readelf -d "$BUILD/$file" | grep -i 'needed.*ffi'
  done)"
rule "only compiler/codegen/cpu includes llvm-c" \
  "$(includes "($llvm)" compiler grammar runtime tests |
    grep -v '^compiler/codegen/cpu/')"
rule "only runtime/link/mpi includes MPI" \
  "$(includes '<mpi' compiler grammar runtime tests | grep -v '^runtime/link/mpi/')"
rule "no C++" "$(git ls-files | grep -E '\.(cc|cpp|cxx|hpp)$')"

# Symbols of ours, by the objects that define them: hidden ones have no place
# among a library's own.
symbols() { nm --defined-only "$@" | awk 'NF == 3 { print $3 }' | sort -u; }
objects() { # folder, extended pattern of folders left out
  git ls-files "$1" | grep -vE "^($2)/" | sed -n "s,\(.*\)\.c$,$BUILD/\1.o,p"
}
# shellcheck disable=SC2046 # lists of paths without spaces
symbols $(objects compiler 'compiler/codegen/(cpu|gpu)') \
  "$BUILD"/grammar/*.o >"$work/core"
modules='runtime/(cuda|link/mpi|link/nccl)'
# shellcheck disable=SC2046
symbols $(objects runtime "$modules") >"$work/rt"
# shellcheck disable=SC2046
symbols -g $(objects runtime "$modules") >"$work/shown"
asked() { undefined "$BUILD/$1" | sed 's/@.*//' | sort -u; }
asked libdilrt.so >"$work/asked-rt"
rule "libdilrt.so needs nothing of the compiler" \
  "$(comm -23 "$work/core" "$work/rt" | comm -12 "$work/asked-rt" -)"
# shellcheck disable=SC2046
symbols -g $(objects runtime/cuda 'none') >"$work/cuda"
# shellcheck disable=SC2046
rule "the compiler core needs nothing of runtime/cuda" \
  "$(nm --undefined-only $(objects compiler 'compiler/codegen/(cpu|gpu)') |
    awk 'NF == 2 { print $2 }' | sort -u | comm -12 - "$work/cuda")"
rule "libdilrt.so needs no LLVM" "$(grep -E '^LLVM|^_ZN4llvm' "$work/asked-rt")"
rule "the run time that libraries carry is whole" \
  "$(nm --undefined-only "$BUILD/dilrt.o" | awk '{ print $2 }' | sort -u |
    comm -12 "$work/shown" -)"
rule "libdil.so needs no LLVM" \
  "$(asked libdil.so | grep -E '^LLVM|^_ZN4llvm')"
rule "loadable parts need nothing of the compiler core" \
  "$(for part in dil-cpu.so dil-gpu.so dilrt-cuda.so dilrt-nccl.so $mpi; do
    comm -23 "$work/core" "$work/rt" >"$work/only"
    asked $part | comm -12 - "$work/only"
  done)"
# What is linked to the run time shares it; a second one would have threads,
# memory and errors of its own.
rule "what needs the run time is linked to it" \
  "$(for part in libdil.so dil-cpu.so dil-gpu.so dilrt-cuda.so dilrt-nccl.so $mpi; do
    readelf -d "$BUILD/$part" | grep -q 'NEEDED.*\[libdilrt\.so\.[0-9]*\]' ||
      echo "$part is not linked to libdilrt"
    symbols "$BUILD/$part" | grep -xE 'dil_fail|dil_last_error|pool_new' |
      sed "s/^/$part has its own /"
  done)"
for part in libdil.so libdilrt.so dil-cpu.so dil-gpu.so dilrt-cuda.so dilrt-nccl.so $mpi; do
  rule "every name that $part exports begins with dil_" \
    "$(nm -D --defined-only "$BUILD/$part" | awk '$2 != "A" { print $3 }' |
      grep -v '^dil_')"
done
declared() { sed -n 's/^DIL_API [^(]*[ *]\(dil_[a-z_0-9]*\)(.*/\1/p' "$@" | sort; }
exported() { # library: the names that hosts may rely on
  nm -D --defined-only "$BUILD/$1" | sed -n 's/.* \(dil_.*\)@@DIL_[0-9]*$/\1/p' | sort
}
declared runtime/dilrt.h runtime/api/library.h >"$work/declared-rt"
declared compiler/dil.h >"$work/declared-dil"
rule "libdilrt.so promises what dilrt.h and library.h declare" \
  "$(exported libdilrt.so | diff "$work/declared-rt" -)"
rule "libdil.so promises what dil.h declares" \
  "$(exported libdil.so | diff "$work/declared-dil" -)"
rule "the GPU parts are linked to neither CUDA nor NVRTC" \
  "$(for part in dil-gpu.so dilrt-cuda.so dilrt-nccl.so $mpi; do
    readelf -d "$BUILD/$part" | grep -iE 'needed.*(cuda|nvrtc)'
  done)"
rule "the program is not linked to LLVM" \
  "$(readelf -d "$BUILD/dil" | grep -i 'needed.*llvm')"
exit $bad
