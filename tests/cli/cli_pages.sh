#!/bin/sh
# cli_pages.sh - `dil run --pages`: keys and values in pages of a cache, from
# files and at random, and what does not go with them. In: DIL, TMP. Out: ok / not
# ok lines.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh

decode="examples/decode_gqa.dil --seq 1 --keys 5000 --random 5"
# shellcheck disable=SC2086 # lists of words
paged() { "$DIL" run $decode "$@" --check; }
is "pages of a decoding call" paged --pages random
is "a page for each key" paged --pages random:1
is "pages longer than the keys" paged --pages random:8192
is "by the oracle" paged --pages random --device oracle
is "many queries" "$DIL" run examples/longnet.dil -D w=64 --seq 700 --random 1 \
  --pages random:64 --check
is "batch rows, an input" "$DIL" run examples/documents.dil --seq 512 --batch 3 \
  --random 2 --input doc=random --pages random:32 --check

# Without pages the output has the same bits, since 5120 keys are whole pages.
same_bits() {
  one="examples/decode_gqa.dil --seq 3 --keys 5120 --batch 2 --random 7"
  "$DIL" run $one --out "$TMP/plain.npy" &&
    "$DIL" run $one --pages random:256 --out "$TMP/paged.npy" &&
    cmp "$TMP/plain.npy" "$TMP/paged.npy"
}
is "the bits of the call without pages" same_bits

# Two pages of two keys, one element: key 0 is in page 1. An .npy file is 128
# bytes of header, then the numbers.
array() { # name, type, shape, bytes as printf has them
  {
    printf '\223NUMPY\001\000v\000%-117s\n' \
      "{'descr': '$2', 'fortran_order': False, 'shape': $3, }"
    printf "$4"
  } >"$TMP/$1.npy"
}
echo 'pattern p { heads 1; head_dim 1; dtype f32; branch { } }' >"$TMP/p.dil"
zero='\0\0\0\0' one='\0\0\200\077' two='\0\0\0\100' nan='\0\0\300\177'
array q '<f4' '(1, 1, 1, 1)' "$zero"
array k '<f4' '(2, 2, 1, 1)' "$one$nan$one$one"
array v '<f4' '(2, 2, 1, 1)' "$two$nan$zero$one"
array lengths '<i4' '(1,)' '\3\0\0\0'
array pages '<i4' '(1, 2)' '\1\0\0\0\0\0\0\0'
files="--q $TMP/q.npy --k $TMP/k.npy --v $TMP/v.npy"
# shellcheck disable=SC2086 # lists of words
run_files() { "$DIL" run "$TMP/p.dil" $files "$@"; }
# The mean of 0, 1 and 2 is 1: the fourth row, NaN, is behind the length.
of_files() {
  run_files --pages "$TMP/pages.npy" --lengths "$TMP/lengths.npy" --check \
    --out "$TMP/o.npy" && tail -c 4 "$TMP/o.npy" | od -An -tf4 | grep -q '^ *1$'
}
is "pages of files" of_files

refused() { # words, options...
  words=$1
  shift
  says "$words" run_files --pages "$TMP/pages.npy" "$@"
}
is "pages want lengths" refused "wants --lengths F.npy"
with="--lengths $TMP/lengths.npy"
array pages '<i4' '(1, 2)' '\1\0\0\0\2\0\0\0'
# shellcheck disable=SC2086 # lists of words
{
  is "a page outside the pool" refused \
    "pages[0, 1] is 2, and k and v have 2 pages" $with
  array pages '<i4' '(2,)' '\1\0\0\0\0\0\0\0'
  is "pages of one dimension" refused \
    "is [2], but pages are [B, pages of a batch row]" $with
  array pages '<i4' '(2, 1)' '\1\0\0\0\0\0\0\0'
  is "pages of another batch" refused "has 2 batch rows, but" $with
  array pages '<f4' '(1, 2)' '\0\0\0\0\0\0\0\0'
  is "pages of floats" refused "holds floats, not i32" $with
  array pages '<i4' '(1, 2)' '\1\0\0\0\0\0\0\0'
  array v '<f4' '(4, 1, 1, 1)' "$two$nan$zero$one"
  is "two pools" refused "has 2 pages of 2 rows, but" $with
  array k '<f4' '(1, 3, 1, 1)' "$one$one$one"
  array v '<f4' '(1, 3, 1, 1)' "$one$one$one"
  is "pages of three rows" refused "a page of k has 3 rows" $with
}
is "a pool is wanted" says "wants the pool, [pages, rows, Hkv, D]" \
  paged --pages "$TMP/pages.npy"
is "rows that are no power of two" says "wants a power of two" \
  paged --pages random:12
is "rows that are no number" says "wants a power of two" paged --pages random:x
is "no gradients" says "--pages cannot be used with --backward" \
  paged --pages random --backward
is "no stream" says "--pages cannot be used with --stream" \
  paged --pages random --stream
echo 'pattern d { heads 2; head_dim 8; dtype f32; dropout 0.5; branch { } }' \
  >"$TMP/d.dil"
is "no dropout" says "--pages cannot be used with --train" \
  "$DIL" run "$TMP/d.dil" --seq 20 --random 1 --train --pages random
of_library() {
  "$DIL" build examples/decode_gqa.dil -o "$TMP/libdecode" &&
    "$DIL" run --library "$TMP/libdecode.so" --seq 1 --keys 5000 --random 5 \
      --pages random --check
}
is "a library takes pages" of_library
is "no topology" says "--pages cannot be used with a topology" \
  "$DIL" run examples/longnet_ring.dil -D w=32 --seq 512 --random 1 \
  --topology four --pages random
