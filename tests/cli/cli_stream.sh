#!/bin/sh
# cli_stream.sh - `dil run --stream` as a person uses it: every example in chunks
# against the oracle, arrays beyond the memory that the system grants, outputs
# in place, and what is refused. In: BUILD, DIL, TMP. Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh
data=examples/data

fails() { # name, status, text, command...
  name=$1
  shift
  is "$name" ends "$@"
}
ends() { # status, text, command...
  want=$1 text=$2
  shift 2
  "$@" >"$TMP/out" 2>&1
  got=$?
  cat "$TMP/out"
  [ $got -eq "$want" ] && grep -qF -e "$text" "$TMP/out"
}

stream() { # example, bytes, options...
  name=$1 bytes=$2
  shift 2
  is "stream $name" "$DIL" run "examples/$name.dil" --stream="$bytes" --check \
    "$@"
}

# Bounds a few times below what the arrays take.
stream dense 2M --seq 300 --keys 451 --random 1
stream causal 1M --seq 500 --random 1
stream longnet 3M -D w=128 --seq 1000 --random 1
stream longnet_torchscale 2M -D w=100 --seq 777 --random 1
stream headsplit_mean 2M --seq 700 --random 1
stream longformer 3M -D w=64 --seq 600 --random 1
stream strided 3M -D l=32 --seq 500 --random 1
stream blocksparse 2M --seq 900 --random 1
stream random_hash 2M --seq 500 --random 1
stream softcap 4M --seq 600 --random 1 --batch 2
stream decode_gqa 8M --seq 1 --keys 3000 --random 1 --batch 3
stream union 3M --seq 700 --random 1
stream longnet_ring 3M -D w=32 --seq 1500 --random 1
real="--q $data/q.npy --k $data/k.npy --v $data/v.npy"
# shellcheck disable=SC2086 # a list of words
{
  stream longnet_text 1M $real
  stream alibi 1M $real --input slope=$data/slope.npy
  stream documents 1M $real --input doc=$data/doc.npy
}

# ---- beyond memory -----------------------------------------------------------

cat >"$TMP/wide.dil" <<'EOF'
pattern wide {
    heads 2;  head_dim 64;  dtype f32;  causal;
    segments 512, 2048;  dilations 1, 4;
}
EOF
# 32 MiB an array.
for n in q k v; do
  "$DIL" run "$TMP/wide.dil" --seq 65536 --random "${#bad}$(printf %d "'$n")" \
    --out "$TMP/$n.npy" >/dev/null || echo "not ok array $n is made"
done
arrays="--q $TMP/q.npy --k $TMP/k.npy --v $TMP/v.npy"

# 96 MiB come in and 33 go out of a process that may have 48 of its own.
within() { # kilobytes of private memory, options...
  (
    # shellcheck disable=SC3045 # what this system's shells have
    ulimit -d "$1" || exit 9
    shift
    # shellcheck disable=SC2086
    "$DIL" run "$TMP/wide.dil" $arrays "$@"
  )
}
if is_sanitized; then
  echo "ok skipped: sanitizers need memory of their own"
else
  fails "the arrays are larger than memory" 3 "no memory for" \
    within 48000 --check
  is "streamed they run" within 48000 --stream=12M --check \
    --out "$TMP/o.npy" --lse "$TMP/lse.npy"
  is "by a bound of its own" within 48000 --stream --check \
    --out "$TMP/o.npy" --lse "$TMP/lse.npy"
fi

plain() { # shellcheck disable=SC2086
  "$DIL" run "$TMP/wide.dil" $arrays "$@"
}

# One chunk of keys for all queries is the order of a plain run's passes.
same_everywhere() {
  plain --stream=12M --out "$TMP/a.npy" --lse "$TMP/al.npy" --threads 1 &&
    plain --stream=12M --out "$TMP/b.npy" --lse "$TMP/bl.npy" --threads 2 &&
    cmp "$TMP/a.npy" "$TMP/b.npy" && cmp "$TMP/al.npy" "$TMP/bl.npy"
}
is "threads leave the bits alone" same_everywhere

