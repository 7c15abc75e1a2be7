#!/bin/sh
# gpu-ring-back.sh - gradients of rings of GPUs, as gpu-ring.sh tests the run
# forward: the oracle's results, the bits of NCCL and of copies, kept sums, ranks
# that are killed or frozen. In: BUILD, DIL, TMP. Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/rings.sh

# ---- against the oracle --------------------------------------------------------------

back() { # example, topology, options...
  example=$1 topology=$2
  shift 2
  beside is "gradients, $example: $topology" run "$example" "$topology" --backward \
    --check "$@"
}

# A pattern of this script, in whose gradients all has a part: a delta of each branch,
# dropout, sinks, scores with inputs, half a group of heads.
patterns=$TMP
written() { # name, words of the pattern
  printf '%s\n' "pattern $1 { heads 4 kv 2; head_dim 24 value 16;" "$2 }" \
    'topology one { devices 1; }' >"$patterns/own_$1.dil"
}
written apart 'dtype f32; causal; gradient detached; dropout 0.2;
  input z : f32[H] gradient; input w : f32[H] gradient; sink z[h];
  branch { segment 16; score s * w[h]; }
  branch { segment 64; dilation 4; phase cycle; sink 0.5 * z[h]; }'
written means 'dtype bf16; combine mean; input z : f32[H] gradient; sink z[h];
  branch { segment 16; sink 0.5 * z[h]; } branch { segment 64; dilation 4; }
  branch { window 8, 8; }'
written biased 'dtype f32; causal; input t : f32[B, N] gradient;
  input e : f32[H, 64] gradient; branch { } mask (i * 7 + j) % 5 != 0;
  score s + t[b, j] + e[h, min(i - j, 63)];'
written drops 'dtype f16; causal; dropout 0.2; branch { }'
# Rows of 81 numbers: what follows them in a message is aligned to 4 bytes.
printf 'pattern odd { heads 2 kv 1; head_dim 64 value 17; dtype f32; combine sum;\n%s\n%s }\n' \
  'branch { segment 124; } branch { segment 44; dilation 7; }' 'branch { segment 96; }' \
  >"$patterns/own_odd.dil"
run_own() { # name, topology, options...
  sed '/^topology/d' "$patterns/own_$1.dil" >"$TMP/$1.dil"
  echo "topology t { $2 timeout 60s; }" >>"$TMP/$1.dil"
  example=$TMP/$1.dil
  shift 2
  "$DIL" run "$example" --topology t --device cuda --random 7 "$@"
}
own() { # name, topology, options...
  example=$1 topology=$2
  shift 2
  beside is "gradients, $example: $topology" run_own "$example" "$topology" --backward \
    --check "$@"
}

# Random numbers and one infinity in dO: the fast kernels mark the rows whose sums
# are not finite, and the general ones make these alone.
infinite() { # topology
  printf '%s\n' 'pattern marked { heads 2; head_dim 64; dtype bf16; causal;' \
    'branch { segment 200; } branch { dilation 4; } }' >"$TMP/marked.dil"
  echo "topology t { $1 timeout 60s; }" >>"$TMP/marked.dil"
  python3 -c '
import random, struct, sys
random.seed(3)
head = b"{\x27descr\x27: \x27<f4\x27, \x27fortran_order\x27: False, " \
    b"\x27shape\x27: (1, 400, 2, 64)}"
head += b" " * (117 - len(head)) + b"\n"
rows = [random.gauss(0, 1) for _ in range(51200)]
rows[130 * 128 + 5] = float("inf")
open(sys.argv[1], "wb").write(b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + head
                              + struct.pack("<51200f", *rows))' "$TMP/do.npy" || return 1
  "$DIL" run "$TMP/marked.dil" --topology t --device cuda --seq 400 --random 7 \
    --backward --do "$TMP/do.npy" --check
}

