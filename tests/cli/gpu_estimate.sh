#!/bin/sh
# gpu_estimate.sh - what `dil explain --device cuda` says against the run itself, on
# emulated devices (emulator/README.md): the kernels that it takes and its
# workspace. One test asks what they compute; the others have an NVRTC that only
# counts, and the emulated driver runs nothing of its cubins. In: DIL, BUILD, TMP.
# Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh
leave_unless_emulated "forecasts"
computes=$BUILD/emulator
export LD_LIBRARY_PATH="$BUILD/counting:$computes"

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
  before="$(sed -n 's/^pass .*, by \(.*\), .*/\1/p
    s/^ *by \(.*\) where its input is sorted/\1/p' "$TMP/before" |
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
  LD_LIBRARY_PATH=$computes "$DIL" run "$@" --device cuda --random 1 --check \
    >"$TMP/after" || return 1
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
cat >"$TMP/each.dil" <<'END'
pattern p { heads 2; head_dim 64; dtype bf16; causal;
  branch { dilation 40; phase each - 7; } }
END
is "every phase" foretold 90 "$TMP/each.dil" --seq 300
sed 's/dtype  *f32/dtype bf16/' examples/strided.dil >"$TMP/strided.dil"
is "a window and every phase" foretold 90 "$TMP/strided.dil" --seq 300
is "f32" foretold 90 examples/dense.dil --seq 70
is "few queries, keys in parts" foretold 90 examples/decode_gqa.dil --seq 1 \
  --keys 1500
is "too few queries for Hopper" foretold 90 examples/longnet.dil --seq 40
is "bounds of an input" foretold 90 examples/documents.dil --seq 300 \
  --input doc=random
is "a schedule" foretold 90 "$TMP/forced.dil" --seq 200

# Gradients: the kernels, the reason why others make none, and the workspace.
backward() { # chip, options of both...
  export FAKE_CHIP="$1"
  shift
  "$DIL" explain "$@" --device cuda --backward >"$TMP/before" || return 1
  "$DIL" run "$@" --device cuda --backward --random 1 >"$TMP/after" || return 1
  before="$(sed -n 's/^ *predicted [0-9.]* [a-z]* by //p
    s/^ *not by the Hopper kernels: /not: /p
    s/^ .*; workspace //p' "$TMP/before" | sort)"
  after="$(sed -n 's/^grads *by //p
    s/^ *not by the Hopper kernels: /not: /p
    s/^code .*, workspace //p' "$TMP/after" | sort)"
  echo "foretold $before"
  echo "taken    $after"
  [ "$before" = "$after" ]
}
says() { # words, chip, options...
  words=$1
  shift
  backward "$@" && grep -q "$words" "$TMP/after"
}
cat >"$TMP/sums.dil" <<'END'
pattern p { heads 2; head_dim 64; dtype bf16; combine mean;
  branch { segment 64; } branch { segment 128; dilation 2; } }
END
cat >"$TMP/slope.dil" <<'END'
pattern p { heads 2; head_dim 64; dtype bf16; input slope : f32[H] gradient;
  score s - slope[h] * abs(i - j); branch { } }
END
is "gradients by Hopper's kernels" says "hopper gradient dkv .*hopper gradient dq" \
  90 examples/longnet.dil -D w=64 --seq 300
is "gradients of several passes" says "hopper gradient dq" 90 \
  examples/longnet.dil -D w=64 --seq 300 --force chain
is "gradients of every phase" says "hopper gradient dkv .*hopper gradient dq" 90 \
  "$TMP/strided.dil" -D l=20 --seq 300
free() { # example: a kernel of its pattern whose gradients have any order
  cat "examples/$1.dil"
  echo "schedule free { gradient_order any; } kernel free = $1 with free;"
}
free longnet >"$TMP/free.dil"
is "gradients in any order" says "hopper gradient dqkv" 90 "$TMP/free.dil" \
  -k free -D w=64 --seq 300
is "gradients in any order without Hopper" says "kernels: wgmma needs sm_90a" 80 \
  "$TMP/free.dil" -k free -D w=64 --seq 300
cat >"$TMP/scores.dil" <<'END'
pattern p { heads 2; head_dim 64; dtype bf16; causal;
  branch { score s - 0.1 * (i - j); } }
pattern several { heads 2; head_dim 64; dtype bf16;
  branch { segment 64; score s - 0.1; } branch { score 2 * s; } }
pattern masked { heads 2; head_dim 64; dtype bf16; mask (i * j) % 3 > 0; branch { } }
pattern blocks { heads 2; head_dim 128; dtype bf16; block 64;
  keep hash(bi, bj) % 3 == 0; branch { } }
