#!/bin/sh
# cli_run.sh - `dil run`: arrays, lengths, seeds and sizes of a call, threads,
# what it reports, and schedules that `dil tune` remembered. In: DIL, TMP. Out:
# ok / not ok lines.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh

export DIL_CACHE=off # what compiles, compiles

keys="kernel device variant force schedule remembered plan_hash seconds flops gflops peak_share
rel_error lse_error checked_rows nan_rows workspace_bytes compile_seconds open_seconds"

has_keys() { # command...: one object of a line, with just these keys in order
  "$@" >"$TMP/json" || return
  [ "$(wc -l <"$TMP/json")" -eq 1 ] || return
  found=$(grep -oE '"[a-z_]+":' "$TMP/json" | tr -d '":')
  [ "$(echo $found)" = "$(echo $keys)" ]
}
small="examples/longnet.dil -D w=16 --seq 100"
is "the keys of run --json" has_keys "$DIL" run $small --random 1 --check --json
is "the keys of bench --json" has_keys "$DIL" bench $small --repeat 2 --json
is "the oracle as a device" has_keys "$DIL" run $small --random 1 \
  --device oracle --check --json
is "two variants, two lines" sh -c '[ "$("$DIL" bench '"$small"' --repeat 2 \
  --force multiset --force dedup --json | wc -l)" -eq 2 ]'

# From plan's text comes the same kernel, bit for bit.
through_plan() {
  "$DIL" print --after plan examples/longnet.dil -D w=16 >"$TMP/p.plan" &&
    "$DIL" run $small --random 7 --out "$TMP/a.npy" --lse "$TMP/al.npy" &&
    "$DIL" run --from plan "$TMP/p.plan" --seq 100 --random 7 \
      --out "$TMP/b.npy" --lse "$TMP/bl.npy" --check &&
    cmp "$TMP/a.npy" "$TMP/b.npy" && cmp "$TMP/al.npy" "$TMP/bl.npy"
}
is "run --from plan" through_plan

# --dtype says what an edited file would say; `fast` belongs to f32 alone.
retypes() {
  for type in f32 f16; do
    sed "s/dtype  *bf16/dtype $type/" examples/longnet.dil >"$TMP/typed.dil"
    grep -q "dtype $type" "$TMP/typed.dil" || return
    "$DIL" run "$TMP/typed.dil" -D w=16 --seq 100 --random 7 \
      --out "$TMP/file.npy" || return
    "$DIL" run $small --random 7 --dtype $type --out "$TMP/option.npy" \
      --check || return
    cmp "$TMP/file.npy" "$TMP/option.npy" || return
  done
  ! cmp -s "$TMP/a.npy" "$TMP/option.npy"
}
is "run --dtype is the file with another dtype" retypes
is_exact() { # command...: its output is as near as f32 is
  "$@" --json | grep -E '"rel_error": [0-9.]+e-[678],'
}
is "bench --dtype, too" is_exact "$DIL" bench $small --repeat 1 --dtype f32
isnt "which bf16 is not" is_exact "$DIL" bench $small --repeat 1

# So do sizes of heads.
resizes() {
  sed 's/heads  *12;/heads 6 kv 3;/; s/head_dim  *64;/head_dim 40 value 24;/' \
    examples/longnet.dil >"$TMP/sized.dil"
  grep -q 'heads 6 kv 3' "$TMP/sized.dil" || return
  "$DIL" run "$TMP/sized.dil" -D w=16 --seq 100 --random 7 \
    --out "$TMP/file.npy" || return
  "$DIL" run $small --random 7 --heads 6 --kv-heads 3 --head-dim 40 \
    --value-dim 24 --out "$TMP/option.npy" --check || return
  cmp "$TMP/file.npy" "$TMP/option.npy"
}
is "run --heads and the like are the file with other sizes" resizes
is "bench of half the heads has half the work" says '"flops": 2.17805e6,' \
  "$DIL" bench $small --repeat 1 --heads 6 --json
