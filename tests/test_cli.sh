#!/bin/sh
# test_cli.sh - the command line. Transcripts under golden/cli are replayed:
# after a line `$ COMMAND` stands all that it writes, standard error included,
# and `exit N` when that is not 0; `dil` is the program under test. Then come
# the things that no transcript can hold. In: DIL, TMP; UPDATE=1 rewrites the
# transcripts. Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/.." || exit 70
bad=0

is() { # name, command...: ok when the command succeeds
  name=$1
  shift
  if "$@" >"$TMP/said" 2>&1; then
    echo "ok $name"
  else
    echo "not ok $name"
    head -c 2000 "$TMP/said"
    bad=1
  fi
}

exits() { # status, command...
  want=$1
  shift
  "$@" >/dev/null 2>&1
  [ $? -eq "$want" ]
}

dil() { "$DIL" "$@"; }

# What compiles, compiles; the cache has a part of its own below.
export DIL_CACHE=off

# ---- transcripts ------------------------------------------------------------

# What varies from machine to machine is replaced by a word.
steady() {
  sed -E -e "s,$TMP,TMP,g" \
    -e 's/ (in )?[0-9.]+ (us|ms|s)\b/ \1TIME/g' \
    -e 's/[0-9.]+ [KMGT]?FLOP\/s/RATE/g' \
    -e 's/, [0-9.]+ % of the peak/, SHARE/' \
    -e 's/on [0-9]+ threads? with [a-z0-9]+/on THREADS/'
}

replay() { # file
  grep '^\$ ' "$1" | sed 's/^\$ //' | while read -r line; do
    echo "\$ $line"
    status=0
    (eval "$line") >"$TMP/out" 2>&1 </dev/null || status=$?
    steady <"$TMP/out"
    [ $status -eq 0 ] || echo "exit $status"
  done
}

for file in tests/golden/cli/*; do
  replay "$file" >"$TMP/replay"
  [ "${UPDATE:-}" ] && cp "$TMP/replay" "$file"
  is "transcript $(basename "$file")" diff -u "$file" "$TMP/replay"
done

# ---- start ------------------------------------------------------------------

is "version" sh -c '[ "$("$DIL" --version)" = "dil 0.1.0" ]'

# The quickest of many starts, so that a busy machine does not fail it.
starts_quickly() {
  best=1000000000
  i=0
  while [ $i -lt 30 ]; do
    began=$(date +%s%N)
    "$DIL" --version >/dev/null
    took=$(($(date +%s%N) - began))
    [ $took -lt $best ] && best=$took
    i=$((i + 1))
  done
  echo "$best ns"
  case $BUILD in *asan | *tsan) [ $best -lt 500000000 ] ;;
  *) [ $best -lt 5000000 ] ;; esac
}
is "starts in 5 ms" starts_quickly

loads_no_compiler() { # command...
  LD_DEBUG=files "$@" 2>&1 | grep -c 'calling init.*LLVM' | grep -qx 0
}
is "version loads no compiler library" loads_no_compiler "$DIL" --version
is "check loads no compiler library" loads_no_compiler "$DIL" check \
  examples/dense.dil

# ---- one table --------------------------------------------------------------

options_of() { # verb: its long options
  "$DIL" help "$1" | sed -nE 's/^  (-., |    )--([a-z-]+).*/\2/p'
}

manual_has_all() {
  for verb in check explain show print run bench tune cache; do
    for option in $(options_of $verb); do
      sed 's/\\-/-/g' compiler/dil.1 | grep -q -- "^.*--$option" ||
        { echo "--$option is missing" && return 1; }
    done
  done
}
is "the manual page has every option" manual_has_all

table_is_accepted() { # every option of a verb is known to it
  for verb in check explain show print run bench tune cache; do
    for option in $(options_of $verb); do
      "$DIL" $verb "--$option=no" nosuch.dil 2>&1 | grep 'has no option' &&
        return 1
    done
  done
  return 0
}
is "every option in the help is accepted" table_is_accepted
is "help comes first with examples" sh -c \
  '"$DIL" help run | sed -n 5p | grep -qx examples:'
