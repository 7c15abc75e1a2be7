#!/bin/sh
# gpu-ring.sh - rings of GPUs: the oracle's results for ranks, meshes, layouts
# and exchanges; the same bits by NCCL as by copies; ranks that are killed or
# frozen. Ranks share what GPUs there are; where there is none they are emulated.
# In: BUILD, DIL, TMP. Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/rings.sh

# ---- against the oracle -------------------------------------------------------

# Heads by whole groups of a K/V head, by parts of groups, by branches' shares,
# with masks and scores that ask for the head.
meshes() { # queries
  check decode_gqa 'devices 6; ring 2; heads 3; layout striped;' --seq "$1"
  check decode_gqa 'devices 12; heads 12;' --seq "$1"
  check decode_gqa 'devices 4; heads 2; batch 2;' --seq 1 --keys 900 --batch 3
  check headsplit_mean 'devices 6; ring 2; heads 3;' --seq $(($1 * 8))
  check random_hash 'devices 3; heads 3;' --seq $(($1 * 2))
  check alibi 'devices 4; ring 2; heads 2; exchange gather;' --seq "$1" \
    --input slope=random
}

check() { # example, topology, options...
  example=$1 topology=$2
  shift 2
  beside is "$example: $topology" run "$example" "$topology" --check "$@"
}

if [ "$gpus" -eq 0 ]; then
  for order in now late random; do
    EMULATED_ORDER=$order
    export EMULATED_ORDER
    check longnet_ring 'devices 3; ring 3;' -D w=16 --seq 100
    check causal 'devices 2; ring 2; layout zigzag; exchange gather;' --seq 60
    check softcap 'devices 4; ring 2; batch 2; layout striped;' --seq 40 --batch 2
    check longnet_ring 'devices 4; ring 2; heads 2; layout zigzag;' -D w=16 --seq 70
  done
  for chip in 90 80; do # with Hopper kernels, and the general one alone
    FAKE_CHIP=$chip
    meshes 70
  done
else
  for ranks in 1 2 4; do
    for layout in contiguous zigzag striped; do
      shape="devices $ranks; ring $ranks; layout $layout;"
      check longnet_ring "$shape" -D w=64 --seq 5000
      check longnet_ring "$shape exchange gather;" -D w=16 --seq 3001
      check dense "$shape" --seq 1024 --keys 1500
      check causal "$shape exchange gather;" --seq 2048
      check longformer "$shape" -D w=64 --seq 2000
      check headsplit_mean "$shape" --seq 1400
      check union "$shape" --seq 1700
      check softcap "$shape" --seq 1200 --batch 2
      check random_hash "$shape" --seq 800
    done
  done
  check decode_gqa 'devices 4; ring 4;' --seq 1 --keys 9000 --batch 3
  check longnet 'devices 4; ring 2; batch 2;' -D w=128 --seq 4096 --batch 3
  check longnet_torchscale 'devices 3; ring 3;' -D w=100 --seq 7777
  check longnet 'devices 4; ring 2; heads 2;' -D w=128 --seq 4096 --batch 3
  meshes 900
  # More than the host is asked to hold: each rank makes its own rows.
  check longnet_ring 'devices 4; ring 4;' --seq 524288
fi
told

# ---- exchange -----------------------------------------------------------------

some_gather() { # topology
  mixed $gathering "$1" --out -D w=16 --seq 1000
}
is "some branches gather, others rotate: the same bits" some_gather \
  'devices 4; ring 4;'

# ---- state ---------------------------------------------------------------------

resumes() {
  run causal 'devices 2; ring 2;' --seq 64 --state "$TMP/kept" \
    --out "$TMP/one.npy" &&
    run causal 'devices 2; ring 2;' --seq 64 --state "$TMP/kept" --resume \
      --out "$TMP/two.npy" && cmp "$TMP/one.npy" "$TMP/two.npy"
}
is "a rank's state is written, and resumed to the same bits" resumes

# ---- NCCL -----------------------------------------------------------------------