as_wide_as_plain() { # the same header, the same size, nothing else left
  plain --out "$TMP/p.npy" >/dev/null && head -c 80 "$TMP/p.npy" >"$TMP/p" &&
    head -c 80 "$TMP/a.npy" | cmp - "$TMP/p" &&
    [ "$(wc -c <"$TMP/a.npy")" -eq "$(wc -c <"$TMP/p.npy")" ] &&
    ! ls "$TMP"/*.part-* 2>/dev/null
}
is "outputs are written in place" as_wide_as_plain

# Arrays wider than the pattern are rounded on the way, o is widened.
sed 's/f32/bf16/' "$TMP/wide.dil" >"$TMP/narrow.dil"
narrow() { # shellcheck disable=SC2086
  "$DIL" run "$TMP/narrow.dil" $arrays --stream=12M --check "$@"
}
is "bf16 from float32" narrow --out "$TMP/n.npy"

lengths() {
  printf '\223NUMPY\1\0\166\0%-117s\n\144\0\0\0\0\0\0\0' \
    "{'descr': '<i4', 'fortran_order': False, 'shape': (2,), }" \
    >"$TMP/lengths.npy"
  "$DIL" run "$TMP/wide.dil" --batch 2 --seq 150 --random 3 --stream=2M \
    --lengths "$TMP/lengths.npy" --check
}
is "batch rows of their own lengths" lengths

"$DIL" run "$TMP/wide.dil" --seq 300 --random 4 --out "$TMP/short.npy" \
  >/dev/null || echo "not ok a short array is made"

# ---- to a device -------------------------------------------------------------

# On the stand-in for a GPU, whose copies and passes come in any order that
# their streams allow; chunks by routes, whole, and several times over.
device() { # order, pattern, options...
  order=$1
  echo "$2" >"$TMP/device.dil"
  shift 2
  LD_LIBRARY_PATH=$BUILD/emulator EMULATED_ORDER=$order EMULATED_SEED=5 \
    "$DIL" run "$TMP/device.dil" --device cuda --check "$@"
}
routes='pattern p { heads 4 kv 2; head_dim 32; dtype bf16; causal; phase kv;
  segments 64, 512; dilations 1, 4; }'
masks='pattern p { heads 2; head_dim 32; dtype f16; combine mean;
  input doc : i32[B, M]; mask doc[b, i] == doc[b, j];
  branch { segment 100; } branch { dilation 3; } }'
if ! emulates; then
  echo "ok streams to a device: left out, no emulated ones here"
else
  for order in late random; do
    is "device: routes, $order" device $order "$routes" --seq 600 \
      --random 3 --stream=300K --out "$TMP/$order.npy"
    is "device: again, $order" device $order "$routes" --seq 300 --batch 2 \
      --random 3 --stream=250K --repeat 2
    is "device: inputs and lengths, $order" device $order "$masks" --seq 150 \
      --random 3 --batch 2 --stream=300K --input doc=random \
      --lengths "$TMP/lengths.npy"
  done
  is "device: the same bits in any order" cmp "$TMP/late.npy" "$TMP/random.npy"
  is "device: wider arrays" device late 'pattern p { heads 2; head_dim 64;
    dtype bf16; causal; branch { window 100, 0; } }' --stream=400K \
    --q "$TMP/short.npy" --k "$TMP/short.npy" --v "$TMP/short.npy" \
    --out "$TMP/o.npy" --lse "$TMP/lse.npy"
fi

# ---- killed and resumed --------------------------------------------------------

cat >"$TMP/long.dil" <<'EOF'
pattern long { heads 2;  head_dim 64;  dtype f32;  causal;  branch { } }
EOF
state="--state $TMP/kept --out $TMP/o.npy --lse $TMP/lse.npy"

version() { stat -c '%i %y' "$TMP/kept.state" 2>/dev/null; }

# Run after run is killed a moment after it has kept a state of its own, until one
# ends; each goes on with what the one before has left.
killed() { # kills, command...
  least=$1 kills=0
  shift
  rm -f "$TMP"/kept*
  before=
  # shellcheck disable=SC2086 # a list of words
  "$@" $state --every 3 >"$TMP/run" 2>&1 &
  while :; do
    until [ "$(version)" != "$before" ] || ! kill -0 $! 2>/dev/null; do
      sleep 0.01
    done
    sleep "0.$((kills * 7919 % 10))"
    kill -KILL $! 2>/dev/null || break
    wait $!
    # It may have died before its end, and after its files were published.
    [ -e "$TMP/kept.state" ] || break
    kills=$((kills + 1))
    before=$(version)
    # shellcheck disable=SC2086
    "$@" $state --every 3 --resume >"$TMP/run" 2>&1 &
  done
  wait $!
  cat "$TMP/run"
  echo "$kills kills"
  cmp "$TMP/o.npy" "$TMP/whole.npy" && cmp "$TMP/lse.npy" "$TMP/whole.lse.npy" &&
    [ $kills -ge "$least" ] && ! ls "$TMP"/kept*
}
whole="--out $TMP/whole.npy --lse $TMP/whole.lse.npy"
long="$DIL run $TMP/long.dil --seq 9000 --random 3 --threads 1"
# shellcheck disable=SC2086 # lists of words
{
  is "a long stream" $long --stream=3M $whole
  is "killed and resumed to the same bits" killed 1 $long --stream=3M
}
if emulates; then
  # No function: what is killed must be the run itself.
  device="env LD_LIBRARY_PATH=$BUILD/emulator EMULATED_ORDER=late $DIL run
    $TMP/long.dil --seq 400 --random 3 --stream=600K --device cuda"
  # shellcheck disable=SC2086
  {
    is "a long stream to a device" $device $whole
    is "that is killed and resumed" killed 1 $device
  }
fi

keeps() { # options: the same run, which ends early
  cp "$TMP/q.npy" "$TMP/cut.npy"
  # shellcheck disable=SC2086
  "$DIL" run "$TMP/long.dil" --q "$TMP/cut.npy" --k "$TMP/k.npy" \
    --random $seed --threads 1 --stream=12M $state 2>"$TMP/why" &
  until [ -e "$TMP/kept.state" ] || ! kill -0 $! 2>/dev/null; do
    sleep 0.01
  done
  kill -KILL $!
  wait $!
  [ -e "$TMP/kept.o.npy" ] && [ -e "$TMP/kept.lse.npy" ]
}
seed=3 # of the values
is "a state is left" keeps
again() { # words of the error, options of the second run
  why=$1
  shift
  # shellcheck disable=SC2086
  says "$why" not "$DIL" run "$TMP/long.dil" --q "$TMP/cut.npy" \
    --k "$TMP/k.npy" --random $seed --threads 1 $state --resume "$@"
}
is "other cuts" again "--stream=9437184 makes others" --stream=9M
is "another plan" again "has another plan" --stream \
  --force general
seed=5
is "another seed" again "has another seed of random numbers" --stream
seed=3
# shellcheck disable=SC2086
is "another size" says "was begun with another shape or type" not $long \
  $state --stream --resume
head -c 700 "$TMP/kept.state" >"$TMP/kept.short"
mv "$TMP/kept.short" "$TMP/kept.state"
is "a state that is cut short" again "kept.state' is damaged" --stream
rm -f "$TMP"/kept*
# shellcheck disable=SC2086
{
  is "no state" says "cannot open" not $long $state --stream --resume
  is "a state of one run" says "--repeat cannot be used with it" not $long \
    $state --stream --repeat 2
  is "steps without a state" says "need --state PREFIX" not $long --stream \
    --every 2
}

# ---- what is told ------------------------------------------------------------

facts() {
  plain --stream=12M --json >"$TMP/json" &&
    grep -q '"stream": {"chunk_rows": \[1, ' "$TMP/json" &&
    grep -q '"loaded_bytes": [1-9]' "$TMP/json" &&
    DIL_METRICS=$TMP/prom DIL_TRACE=$TMP/trace plain --stream=12M |
    grep -q '^stream  chunks of [0-9]* queries and [0-9]* keys: ' &&
    loaded=$(sed -n 's/.*"loaded_bytes": \([0-9]*\),.*/\1/p' "$TMP/json") &&
    grep -qx "dil_stream_loaded_bytes_total $loaded" "$TMP/prom" &&
    grep -q '"load chunk of keys"' "$TMP/trace" &&
    grep -q '"pass over a chunk"' "$TMP/trace"
}
is "report, metrics and trace" facts

