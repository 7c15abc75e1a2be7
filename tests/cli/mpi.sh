#!/bin/sh
# mpi.sh - rings of processes: the same results as on threads and by the
# oracle, what moves while ranks compute, and what a rank is told about others.
# In: DIL, TMP, BUILD. Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/../.." || exit 70
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

same_gradients() {
  job 4 $ring -D w=16 --topology four_mpi --seq 1000 --random 7 --backward \
    --check --dq "$TMP/processes.npy" --dk "$TMP/processes.k.npy" &&
    "$DIL" run $ring -D w=16 --topology four --seq 1000 --random 7 --backward \
      --dq "$TMP/threads.q.npy" --dk "$TMP/threads.k.npy" &&
    cmp "$TMP/processes.npy" "$TMP/threads.q.npy" &&
    cmp "$TMP/processes.k.npy" "$TMP/threads.k.npy"
}
is "so do their gradients" same_gradients

some_gather() {
  DIL_GATHER_MAX=100K job 4 $ring -D w=16 --topology four_mpi --seq 1000 \
    --random 7 --out "$TMP/mixed.npy" --json >"$TMP/mixed.json" &&
    grep '"gathered_branches": 2,' "$TMP/mixed.json" &&
    cmp "$TMP/mixed.npy" "$TMP/threads.npy"
}
is "some branches gather, others rotate: the same bits" some_gather

wrong_count() {
  ! job 3 $ring --topology four_mpi --seq 100 --random 1 &&
    job 3 $ring --topology four_mpi --seq 100 --random 1 2>&1 |
    grep 'has 4 devices, and there are 3 processes'
}
is "the number of processes must be the topology's" wrong_count

# ---- what ranks hold, and what they must have alike ----------------------------

cat >"$TMP/wide.dil" <<'END'
pattern p { heads 8; head_dim 64; dtype f32; branch { segment 64; } }
topology t { devices 4; ring 4; link mpi; }
END
peak() { # rank: its most MiB
  awk '/^dil_process_peak_bytes/ { print int($2 / 1048576) }' "$TMP/peak.$1"
}
peaks() { # queries, options: the most MiB of any rank
  queries=$1
  shift
  DIL_METRICS=$TMP/peak.%r job 4 "$TMP/wide.dil" --topology t --seq "$queries" \
    --threads 1 "$@" >/dev/null || return 1
  (peak 0 && peak 1 && peak 2 && peak 3) | sort -n | tail -1
}
# 65536 rows more of q, k, v and o are 512 MiB. A quarter of them, the state of
# its rows and the message with its outputs are 192 MiB for a rank.
holds_its_shard() {
  small=$(peaks 16384 --random 7) && large=$(peaks 81920 --random 7) ||
    return 1
  echo "$small and $large MiB"
  [ $((large - small)) -le 200 ]
}
is "a rank makes its own rows and holds no others" holds_its_shard

# Every rank maps the files and rounds its own rows; what cannot be mapped, here
# for Fortran's order, each reads whole.
data=examples/data
sed 's/f16/bf16/' examples/longnet_text.dil >"$TMP/text.dil"
cat >>"$TMP/text.dil" <<'END'
topology t { devices 4; ring 4; layout zigzag; link mpi; }
topology same { devices 4; ring 4; layout zigzag; }
END
as_threads() { # file, arrays: the same bits
  file=$1
  shift
  "$DIL" run "$file" --topology same --out "$TMP/one.npy" "$@" &&
    job 4 "$file" --topology t --check --out "$TMP/four.npy" "$@" &&
    cmp "$TMP/one.npy" "$TMP/four.npy"
}
is "each rank takes its rows of files" as_threads "$TMP/text.dil" \
  --q $data/q.npy --k $data/k.npy --v $data/v.npy
is "of some of them, and makes others" as_threads "$TMP/text.dil" \
  --q $data/q.npy --random 3