is "and explain" says "6 heads" "$DIL" explain $small --heads 6
echo 'pattern p { heads 4; head_dim 8; dtype f32; branch { heads 2..3; } }' \
  >"$TMP/named.dil"
is "heads that a branch names must be there" \
  says "the last head must be at most 2, got 3" not \
  "$DIL" run "$TMP/named.dil" --seq 10 --random 1 --heads 3

# A run's own output can be read again: here as the queries of another run.
reads_back() {
  "$DIL" run examples/dense.dil --seq 20 --random 3 --out "$TMP/q.npy" &&
    "$DIL" run examples/dense.dil --q "$TMP/q.npy" --random 3 --check
}
is "arrays written are arrays read" reads_back

# An output takes no array's place, under whatever name, nor another output's;
# and that it cannot be written is told before anything is computed.
spares() { # words of the message, outputs...
  words=$1
  shift
  cp "$TMP/q.npy" "$TMP/kept.npy"
  ln -sf kept.npy "$TMP/link.npy"
  says "$words" "$DIL" run examples/dense.dil --q "$TMP/kept.npy" --random 3 \
    "$@" &&
    cmp "$TMP/q.npy" "$TMP/kept.npy" && [ ! -e "$TMP/new.npy" ]
}
is "an output over an array" spares "the file of --q" \
  --lse "$TMP/new.npy" --out "$TMP/kept.npy"
is "an output over a link to one" spares "the file of --q" \
  --out "$TMP/new.npy" --lse "$TMP/link.npy"
is "an output streamed over one" spares "the file of --q" \
  --lse "$TMP/new.npy" --stream --out="$TMP/kept.npy"
is "two outputs, one file" spares "--out and --lse are one file" \
  --out "$TMP/new.npy" --lse "$TMP/./new.npy"
early() {
  says "cannot write '$TMP/none/o.npy'" "$DIL" run examples/dense.dil \
    --seq 100000 --random 1 --device oracle --out "$TMP/none/o.npy"
}
is "an output without a folder is told before the run" early

# Rows that are NaN by the definition too are good, and told.
echo 'pattern p { heads 2; head_dim 8; dtype f32;
  score i == 3 ? log(-1.0) : s; branch { } }' >"$TMP/nan.dil"
is "rows that are NaN in both" says \
  "good    40 of 40 rows compared, 2 of them NaN in both; output error" \
  "$DIL" run "$TMP/nan.dil" --seq 20 --random 1 --check
is "in JSON" says '"nan_rows": 2,' \
  "$DIL" run "$TMP/nan.dil" --seq 20 --random 1 --check --json
is "and of a benchmark" says "2 rows NaN in both" \
  "$DIL" bench "$TMP/nan.dil" --seq 20 --repeat 1

# Batch rows of 10, 0 and 57 keys: an .npy file is 128 bytes of header, then
# the numbers.
array() { # type, shape, bytes as printf has them
  printf '\223NUMPY\001\000v\000%-117s\n' \
    "{'descr': '$1', 'fortran_order': False, 'shape': $2, }"
  printf "$3"
}
has_lengths() {
  array '<i4' '(3,)' '\012\0\0\0\0\0\0\0\071\0\0\0' >"$TMP/lengths.npy"
  "$DIL" run $small --batch 3 --random 2 --lengths "$TMP/lengths.npy" --check
}
is "lengths" has_lengths
# Documents of 10, 0 and 57 rows, and one of 33 more keys.
packed() { # options...
  array '<i4' '(4,)' '\0\0\0\0\012\0\0\0\012\0\0\0\103\0\0\0' \
    >"$TMP/offsets.npy"
  array '<i4' '(4,)' '\0\0\0\0\053\0\0\0\053\0\0\0\144\0\0\0' \
    >"$TMP/more.npy"
  "$DIL" run examples/longnet.dil -D w=16 --offsets "$TMP/offsets.npy" \
    --random 2 --check "$@"
}
is "documents" packed
is "documents, with rows of nobody" packed --seq 70 --keys 80
is "documents and more keys" packed --key-offsets "$TMP/more.npy"
is "documents, by the oracle" packed --device oracle
is "gradients of documents" packed --backward
is "documents want a batch of one" says "offsets.npy' has 1" packed --batch 2
is "documents end with the rows" says \
  "'$TMP/offsets.npy' ends at 67, but --seq has 60 queries" packed --seq 60
