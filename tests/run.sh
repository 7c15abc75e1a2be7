#!/bin/sh
# run.sh - every test of a build: the Check suites, the test scripts, a short
# run of random patterns. In: BUILD, the build folder; words on the command
# line choose suites by name. Out: a line a suite, the log of each that fails,
# and at the end `N passed, N failed`. The word `bench-gpu` prints a table in
# place of all that (bench/gpu.sh); words after it choose its cases.
#
# Suites run two at once, and beside them one of those that mostly wait. Suites
# that wait for a limit of time to pass run together at the end, and thereafter one
# by one those that measure times, or read what others write. A line tells the
# seconds that passed, and those that the suite kept processors busy.
#
# Suites of one run share machine code that their tests would make alike
# (support/store.h). Each has a folder and a cache of its own.
#
# A test script prints `ok NAME` or `not ok NAME` a test; it finds the program
# in $DIL and a folder of its own in $TMP.
set -u
cd "$(dirname "$0")/.." || exit 70
BUILD=${BUILD:-build}
case $BUILD in /*) ;; *) BUILD=$PWD/$BUILD ;; esac
DIL=$BUILD/dil
export BUILD DIL
# A make that a test calls is no job of the make that calls this.
MAKEFLAGS=$(echo "${MAKEFLAGS:-}" | sed 's/--jobserver-[^ ]*//; s/\(^\| \)-j[0-9]*//')
export MAKEFLAGS
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
# The longest first, then whatever no list names.
longest='nvrtc emulator hopper_gate gpu-ring-back gpu-ring hopper torch_ring_gpu edges torch_ops
  fuzz_backward fuzz_ring code_cache backward laws examples presets ring hopper_tables
  hf'
waiting='processes checkpoint mpi_faults process_faults mpi torch_ring'
limits='link rendezvous linked_ranks'
alone='test_cli thread pool runtime'
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
  times >"$logs/$name.times"
  printf '%-21s %4d passed %3d failed %5d s %5d s busy\n' "$name" "$good" \
    "$bad" $(($(date +%s) - began)) "$(busy_seconds "$logs/$name.times")"
  [ "$bad" -eq 0 ] || grep -v '^ok ' "$logs/$name" | head -c 20000
  echo "$good $bad" >"$logs/$name.counts"
}

# Seconds of processors that ended children had, as `times` writes them.
busy_seconds() { # file
  awk 'NR == 2 {
         for (i = 1; i <= 2; i++) {
           split($i, n, /[ms]/)
           sum += 60 * n[1] + n[2]
         }
       }
       END { print int(sum + 0.5) }' "$1"
}

is_among() { # name, words...
  name=$1
  shift
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
  fuzz_choices)
    run_suite "$1" "$patterns" --count 100 --seed "$seed" --choices ;;
  fuzz_grids)
    run_suite "$1" "$patterns" --count 60 --seed "$seed" --grids ;;
  fuzz_ring)
    run_suite "$1" "$patterns" --ring --count "${FUZZ_COUNT:-300}" --seed "$seed"
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

# What failed, once more, where the end of a long report is all that is read.
tell_failures() { # suite
  awk -v suite="$1" '/^not ok |:[FE]:|^ended with status/ {
                       print "failed: " suite ": " substr($0, 1, 300)
                       if (++told == 5) exit
                     }' "$logs/$1"
}

# A suite in a process of its own: its lines in one piece, and its counts for
# whoever waits for all of them.
if [ "${1:-}" = --one ]; then
  run_named "$2" >"$logs/$2.told"
  cat "$logs/$2.told"
  exit 0
fi
mkdir -p "$logs"
rm -f "$logs"/*
DIL_TEST_STORE=$(mktemp -d)
export DIL_TEST_STORE
trap 'rm -rf "$DIL_TEST_STORE"' EXIT
trap 'exit 130' INT TERM

units=$(echo tests/unit/*/test_*.c | tr ' ' '\n' | sed 's,.*/test_,,; s/\.c$//')
scripts=$(echo tests/*.sh tests/cli/*.sh tests/gpu/*.sh tests/python/*.sh |
  tr ' ' '\n' | sed 's,.*/,,; s/\.sh$//' | grep -vx 'run\|wc\|tsan')

only() { # names, words...
  names=$1
  shift
  for name in $names; do
    is_among "$name" "$@" && echo "$name"
  done
}
without() { # names, words...
  names=$1
  shift
  for name in $names; do
    is_among "$name" "$@" || echo "$name"
  done
}
run_all() { # how many at once, names
  # shellcheck disable=SC2086 # words
  [ -z "$2" ] || printf '%s\n' $2 | xargs -P "$1" -n 1 "tests/run.sh" --one
}

fuzzers='fuzz fuzz_backward fuzz_ring fuzz_choices fuzz_grids'
all=$(echo "$longest $units $scripts $fuzzers" | tr -s ' ' '\n' |
  awk '!seen[$0]++')
[ $# -eq 0 ] || all=$(only "$all" "$@")
# shellcheck disable=SC2086 # words
{
  run_all 1 "$(only "$all" $waiting)" &
  run_all 2 "$(without "$all" $waiting $limits $alone)"
  wait
  run_all 3 "$(only "$all" $limits)"
  run_all 1 "$(only "$all" $alone)"
}
for name in $all; do
  read -r good bad <"$logs/$name.counts" || bad=1 good=0
  passed=$((passed + good))
  failed=$((failed + bad))
  [ "$bad" -eq 0 ] || tell_failures "$name"
  rm -f "$logs/$name.counts" "$logs/$name.told" "$logs/$name.times"
done
for word; do
  [ -e "$logs/$word" ] && continue
  echo "no suite is called '$word'"
  failed=$((failed + 1))
done

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