cat >"$TMP/turned.dil" <<'END'
pattern p { heads 2; head_dim 16; dtype f16; branch { } }
topology t { devices 4; ring 4; link mpi; }
topology same { devices 4; ring 4; }
END
{
  printf '\223NUMPY\1\0\166\0%-117s\n' \
    "{'descr': '<f2', 'fortran_order': True, 'shape': (1, 8, 2, 16), }"
  tail -c 512 $data/q.npy
} >"$TMP/turned.npy"
is "files that cannot be mapped" as_threads "$TMP/turned.dil" \
  --q "$TMP/turned.npy" --k "$TMP/turned.npy" --v "$TMP/turned.npy"

# Two of the four ranks are told something else: the job fails, and says what.
differ() { # words of the message, options of the first two, of the others
  ! timeout 60 mpirun --oversubscribe -n 2 "$DIL" run $2 : \
    -n 2 "$DIL" run $3 >"$TMP/differ" 2>&1 || return 1
  cat "$TMP/differ"
  grep -q "error: .*$1" "$TMP/differ"
}
sed 's/heads  .*12;/heads 6;/' $ring >"$TMP/six.dil"
sed 's/^topology four_mpi.*/topology four_mpi { devices 4; ring 2; heads 2;\
 link mpi; }/' $ring >"$TMP/mesh.dil"
same="-D w=16 --topology four_mpi --random 1"
is "another pattern on a rank" differ 'rank 0 has another plan' \
  "$ring $same --seq 300" "$TMP/six.dil $same --seq 300"
is "another definition on a rank" differ 'rank 0 has another plan' \
  "$ring $same --seq 300" \
  "$ring -D w=32 --topology four_mpi --random 1 --seq 300"
is "another length on a rank" differ \
  'rank 0 has 300 queries, but --seq has 400' \
  "$ring $same --seq 300" "$ring $same --seq 400"
is "another mesh on a rank" differ 'rank 0 has another length of the ring' \
  "$ring $same --seq 300" "$TMP/mesh.dil $same --seq 300"
sed 's/causal;/causal; dropout 0.5;/' $ring >"$TMP/drop.dil"
is "another seed on a rank" differ 'rank [23] has another seed' \
  "$TMP/drop.dil $same --seq 300 --train --seed 1" \
  "$TMP/drop.dil $same --seq 300 --train --seed 2"
is "other random numbers on a rank" differ \
  'rank [23] has another seed of random numbers' \
  "$ring $same --seq 300" \
  "$ring -D w=16 --topology four_mpi --random 2 --seq 300"
sed 's/causal;/causal; input x : i32[M]; mask x[i] == x[j];/' $ring \
  >"$TMP/input.dil"
is "another input on a rank" differ 'rank [23] has another declared input' \
  "$TMP/input.dil $same --seq 300 --input x=random" \
  "$TMP/input.dil -D w=16 --topology four_mpi --random 2 --seq 300
   --input x=random"
first_fails() {
  ! job 4 $ring -D w=16 --topology four_mpi --q "$TMP/nowhere.npy" \
    >"$TMP/differ" 2>&1 || return 1
  cat "$TMP/differ"
  grep -q 'rank 0 failed in step 0: .*nowhere.npy' "$TMP/differ"
}
is "rank 0 cannot read its arrays" first_fails

# ---- the link by itself ------------------------------------------------------

# Each rank, of 3 unless told, says that all went as it must; some of them are
# meant to fail.
link() { # trial [ranks]
  DIL_MODULE_DIR=$BUILD timeout 60 mpirun --oversubscribe -n "${2:-3}" \
    "$BUILD/tests/mpi/link_host" "$1" 2>&1 | tee "$TMP/link"
  [ "$(grep -c '^good$' "$TMP/link")" -eq "${2:-3}" ]
}
is "bytes move while ranks compute" link overlap
is "messages out of order" link reordered
is "a slow rank is no fault" link slow
is "nor is one that collects for longer than a wait" link awaited
is "it is, when it says nothing any more" link forsaken
is "a message too short is an error of all" link truncated
is "the rank that is silent is named, not one that waits for it" link chain
# One rank: 66,000 splits among ranks that share a processor may take minutes.
is "a link without a thread keeps no communicator" link unserved 1
is "two links that are revoked tell two reasons" link revoked_twice
exit $bad