array '<i4' '(2,)' '\0\0\0\0\103\0\0\0' >"$TMP/one.npy"
is "as many documents of keys" says \
  "offsets.npy' has 3 documents, but '$TMP/one.npy' has 1" \
  packed --key-offsets "$TMP/one.npy"
is "documents and lengths" says "--offsets cannot be used with --lengths" \
  packed --lengths "$TMP/lengths.npy"
is "documents and chunks" says "--offsets cannot be used with --stream" \
  packed --stream
is "documents and a ring" says "--offsets cannot be used with" \
  "$DIL" run examples/longnet_ring.dil -D w=32 --topology four --random 1 \
  --offsets "$TMP/offsets.npy"
falls() {
  array '<i4' '(4,)' '\0\0\0\0\012\0\0\0\011\0\0\0\103\0\0\0' \
    >"$TMP/falls.npy"
  says "falls at element 2, from 10 to 9: offsets are sums of lengths" \
    "$DIL" run examples/causal.dil --offsets "$TMP/falls.npy" --random 1
}
is "offsets that fall" falls
# 1708 pairs of each of eight heads, of 64 elements.
is "a benchmark of documents" says '"flops": 3.49798e6' "$DIL" bench \
  examples/causal.dil --offsets "$TMP/offsets.npy" --repeat 1 --json
# Axes and elements as other libraries have them.
turned() {
  array '<f4' '(1, 3, 2, 1)' "$(printf '%024d' 0 | sed 's/0/\\0/g')" \
    >"$TMP/turned.npy"
  echo 'pattern p { heads 3; head_dim 1; dtype bf16; branch { } }' \
    >"$TMP/turned.dil"
  says "[B, N, 3, 1]: save x.transpose(0, 2, 1, 3)" \
    "$DIL" run "$TMP/turned.dil" --q "$TMP/turned.npy" --random 1
}
is "axes of another order are told" turned
is "a seed that nothing is made of" says "--random has no effect" \
  "$DIL" run examples/longnet_text.dil --q examples/data/q.npy \
  --k examples/data/k.npy --v examples/data/v.npy --random 1
typed() {
  array '<i8' '(1, 1, 3, 1)' "$(printf '%024d' 0 | sed 's/0/\\0/g')" \
    >"$TMP/typed.npy"
  says "holds integers, not bf16: save x.astype('float32')" \
    "$DIL" run "$TMP/turned.dil" --q "$TMP/typed.npy" --random 1
}
is "and elements of another type" typed
too_long() {
  array '<i4' '(1,)' '\145\0\0\0' >"$TMP/lengths.npy"
  "$DIL" run $small --random 2 --lengths "$TMP/lengths.npy" 2>&1 |
    grep -q 'has 101 at batch row 0, which is not in 0..100'
}
is "a length above M is an error" too_long
dropout='pattern d { heads 2; head_dim 8; dtype f32; dropout 0.5; branch { } }'
drops() {
  echo "$dropout" >"$TMP/d.dil"
  "$DIL" run "$TMP/d.dil" --seq 40 --random 1 --train --seed 9 --check \
    --out "$TMP/1.npy" &&
    "$DIL" run "$TMP/d.dil" --seq 40 --random 1 --train --seed 10 --check \
      --out "$TMP/2.npy" &&
    "$DIL" run "$TMP/d.dil" --seq 40 --random 1 --check --out "$TMP/3.npy" &&
    ! cmp -s "$TMP/1.npy" "$TMP/2.npy" && ! cmp -s "$TMP/1.npy" "$TMP/3.npy"
}
is "dropout by its seed, in training only" drops
is "training where nothing is dropped" says \
  "pattern 'longnet' drops nothing: --train needs \`dropout P;\` in it" \
  "$DIL" run $small --random 1 --train
