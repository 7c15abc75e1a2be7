#!/bin/sh
# cli_cache.sh - what a start loads, and the cache of kernels: what is found in
# it, what is not, damaged entries, folders that are no place for it, and the
# verb `dil cache`. In: BUILD, DIL, TMP. Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh

loads_no_compiler() { # command...
  LD_DEBUG=files "$@" 2>&1 | grep -c 'calling init.*LLVM' | grep -qx 0
}
is "version loads no compiler library" loads_no_compiler "$DIL" --version
is "check loads no compiler library" loads_no_compiler "$DIL" check \
  examples/dense.dil

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

# Comments and layout are no part of the key; what changes the code is. The oldest
# processors have nothing older to name.
older='--cpu avx2'
"$DIL" doctor | grep -q '^cpu.* avx2$' && older='--force dedup'
keyed() {
  { echo "# a comment"; cat examples/longnet.dil; } >"$TMP/longnet.dil"
  "$DIL" run "$TMP/longnet.dil" -D w=16 --seq 64 --random 3 |
    grep -q 'from the cache' || return
  for change in '-D w=32' "-D w=16 $older" '-D w=16 --force multiset'; do
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
# Many that one change has made stale: a line for the change, not for each.
stale_together() {
  fresh_cache
  for w in 16 32 64; do
    LD_LIBRARY_PATH=$TMP/links "$DIL" run examples/longnet.dil -D w=$w \
      --seq 64 --random 3 >/dev/null || return
  done
  "$DIL" run $tiny --force multiset >/dev/null && ln -sf "$DIL" "$TMP/links/"* &&
    "$DIL" cache verify >"$TMP/out" && cat "$TMP/out" &&
    [ "$(wc -l <"$TMP/out")" -eq 2 ] &&
    grep -q "^3 stale entries: '.*/links/.*LLVM.*' is not the one" "$TMP/out" &&
    grep -q ': 4 entries, 0 bad, 3 stale; `dil cache gc` removes' "$TMP/out" &&
    "$DIL" cache gc && "$DIL" cache verify | grep -q ' 1 entry, 0 bad, 0 stale$'
}
is "stale entries are told by their cause" stale_together
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
lists() { # of sizes that depend on the set
  fresh_cache
  "$DIL" run $tiny --cpu avx2 >/dev/null &&
    "$DIL" run $tiny --cpu avx2 --force multiset >/dev/null &&
    [ "$("$DIL" cache list | grep -c 'longnet avx2 tiles$')" -eq 2 ] &&
    [ "$("$DIL" cache list --json | grep -c '"wrong": null}$')" -eq 2 ] &&
    "$DIL" cache gc --max-size 9K && [ "$(entries)" -eq 1 ] &&
    "$DIL" cache clear && [ "$(entries)" -eq 0 ]
}
is "cache list, gc and clear" lists
goes_on_limited() { # where a file may have 512 or 1024 bytes
  fresh_cache
  (ulimit -f 1 && "$DIL" run $tiny --check) 2>"$TMP/err" | grep -q 'compiled in' &&
    grep -q '^dil: warning: cannot write cache entry .*: File too large; the' \
      "$TMP/err" && [ "$(wc -l <"$TMP/err")" -eq 1 ] &&
    [ -z "$(ls -A "$TMP/kept")" ]
}
is "a limit on the size of files" goes_on_limited
removes_left() { # by a writer that was killed just now
  fresh_cache
  "$DIL" run $tiny >/dev/null && sh -c 'echo $$' >"$TMP/ended" &&
    echo half >"$TMP/kept/$(cat "$TMP/ended")-0.temporary" &&
    echo half >"$TMP/kept/$$-0.temporary" &&
    "$DIL" cache gc | grep '^removed 1 file, 5 bytes' &&
    "$DIL" cache gc | grep '^removed 0 files' &&
    [ -e "$TMP/kept/$$-0.temporary" ]
}
is "gc removes what a killed writer left" removes_left
doctor_tells() {
  fresh_cache
  "$DIL" run $tiny >/dev/null &&
    "$DIL" doctor | grep -q '^cache  *found  *.*/kept, 1 file$' &&
    chmod 770 "$TMP/kept" &&
    "$DIL" doctor | grep -q '^cache  *missing  *.*others may write to it' &&
    DIL_CACHE=off "$DIL" doctor | grep -q '^cache  *missing  *DIL_CACHE=off'
}
is "doctor tells of the cache" doctor_tells

# ---- for programs -----------------------------------------------------------

fresh_cache
"$DIL" run $tiny >/dev/null && "$DIL" run $tiny --force multiset >/dev/null
is "doctor --json has an object a part" json_is \
  '[list(p) for p in all] == len(all) * [["part", "found", "text"]] and
   {p["part"]: p["found"] for p in all}["cache"] is True and
   {p["part"]: p["text"] for p in all}["cache"].endswith("/kept, 2 files")' \
  "$DIL" doctor --json
is "with the reason for what is missing" json_is \
  '[p["text"] for p in all if p["part"] == "cache" and not p["found"]][0]
   .startswith("DIL_CACHE=off")' env DIL_CACHE=off "$DIL" doctor --json
is "cache verify --json" json_is \
  'all == [{"folder": all[0]["folder"], "entries": 2, "bad": [], "stale": []}]
   and all[0]["folder"].endswith("/kept")' "$DIL" cache verify --json
flip "$(find "$TMP/kept" -name '*.kernel' | head -1)"
is "which tells of a bad entry" json_is \
  'all[0]["entries"] == 2 and len(all[0]["bad"]) == 1 and
   "damaged" in all[0]["bad"][0]["wrong"] and
   all[0]["bad"][0]["name"].endswith(".kernel")' "$DIL" cache verify --json
is "and exits with 4" exits 4 "$DIL" cache verify --json
is "cache gc --json" json_is \
  'all[0]["removed"] == 1 and all[0]["bytes"] > 1000' "$DIL" cache gc --json
is "cache clear --json" json_is \
  'list(all[0]) == ["folder", "removed", "bytes"] and all[0]["removed"] == 1' \
  "$DIL" cache clear --json

# One allocation after the other fails, in the library of JSON, too.
failing_malloc() { # output: what is loaded in front, for allocation $FAILS
  $cc -shared -fPIC -x c - -o "$1" <<'END'
#include <stdlib.h>
extern void *__libc_malloc(size_t);
void *malloc(size_t size) {
  static long calls, wanted;
  if (!calls++) wanted = atol(getenv("FAILS"));
  return calls == wanted ? NULL : __libc_malloc(size);
}
END
}
whole_or_told() { # command...: status 0 and the whole text, or 3 and why not
  told=0
  for n in $(seq 30); do
    FAILS=$n LD_PRELOAD=$TMP/failing.so "$@" >"$TMP/out" 2>"$TMP/why"
    status=$?
    echo "allocation $n, status $status: $(cat "$TMP/out" "$TMP/why")"
    case $status in
    0) sed 's/"used": [0-9]*/"used": 0/' "$TMP/out" | cmp - "$TMP/whole" ||
      grep -q '"no memory to read' "$TMP/out" || return 1 ;;
    3) [ -s "$TMP/why" ] || return 1
      grep -q 'no memory for JSON: its text is not whole' "$TMP/why" &&
        told=$((told + 1)) ;;
    *) return 1 ;;
    esac
  done
  [ $told -gt 9 ]
}
list_without_memory() {
  "$DIL" run $tiny >/dev/null && failing_malloc "$TMP/failing.so" || return 1
  "$DIL" cache list --json | sed 's/"used": [0-9]*/"used": 0/' >"$TMP/whole"
  whole_or_told "$DIL" cache list --json
}
if is_sanitized; then
  echo "ok a list without memory, left to the plain build"
else
  is "a list in JSON is whole, or what lacks is told" list_without_memory
fi
exit $bad
