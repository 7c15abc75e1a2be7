#!/bin/sh
# mpi.sh - rings of processes: the same results as on threads, and what is left
# when a rank is killed, frozen or disagrees. In: DIL, TMP, BUILD; MPI_KILLS,
# how many times a rank is killed. Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/.." || exit 70
bad=0

if ! command -v mpirun >/dev/null || [ ! -e "$BUILD/dilrt-mpi.so" ]; then
  echo "ok skipped: MPI is not installed"
  exit 0
fi
OMPI_ALLOW_RUN_AS_ROOT=1
OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM
# What Open MPI leaves behind at its end is not ours to find.
ASAN_OPTIONS=detect_leaks=0:${ASAN_OPTIONS:-}
export ASAN_OPTIONS
ring=examples/longnet_ring.dil

is() { # name, command...: ok when the command succeeds
  name=$1
  shift
  if "$@" >"$TMP/said" 2>&1; then
    echo "ok $name"
  else
    echo "not ok $name"
    head -c 3000 "$TMP/said"
    bad=1
  fi
}

job() { # processes, options of dil run...
  count=$1
  shift
  mpirun --oversubscribe -n "$count" "$DIL" run "$@"
}

# Every mesh of two to four processes, checked by rank 0.
for mesh in 'devices 2; ring 2;' 'devices 3; ring 3; layout striped;' \
  'devices 4; ring 2; heads 2; layout zigzag;' \
  'devices 4; ring 2; batch 2; exchange gather;'; do
  sed "s/^topology four_mpi.*/topology t { $mesh link mpi; }/" $ring \
    >"$TMP/mesh.dil"
  count=$(echo "$mesh" | sed 's/devices \([0-9]\).*/\1/')
  is "mesh: $mesh" job "$count" "$TMP/mesh.dil" -D w=16 --topology t \
    --seq 1000 --batch 2 --random 7 --threads 1 --check
done

same_as_threads() {
  job 4 $ring -D w=16 --topology four_mpi --seq 1000 --random 7 \
    --out "$TMP/processes.npy" --lse "$TMP/processes.lse.npy" &&
    "$DIL" run $ring -D w=16 --topology four --seq 1000 --random 7 \
      --out "$TMP/threads.npy" --lse "$TMP/threads.lse.npy" &&
    cmp "$TMP/processes.npy" "$TMP/threads.npy" &&
    cmp "$TMP/processes.lse.npy" "$TMP/threads.lse.npy"
}
is "processes and threads give the same bits" same_as_threads

wrong_count() {
  ! job 3 $ring --topology four_mpi --seq 100 --random 1 &&
    job 3 $ring --topology four_mpi --seq 100 --random 1 2>&1 |
    grep 'has 4 devices, and there are 3 processes'
}
is "the number of processes must be the topology's" wrong_count

# ---- killed and frozen ranks --------------------------------------------------

long="$ring -D w=64 --topology four_mpi --seq 16384 --random 7 --threads 1"

of_job() { # pids of the ranks, in no order
  pgrep -P "$(pgrep -d , -P "$1")" -x dil # the launcher is a shell's child
}

states() { # how many ranks have kept a state
  ls "$TMP"/state.[0-3] 2>/dev/null | wc -l
}

# A rank is killed or stopped at a random moment after every rank has kept a
# state; the job must end in time and without success.
strike() { # signal, seconds that the end may take
  rm -f "$TMP"/state*
  # shellcheck disable=SC2086 # a list of words
  job 4 $long --state "$TMP/state" --out "$TMP/struck.npy" >"$TMP/job" 2>&1 &
  launcher=$!
  while [ "$(states)" -lt 4 ] && kill -0 $launcher 2>/dev/null; do
    sleep 0.002
  done
  sleep "$(awk -v s="$RANDOM_SEED" 'BEGIN { srand(s); print rand() / 20 }')"
  victim=$(of_job $launcher | shuf -n 1)
  [ -n "$victim" ] || { echo "no rank to strike" && return 1; }
  kill -"$1" "$victim"
  began=$(date +%s%N)
  wait $launcher
  status=$?
  took=$((($(date +%s%N) - began) / 1000000))
  [ "$took" -le "$2" ] || { echo "took $took ms" && return 1; }
  [ $status -ne 0 ] || { echo "the job succeeded" && return 1; }
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
  RANDOM_SEED=$turn
  is "killed rank, turn $turn" strike KILL 5000
  is "resumed after it" resumes
done
# The timeout of the topology, and the launcher's own time to end.
RANDOM_SEED=99
is "frozen rank" strike STOP 20000
exit $bad