leave_one_gpu
same_bits() {
  # shellcheck disable=SC2086 # a list of words
  {
    run longnet_ring "devices $ring; ring $ring;" $small --out "$TMP/copies.npy" &&
      run longnet_ring "$by_nccl" $small --out "$TMP/one.npy" &&
      cmp "$TMP/copies.npy" "$TMP/one.npy" &&
      start "$by_nccl" $small --out "$TMP/many.npy" && finished &&
      cmp "$TMP/copies.npy" "$TMP/many.npy"
  }
}
is "NCCL, in one process and in $ring: the bits that copies give" same_bits

# Rows that no process has whole, and of the output those that are checked.
checked() {
  # shellcheck disable=SC2086 # a list of words
  start "$by_nccl layout zigzag;" $small --check && finished &&
    grep '^good' "$TMP/rank.0"
}
is "processes make their own rows and are checked" checked

mesh_of_processes() {
  # shellcheck disable=SC2086 # a list of words
  ring=4 && start 'devices 4; ring 2; heads 2; link nccl;' $small --check &&
    finished && grep '^good' "$TMP/rank.0"
}
four_gpus() {
  is "NCCL, some branches gather: the same bits" \
    some_gather 'devices 4; ring 4; link nccl;'
  three=$ring
  is "NCCL, a mesh of four processes" mesh_of_processes
  ring=$three
}
if [ "$gpus" -eq 0 ]; then
  EMULATED_ORDER=late
  check longnet_ring "$by_nccl exchange gather; layout zigzag;" -D w=16 --seq 60
  EMULATED_ORDER=now
  check softcap "$by_nccl" --seq 40 --batch 2 --repeat 3
  FAKE_DEVICES=4
  check decode_gqa 'devices 4; ring 2; heads 2; link nccl;' --seq 1 --keys 60
  four_gpus
  FAKE_DEVICES=3
else
  check longnet_ring "$by_nccl exchange gather; layout zigzag;" -D w=64 --seq 5000
  check causal "$by_nccl" --seq 4096
  check decode_gqa "devices $ring; ring $((ring / 2)); heads 2; link nccl;" \
    --seq 900
  [ "$gpus" -lt 4 ] || four_gpus
fi
told

# The GPU of a process is that of its number on the host; two of one are refused.
started() { # local ranks, options...
  locals=$1
  shift
  on longnet_ring "$by_nccl"
  pids= rank=0
  rm -f "$TMP/meet"* "$TMP/rank".*
  for own in $locals; do
    DIL_MEET=$TMP/meet RANK=$rank WORLD_SIZE=$ring LOCAL_RANK=$own "$DIL" run \
      "$TMP/longnet_ring.dil" --topology t --device cuda --random 7 "$@" \
      >"$TMP/rank.$rank" 2>&1 &
    pids="$pids $!"
    rank=$((rank + 1))
  done
}
local_ranks() {
  # shellcheck disable=SC2086 # a list of words
  started "$(seq -s ' ' $((ring - 1)) -1 0)" $few --check && finished &&
    grep '^good' "$TMP/rank.0"
}
is "the GPU of a process by its number on the host" local_ranks
one_gpu() {
  # shellcheck disable=SC2086
  started "$(seq $ring | sed 's/.*/0/')" $few
  finished && return 1
  grep "NCCL cannot join the ranks" "$TMP/rank.0"
}
is "two processes of one number" one_gpu
no_gpu() {
  LOCAL_RANK=200 RANK=0 DIL_MEET=$TMP/meet run longnet_ring "$by_nccl" --seq 48
  grep -q "LOCAL_RANK is 200, and this host has $1 GPUs" "$TMP/said"
}
is "a number beyond the GPUs" no_gpu "$([ "$gpus" -gt 0 ] && echo "$gpus" || echo 3)"

is "a whole run of the ranks" works
is "a rank is killed" strike KILL gone
is "a rank is frozen" strike STOP silent

# Processes that meet at a port of this host.
port=$((30000 + $$ % 20000))
meet=localhost:$port
by_port() {
  # shellcheck disable=SC2086 # a list of words
  start "$by_nccl" $small --out "$TMP/port.npy" && finished &&
    cmp "$TMP/copies.npy" "$TMP/port.npy"
}
is "NCCL, by processes that meet at a port: the same bits" by_port
meet=localhost:$((port + 1))
lost_way() { # where, rank, words
  DIL_MEET=$1 DIL_RANK=$2 run longnet_ring "$by_nccl" --seq 48 && return 1
  grep -q "$3" "$TMP/said"
}
is "no port to meet at" lost_way localhost:0 0 "'localhost:0' is no HOST:PORT"
is "no rank to meet as" lost_way localhost:1 '' 'say DIL_RANK=0'
is "no rank of these" lost_way localhost:1 9 DIL_RANK
is "a rank of those is killed" strike KILL gone
meet=localhost:$((port + 2))
is "a rank of those is frozen" strike STOP silent
meet=

