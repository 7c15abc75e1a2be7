#!/bin/sh
# emulator.sh - GPU kernels where there is no GPU: a share of the numeric suites,
# random patterns and rings on emulated devices (emulator/README.md). In: BUILD,
# TMP, FUZZ_SEED, EMULATED_SHARE (one of so many groups of comparisons; `make
# check-long` asks for four times as many). Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh
leave_unless_emulated "kernels on the processor"
share=${EMULATED_SHARE:-48}
seed=${FUZZ_SEED:-1}
export LD_LIBRARY_PATH="$BUILD/emulator" DIL_TEST_DEVICE=cuda CK_FORK=no
export EMULATED_SEED="$seed" DIL_TEST_SHARE="$((seed % share))/$share"
export DIL_TEST_LATE=1 # kernels that no call takes are not compiled

# Numeric suites and random patterns on a chip.
compare() { # chip, patterns, suites...
  export FAKE_CHIP="$1"
  patterns=$2
  shift 2
  for suite; do
    "$BUILD/tests/test_$suite" >"$TMP/$suite on sm_$FAKE_CHIP" 2>&1
  done
  "$BUILD/tests/fuzz/fuzz_pattern" --count "$patterns" --seed "$seed" \
    >"$TMP/patterns on sm_$FAKE_CHIP" 2>&1
  extreme_scores
  checked
}

# A ring of devices whose work is done as late as may be, and in any order.
cat >"$TMP/ring.dil" <<'END'
pattern p { heads 2; head_dim 32; dtype bf16; causal;
            segments 64, 128, 256; dilations 1, 2, 4; }
topology four { devices 4; ring 4; link thread; }
END
rings() {
  for order in late random; do
    EMULATED_CHECK=1 FAKE_DEVICES=4 EMULATED_ORDER=$order "$BUILD/dil" run "$TMP/ring.dil" \
      --topology four --seq 256 --random 1 --device cuda --check \
      >"$TMP/ring, $order" 2>&1
  done
  EMULATED_CHECK=1 FAKE_DEVICES=4 EMULATED_ORDER=random "$BUILD/dil" run \
    "$TMP/ring.dil" --topology four --seq 300 --random 1 --device cuda --backward \
    --check >"$TMP/gradients of a ring" 2>&1
  "$BUILD/tests/fuzz/fuzz_pattern" --ring --count 2 --seed "$seed" \
    >"$TMP/gradients of ranks" 2>&1
}

# Every access is looked at where blocks are chosen by matrix products, where a
# list holds a key twice, and where tiles are sorted by the lengths of lists.
cat >"$TMP/chosen.dil" <<'END'
pattern p { heads 4 kv 2; head_dim 72; dtype bf16; causal; block 16;
            keep top 3 by mean each; branch { } }
END
cat >"$TMP/keys.dil" <<'END'
pattern p { heads 2; head_dim 16; dtype f16; input cols : i32[*];
            branch { keys cols; } }
END
printf '\223NUMPY\1\0\166\0%-117s\n\7\0\0\0\7\0\0\0\11\0\0\0' \
  "{'descr': '<i4', 'fortran_order': False, 'shape': (3,), }" >"$TMP/cols.npy"
printf '\223NUMPY\1\0\166\0%-117s\n\377\377\377\377\377\377\377\377' \
  "{'descr': '<i4', 'fortran_order': False, 'shape': (2,), }" >"$TMP/none.npy"
cat >"$TMP/many.dil" <<'END'
pattern p { heads 4 kv 2; head_dim 64; dtype bf16; causal; block 64, 32;
            input rows : i32[H, nbq + 1]; input cols : i32[H, *];
            keep from rows, cols; branch { } }
END
cat >"$TMP/uneven.dil" <<'END'
pattern p { heads 4; head_dim 64; dtype f16; block 32;
            keep mass 0.6, 9 by mean; branch { } }
END
# Rows of a tile that choose apart, and key blocks that tiles do not meet.
cat >"$TMP/rows.dil" <<'END'
pattern p { heads 2; head_dim 64; dtype bf16; block 1, 96;
            keep top 2 by mean each; branch { } }
