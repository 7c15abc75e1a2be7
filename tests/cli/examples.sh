#!/bin/sh
# examples.sh - every example as a person runs it: accepted without a message,
# run on random numbers or on the real activations, and equal to the oracle.
# In: DIL, TMP. Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh
data=examples/data

quiet() { # succeeds only without a word
  "$@" >"$TMP/out" 2>&1
  status=$?
  cat "$TMP/out"
  [ $status -eq 0 ] && [ ! -s "$TMP/out" ]
}

run() { # example, options...
  name=$1
  shift
  is "run $name" "$DIL" run "examples/$name.dil" --check "$@"
}

warns_of_rows() { # its only message is that one
  says 'no branch selects' "$DIL" check "$1" &&
    [ "$(grep -c 'warning:\|error:' "$TMP/out")" -eq 1 ]
}

for file in examples/*.dil; do
  case $file in
  */headsplit_mean.dil) is "check $file" warns_of_rows "$file" ;;
  *) is "check $file" quiet "$DIL" check "$file" ;;
  esac
  is "$file opens with what it shows" \
    says "# $(basename "$file"):" head -1 "$file"
done

run adaptive --q $data/q.npy --k $data/k.npy --v $data/v.npy
run dense --seq 300 --keys 451 --random 1
run causal --seq 500 --random 1
run xattention --seq 500 --random 1 --input gate=random
run quest --seq 300 --random 1 --input gate=random
run longnet -D w=128 --seq 1000 --random 1
run longnet_torchscale -D w=100 --seq 777 --random 1
run headsplit_mean --seq 700 --random 1
run longformer -D w=64 --seq 600 --random 1
run strided -D l=32 --seq 500 --random 1
run blocksparse --seq 900 --random 1
run blocktable --seq 900 --random 1 --input kept=random
run random_hash --seq 500 --random 1
run sinks -D w=64 --seq 600 --random 1
run softcap --seq 600 --random 1 --batch 2
run gpt_oss -D w=64 --seq 300 --random 1 --input z=random
run causal --random 5 --offsets $data/offsets.npy
run decode_gqa --seq 1 --keys 3000 --random 1 --batch 3
run decode_gqa --seq 1 --keys 5000 --pages random --random 5
run neighborhood2d --random 5
run union --seq 700 --random 1
run longnet_ring -D w=32 --seq 1500 --random 1 --topology four
real="--q $data/q.npy --k $data/k.npy --v $data/v.npy"
# shellcheck disable=SC2086 # a list of words
{
  run longnet_text $real
  run alibi $real --input slope=$data/slope.npy
  run documents $real --input doc=$data/doc.npy
}

# The picture of the README is what the program draws.
"$DIL" show examples/longnet.dil -D w=12 --seq 96 --head 1 -o "$TMP/p.svg"
is "picture longnet.svg" cmp "$TMP/p.svg" examples/longnet.svg

# All are listed above: an example that is never run may be wrong for years.
for file in examples/*.dil; do
  name=$(basename "$file" .dil)
  is "$name is run by this script" grep "^ *run $name " tests/cli/examples.sh
done
exit $bad
