#!/bin/sh
# gpu_estimate.sh - what `dil explain --device cuda` says against the run itself, on
# emulated devices (emulator/README.md): the kernels that it takes and its
# workspace. In: DIL, BUILD, TMP. Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh
leave_unless_emulated "forecasts"
export LD_LIBRARY_PATH="$BUILD/emulator"

cat >"$TMP/forced.dil" <<'END'
pattern p { heads 2; head_dim 64; dtype bf16; causal; branch { } }
schedule few { family general; parts 3; }
kernel k = p with few;
END

foretold() { # chip, options of both...
  export FAKE_CHIP="$1"
  shift
  "$DIL" explain "$@" --device cuda >"$TMP/before" || return 1
  "$DIL" run "$@" --device cuda --random 1 >"$TMP/after" || return 1
  # kernels of all passes, each once, as a run names them
  before="$(sed -n 's/^pass .*, by \(.*\), .*/\1/p' "$TMP/before" |
    awk '!seen[$0]++' | paste -sd +), $(sed -n 's/^workspace  //p' "$TMP/before")"
  after="$(sed -n 's/.*, variant \([^,]*\), .*plan .*/\1/p' "$TMP/after"), $(
    sed -n 's/.*, workspace //p' "$TMP/after")"
  echo "foretold $before"
  echo "taken    $after"
  [ "$before" = "$after" ]
}

cat >"$TMP/ranks.dil" <<'END'
pattern p { heads 2; head_dim 64; dtype bf16;
            segments 64, 256, 1024; dilations 1, 4, 8; }
topology one { devices 1; ring 1; link thread; }
topology two { devices 2; ring 2; link thread; }
END

number() { # name of a field of JSON, file
  sed -n "s/.*\"$1\": \([0-9]*\).*/\1/p" "$2"
}

# All that a lone rank has is its tensors, lse and states.
states() {
  export FAKE_CHIP=90
  set -- "$TMP/ranks.dil" --topology one --seq 1024 --force chain --json
  "$DIL" explain "$@" --device cuda >"$TMP/before" || return 1
  "$DIL" run "$@" --device cuda --random 1 --check >"$TMP/after" || return 1
  state=$(number rank_state_bytes "$TMP/before")
  tensors=$((4 * 1024 * 2 * 64 * 2 + 1024 * 2 * 4))
  echo "states $state, tensors $tensors, all $(number rank_bytes "$TMP/after")"
  [ "$state" = $((1024 / 4 * 2 * 65 * 4)) ] &&
    [ $((state + tensors)) = "$(number rank_bytes "$TMP/after")" ]
}
is "states of a rank" states
is "one pass" foretold 90 examples/longnet.dil -D w=512 --seq 300
is "a chain" foretold 90 examples/longnet.dil -D w=64 --seq 512
is "a forced chain" foretold 90 examples/longnet.dil -D w=512 --seq 300 \
  --force chain
is "the same without Hopper" foretold 80 examples/longnet.dil -D w=64 --seq 512 \
  --force chain
is "masks" foretold 90 examples/sinks.dil -D w=64 --seq 300
is "f32" foretold 90 examples/dense.dil --seq 70
is "few queries, keys in parts" foretold 90 examples/decode_gqa.dil --seq 1 \
  --keys 1500
is "too few queries for Hopper" foretold 90 examples/longnet.dil --seq 40
is "bounds of an input" foretold 90 examples/documents.dil --seq 300 \
  --input doc=random
is "a schedule" foretold 90 "$TMP/forced.dil" --seq 200
exit $bad