scale='pattern d { heads 2; head_dim 8; dtype f32; scale runtime; branch { } }'
scales() {
  echo "$scale" >"$TMP/s.dil"
  "$DIL" run "$TMP/s.dil" --seq 40 --random 1 --scale 0.25 --check &&
    ! "$DIL" run "$TMP/s.dil" --seq 40 --random 1
}
is "a scale at run time" scales
no_rows() { "$DIL" run examples/dense.dil --seq 0 --random 1 --check; }
is "no queries" no_rows
no_keys() { "$DIL" run examples/dense.dil --seq 3 --keys 0 --random 1 --check; }
is "no keys" no_keys
same_for_threads() {
  for t in 1 2 3; do
    "$DIL" run $small --random 5 --threads $t --out "$TMP/$t.npy" || return
  done
  cmp "$TMP/1.npy" "$TMP/2.npy" && cmp "$TMP/1.npy" "$TMP/3.npy"
}
is "the same result for any threads" same_for_threads
is "progress is silent in a pipe" sh -c \
  '"$DIL" run examples/dense.dil --seq 400 --random 1 --check 2>&1 >/dev/null |
   cmp - /dev/null'

without_gpu() {
  LD_LIBRARY_PATH=$BUILD/emulator FAKE_DEVICES=0 "$DIL" run $small --random 1 \
    --device cuda >"$TMP/none" 2>&1
  [ $? -eq 3 ] && cat "$TMP/none" && grep -q '^hint: `dil doctor` says' "$TMP/none"
}
is "a GPU that is not there, and who knows why" without_gpu

# ---- remembered schedules ----------------------------------------------------

remembered="$TMP/state/wisdom"
wise() { DIL_WISDOM=$remembered "$DIL" "$@"; }
is "doctor misses nothing before" sh -c "DIL_WISDOM=$remembered \"\$DIL\" doctor |
  grep -q '^wisdom  *found  *no schedule yet; .* in $remembered'"
tunes() {
  wise tune examples/longnet.dil -D w=16 --seq 100,300 --budget 0.3 &&
    wise tune --list | grep -c 'longnet on cpu .* queries' | grep -qx 2
}
is "tune remembers each length" tunes
is "doctor says how many" sh -c "DIL_WISDOM=$remembered \"\$DIL\" doctor |
  grep -q '^wisdom  *found  *2 schedules of .dil tune. in $remembered'"
is "tune --list --json has an object a record" json_is \
  '[(r["kernel"], r["queries"]) for r in all] ==
     [("longnet", 128), ("longnet", 256)] and
   all[0]["seconds"] > 0 and all[0]["device"].startswith("cpu ")' \
  env DIL_WISDOM="$remembered" "$DIL" tune --list --json
is "tune --json has an object a length" json_is \
  'list(all[0]) == ["kernel", "device", "batch", "queries", "keys", "schedules",
     "run", "refused", "schedule", "seconds", "candidates", "remembered_in"] and
   [r["queries"] for r in all] == [50, 60] and
   [c["schedule"] for c in all[0]["candidates"] if c["taken"]] ==
     [all[0]["schedule"]]' \
  env DIL_WISDOM="$TMP/json.wisdom" "$DIL" tune examples/longnet.dil -D w=16 \
  --seq 50,60 --budget 0.1 --json
# That it cannot be remembered is told before the search.
refuses_to_tune() { # where it would be remembered, what is said of it
  DIL_WISDOM=$1 told_once "$DIL" tune examples/longnet.dil -D w=16 --seq 100 &&
    grep -qF "$2" "$TMP/out"
}
mkdir "$TMP/folder"
is "no place to remember" refuses_to_tune /dev/null/w "cannot open '/dev/null/w'"
is "a folder in its place" refuses_to_tune "$TMP/folder" "cannot read '$TMP/folder'"
asks_lightly() { # where nothing is found out, and nothing is left
  cp "$remembered" "$TMP/before" &&
    ! wise tune "$TMP/nosuch.dil" --seq 100 && cmp "$remembered" "$TMP/before" &&
    ! DIL_WISDOM=$TMP/new/w "$DIL" tune "$TMP/nosuch.dil" --seq 100 &&
    [ -z "$(ls "$TMP/new")" ]
}
is "asking leaves the file as it is" asks_lightly
# The record of 128 with knobs of our own.
sed -i -E "/\t1 128 128\t/s/\t[^\t]*\t([^\t]*)\t([^\t]*)$/\ttile_keys 40;\t\1\t\2/" \
  "$remembered"
