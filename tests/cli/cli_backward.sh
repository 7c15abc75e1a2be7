#!/bin/sh
# cli_backward.sh - gradients on the command line: every kind of pattern against
# the oracle, the same bits for any number of threads and from a plan's text,
# and what bench, tune and explain tell of them. In: DIL, TMP. Out: ok / not ok
# lines.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh

export DIL_CACHE=off # what compiles, compiles

checked() { # words that must come, example, options...
  words=$1
  shift
  "$DIL" run "$@" --random 3 --backward --check >"$TMP/out" 2>&1
  status=$?
  cat "$TMP/out"
  [ $status -eq 0 ] && grep -q "$words" "$TMP/out" &&
    grep -q "^dq  *good" "$TMP/out" && grep -q "^dk  *good" "$TMP/out" &&
    grep -q "^dv  *good" "$TMP/out"
}
example() { # name, options...
  name=$1
  shift
  is "gradients of $name" checked good "examples/$name.dil" "$@"
}
example dense --seq 70 --keys 50 --batch 2
example causal --seq 130
example longnet -D w=16 --seq 300
example longnet_torchscale -D w=16 --seq 200
example union -D w=16 --seq 200
example headsplit_mean --seq 150
example longformer -D w=16 --seq 150
example strided --seq 150
example softcap --seq 100
example decode_gqa --seq 20 --keys 100
example random_hash --seq 100
example blocksparse --seq 300
example documents --seq 200 --input doc=random
is "the gradient of an input" checked "^slope  *good: max difference .* of 12" \
  examples/alibi.dil --seq 90 --input slope=random
is "a gradient of lse" checked good examples/dense.dil --seq 50 --dlse random
is "the oracle took the run's o and lse" checked \
  "^saved  *the oracle takes the run's own o and lse, compared above" \
  examples/dense.dil --seq 20
echo 'pattern p { heads 2; head_dim 16; dtype f32; combine mean; causal;
  branch { segment 8; } branch { segment 16; dilation 2; } }' >"$TMP/mean.dil"
is "or none, where there is no lse" checked "^saved  *the oracle takes no o" \
  "$TMP/mean.dil" --seq 40
echo 'pattern p { heads 2; head_dim 32; dtype bf16; gradient detached;
  input z : f32[H] gradient;
  branch { segment 64; sink z[h]; } branch { dilation 2; } }' >"$TMP/detached.dil"
is "the rounding of an o that is made again is told from an error" \
  checked "^z  *good" "$TMP/detached.dil" --seq 200 --input z=random
bound_is_close() { # it was 0.13 for a difference of 0.0011
  bound=$(sed -n 's/^z .*(at most \([0-9.e-]*\)).*/\1/p' "$TMP/out")
  awk -v bound="$bound" 'BEGIN { exit !(bound > 0 && bound < 0.01) }'
}
is "by a bound that is no wider than that" bound_is_close

mesh='devices 4; ring 2; heads 2; layout zigzag; exchange gather;'
sed "s/^topology grid .*/topology mesh { $mesh }/" \
  examples/longnet_ring.dil >"$TMP/ring.dil"
is "gradients on a ring of four" checked "^ring  *4 ranks, .* between them" \
  "$TMP/ring.dil" -D w=16 --seq 600 --topology four
is "gradients on a mesh" checked "^ring  *4 ranks, .* between them" \
  "$TMP/ring.dil" -D w=16 --seq 600 --topology mesh --dlse random

ring_of_four() { # options...
  "$DIL" run "$TMP/ring.dil" -D w=16 --seq 600 --topology four --random 3 "$@"
}
# A rank that has kept its sums of the last step goes on beside one without any.
goes_on() {
  ring_of_four --backward --dq "$TMP/q.npy" --dk "$TMP/k.npy" &&
    ring_of_four --backward --state "$TMP/kept" && rm "$TMP/kept.1.back" &&
    ring_of_four --backward --state "$TMP/kept" --resume --dq "$TMP/q2.npy" \
      --dk "$TMP/k2.npy" &&
    cmp "$TMP/q.npy" "$TMP/q2.npy" && cmp "$TMP/k.npy" "$TMP/k2.npy"
}
is "gradients go on from kept sums to the same bits" goes_on
goes_on_with() { # word, options...: what the sums are not of
  word=$1
  shift
  says "is of a run with another $word: resume with" \
    ring_of_four --backward --state "$TMP/kept" --resume "$@"
}
is "not with another dO" goes_on_with dO --do "$TMP/q.npy"
is "not with a dlse that there was none of" says "has another set of gradients" \
  ring_of_four --backward --state "$TMP/kept" --resume --dlse random

# So do runs forward, of the same data.
forward_goes_on() {
  ring_of_four --out "$TMP/o.npy" && ring_of_four --state "$TMP/forward" &&
    ring_of_four --state "$TMP/forward" --resume --out "$TMP/o2.npy" &&
    cmp "$TMP/o.npy" "$TMP/o2.npy"
}
is "a run goes on from kept states to the same bits" forward_goes_on
is "not with another q" says "is of a run with another q: resume with" \
  ring_of_four --state "$TMP/forward" --resume --q "$TMP/o.npy"

