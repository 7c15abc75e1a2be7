#!/bin/sh
# mpi_faults.sh - a rank of a job is killed or frozen at a random moment: the
# job ends in time, without success, and can be resumed to the same bits. In:
# DIL, TMP, BUILD; MPI_KILLS and MPI_STOPS, how many times. Out: ok / not ok
# lines, and the longest that an end took.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/mpi/job.sh

# Steps of some 200 ms, in which rows travel, and little else.
cat >"$TMP/ring.dil" <<'END'
pattern p { heads 2; head_dim 16; dtype f32; branch { } }
topology t { devices 4; ring 4; link mpi; timeout 2s; }
topology mesh { devices 4; ring 2; heads 2; link mpi; timeout 2s; }
END
long="$TMP/ring.dil --topology t --seq ${MPI_SEQ:-20000} --random 7 --threads 1"

moment=0.5 # seconds, at most

states() { # how many ranks have kept a state
  ls "$TMP"/state.[0-3] 2>/dev/null | wc -l
}

of_job() { # pids of the launcher's ranks, in no order
  pgrep -P "$(pgrep -d , -P "$1"),$1" -x dil
}

rank_of() { # pid
  tr '\0' '\n' <"/proc/$1/environ" | sed -n 's/^OMPI_COMM_WORLD_RANK=//p'
}

# A rank is struck at a random moment after every rank has kept a state and
# while it records its flight; the job must end in time and without success, and
# say who is silent. Where the moment was too late, the next is tried: a process
# that is stopped on its way out, when all is done, is the launcher's affair.
strike() { # signal, milliseconds that the end may take
  rm -f "$TMP"/state* "$TMP/struck.npy"
  # shellcheck disable=SC2086 # a list of words
  (job 4 $long --state "$TMP/state" --out "$TMP/struck.npy") >"$TMP/job" 2>&1 &
  launcher=$!
  while [ "$(states)" -lt 4 ] && kill -0 $launcher 2>/dev/null; do
    sleep 0.002
  done
  sleep "$(awk -v s="$SEED" -v most="$moment" \
    'BEGIN { srand(s); print rand() * most }')"
  victim=$(of_job $launcher | shuf -n 1)
  rank=$([ -n "$victim" ] && rank_of "$victim")
  if [ -z "$rank" ] || [ ! -e "$TMP/state.$rank.flight" ]; then
    wait $launcher
    SEED=$((SEED + 7919))
    strike "$@"
    return
  fi
  kill -"$1" "$victim"
  began=$(date +%s%N)
  (sleep 30 && kill -KILL "$victim") >"$TMP/guard" 2>&1 & # no hang stays
  guard=$!
  wait $launcher
  status=$?
  took=$((($(date +%s%N) - began) / 1000000))
  kill $guard 2>/dev/null
  echo "rank $rank, $took ms, status $status"
  echo "$took $1 $rank" >>"$TMP/times"
  [ "$took" -le "$2" ] || return 1
  [ $status -ne 0 ] || { echo "the job succeeded" && return 1; }
  # Without a name where only the end of MPI was left.
  [ "$1" = KILL ] ||
    grep -a "rank $rank is silent\|job does not end" "$TMP/job"
}

# What is left is enough to go on from.
resumes() {
  [ "$(states)" -eq 4 ] || { echo "$(states) states" && return 1; }
  # shellcheck disable=SC2086
  job 4 $long --state "$TMP/state" --resume --out "$TMP/resumed.npy" &&
    cmp "$TMP/resumed.npy" "$TMP/whole.npy"
}

# shellcheck disable=SC2086
is "a whole run" job 4 $long --out "$TMP/whole.npy"
for turn in $(seq "${MPI_KILLS:-3}"); do
  SEED=$turn
  is "killed rank, turn $turn" strike KILL 4000
  is "resumed after it" resumes
done
# The timeout, the time to ask others, and the launcher's own time to end.
for turn in $(seq "${MPI_STOPS:-2}"); do
  SEED=$((1000 + turn))
  is "frozen rank, turn $turn" strike STOP 9000
  is "resumed after it" resumes
done
# Of two rings, by its number in the job; they have two steps alone.
moment=0.1
long=$(echo "$long" | sed 's/--topology t/--topology mesh/')
SEED=2001
is "frozen rank of a mesh" strike STOP 9000
for signal in KILL STOP; do
  grep "$signal" "$TMP/times" | sort -n | awk -v signal=$signal '
    { took = $1 } END { if (NR) print NR " ends after " signal ", the latest " \
      took " ms" }'
done
exit $bad