foretold() {
  plain --stream=12M --threads 2 --json >"$TMP/json" &&
    "$DIL" explain "$TMP/wide.dil" --seq 65536 --stream=12M --threads 2 --json \
      >"$TMP/told" &&
    for field in chunk_rows chunks skipped loaded_bytes; do
      said=$(grep -o "\"$field\": \[*[0-9, ]*[0-9]" "$TMP/json") &&
        grep -qF "$said" "$TMP/told" || return 1
    done &&
    "$DIL" explain "$TMP/wide.dil" --seq 65536 --stream=12M |
    grep -q '^streamed   chunks of '
}
is "explain says the same beforehand" foretold

# ---- what is refused ---------------------------------------------------------

any="$TMP/wide.dil --seq 64 --random 1"
# shellcheck disable=SC2086
{
  fails "too little memory" 2 \
    "20480 bytes are too few" "$DIL" run $any --keys 4000 --stream=20K
  fails "a bound that is none" 2 "--stream" "$DIL" run $any --stream=lots
  fails "the oracle" 2 "--stream has no effect with --device oracle" \
    "$DIL" run $any --stream --device oracle
  fails "states" 2 "need a topology of several devices, or --stream" \
    "$DIL" run $any --state "$TMP/state"
  fails "topologies" 2 "--stream is for one device, topology 'four' has 4" \
    "$DIL" run examples/longnet_ring.dil --topology four --seq 64 --random 1 \
    --stream
  fails "an array that is none" 1 "is not a .npy file" \
    "$DIL" run $any --stream --q /dev/null
  fails "an output that is no file" 1 "cannot be written in place" \
    "$DIL" run $any --stream --out /dev/full
  fails "libraries" 2 "--stream cannot be used with --library" \
    "$DIL" run --library none.so --seq 64 --random 1 --stream
}
printf '\223NUMPY\1\0\166\0%-117s\n' \
  "{'descr': '<f4', 'fortran_order': True, 'shape': (1, 0, 2, 64), }" \
  >"$TMP/fortran.npy"
fails "Fortran's order" 1 "is in Fortran order" \
  "$DIL" run "$TMP/wide.dil" --stream --q "$TMP/fortran.npy" --random 1

# The output lies beside its place while the run is on; a file that is cut
# short then is told of.
cut_short() {
  cp "$TMP/q.npy" "$TMP/cut.npy"
  sed 's/segments.*/branch { }/' "$TMP/wide.dil" >"$TMP/long.dil"
  "$DIL" run "$TMP/long.dil" --q "$TMP/cut.npy" --k "$TMP/k.npy" \
    --v "$TMP/v.npy" --stream=12M --threads 1 --out "$TMP/never.npy" \
    2>"$TMP/why" &
  for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do
    ls "$TMP"/never.npy.part-* >/dev/null 2>&1 && break
    sleep 0.2
  done
  : >"$TMP/cut.npy"
  wait $!
  [ $? -eq 3 ] && [ ! -e "$TMP/never.npy" ] &&
    grep -q 'an array has become shorter while it was read' "$TMP/why"
}
is "a file that is cut short" cut_short
exit $bad
