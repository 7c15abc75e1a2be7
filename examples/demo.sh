#!/bin/sh
# demo.sh - what dil does, step by step, on the queries, keys and values that
# a real language model computes from a real text. `make demo` runs it.
set -eu
cd "$(dirname "$0")/.."
dil=./dil
data=examples/data
example=examples/longnet_text.dil

say() { printf '\n== %s\n' "$*"; }
show() {
  echo "\$ $*" | sed 's,^$ \./,$ ,'
  "$@"
}

say "The pattern: three branches; each looks farther, through a coarser comb"
sed -n '/^let/,$p' $example

say "Who attends to whom, in small (32 tokens, w = 4)"
show $dil show $example -D w=4 --seq 32

say "What it costs over the 2400 tokens of the text"
show $dil explain $example --seq 2400

say "What the text is"
head -60 $data/tokens.txt | tr '\n' ' ' | sed 's/ ##//g'
echo ...

say "Compiled for this machine, run on the real activations, and compared" \
  "with the definition in float64"
show $dil run $example --q $data/q.npy --k $data/k.npy --v $data/v.npy \
  --check --repeat 5

say "The same text with its paragraphs kept apart, as packed documents"
show $dil run examples/documents.dil --q $data/q.npy --k $data/k.npy \
  --v $data/v.npy --input doc=$data/doc.npy --check --repeat 5

say "A mistake, and what the compiler says of it"
printf 'pattern p { heads 4; head_dim 8; dtype f32; branch { dilaton 2; } }\n' |
  show $dil check - || echo "(exit status $?)"