END
# A choice beside a list: what the one makes comes back, the other's table does not.
cat >"$TMP/both.dil" <<'END'
pattern p { heads 4 kv 2; head_dim 64; dtype bf16; block 8, 4;
            input rows : i32[H, nbq + 1]; input cols : i32[H, *];
            branch { keep top 5 by mean; } branch { keep from rows, cols; } }
END
checked() {
  for run in 'chosen --seq 150' "keys --seq 40 --input cols=$TMP/cols.npy" \
             "keys --seq 20 --keys 0 --input cols=$TMP/none.npy" \
             'many --seq 700 --input rows=random --input cols=random' \
             'both --seq 300 --input rows=random --input cols=random' \
             'uneven --seq 700' 'uneven --seq 200 --backward' \
             'rows --seq 250'; do
    # shellcheck disable=SC2086 # words
    EMULATED_CHECK=1 "$BUILD/dil" run "$TMP/"${run%% *}.dil ${run#* } --random 1 \
      --device cuda --check || echo "not ok $run"
  done >"$TMP/checked accesses on sm_$FAKE_CHIP" 2>&1
}

# Scores so large that f32 rounds their products by more than a weight's range,
# and so small that 8 / scale is infinite.
cat >"$TMP/extreme.dil" <<'END'
pattern p { heads 2; head_dim 32; dtype bf16; causal; scale runtime;
            segments 32, 64; dilations 1, 2; }
END
extreme_scores() {
  for scale in 1e8 -1e30 1e-38; do
    "$BUILD/dil" run "$TMP/extreme.dil" --seq 130 --random 1 --scale $scale \
      --device cuda --check
  done >"$TMP/extreme scores on sm_$FAKE_CHIP" 2>&1
}

# Gradients by the Hopper kernels, which the trace names, and by the general ones
# where a value is not finite. The two of 64 make dK and dV at once.
cat >"$TMP/d64.dil" <<'END'
pattern p { heads 4 kv 2; head_dim 64; dtype bf16; causal; phase kv;
            branch { segment 128; dilation 2; } }
END
sed 's/bf16/f16; dropout 0.2/' "$TMP/d64.dil" >"$TMP/dropout.dil"
sed 's/head_dim 64/head_dim 192 value 128/' "$TMP/d64.dil" >"$TMP/d192.dil"
sed 's/causal;/causal; score s - 0.1 * (h + 1) * abs(i - j) + 0.02 * i;/' \
  "$TMP/dropout.dil" >"$TMP/slopes.dil"
sed 's/causal;/score 3 * tanh(s \/ 3);/' "$TMP/d64.dil" >"$TMP/cap.dil"
sed 's/causal;/window 90, 9; score s * s - 0.1 * s * (i - j);/' \
  "$TMP/dropout.dil" >"$TMP/power.dil"
sed 's/causal;/score s * (1 + 0.1 * s);/' "$TMP/d192.dil" >"$TMP/power192.dil"
sed 's/causal;/causal; mask (i + j + h) % 3 > 0 || i - j < 40;/' "$TMP/d64.dil" \
  >"$TMP/masks.dil"
sed 's/causal;/mask i * j % 3 < 2; score 3 * tanh(s \/ 3);/' "$TMP/dropout.dil" \
  >"$TMP/hidden.dil"
cat >"$TMP/longnet.dil" <<'END'
pattern p { heads 4; head_dim 64; dtype f16; causal; segments 32, 64; dilations 1, 2; }
END
cat >"$TMP/blocks.dil" <<'END'
pattern p { heads 4 kv 2; head_dim 128; dtype bf16; block 64;
            keep hash(h, bi, bj) % 10 < 4 || bi == bj; branch { } }
END
cat >"$TMP/chosen.dil" <<'END'
pattern p { heads 4 kv 2; head_dim 64; dtype f16; causal; block 64;
            keep top 2 by mean; branch { } }
END
# Keys that no query chooses: nobody waits for the facts of their blocks. The seeds are
# those with which the warp of facts once waited for ever.
cat >"$TMP/unseen.dil" <<'END'
pattern p { heads 2; head_dim 128; dtype bf16; block 128;
            keep mass 0.7, 2 by mean each; branch { } }
END
unseen_keys() {
  EMULATED_SEED=3 "$BUILD/dil" run "$TMP/unseen.dil" --seq 140 --keys 300 --random 2 \
    --device cuda --backward --check
}
cat >"$TMP/each.dil" <<'END'
pattern p { heads 4 kv 2; head_dim 64; dtype bf16; causal;
            branch { dilation 20; phase each - 3; } }
END
cat >"$TMP/strided.dil" <<'END'
pattern p { heads 2; head_dim 64; dtype bf16; causal;
            mask i - j < 20 || (i - j) % 32 == 0; branch { } }
END
# Passes with facts of their own: by their softmax, and by their own o.
cat >"$TMP/mean.dil" <<'END'
pattern p { heads 4 kv 2; head_dim 64; dtype bf16; causal; phase kv; combine mean;
            branch { segment 64; } branch { dilation 2; heads 0..1; } }
END
cat >"$TMP/detached.dil" <<'END'
pattern p { heads 2; head_dim 48; dtype f16; gradient detached; phase block;
            branch { segment 64; sink 0.5; } branch { segment 128; dilation 2; } }
END
# One kernel makes all gradients where their order is free.
for name in d64 dropout d192 each; do
  cp "$TMP/$name.dil" "$TMP/any-$name.dil"
  echo 'schedule free { gradient_order any; } kernel k = p with free;' \
    >>"$TMP/any-$name.dil"
done
sed 's/head_dim 64/head_dim 128/' "$TMP/any-d64.dil" >"$TMP/any-d128.dil"
sed 's/f16/bf16/' "$TMP/any-dropout.dil" >"$TMP/any-bf16.dil"
# A gradient of lse that makes the delta of one row of one pass large.
cat >"$TMP/any-detached.dil" <<'END'
pattern p { heads 1; head_dim 64; dtype f16; gradient detached;
            branch { } branch { window 3, 0; } }
schedule free { gradient_order any; } kernel k = p with free;
END
{
  printf '\223NUMPY\1\0\166\0%-117s\n' \
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 128), }"
  head -c 480 /dev/zero
  printf '\0\0\200\103' # 256
  head -c 28 /dev/zero
} >"$TMP/dlse.npy"
hopper_gradients() { # file, kernels, options
  file=$1 kernels=$2
  shift 2
  DIL_TRACE="$TMP/gradients.json" "$BUILD/dil" run "$TMP/$file.dil" \
    --seq 170 --keys 230 --random 1 --device cuda --backward --check "$@" &&
    for made in $kernels; do
      grep -q "hopper gradient $(echo "$made" | tr : ' ')" "$TMP/gradients.json" ||
        echo "not ok: no kernel of Hopper made $made"
    done
}