pattern wide { heads 2; head_dim 192; dtype bf16; mask (i * j) % 3 > 0; branch { } }
kernel alone = p; kernel two = several; kernel hidden = masked;
kernel listed = blocks; kernel broad = wide;
END
is "gradients of scores" says "hopper gradient dkv scores.*hopper gradient dq scores" \
  90 "$TMP/scores.dil" -k alone --seq 130
is "gradients of several scores" says "kernels: gradients of several kinds of scores" \
  90 "$TMP/scores.dil" -k two --seq 130
is "gradients of masks" says "hopper gradient dkv pairs.*hopper gradient dq pairs" \
  90 "$TMP/scores.dil" -k hidden --seq 130
is "gradients of blocks" says "hopper list gradient dkv.*hopper list gradient dq" \
  90 "$TMP/scores.dil" -k listed --seq 130
is "gradients of masks with wide heads" says \
  "kernels: gradients of masks with a head_dim of 192 by 192" \
  90 "$TMP/scores.dil" -k broad --seq 130
is "too few queries for them" says "kernels: fewer than 64 queries" 90 \
  examples/longnet.dil --seq 40
is "another type" says "kernels: gradients of f32" 90 \
  examples/dense.dil --seq 70
is "several softmaxes" says "hopper gradient dkv .*hopper gradient dq" 90 \
  "$TMP/sums.dil" --seq 130
is "the gradient of an input" says "inputs bf16" 90 "$TMP/slope.dil" --seq 130 \
  --input slope=random
cat >"$TMP/lists.dil" <<'END'
pattern p { heads 2; head_dim 32; dtype bf16; block 16;
  input rows : i32[2, nb + 1]; input cols : i32[2, *];
  keep from rows, cols; branch { } }
END
is "gradients of lists" says "gradient dkv" 90 "$TMP/lists.dil" --seq 304 \
  --input rows=random --input cols=random
is "gradients without Hopper" says "kernels: wgmma needs sm_90a" 80 \
  examples/longnet.dil -D w=64 --seq 300
is "gradients by the general kernels" says "kernels: --force general" 90 \
  examples/longnet.dil -D w=64 --seq 300 --force general
is "bench says so, too" sh -c "FAKE_CHIP=90 '$DIL' bench '$TMP/slope.dil' \
  --input slope=random --seq 130 --repeat 1 --device cuda --backward | grep -q 'not by the Hopper'"

# Patches of a grid, where they visit far fewer keys.
cat >"$TMP/grid.dil" <<'END'
let n = 128; let w = 13;
pattern p { heads 16; head_dim 64; dtype bf16; grid n x n;
            branch { neighborhood w x w; } }
pattern scored { heads 16; head_dim 64; dtype bf16; grid n x n;
                 branch { neighborhood w x w; mask (ix + jx) % 3 > 0; } }
schedule quickly { family fast; }
kernel quick = p with quickly;
kernel plain = p;
kernel masked = scored;
END
explained() { # words, options...
  words=$1
  shift
  "$DIL" explain "$TMP/grid.dil" --cuda sm_90a "$@" >"$TMP/patches" || return 1
  grep -q "$words" "$TMP/patches" || { cat "$TMP/patches"; return 1; }
}
is "tiles of a grid are patches" \
  explained '1408 tiles of up to 192 rows, patches of 12 x 16 cells' -k plain
is "the boxes that patches visit" explained 'keys: 5504 visited' -k plain
is "a kernel for grids" explained 'by hopper grid bf16 192x112' -k plain
is "patches of the general kernel" \
  explained '4096 tiles of up to 64 rows, patches of 8 x 8 cells' -k plain --force general
is "the keys that they visit" explained 'keys: 26688 visited' -k plain --force general
is "what stays with it" explained 'Hopper kernel: masks or scores over a grid' -k masked
is "a schedule may ask for Hopper" explained 'by hopper pairs' -k quick
is "wide neighbourhoods, too" explained 'by hopper grid bf16 192x80' -k plain -D w=101
is "gradients over a grid" \
  explained 'by hopper grid gradient dkv bf16 2x64x112' -k plain --backward
is "gradients over a grid, masked" \
  explained 'by gradient dkv bf16 64x64' -k masked --backward
is "what they stay with" \
  explained 'not by the Hopper kernels: masks or scores over a grid' -k masked --backward
is "a grid on Hopper" foretold 90 "$TMP/grid.dil" -k plain -D n=17 -D w=5
is "a grid without Hopper" foretold 80 "$TMP/grid.dil" -k plain -D n=17 -D w=5

is "rows that choose blocks for themselves" \
  foretold 90 preset:moba -D q_heads=4 -D width=64 --seq 5000
is "the kernel that gathers them" grep -q 'by hopper gather' "$TMP/before"