for verb in check explain show print run bench tune cache; do
  is "help $verb equals $verb --help" sh -c \
    "\"\$DIL\" help $verb >\$TMP/a; \"\$DIL\" $verb --help | cmp - \$TMP/a"
done

# ---- exit codes -------------------------------------------------------------

is "0 for what is good" exits 0 "$DIL" check examples/longnet.dil
is "1 for a wrong pattern" exits 1 "$DIL" check - <<'END'
pattern p { }
END
is "2 for a wrong option" exits 2 "$DIL" check --fast examples/dense.dil
is "3 for a missing file" exits 3 "$DIL" check "$TMP/nosuch.dil"
is "3 for a full disk" sh -c '"$DIL" help >/dev/full 2>&1; [ $? -eq 3 ]'

# f32 overflows where the oracle's float64 does not.
is "4 for another result than the oracle's" sh -c '
  echo "pattern p { heads 1; head_dim 8; dtype f32; score exp(100 * s);
    branch { } }" >"$TMP/over.dil"
  "$DIL" run "$TMP/over.dil" --seq 50 --random 1 --check --json >"$TMP/json"
  [ $? -eq 4 ] && grep -q rel_error "$TMP/json"'

# ---- the cache --------------------------------------------------------------

tiny="examples/longnet.dil -D w=16 --seq 64 --random 3"
fresh_cache() { DIL_CACHE_DIR=$TMP/kept && rm -rf "$TMP/kept"; }
fresh_cache
export DIL_CACHE_DIR
unset DIL_CACHE
entries() { find "$TMP/kept" -name '*.kernel' | wc -l; }

same_from_cache() {
  "$DIL" run $tiny --out "$TMP/cold.npy" | grep -q 'compiled in' &&
    [ "$(entries)" -eq 1 ] &&
    "$DIL" run $tiny --out "$TMP/warm.npy" --check | grep -q 'from the cache' &&
    [ "$(entries)" -eq 1 ] && cmp "$TMP/cold.npy" "$TMP/warm.npy"
}
is "the same result from the cache" same_from_cache
is "a warm start loads no compiler library" loads_no_compiler "$DIL" run $tiny
is "nor dil-cpu.so" sh -c "! LD_DEBUG=files \"\$DIL\" run $tiny 2>&1 |
  grep 'calling init.*dil-cpu'"

# Comments and layout are no part of the key; what changes the code is.
keyed() {
  { echo "# a comment"; cat examples/longnet.dil; } >"$TMP/longnet.dil"
  "$DIL" run "$TMP/longnet.dil" -D w=16 --seq 64 --random 3 |
    grep -q 'from the cache' || return
  for change in '-D w=32' '-D w=16 --cpu avx2' '-D w=16 --force multiset'; do
    "$DIL" run examples/longnet.dil $change --seq 64 --random 3 |
      grep -q 'compiled in' || { echo "$change" && return 1; }
  done
}
is "kept by what it follows from" keyed

# Loading the compiler has a clock of its own, which stands still without one.
clocks() {
  fresh_cache
  "$DIL" run $tiny --json >"$TMP/cold" && "$DIL" run $tiny --json >"$TMP/warm" &&
    grep -q '"open_seconds": 0\.0}' "$TMP/warm" &&
    ! grep -qE '"(compile|open)_seconds": -?0\.0[,}]' "$TMP/cold" &&
    DIL_CACHE=off "$DIL" run $tiny | grep -q 'ms, the compiler loaded in [0-9]'
}
is "compiling and loading the compiler are told apart" clocks

