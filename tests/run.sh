#!/bin/sh
# run.sh - every test of a build: the Check suites, the test scripts, a short
# run of random patterns. In: BUILD, the build folder; words on the command
# line choose suites by name. Out: a line a suite, the log of each that fails,
# and at the end `N passed, N failed`. The word `bench-gpu` prints a table in
# place of all that (bench/gpu.sh); words after it choose its cases.
#
# Suites that do nothing but compute run two at once. Others run alone, since
# they measure times or wait for them, or keep both processors busy themselves.
#
# A test script prints `ok NAME` or `not ok NAME` a test; it finds the program
# in $DIL and a folder of its own in $TMP.
set -u
cd "$(dirname "$0")/.." || exit 70
BUILD=${BUILD:-build}
case $BUILD in /*) ;; *) BUILD=$PWD/$BUILD ;; esac
DIL=$BUILD/dil
export BUILD DIL
DIL_WISDOM=off # what this machine's owner has tuned is no part of a test
export DIL_WISDOM
case ${1:-} in
bench-gpu | bench-gpu-ring)
  bench=$1
  shift
  exec tests/bench/gpu.sh "$bench" "$@"
  ;;
esac
logs=$BUILD/logs
# The longest first.
computing='edges nvrtc fuzz_backward backward laws examples hopper cli_backward
  shards fuzz numeric emulated cpu_expr'
# A leak check that follows LLVM's thread-local storage falls over its layout.
ASAN_OPTIONS=intercept_tls_get_addr=0:${ASAN_OPTIONS:-}
export ASAN_OPTIONS
limit=${TEST_LIMIT:-1500} # seconds a suite may take
passed=0
failed=0

# The counts of a log: Check's summary, or lines of ok and not ok.
count_log() {
  awk '/^[0-9]+%: Checks: / {
         split($0, n, /[^0-9]+/); bad += n[3] + n[4]; good += n[2] - n[3] - n[4]
       }
       /^ok / { good++ }
       /^not ok / { bad++ }
       END { print good + 0, bad + 0 }' "$1"
}

run_suite() { # name, command...
  name=$1
  shift
  began=$(date +%s)
  TMP=$(mktemp -d)
  DIL_CACHE_DIR=$TMP/cache # not the user's own
  export TMP DIL_CACHE_DIR
  timeout -k 10 "$limit" "$@" >"$logs/$name" 2>&1 </dev/null
  status=$?
  rm -rf "$TMP"
  # shellcheck disable=SC2046 # two words
  set -- $(count_log "$logs/$name")
  good=$1 bad=$2
  # One that dies, or finds nothing to do, has not passed.
  if [ "$bad" -eq 0 ] && { [ $status -ne 0 ] || [ "$good" -eq 0 ]; }; then
    bad=1
    echo "ended with status $status after $good tests" >>"$logs/$name"
  fi
  passed=$((passed + good))
  failed=$((failed + bad))
  printf '%-16s %4d passed %3d failed %5d s\n' "$name" "$good" "$bad" \
    $(($(date +%s) - began))
  [ "$bad" -eq 0 ] || grep -v '^ok ' "$logs/$name" | head -c 20000
}

chosen() { # name, words...
  name=$1
  shift
  [ $# -gt 0 ] || return 0
  for word; do [ "$word" = "$name" ] && return 0; done
  return 1
}

# Runs a suite by its name: random patterns, a script or a program of Check.
run_named() { # name
  patterns=$BUILD/tests/fuzz/fuzz_pattern
  seed=${FUZZ_SEED:-1}
  case $1 in
  fuzz) run_suite "$1" "$patterns" --count "${FUZZ_COUNT:-150}" --seed "$seed" ;;
  fuzz_backward)
    run_suite "$1" "$patterns" --backward --count "${FUZZ_COUNT:-300}" \
      --seed "$seed"
    ;;
  *)
    for command in tests/"$1".sh tests/cli/"$1".sh tests/gpu/"$1".sh \
      tests/python/"$1".sh "$BUILD/tests/test_$1"; do
      [ -e "$command" ] && break
    done
    run_suite "$1" "$command"
    ;;
  esac
}

# One of several at once, in a process of its own: its lines in one piece, and
# its counts for whoever waits for all of them.
if [ "${1:-}" = --beside ]; then
  name=$2
  run_named "$name" >"$logs/$name.told"
  echo "$passed $failed" >"$logs/$name.counts"
  cat "$logs/$name.told"
  exit 0
fi
mkdir -p "$logs"
rm -f "$logs"/*

together=
for name in $computing; do
  chosen "$name" "$@" && together="$together $name"
done
# shellcheck disable=SC2086 # words
[ -z "$together" ] ||
  printf '%s\n' $together | xargs -P 2 -n 1 "tests/${0##*/}" --beside
for name in $together; do
  read -r good bad <"$logs/$name.counts" || bad=1 good=0
  passed=$((passed + good))
  failed=$((failed + bad))
  rm -f "$logs/$name.counts" "$logs/$name.told"
done

is_told() { # name: its suite has run already
  # shellcheck disable=SC2086 # words
  chosen "$1" none $together
}
units=$(echo tests/unit/*/test_*.c | tr ' ' '\n' | sed 's,.*/test_,,; s/\.c$//')
scripts=$(echo tests/*.sh tests/cli/*.sh tests/gpu/*.sh tests/python/*.sh |
  tr ' ' '\n' | sed 's,.*/,,; s/\.sh$//' | grep -vx 'run\|wc\|tsan')
for name in $units $scripts fuzz fuzz_backward; do
  is_told "$name" && continue
  chosen "$name" "$@" && run_named "$name"
done
for word; do
  [ -e "$logs/$word" ] && continue
  echo "no suite is called '$word'"
  failed=$((failed + 1))
done

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