# Those left go on by a new communicator. (Where some are struck within the run and
# some behind it, NCCL's own way is in progress until time is up.)
shrinks() { # signal, word of the message, way to another communicator
  goes_on "$1" "$2" --out && grep -q '^good' "$TMP/rank.0" &&
    { [ -n "${3:-}" ] || ! grep NCCL "$TMP/rank.0" | grep -v progress; } &&
    grep -q "${3:-good}" "$TMP/rank.0"
}
DIL_LOG=warning
export DIL_LOG
is "those left after a killed rank go on" shrinks KILL gone
is "those left after a frozen rank go on" shrinks STOP silent
meet=localhost:$((port + 3))
is "those left after a killed rank go on, by a port" shrinks KILL gone
meet=localhost:$((port + 4))
# The half of those that met at a port might be the half that stands still.
ends() {
  struck STOP --repeat $many --shrink || return 1
  [ $ended -ne 0 ] && grep -q '1 of 2 ranks cannot tell' "$TMP/rank.0"
}
if [ $ring -gt 2 ]; then
  is "those left after a frozen rank go on, by a port" shrinks STOP silent
else
  is "one of two ends where the other is frozen, by a port" ends
fi
meet=
if [ "$gpus" -eq 0 ]; then
  FAKE_NCCL=22600
  export FAKE_NCCL
  is "those left go on by a new communicator" shrinks KILL gone \
    "no ncclCommShrink, which came with 2.27: the ranks that are left make"
  unset FAKE_NCCL
  EMULATED_NCCL_LOSE=2 # until one is left
  export EMULATED_NCCL_LOSE
  alone() {
    run longnet_ring "$by_nccl" --seq 48 -D w=16 --repeat 2 --shrink --check &&
      grep -q "2 ranks go on, without .*NCCL says remote" "$TMP/said" &&
      grep -q "1 rank goes on, without .*NCCL says remote" "$TMP/said"
  }
  is "threads that are left go on" alone
  unset EMULATED_NCCL_LOSE
fi
unset DIL_LOG

# What NCCL refuses or loses, in one process and in several.
fails() { # words of rank 0's message
  # shellcheck disable=SC2086 # a list of words
  {
    run longnet_ring "$by_nccl" $few >"$TMP/one" 2>&1 && return 1
    start "$by_nccl" $few
    for pid in $pids; do
      wait "$pid" && return 1
    done
  }
  cat "$TMP/one" "$TMP/rank.0"
  grep -q "error: .*$1" "$TMP/one" && grep -q "error: .*$1" "$TMP/rank.0"
}
if [ "$gpus" -eq 0 ]; then
  EMULATED_NCCL_REFUSE=0
  export EMULATED_NCCL_REFUSE
  is "NCCL refuses a rank" fails "NCCL cannot join the ranks: unhandled system"
  unset EMULATED_NCCL_REFUSE
  EMULATED_NCCL_LOSE=2
  export EMULATED_NCCL_LOSE
  is "NCCL loses a rank" fails "lost rank . in step .: NCCL says remote process"
  unset EMULATED_NCCL_LOSE
  FAKE_NCCL=21300
  export FAKE_NCCL
  is "an NCCL that is too old" fails "NCCL 2.13 is too old, 2.14 is wanted"
  unset FAKE_NCCL
fi

if command -v mpirun >/dev/null; then
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM
  by_mpi() {
    on longnet_ring "$by_nccl"
    # shellcheck disable=SC2086 # a list of words
    mpirun --oversubscribe -n $ring "$DIL" run "$TMP/longnet_ring.dil" \
      --topology t --device cuda --random 7 $small --out "$TMP/mpi.npy" &&
      cmp "$TMP/copies.npy" "$TMP/mpi.npy"
  }
  is "NCCL, as an MPI job" by_mpi
fi
exit $bad