# A compiler whose path is known from another folder only.
whole_path() {
  fresh_cache
  example=$PWD/examples/longnet.dil
  real=$(ldd "$BUILD/dil-cpu.so" | sed -nE 's/.*libLLVM.* => (.*) \(.*/\1/p')
  mkdir -p "$TMP/links" && ln -s "$real" "$TMP/links" &&
    (cd "$TMP" && LD_LIBRARY_PATH=links "$DIL" run "$example" -D w=16 --seq 64 \
      --random 3 >/dev/null) && "$DIL" cache verify | grep -q ' 1 entry.* 0 stale'
}
is "an entry is good in other folders, too" whole_path

# A back end that was changed, and one of a build with other headers.
changed_parts() {
  mkdir -p "$TMP/parts" && cp "$BUILD/dil-cpu.so" "$TMP/parts" &&
    "$DIL" run $tiny | grep -q 'from the cache' &&
    echo changed >>"$TMP/parts/dil-cpu.so" &&
    LD_LIBRARY_PATH=$BUILD DIL_MODULE_DIR=$TMP/parts "$DIL" run $tiny |
    grep -q 'compiled in'
}
is "what another back end made is not taken" changed_parts
stale_part() {
  mkdir -p "$TMP/stale" && echo 'const void *dil_backend_init(void);
    const void *dil_backend_init(void) {
      static const int version[64] = {2};
      return version;
    }' | ${CC:-cc} -shared -fPIC -x c -o "$TMP/stale/dil-cpu.so" - &&
    ! DIL_CACHE=off DIL_MODULE_DIR=$TMP/stale "$DIL" run $tiny 2>"$TMP/err" &&
    grep -q 'dil-cpu.so is of another version of dil' "$TMP/err"
}
is "a back end of another build is refused" stale_part

flip() { # file: another last byte
  last=$(tail -c 1 "$1" | od -An -tu1 | tr -d ' ')
  truncate -s -1 "$1"
  printf "\\$(printf %o $(((last + 1) % 256)))" >>"$1"
}
mends() {
  fresh_cache
  "$DIL" run $tiny >/dev/null && flip "$TMP/kept"/*.kernel || return
  exits 4 "$DIL" cache verify || return
  "$DIL" run $tiny --check >"$TMP/out" 2>"$TMP/err" &&
    grep -q 'compiled in' "$TMP/out" && [ "$(wc -l <"$TMP/err")" -eq 1 ] &&
    grep -q '^dil: warning: cache entry .*: it is damaged' "$TMP/err" &&
    "$DIL" cache verify && "$DIL" run $tiny | grep -q 'from the cache'
}
is "a damaged entry is told, made anew and mended" mends

goes_on() { # command that spoils the folder: one warning, no entry
  fresh_cache
  eval "$1"
  "$DIL" run $tiny --check >/dev/null 2>"$TMP/err" &&
    [ "$(grep -c '^dil: warning: kernels are kept in memory alone' \
      "$TMP/err")" -eq 1 ] && [ "$(wc -l <"$TMP/err")" -eq 1 ]
}
is "a folder that others may write" goes_on \
  'mkdir "$TMP/kept" && chmod 770 "$TMP/kept"'
is "a folder that is a link" goes_on \
  'mkdir -p "$TMP/real" && ln -s "$TMP/real" "$TMP/kept"'
is "a folder that is a pipe" goes_on 'mkfifo "$TMP/kept"'

off() {
  fresh_cache
  DIL_CACHE=off "$DIL" run $tiny | grep -q 'compiled in' && ! [ -e "$TMP/kept" ]
}
is "DIL_CACHE=off keeps nothing" off
one_warning() { # however many kernels
  fresh_cache
  mkdir "$TMP/kept" && chmod 770 "$TMP/kept" &&
    "$DIL" bench examples/longnet.dil examples/union.dil --seq 64 --repeat 1 \
      >/dev/null 2>"$TMP/err" && [ "$(wc -l <"$TMP/err")" -eq 1 ]
}
is "one warning for several kernels" one_warning
reads_only() {
  fresh_cache
  DIL_CACHE=ro "$DIL" run $tiny | grep -q 'compiled in' &&
    ! [ -e "$TMP/kept" ] && "$DIL" run $tiny >/dev/null &&
    DIL_CACHE=ro "$DIL" run $tiny | grep -q 'from the cache' &&
    exits 2 env DIL_CACHE=ro "$DIL" cache clear
}
is "DIL_CACHE=ro writes nothing" reads_only
is "DIL_CACHE=of is an error" exits 2 env DIL_CACHE=of "$DIL" run $tiny
lists() {
  fresh_cache
  "$DIL" run $tiny >/dev/null && "$DIL" run $tiny --cpu avx2 >/dev/null &&
    [ "$("$DIL" cache list | grep -c 'longnet avx.* tiles$')" -eq 2 ] &&
    [ "$("$DIL" cache list --json | grep -c '"wrong": null}$')" -eq 2 ] &&
    "$DIL" cache gc --max-size 9K && [ "$(entries)" -eq 1 ] &&
    "$DIL" cache clear && [ "$(entries)" -eq 0 ]
}
is "cache list, gc and clear" lists
doctor_tells() {
  fresh_cache
  "$DIL" run $tiny >/dev/null &&
    "$DIL" doctor | grep -q '^cache  *found  *.*/kept, 1 file$' &&
    chmod 770 "$TMP/kept" &&
    "$DIL" doctor | grep -q '^cache  *missing  *.*others may write to it' &&
    DIL_CACHE=off "$DIL" doctor | grep -q '^cache  *missing  *DIL_CACHE=off'
}
is "doctor tells of the cache" doctor_tells

