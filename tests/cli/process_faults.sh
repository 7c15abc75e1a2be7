#!/bin/sh
# process_faults.sh - a rank that is a process of nobody's job is killed or frozen
# at a random moment, forward or backward: each of the others names it in time,
# and the run can be resumed to the same bits (support/strike.sh). In: DIL, TMP,
# STRIKES. Out: ok / not ok lines, and the longest that an end took.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh
. tests/support/strike.sh
rank_word=DIL_RANK
SEED=0
port=$((20000 + $$ % 12000))

# Ranks meet in a file, and at every other turn at a port.
meeting_place() {
  [ $((SEED % 2)) -eq 1 ] && echo "$TMP/meet" || echo "localhost:$port"
}

is_stopped() { # pid
  grep -q ') T ' "/proc/$1/stat" 2>/dev/null
}

stopped() { # pids of shells, between commas: how many of their ranks are
  count=0
  for pid in $(pgrep -P "$1" -x dil); do
    ! is_stopped "$pid" || count=$((count + 1))
  done
  echo $count
}

# Ends with the last rank, or with the last that is not stopped.
job() { # processes, options of dil run...
  processes=$1 shells=
  shift
  rm -f "$TMP"/meet* "$TMP"/rank.* "$TMP"/ended.*
  for number in $(seq 0 $((processes - 1))); do
    (
      DIL_MEET=$(meeting_place) DIL_RANK=$number
      export DIL_MEET DIL_RANK
      "$DIL" run "$@" >"$TMP/rank.$number" 2>&1
      echo $? >"$TMP/ended.$number"
    ) &
    shells=$shells${shells:+,}$!
  done
  until [ $(($(ls "$TMP"/ended.* 2>/dev/null | wc -l) +
    $(stopped "$shells"))) -eq "$processes" ]; do
    sleep 0.01
  done
  pkill -KILL -P "$shells" -x dil
  wait
  cat "$TMP"/rank.*
  ! grep -qv '^0$' "$TMP"/ended.*
}

names() { # rank, signal
  word=gone
  [ "$2" = KILL ] || word=silent
  for other in 0 1 2 3; do
    [ "$other" -eq "$1" ] || grep "rank $1 is $word" "$TMP/rank.$other" ||
      return 1
  done
}

strikes forward meet 2 2 2000 9000
strikes backward meet 2 2 2000 9000
latest
exit $bad
