# rings.sh - what the suites of rings of GPUs share: the GPUs, or emulated ones,
# and NCCL with them (emulator/README.md); ranks on an example, as threads and as
# processes; and a rank that is struck. In: BUILD (its bundle of `make gpu-bundle`
# where there is one), DIL, TMP. Sourced from the top of the tree.
. tests/support/ok.sh
gpus=0
fewer_blocks=
if [ -e /dev/nvidiactl ]; then
  gpus=$(nvidia-smi --list-gpus 2>/dev/null | grep -c '^GPU')
fi
if [ "$gpus" -gt 0 ]; then
  take_bundle
else
  leave_unless_emulated "no GPU here"
  LD_LIBRARY_PATH=$BUILD/emulator:${LD_LIBRARY_PATH:-}
  FAKE_CHIP=80 FAKE_DEVICES=3
  # Emulated blocks take long: half the heads of examples with twelve, and LongNet
  # without the branch of its largest dilation.
  fewer_blocks='/segment 512 \* w/d; s/heads  *12;/heads 6;/'
  export FAKE_CHIP FAKE_DEVICES
fi
nccl=$(python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0] + "/lib")' \
  2>/dev/null)
LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}${nccl:+:$nccl}
export LD_LIBRARY_PATH

# An example on a topology of this script's. Emulated ranks share few processors,
# and one may be slow; ranks that are killed or frozen have a timeout of their own.
on() { # example, words of the topology
  sed "/^topology/d; $fewer_blocks" "examples/$1.dil" >"$TMP/$1.dil"
  case $2 in *timeout*) within= ;; *) within='timeout 60s;' ;; esac
  echo "topology t { $2 $within }" >>"$TMP/$1.dil"
}

run() { # example, topology, options...
  on "$1" "$2"
  example=$TMP/$1.dil
  shift 2
  "$DIL" run "$example" --topology t --device cuda --random 7 "$@"
}

if [ "$gpus" -eq 0 ]; then
  ring=3 small='-D w=16 --seq 100' few='-D w=16 --seq 48' patience=8 many=6 gathering=1
  EMULATED_ORDER=random
  export EMULATED_ORDER
else
  ring=4 small='-D w=64 --seq 5000' few=$small patience=3 many=3000 gathering=2
  [ "$gpus" -ge 4 ] || ring=2
fi
by_nccl="devices $ring; ring $ring; link nccl;"

# One process a GPU, which meet in a file, or where `meet` says; what each says is in a
# file of its own. Sets `pids`.
start() { # topology, options...
  on longnet_ring "$1"
  shift
  pids=
  rank=0
  rm -f "$TMP/meet"* "$TMP/rank".*
  while [ $rank -lt $ring ]; do
    DIL_MEET=${meet:-$TMP/meet} DIL_RANK=$rank "$DIL" run "$TMP/longnet_ring.dil" \
      --topology t --device cuda --random 7 "$@" >"$TMP/rank.$rank" 2>&1 &
    pids="$pids $!"
    rank=$((rank + 1))
  done
}

finished() { # all processes have ended well
  for pid in $pids; do
    wait "$pid" || { cat "$TMP"/rank.*; return 1; }
  done
}

# Rank 1, or rank `hit`, is struck while all of them run again and again, which state
# files tell, and `moment` seconds later; the others end, in `took` milliseconds. The
# states stay where they are `kept`.
struck() { # signal, options...
  signal=$1
  shift
  # shellcheck disable=SC2086 # a list of words
  start "$by_nccl timeout ${patience}s;" $few --state "$TMP/struck" "$@"
  for _ in $(seq 600); do
    [ -e "$TMP/struck.$((ring - 1))${until:-}" ] && break
    sleep 0.1
  done
  [ "$gpus" -eq 0 ] || sleep 1
  [ -z "${moment:-}" ] || sleep "$moment"
  victim=$(echo "$pids" | awk -v hit="${hit:-1}" '{ print $(hit + 1) }')
  for pid in $pids; do
    kill -0 "$pid" || { cat "$TMP"/rank.*; return 1; }
  done
  kill -"$signal" "$victim"
  began=$(date +%s%N)
  ended=0
  for pid in $pids; do
    [ "$pid" = "$victim" ] || wait "$pid" || ended=$?
  done
  took=$((($(date +%s%N) - began) / 1000000))
  kill -KILL "$victim" 2>/dev/null
  wait "$victim"
  [ -n "${kept:-}" ] || rm -f "$TMP/struck".*
  echo "took $took ms"
  grep . "$TMP"/rank.*
}

# Some branches gather, where memory is short, or all rotate: the same bits, and as
# much moves.
mixed() { # how many gather, or some; topology, option of the result, options...
  gather=$1 shape=$2 result=$3
  shift 3
  for way in ring auto; do
    DIL_GATHER_MAX=100K run longnet_ring "$shape exchange $way;" "$@" \
      "$result" "$TMP/$way.npy" --json >"$TMP/$way.json" || return 1
    sed 's/.*"gathered_branches": \([0-9]*\), "bytes_moved": \([0-9]*\).*/\1 \2/' \
      "$TMP/$way.json"
  done >"$TMP/moved"
  cat "$TMP/moved"
  cmp "$TMP/ring.npy" "$TMP/auto.npy" && awk -v gather="$gather" '
    { n[NR] = $1; moved[NR] = $2 }
    END { exit !(n[1] == 0 && moved[1] == moved[2] &&
                 (gather == "some" ? n[2] > 0 : n[2] == gather)) }' "$TMP/moved"
}

# Of one GPU there is no ring by NCCL: ends a script.
leave_one_gpu() {
  [ "$gpus" -ne 1 ] || leave NCCL "left out, it wants two GPUs"
}

# Those left after a struck rank go on, to what so few ranks give.
goes_on() { # signal, word of the message, option of the result, options...
  fate=$2 result=$3
  struck "$1" --repeat $many --shrink --check "$result" "$TMP/left.npy" \
    ${4:+"$4"} || return 1
  # shellcheck disable=SC2086 # a list of words
  run longnet_ring "devices $((ring - 1)); ring $((ring - 1));" $few ${4:+"$4"} \
    "$result" "$TMP/fewer.npy" &&
    [ $ended -eq 0 ] && grep -q "go.* on, without 1: rank 1 is $fate" "$TMP/rank.0" &&
    cmp "$TMP/left.npy" "$TMP/fewer.npy"
}

# A whole run of the ranks that will be struck, which takes `work` milliseconds.
works() { # options...
  began=$(date +%s%N)
  # shellcheck disable=SC2086 # a list of words
  start "$by_nccl" $few "$@" && finished || return 1
  work=$((($(date +%s%N) - began) / 1000000))
  echo "$work ms"
}

# Each survivor must end in time and say who it was and in which step. It ends the
# step that it has begun before it waits: emulated ranks share few processors, so
# that this may take seconds, and at most as long as a whole run.
strike() { # signal, word of the message, options...
  struck "$1" --repeat 1000000 ${3:+"$3"} || return 1
  [ $took -le $((patience * 1000 + 2000 + work)) ] || return 1
  for rank in $(seq 0 $((ring - 1))); do
    [ "$rank" -eq "${hit:-1}" ] ||
      grep -q "rank ${hit:-1} is $2.*step" "$TMP/rank.$rank" || return 1
  done
}