export DIL_CACHE=off

# ---- what goes on inside ----------------------------------------------------

traced() {
  DIL_TRACE=$TMP/%p.json DIL_METRICS=$TMP/m.prom "$DIL" run $tiny --threads 2 \
    >/dev/null || return
  for name in '"parse and check"' '"plan"' '"pass by tiles"' '"pack"' \
    '"strip"' '"kernel"' '"thread_name"'; do
    grep -q "$name" "$TMP"/[0-9]*.json || { echo "$name" && return 1; }
  done
  grep -qx 'dil_runs_total{device="cpu"} 1' "$TMP/m.prom" &&
    tail -1 "$TMP"/[0-9]*.json | grep -qx ']}'
}
is "a trace and metrics of a run" traced
traced_ring() {
  DIL_TRACE=$TMP/ring.json DIL_METRICS=$TMP/ring.prom "$DIL" run \
    examples/longnet_ring.dil -D w=16 --topology four --seq 256 --random 1 \
    >/dev/null || return
  [ "$(grep -c '"ring step"' "$TMP/ring.json")" -eq 16 ] &&
    [ "$(grep -c '"name":"rank [0-3]"' "$TMP/ring.json")" -eq 4 ] &&
    grep -q '"cat":"ring","name":"wait"' "$TMP/ring.json" &&
    grep -qx 'dil_ring_steps_total 16' "$TMP/ring.prom" &&
    [ "$(grep -c '^dil_ring_step_bytes_per_second{' "$TMP/ring.prom")" -eq 12 ] &&
    awk '/^dil_ring_step_bytes_total/ { steps += $2 }
         /^dil_ring_bytes_total{direction="received"}/ { all = $2 }
         END { exit !(steps == all && all > 0) }' "$TMP/ring.prom"
}
is "the steps of a ring, rank by rank" traced_ring
shows_progress() { # on a terminal, when a run takes long
  cat >"$TMP/slow.dil" <<'END'
pattern p { heads 2; head_dim 16; dtype f32; branch { } }
topology t { devices 8; ring 8; link thread; }
END
  script -qec "$DIL run $TMP/slow.dil --topology t --seq 70000 --random 1 \
    --threads 1" /dev/null >"$TMP/terminal" 2>&1 &&
    grep -q 'ring \[#*\.*\]  *[0-9]* %' "$TMP/terminal" &&
    "$DIL" run "$TMP/slow.dil" --topology t --seq 70000 --random 1 \
      >"$TMP/pipe" 2>&1 && ! grep -q '%' "$TMP/pipe"
}
if command -v script >/dev/null; then
  is "a ring's progress, on a terminal alone" shows_progress