# The same of a library, whose calls are whole sequences.
library_gradients() { # file, its kernel
  DIL_TRACE="$TMP/library.json" sh -c '"$0" build "$1.dil" --backward --cuda sm_90a \
    -o "$1" && "$0" run --library "$1.so" --kernel "$2" --seq 170 --keys 230 \
    --random 1 --device cuda --backward --check' "$BUILD/dil" "$TMP/$1" "$2" &&
    for made in dq dkv; do
      grep -q "hopper gradient $made" "$TMP/library.json" ||
        echo "not ok: no kernel of Hopper made $made of a library"
    done
}

# Gradients take what the run forward kept: a kernel that makes it is launched once a
# pass, and not for gradients again. States are no workspace then, as `explain` says.
kept() { # file, kernel, its launches, options
  file=$1 kernel=$2 times=$3
  shift 3
  rm -f "$TMP/$file.launches"
  EMULATED_LAUNCHES="$TMP/$file.launches" "$BUILD/dil" run "$TMP/$file.dil" "$@" \
    --random 1 --device cuda --backward >"$TMP/kept" ||
    echo "not ok: no gradients of $file"
  found=$(grep -c "^$kernel " "$TMP/$file.launches")
  [ "$found" = "$times" ] ||
    echo "not ok: $found launches of $kernel for $file, in place of $times"
}
same_workspace() { # file, options
  file=$1
  shift
  told=$("$BUILD/dil" explain "$TMP/$file.dil" "$@" --backward --cuda sm_90 |
    sed -n 's/.*written; workspace //p')
  ran=$(sed -n 's/^code.*, workspace //p' "$TMP/kept")
  [ "$told" ] && [ "$told" = "$ran" ] ||
    echo "not ok: gradients of $file take '$ran', and explain says '$told'"
}