takes() {
  wise run $small --random 1 --check >"$TMP/a" 2>&1 &&
    grep -q 'tile_keys 40; (remembered)' "$TMP/a" &&
    ! wise run $small --random 1 --no-wisdom | grep -q tile_keys &&
    ! "$DIL" run $small --random 1 | grep -q tile_keys &&
    ! wise run examples/longnet.dil -D w=16 --seq 400 --random 1 |
      grep -q 'tile_keys 40' &&
    ! wise run $small --random 1 --force chain | grep -q tile_keys
}
is "run takes what is remembered of its shape" takes
warns_once() {
  printf 'nonsense\n' >>"$remembered"
  wise bench examples/longnet.dil examples/longnet.dil -D w=16 --seq 100 \
    --repeat 1 >"$TMP/a" 2>&1 &&
    grep -c 'line 3 is ignored: it is no record' "$TMP/a" | grep -qx 1
}
is "a bad record is told once" warns_once
is "tune --list tells of it too" sh -c \
  "DIL_WISDOM=$remembered \"\$DIL\" tune --list 2>&1 >/dev/null |
   grep -q 'line 3 is ignored'"
# The same for chips; no kernel has the second ones knobs.
builds() { # knobs: what is said of them, NVRTC or none
  sed -nE "/tile_keys 40;/{s//$1/; s/\tcpu [^\t]*\t/\tcuda Chip sm_90\t/p}" \
    "$remembered" >"$TMP/chips"
  DIL_WISDOM=$TMP/chips "$DIL" build examples/longnet.dil -D w=16 \
    --cuda sm_90a --emit cubin -o "$TMP/o" 2>&1
}
builds_turned() {
  builds 'tile 128, 64;' |
    grep -q 'for sm_90 with what is remembered: tile 128, 64;'
}
is "build takes what is remembered of the chip" builds_turned
builds_anyway() {
  builds 'tile 100, 64;' | grep -q 'remembered schedule tile 100, 64; cannot'
}
is "what no kernel has is told and left" builds_anyway

# Lists of blocks: random ones, and what the plan's text says of them.
cat >"$TMP/lists.dil" <<'END'
pattern lists {
  heads 2; head_dim 16; dtype f32;
  block 32, 16;
  input rows : i32[H, nbq + 1];
  input cols : i32[H, *];
  keep from rows, cols;
  branch { }
}
kernel lists = lists;
END
lists="$TMP/lists.dil --seq 300 --input rows=random --input cols=random"
is "lists of blocks" "$DIL" run $lists --random 1 --check
is "their gradients" "$DIL" run $lists --random 1 --backward --check
through_lists() {
  "$DIL" print --after plan "$TMP/lists.dil" >"$TMP/lists.plan" &&
    grep -q 'from rows, cols;' "$TMP/lists.plan" &&
    "$DIL" run --from plan "$TMP/lists.plan" --seq 300 --random 1 \
      --input rows=random --input cols=random --check
}
is "lists through the plan's text" through_lists
no_lists_in_chunks() {
  "$DIL" run $lists --random 1 --stream=1M 2>&1 | grep -q 'no.* chunks'
}
is "lists do not go with --stream" no_lists_in_chunks