fi
is "a trace that cannot be written" exits 3 \
  env DIL_TRACE=/nosuch/folder/t.json "$DIL" run $tiny
is "metrics that cannot be written" exits 3 \
  env DIL_METRICS=/nosuch/folder/m.prom "$DIL" run $tiny
is "a log of the wrong level" exits 2 env DIL_LOG=loud "$DIL" --version
logs() {
  DIL_LOG=info:$TMP/log "$DIL" run $tiny >/dev/null &&
    grep -q "info: kernel 'longnet' for avx.* tiles: " "$TMP/log"
}
is "a log of a run" logs

# ---- pictures ---------------------------------------------------------------

draws() { # ending, bytes that it begins with, in octal
  "$DIL" show examples/longnet.dil -D w=8 --seq 48 -o "$TMP/p.$1" &&
    [ "$(head -c 4 "$TMP/p.$1" | od -An -to1 | tr -d ' ')" = "$2" ]
}
is "a picture as .png" draws png 211120116107
is "a picture as .svg" draws svg 074163166147
is "the svg is whole" sh -c 'tail -1 "$TMP/p.svg" | grep -qx "</svg>"'
is "the same picture twice" sh -c \
  'cp "$TMP/p.png" "$TMP/one.png" &&
   "$DIL" show examples/longnet.dil -D w=8 --seq 48 -o "$TMP/p.png" &&
   cmp "$TMP/p.png" "$TMP/one.png"'
legend_is_whole() { # more branches than the plot is high
  {
    echo 'pattern many { heads 1; head_dim 8; dtype f32;'
    for i in $(seq 30); do echo "branch b$i { segment $((7 * i)); }"; done
    echo '}'
  } >"$TMP/many.dil"
  "$DIL" show "$TMP/many.dil" --seq 90 -o "$TMP/many.svg" &&
    [ "$(grep -oE '\bb[0-9]+, ' "$TMP/many.svg" | sort -u | wc -l)" -eq 30 ]
}
is "every branch is in the legend" legend_is_whole
axis_says() { # words, arguments
  words=$1
  shift
  "$DIL" show examples/dense.dil -o "$TMP/p.svg" "$@" &&
    grep -q ">$words<" "$TMP/p.svg"
}
is "queries are at positions" axis_says "query position" --seq 30
is "rows where positions are others" axis_says "query row" --seq 30 --keys 20
is "a large mask in a moment" timeout 60 "$DIL" show examples/longnet.dil \
  --seq 1048576 -o "$TMP/large.png"
is "no colours in a pipe" sh -c \
  '! "$DIL" show examples/longnet.dil -D w=8 --seq 16 | grep -q "$(printf "\033")"'

# ---- runs -------------------------------------------------------------------

keys="kernel device variant force schedule remembered plan_hash seconds flops gflops peak_share
rel_error lse_error checked_rows workspace_bytes compile_seconds open_seconds"

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

# A run's own output can be read again: here as the queries of another run.
reads_back() {
  "$DIL" run examples/dense.dil --seq 20 --random 3 --out "$TMP/q.npy" &&
    "$DIL" run examples/dense.dil --q "$TMP/q.npy" --random 3 --check
}
is "arrays written are arrays read" reads_back

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

# ---- remembered schedules ----------------------------------------------------

remembered="$TMP/state/wisdom"
wise() { DIL_WISDOM=$remembered "$DIL" "$@"; }
tunes() {
  wise tune examples/longnet.dil -D w=16 --seq 100,300 --budget 0.3 &&
    wise tune --list | grep -c 'longnet on cpu .* queries' | grep -qx 2
}
is "tune remembers each length" tunes
is "doctor says how many" sh -c "DIL_WISDOM=$remembered \"\$DIL\" doctor |
  grep -q '^wisdom  *found  *2 schedules of .dil tune. in $remembered'"
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
exit $bad