gradients() { # queries
  back decode_gqa 'devices 6; ring 2; heads 3; layout striped;' --seq "$1"
  back decode_gqa 'devices 12; heads 12;' --seq "$1"
  back headsplit_mean 'devices 6; ring 2; heads 3;' --seq $(($1 * 8))
  back random_hash 'devices 3; heads 3;' --seq $(($1 * 2))
  back alibi 'devices 4; ring 2; heads 2; exchange gather;' --seq "$1" \
    --input slope=random
  back union 'devices 3; ring 3; layout zigzag;' --seq "$1"
  back gpt_oss 'devices 3; ring 3;' --seq "$1" --input z=random
  # Queries come where they are few, and the rows of all ranks stand apart.
  back dense 'devices 3; ring 3; layout striped;' --seq 30 --keys $(($1 * 2))
  own apart 'devices 4; ring 2; heads 2; layout zigzag;' --seq "$1" \
    --input z=random --input w=random --train --dlse random
  own apart 'devices 3; ring 3; layout striped;' --seq 30 --keys $(($1 * 2)) \
    --input z=random --input w=random
  own means 'devices 3; ring 3; layout zigzag;' --seq "$1" --input z=random
  own means 'devices 4; ring 2; batch 2;' --seq "$1" --input z=random # no rows
  own odd 'devices 6; ring 3; heads 2; layout striped; exchange gather;' --seq $(($1 * 3))
  own means 'devices 3; ring 3;' --seq 30 --keys $(($1 * 2)) --input z=random
  own biased 'devices 4; heads 2; batch 2;' --seq "$1" --input t=random \
    --input e=random --batch 3 --dlse random
  own biased 'devices 4; ring 2; heads 2;' --seq "$1" --input t=random --input e=random
}

if [ "$gpus" -eq 0 ]; then
  for order in now late random; do
    EMULATED_ORDER=$order
    back longnet_ring 'devices 3; ring 3; layout zigzag;' -D w=16 --seq 100
    back causal 'devices 2; ring 2; layout zigzag; exchange gather;' --seq 60
    back softcap 'devices 4; ring 2; batch 2; layout striped;' --seq 40 --batch 2
  done
  FAKE_CHIP=90
  back longnet_ring 'devices 3; ring 3; layout striped;' -D w=16 --seq 130
  back longnet_ring 'devices 4; ring 2; heads 2; exchange gather;' -D w=16 --seq 140
  back causal 'devices 3; ring 3;' --seq 200
  own drops 'devices 4; ring 2; heads 2; layout zigzag;' --seq 300 --train
  beside is "gradients that are not finite" infinite 'devices 3; ring 3;'
  FAKE_CHIP=80
  gradients 70
else
  for ranks in 1 2 4; do
    for layout in contiguous zigzag striped; do
      shape="devices $ranks; ring $ranks; layout $layout;"
      back longnet_ring "$shape" -D w=64 --seq 5000
      back longnet_ring "$shape exchange gather;" -D w=16 --seq 3001
      back dense "$shape" --seq 1024 --keys 1500
      back causal "$shape exchange gather;" --seq 2048
      back softcap "$shape" --seq 1200 --batch 2
    done
  done
  own drops 'devices 4; ring 2; heads 2; layout zigzag;' --seq 3000 --train
  beside is "gradients that are not finite" infinite 'devices 3; ring 3;'
  gradients 900
fi
told

# ---- exchange -----------------------------------------------------------------

# A host's own ranks, each on a device of its own; the call of the whole is made by
# the processor.
host_ranks() {
  DIL_TEST_DEVICE=cuda CK_FORK=no EMULATED_ORDER=late "$BUILD/tests/test_ranks"
}
[ "$gpus" -gt 0 ] || is "ranks of a host" host_ranks

some_gather() {
  # shellcheck disable=SC2086 # a list of words
  if [ "$gpus" -gt 0 ]; then
    mixed some 'devices 4; ring 4;' --dk -D w=16 --seq 1000 --backward
  else
    mixed some "devices $ring; ring $ring;" --dk $few --backward
  fi
}
is "gradients, some branches gather: the same bits" some_gather

# ---- state ---------------------------------------------------------------------