# Blocks that a hash keeps are lists: a tile has one list, and visits its blocks alone.
hashed() { # blocks that the kernel visits, by `explain`
  "$DIL" explain tests/bench/patterns.dil -k blocks64 -D n=16 -D d=64 --seq 16384 \
    --cuda sm_90a >"$TMP/hashed" || return 1
  cat "$TMP/hashed"
  awk '/blocks of 64 keys/ { sub(/^.*keys: /, ""); all = $1 + $7
         found = $1 > 0.045 * all && $1 < 0.055 * all }
       END { exit !found }' "$TMP/hashed"
}
is "blocks that a hash keeps" hashed
is "and the run takes them" foretold 90 tests/bench/patterns.dil -k blocks64 \
  -D n=2 -D d=64 --seq 300

# The general kernel visits the keys of a list, and no others.
cat >"$TMP/keys.dil" <<'END'
pattern k { heads 4 kv 2; head_dim 32; dtype bf16; causal; input v : i32[H, *];
            branch { keys v; } }
END
{
  printf '\223NUMPY\1\0\166\0%-117s\n' \
    "{'descr': '<i4', 'fortran_order': False, 'shape': (4, 40), }"
  head -c 640 /dev/zero
} >"$TMP/keys.npy"
listed() {
  "$DIL" explain "$TMP/keys.dil" --cuda sm_90a --seq 4096 \
    --input v="$TMP/keys.npy" >"$TMP/listed" || return 1
  cat "$TMP/listed"
  grep -q "blocks of 64 keys: 256 visited, 256 of them masked" "$TMP/listed"
}
is "keys of a list" listed
few_keys() {
  "$DIL" explain "$TMP/keys.dil" --cuda sm_90a --seq 4096 --backward \
    --input v="$TMP/keys.npy" >"$TMP/listed" || return 1
  cat "$TMP/listed"
  grep -q "kernels: a list of few keys" "$TMP/listed"
}
is "gradients of a list of few keys" few_keys

# Milliseconds on an H200 (bench/NOTES.md), foretold within 1.25 times.
near() { # measured, statements, options...
  measured=$1
  echo "pattern p { dtype bf16; $2 }" >"$TMP/near.dil"
  shift 2
  "$DIL" explain "$TMP/near.dil" "$@" --backward --cuda sm_90a --json \
    >"$TMP/near" || return 1
  sed -n 's/.*"gradients": {\([^}]*\)}.*/\1/p' "$TMP/near" |
    sed -n 's/.*"predicted_seconds": //p' |
    awk -v m="$measured" '{ r = $1 * 1e3 / m; print $1 * 1e3, "of", m
      good = r > 0.8 && r < 1.25 } END { exit !good }'
}
longnet="segments 2048, 4096, 8192; dilations 1, 2, 4;"
is "dense, D 64" near 1.64 "heads 16; head_dim 64; branch { }" --seq 2048 \
  --batch 16
is "dense, D 128" near 2.72 "heads 16; head_dim 128; branch { }" --seq 2048 \
  --batch 16
is "long and dense" near 13.0 "heads 16; head_dim 64; branch { }" --seq 16384 \
  --batch 2
is "LongNet, D 64" near 6.66 "heads 12; head_dim 64; $longnet" --seq 131072
is "LongNet, D 128" near 15.4 "heads 16; head_dim 128; $longnet" --seq 131072
is "LongNet, causal, by the general kernels" near 19.5 \
  "heads 12; head_dim 64; causal; $longnet" --seq 131072 --force general
is "causal, by the general kernels, D 64" near 13.7 \
  "heads 16; head_dim 64; causal; branch { }" --seq 16384 --force general
is "causal, by the general kernels, D 128" near 21.8 \
  "heads 16; head_dim 128; causal; branch { }" --seq 16384 --force general

# The same of runs forward, of patterns.dil.
forward() { # measured, pattern, options...
  measured=$1
  name=$2
  shift 2
  "$DIL" explain tests/bench/patterns.dil -k "$name" "$@" --cuda sm_90a \
    --json | sed -n 's/.*"predicted_seconds": \([^,}]*\).*/\1/p' | head -1 |
    awk -v m="$measured" '{ r = $1 * 1e3 / m; print $1 * 1e3, "of", m
      good = r > 1 / 1.3 && r < 1.3 } END { exit !good }'
}
is "causal" forward 1.10 past --seq 16384
is "a window" forward 0.41 sliding --seq 32768
is "a window and first keys" forward 0.475 sinks --seq 32768
is "a prefix" forward 1.11 prefix --seq 16384
is "ALiBi" forward 1.35 alibi --seq 16384
is "a soft cap" forward 2.13 softcap --seq 16384
is "blocks by numbers of the call" forward 0.593 by_gate -D n=16 -D d=128 --seq 16384
is "blocks by their means" forward 0.639 by_mean -D n=16 -D d=128 --seq 16384
is "blocks by each row" forward 0.803 by_each -D n=16 -D d=128 --seq 16384
exit $bad