# All bytes that move are foretold, K and V twice where states are made first.
foretold() { # file, options...
  "$DIL" run "$@" --random 3 --backward --json >"$TMP/ran.json" &&
    "$DIL" explain "$@" --backward --json >"$TMP/told.json" || return 1
  moved=$(sed -n 's/.*"bytes_moved": \([0-9]*\).*/\1/p' "$TMP/ran.json")
  told=$(grep -o '"backward_receives": [0-9]*' "$TMP/told.json" |
    awk '{ n += $2 } END { print n + 0 }')
  echo "moved ${moved:-nothing}, foretold $told"
  [ "${moved:-0}" -eq "$told" ] && [ "$told" -gt 0 ]
}
is "the bytes that a ring moves are foretold" foretold "$TMP/ring.dil" -D w=16 \
  --seq 600 --topology four
is "and those of a mesh" foretold "$TMP/ring.dil" -D w=16 --seq 600 \
  --topology mesh
echo 'topology pair { devices 2; }' >>"$TMP/mean.dil"
is "and with states of branches" foretold "$TMP/mean.dil" --seq 60 \
  --topology pair

# Of heads that share keys the near ones come, and of a sparse branch its queries.
cat >"$TMP/both.dil" <<'END_OF_FILE'
pattern both { heads 4 kv 2; head_dim 16; dtype f32; causal;
  branch near { segment 64; } branch far { dilation 4; } }
topology line { devices 4; }
END_OF_FILE
is "the bytes of both ways are foretold" foretold "$TMP/both.dil" --seq 300 \
  --topology line
both_ways() {
  "$DIL" explain "$TMP/both.dil" --topology line --seq 300 --backward |
    tee "$TMP/told" &&
    grep '^backward  *near  *keys come: alone .* if queries do$' "$TMP/told" &&
    grep '^  *far  *queries come: alone .* if queries do$' "$TMP/told" &&
    grep ' of k and v come, .* of dk and dv go back in f32$' "$TMP/told" &&
    grep ' of q, do, lse and delta come, .* of dq go back in f32$' "$TMP/told"
}
is "the bill says which way each branch goes" both_ways
is "gradients both ways" checked "^ring  *4 ranks, .* between them" \
  "$TMP/both.dil" --seq 300 --topology line

small="examples/longnet.dil -D w=16 --seq 200 --random 3"
same_bits() {
  "$DIL" run $small --backward --threads 1 --dq "$TMP/q1.npy" \
    --dk "$TMP/k1.npy" --dv "$TMP/v1.npy" &&
    "$DIL" run $small --backward --threads 2 --dq "$TMP/q2.npy" \
      --dk "$TMP/k2.npy" --dv "$TMP/v2.npy" &&
    cmp "$TMP/q1.npy" "$TMP/q2.npy" && cmp "$TMP/k1.npy" "$TMP/k2.npy" &&
    cmp "$TMP/v1.npy" "$TMP/v2.npy"
}
is "the same bits for one thread and two" same_bits
through_plan() {
  "$DIL" print --after plan --backward examples/longnet.dil -D w=16 \
    >"$TMP/p.plan" &&
    "$DIL" run --from plan "$TMP/p.plan" --seq 200 --random 3 --backward \
      --dq "$TMP/q3.npy" && cmp "$TMP/q1.npy" "$TMP/q3.npy"
}
is "and from a plan's text" through_plan
is "gradients written are gradients read" checked good examples/longnet.dil \
  -D w=16 --seq 200 --do "$TMP/q1.npy"

is "bench tells of the direction" json_is \
  'all[0]["direction"] == "backward" and all[0]["gradients"]["dk"]["good"]' \
  "$DIL" bench examples/dense.dil --seq 64 --repeat 2 --backward --json
is "tune races gradients" env DIL_WISDOM="$TMP/wisdom" "$DIL" tune \
  examples/dense.dil --seq 64 --backward --budget 1
is "and remembers them apart" sh -c "
  '$DIL' tune --list >$TMP/none
  DIL_WISDOM=$TMP/wisdom '$DIL' tune examples/dense.dil --seq 64 --budget 1 &&
  test \$(DIL_WISDOM=$TMP/wisdom '$DIL' tune --list | wc -l) -eq 3"
is "and of the kernels" json_is 'all[0]["gradient_kernels"] == "tiles"' \
  "$DIL" bench examples/dense.dil --seq 64 --repeat 2 --backward --json
same_workspace() { # example, options...
  example=$1
  shift
  "$DIL" explain "$example" "$@" --backward >"$TMP/before" &&
    "$DIL" run "$example" "$@" --backward --random 1 >"$TMP/after" &&
    cat "$TMP/before" "$TMP/after" &&
    grep -q "predicted .* by tiles" "$TMP/before" &&
    [ "$(sed -n 's/.*; workspace //p' "$TMP/before")" = \
      "$(sed -n 's/^code.*, workspace //p' "$TMP/after")" ]
}
is "explain tells the workspace of a run on the processor" \
  same_workspace examples/dense.dil --seq 64
is "and of several passes" same_workspace "$TMP/mean.dil" --seq 40
exit $bad