sums_resume() {
  run causal 'devices 2; ring 2;' --seq 64 --state "$TMP/sums" --backward \
    --dk "$TMP/one.npy" && [ -e "$TMP/sums.1.back" ] &&
    run causal 'devices 2; ring 2;' --seq 64 --state "$TMP/sums" --backward --resume \
      --dk "$TMP/two.npy" && cmp "$TMP/one.npy" "$TMP/two.npy"
}
is "sums of gradients are written, and resumed to the same bits" sums_resume
other_sums() {
  run causal 'devices 2; ring 2;' --seq 64 --state "$TMP/sums" --backward --resume \
    --dlse random && return 1
  grep -q "another set of gradients" "$TMP/said"
}
is "sums of other gradients are refused" other_sums

# ---- NCCL -----------------------------------------------------------------------

leave_one_gpu
same_gradients() {
  # shellcheck disable=SC2086 # a list of words
  {
    run longnet_ring "devices $ring; ring $ring;" $small --backward \
      --dq "$TMP/dq.npy" --dk "$TMP/dk.npy" &&
      run longnet_ring "$by_nccl" $small --backward --dq "$TMP/dq1.npy" \
        --dk "$TMP/dk1.npy" &&
      cmp "$TMP/dq.npy" "$TMP/dq1.npy" && cmp "$TMP/dk.npy" "$TMP/dk1.npy" &&
      start "$by_nccl" $small --backward --dq "$TMP/dq1.npy" \
        --dk "$TMP/dk1.npy" && finished &&
      cmp "$TMP/dq.npy" "$TMP/dq1.npy" && cmp "$TMP/dk.npy" "$TMP/dk1.npy"
  }
}
is "NCCL, in one process and in $ring: the bits that copies give" same_gradients

checked_gradients() {
  # shellcheck disable=SC2086 # a list of words
  start "$by_nccl layout zigzag; exchange gather;" $small --backward --check &&
    finished && grep '^dq *good' "$TMP/rank.0" && grep '^dv *good' "$TMP/rank.0"
}
is "processes make their own rows, and their gradients are checked" checked_gradients

until=.back
is "a whole run of the ranks backward" works --backward
is "a rank is killed in a run backward" strike KILL gone --backward
is "a rank is frozen in a run backward" strike STOP silent --backward

shrinks() { # signal, word of the message
  goes_on "$1" "$2" --dk --backward && grep -q '^dk *good' "$TMP/rank.0"
}
DIL_LOG=warning
export DIL_LOG
is "those left after a killed rank go on with gradients" shrinks KILL gone
is "those left after a frozen rank go on with gradients" shrinks STOP silent
unset DIL_LOG

# Any rank, at any moment: the others name it, and the run resumes to the same bits. The
# ranks meet in a file, or at a port, where nobody sees that a process is stopped.
resumed() { # signal, word of the message
  # shellcheck disable=SC2086 # a list of words
  strike "$1" "$2" --backward &&
    start "$by_nccl" $few --backward --state "$TMP/struck" --resume \
      --dq "$TMP/dq1.npy" --dk "$TMP/dk1.npy" && finished &&
    cmp "$TMP/dq.npy" "$TMP/dq1.npy" && cmp "$TMP/dk.npy" "$TMP/dk1.npy"
}
# shellcheck disable=SC2086
is "gradients of a whole run" run longnet_ring "$by_nccl" $few --backward \
  --dq "$TMP/dq.npy" --dk "$TMP/dk.npy"
kept=yes
port=$((30000 + $$ % 20000))
for turn in $(seq "${STRIKES:-2}"); do
  hit=$((turn % ring))
  moment=$(awk -v seed="$turn" 'BEGIN { srand(seed); print rand() }')
  case $((turn % 3)) in
  1) meet=localhost:$((port + turn)) ;;
  *) meet= ;;
  esac
  case $((turn % 2)) in
  0) is "rank $hit is killed, turn $turn" resumed KILL gone ;;
  *) is "rank $hit is frozen, turn $turn" resumed STOP silent ;;
  esac
  rm -f "$TMP/struck".*
done
exit $bad