# The kernels of a call with more rows than keys, or with lengths. Chosen blocks have
# kernels that walk lists.
made_by_hopper() { # file, options
  file=$1
  shift
  case $file in chosen) kind="list gradient" ;; *) kind=gradient ;; esac
  "$BUILD/dil" run "$TMP/$file.dil" --random 1 --device cuda --backward --check \
    "$@" >"$TMP/made" 2>&1
  cat "$TMP/made"
  grep -q "^grads *by hopper $kind dkv.*hopper $kind dq" "$TMP/made" ||
    echo "not ok: no kernel of Hopper made $file $*"
}

# Which kernels take a case is asked of all cases: an NVRTC that only counts makes
# them, and they compute nothing. No other test may find these kernels.
taken() {
  for suite in hopper hopper_grid hopper_gather hopper_block_list numeric; do
    env -u DIL_TEST_STORE DIL_CACHE=off DIL_TEST_TAKES=1 DIL_TEST_SHARE=0/1 \
      LD_LIBRARY_PATH="$BUILD/counting:$BUILD/emulator" FAKE_CHIP=90 \
      "$BUILD/tests/test_$suite" >"$TMP/what $suite takes on sm_90" 2>&1
  done
}

# Two chips at once, a processor each.
compare 80 12 edges packed pages choice linked_ranks gradients_cuda grid_kernels &
{
  taken
  compare 90 6 edges numeric pages choice hopper hopper_grid hopper_gather \
    hopper_block_list decode shards grid_kernels gradients_cuda
  "$BUILD/tests/fuzz/fuzz_pattern" --hopper --grids --count 6 --seed "$seed" \
    >"$TMP/grids for Hopper on sm_90" 2>&1
  "$BUILD/tests/fuzz/fuzz_pattern" --hopper --grids --backward --count 2 --seed "$seed" \
    >"$TMP/gradients of grids for Hopper on sm_90" 2>&1
  "$BUILD/tests/fuzz/fuzz_pattern" --hopper --choices --count 4 --seed "$seed" \
    >"$TMP/choices for Hopper on sm_90" 2>&1
  "$BUILD/tests/fuzz/fuzz_pattern" --hopper --count 12 --seed "$seed" \
    >"$TMP/patterns for Hopper on sm_90" 2>&1
  "$BUILD/tests/fuzz/fuzz_pattern" --hopper --packed --count 6 --seed "$seed" \
    >"$TMP/packed calls for Hopper on sm_90" 2>&1
  "$BUILD/tests/fuzz/fuzz_pattern" --hopper --packed --backward --count 2 --seed "$seed" \
    >"$TMP/gradients of packed calls for Hopper on sm_90" 2>&1
  rings
  {
    hopper_gradients d64 'dq dkv'
    hopper_gradients dropout 'dq:dropout dkv:dropout' --train --seed 5
    hopper_gradients d192 'dq dk dv'
    made_by_hopper d64 --seq 230 --keys 170
    library_gradients d64 p
    hopper_gradients any-d64 dqkv -k k
    hopper_gradients any-d128 'dq dkv' -k k
    hopper_gradients any-dropout 'dq:dropout dkv:dropout' -k k --train --seed 5
    hopper_gradients any-bf16 'dqkv:dropout' -k k --train --seed 5
    hopper_gradients any-d192 'dq dk dv' -k k
    hopper_gradients any-each dqkv -k k
    printf '\223NUMPY\1\0\166\0%-117s\n\310\0\0\0\144\0\0\0' \
      "{'descr': '<i4', 'fortran_order': False, 'shape': (2,), }" \
      >"$TMP/lengths.npy"
    made_by_hopper d64 --seq 170 --keys 230 --batch 2 --lengths "$TMP/lengths.npy"
    printf '\223NUMPY\1\0\166\0%-117s\n\0\0\0\0\1\0\0\0\110\0\0\0\276\0\0\0' \
      "{'descr': '<i4', 'fortran_order': False, 'shape': (4,), }" >"$TMP/offsets.npy"
    made_by_hopper d64 --offsets "$TMP/offsets.npy"
    made_by_hopper longnet --offsets "$TMP/offsets.npy"
    # A trace cuts names after 31 characters.
    hopper_gradients slopes 'dq:scores:drop dkv:scores:drop' --train --seed 5
    hopper_gradients cap 'dq:scores dkv:scores'
    hopper_gradients power 'dq:scores:drop dkv:scores:drop' --train --seed 5
    hopper_gradients power192 'dq:scores dk:scores dv:scores'
    for name in slopes cap power; do
      made_by_hopper $name --seq 170 --keys 230 --batch 2 --lengths "$TMP/lengths.npy"
    done
    hopper_gradients masks 'dq:pairs dkv:pairs'
    hopper_gradients hidden 'dq:pairs:score dkv:pairs:scor' --train --seed 5
    hopper_gradients blocks 'dq:pairs dkv:pairs'
    made_by_hopper chosen --seq 333 --batch 2
    unseen_keys
    for name in masks hidden blocks; do
      made_by_hopper $name --seq 170 --keys 230 --batch 2 --lengths "$TMP/lengths.npy"
    done
    made_by_hopper blocks --seq 230 --keys 170
    made_by_hopper each --seq 201 --keys 277
    made_by_hopper each --seq 250 --keys 210 --batch 2 --lengths "$TMP/lengths.npy"
    made_by_hopper strided --seq 333
    made_by_hopper mean --seq 170 --keys 230
    kept chosen dil_choose 1 --seq 333
    for name in mean detached; do
      kept $name hopper_forward 2 --seq 300
      same_workspace $name --seq 300
      # Sums of several passes are rounded by the Hopper kernels, once for each.
      grep -q '^hopper_settle ' "$TMP/$name.launches" ||
        echo "not ok: nothing settled the sums of $name"
    done
    made_by_hopper detached --seq 200
    "$BUILD/dil" run "$TMP/any-detached.dil" -k k --seq 128 --random 1 \
      --device cuda --backward --check --dlse "$TMP/dlse.npy"
  } >"$TMP/gradients on sm_90" 2>&1
} &
wait
for log in "$TMP"/*" on sm_"* "$TMP"/ring,*; do
  if grep -q '^100%: Checks\|^ok \|^good ' "$log" &&
    ! grep -q '^not ok\|^BAD\|error:' "$log"; then
    echo "ok $(basename "$log")"
  else
    echo "not ok $(basename "$log")"
    head -c 3000 "$log"
    bad=1
  fi
done

# What was compiled once is not again: neither kernels nor what goes beside them.
sed 's/^topology.*/topology two { devices 2; ring 2; }/' "$TMP/ring.dil" \
  >"$TMP/warm.dil"
warm() { # options
  for turn in cold warm; do
    FAKE_CHIP=80 DIL_TRACE="$TMP/$turn" "$BUILD/dil" run "$TMP/warm.dil" \
      --seq 100 --random 1 --device cuda "$@" || return 1
  done
  grep -q nvrtc "$TMP/cold" && not grep nvrtc "$TMP/warm"
}
is "a warm start with the peak" warm --json
is "a warm start of ranks" warm --topology two
DIL_CACHE_DIR=$TMP/other
export DIL_CACHE_DIR
is "a warm start of a stream" warm --stream=600K
exit $bad
