#!/bin/sh
# ring_examples.sh - every example on rings: 1, 2, 3, 4, 7 and 8 ranks that are
# threads, all against the oracle, with just the bytes moved that `explain`
# foretells, whichever branches gather; and on processes, of one number of ranks
# each unless RING_ALL=1. In: DIL, TMP, BUILD. Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh
cp -r examples/*.dil examples/presets "$TMP"
DIL_CACHE=on
export DIL_CACHE

# Lets that are sizes become small; declared inputs are random.
options_of() { # file
  sed -n -e 's/^let \([wl]\) = .*/-D \1=24/p' \
    -e 's/^ *input *\([a-z_]*\) *:.*/--input \1=random/p' "$1"
  echo "--seq 331 --random 5"
}

number() { # name of a field, JSON
  sed -n "s/.*\"$1\": \([0-9]*\).*/\1/p" "$2"
}

foretold() { # file, options...: the bytes that all ranks receive
  "$DIL" explain "$@" --json |
    grep -o '"receives": [0-9]*' | awk '{ n += $2 } END { print n + 0 }'
}

on_threads() { # file, ranks
  # shellcheck disable=SC2046 # a list of words
  set -- "$1" --topology "r$2" $(options_of "$1")
  "$DIL" run "$@" --check --json >"$TMP/ran" || { cat "$TMP/ran" && return 1; }
  moved=$(number bytes_moved "$TMP/ran")
  # shellcheck disable=SC2046
  expected=$(foretold $(echo "$@" | sed 's/--random 5//'))
  echo "moved ${moved:-nothing}, foretold $expected"
  [ "${moved:-0}" -eq "$expected" ]
}

on_little() { # file, ranks
  DIL_GATHER_MAX=40K
  export DIL_GATHER_MAX
  on_threads "$@"
  good=$?
  unset DIL_GATHER_MAX
  return $good
}

on_processes() { # file, ranks
  # shellcheck disable=SC2046
  timeout 120 mpirun --oversubscribe -n "$2" "$DIL" run "$1" \
    --topology "m$2" $(options_of "$1") --threads 1 --check
}

processes=$(command -v mpirun)
[ -e "$BUILD/dilrt-mpi.so" ] || processes=
OMPI_ALLOW_RUN_AS_ROOT=1
OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
ASAN_OPTIONS=detect_leaks=0:${ASAN_OPTIONS:-}
export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM ASAN_OPTIONS
turn=0
is_refused() { # file, words of the message, options...
  file=$1 words=$2
  shift 2
  says "$words" "$DIL" run "$file" --topology r2 --random 5 "$@"
}
for source in examples/*.dil; do
  name=$(basename "$source" .dil)
  file=$TMP/$name.dil
  for ranks in 1 2 3 4 5 7 8; do
    echo "topology r$ranks { devices $ranks; ring $ranks; link thread; }
topology m$ranks { devices $ranks; ring $ranks; link mpi; }" >>"$file"
  done
  if grep -q '^ *grid ' "$source"; then # it says how many cells there are
    is "$name is refused on a ring" is_refused "$file" \
      "neither shared out by a ring"
    continue
  elif grep -q '^ *keep *\(top\|mass\) ' "$source"; then
    gate=$(sed -n 's/^ *input  *gate .*/--input gate=random/p' "$source")
    # shellcheck disable=SC2086 # words on purpose
    is "$name is refused on a ring" is_refused "$file" "do not go with ranks" \
      --seq 331 $gate
    continue
  fi
  for ranks in 1 2 3 4 7 8; do
    is "$name on $ranks threads" on_threads "$file" $ranks
  done
  is "$name on 5 threads, with little room to gather" on_little "$file" 5
  turn=$((turn % 5 + 1))
  some=$(echo 2 3 4 7 8 | cut -d ' ' -f $turn)
  [ -z "${RING_ALL:-}" ] || some="2 3 4 7 8"
  for ranks in ${processes:+$some}; do
    is "$name on $ranks processes" on_processes "$file" "$ranks"
  done
done

# More ranks than K/V heads: each has a copy, and all of them travel.
echo "topology r20 { devices 20; ring 2; heads 10; }" >>"$TMP/decode_gqa.dil"
is "decode_gqa, its groups split" on_threads "$TMP/decode_gqa.dil" 20
exit $bad
