#!/bin/sh
# mpi.sh - rings of processes: the same results as on threads and by the
# oracle, what moves while ranks compute, and what a rank is told about others.
# In: DIL, TMP, BUILD. Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/.." || exit 70
. tests/mpi/job.sh
ring=examples/longnet_ring.dil

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

# ---- the link by itself ------------------------------------------------------

# Each of 3 ranks says that all went as it must; some of them are meant to fail.
link() { # trial
  DIL_MODULE_DIR=$BUILD timeout 60 mpirun --oversubscribe -n 3 \
    "$BUILD/tests/mpi/link_host" "$1" 2>&1 | tee "$TMP/link"
  [ "$(grep -c '^good$' "$TMP/link")" -eq 3 ]
}
is "bytes move while ranks compute" link overlap
is "messages out of order" link reordered
is "a slow rank is no fault" link slow
is "a message too short is an error of all" link truncated
is "the rank that is silent is named, not one that waits for it" link chain
exit $bad