# Keys by a list: random ones, and what the plan's text says of them.
cat >"$TMP/keys.dil" <<'END'
pattern keys {
  heads 2; head_dim 16; dtype f32; causal;
  input vertical : i32[H, *];
  branch near { window 31, 0; }
  branch { keys vertical; mask i - j >= 32; }
}
END
keys="$TMP/keys.dil --seq 300 --input vertical=random --random 1"
is "keys of a list" "$DIL" run $keys --check
is "their gradients, too" "$DIL" run $keys --backward --check
through_keys() {
  "$DIL" print --after plan "$TMP/keys.dil" >"$TMP/keys.plan" &&
    grep -q 'u8\[2, M\] from vertical;' "$TMP/keys.plan" &&
    "$DIL" run --from plan "$TMP/keys.plan" --seq 300 --random 1 \
      --input vertical=random --check
}
is "a list of keys through the plan's text" through_keys
is "explain counts its pairs" says "branch" "$DIL" explain "$TMP/keys.dil" \
  --seq 300 --input vertical=random
keys_refused() { # words, option...
  words=$1
  shift
  "$DIL" run $keys "$@" 2>&1 | grep -q "$words"
}
is "keys by a list do not go with --stream" keys_refused \
  "keys by a list ('vertical') do not go with" --stream=1M
keys="$TMP/keys.dil --input vertical=random --random 1"
is "nor with packed calls" keys_refused "keys by a list ('vertical') do not go with" \
  --offsets examples/data/offsets.npy
key_outside() { # the last of two entries, words
  {
    printf '\223NUMPY\001\000v\000%-117s\n' \
      "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 1), }"
    printf "\000\000\000\000$1"
  } >"$TMP/list.npy"
  "$DIL" run "$TMP/keys.dil" --seq 300 --random 1 --input "vertical=$TMP/list.npy" \
    2>&1 | grep -q "$2"
}
is "a key outside is told" key_outside '\054\001\000\000' \
  "entry 0 of input 'vertical' (line 1) is 300, and the keys are 0..299"
is "so is one below -1" key_outside '\376\377\377\377' "(line 1) is -2, and"
none_is_good() { ! key_outside '\377\377\377\377' error; }
is "-1 is none" none_is_good

# Blocks chosen by their scores: their lists give the same bits back.
same_bits_by_lists() {
  activations="--q examples/data/q.npy --k examples/data/k.npy
    --v examples/data/v.npy --backward --random 7"
  lists="input rows : i32[B, H, nb + 1]; input cols : i32[B, H, *];"
  sed "s/keep *top 6 by mean;/$lists keep from rows, cols;/" \
    examples/adaptive.dil >"$TMP/given.dil"
  # shellcheck disable=SC2086 # words
  "$DIL" run examples/adaptive.dil $activations --selection "$TMP/chosen.npy" \
    --out "$TMP/o.npy" --dq "$TMP/dq.npy" --dk "$TMP/dk.npy" \
    --dv "$TMP/dv.npy" &&
    "$DIL" run "$TMP/given.dil" $activations \
      --input "rows=$TMP/chosen.rows.npy" --input "cols=$TMP/chosen.cols.npy" \
      --out "$TMP/o2.npy" --dq "$TMP/dq2.npy" --dk "$TMP/dk2.npy" \
      --dv "$TMP/dv2.npy" &&
    cmp "$TMP/o.npy" "$TMP/o2.npy" && cmp "$TMP/dq.npy" "$TMP/dq2.npy" &&
    cmp "$TMP/dk.npy" "$TMP/dk2.npy" && cmp "$TMP/dv.npy" "$TMP/dv2.npy"
}
is "chosen lists give the same bits, backward too" same_bits_by_lists
nothing_chosen() { # option...
  "$DIL" "$@" 2>&1 | grep -q 'chooses no blocks by their scores'
}
is "--selection wants a choice" nothing_chosen run examples/dense.dil --seq 9 \
  --random 1 --selection "$TMP/none.npy"
is "show takes --q for a choice alone" nothing_chosen show examples/dense.dil \
  --q examples/data/q.npy --k examples/data/k.npy
refused_by_name() { # option...
  "$DIL" run "$@" --random 1 2>&1 | grep -q 'chosen by their scores.*do not go'
}
is "choices do not go with --stream" refused_by_name preset:moba --seq 99 \
  --stream=1M
exit $bad
