#!/bin/sh
# abi.sh - what hosts and libraries were compiled against is still so: names and
# layouts that libdil and libdilrt promise, beside those of abi/*.abi, by
# libabigail. Any difference counts: one that leaves old hosts running (a
# function more, a field that makes a struct with a size grow at its end) is
# recorded by `make abi`, which is `abi.sh record`; for another the number `abi`
# of the Makefile goes up first. A field in the padding of old hosts is another. In:
# BUILD, TMP. Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/.." || exit 70
. tests/support/ok.sh

what='what the libraries promise'
command -v abidw >/dev/null && command -v abidiff >/dev/null ||
  leave "$what" "skipped, there is no abidw here"
leave_sanitized "$what"
readelf -S "$BUILD/libdilrt.so" | grep -q debug_info ||
  leave "$what" "skipped, the build has no types: -g is missing"

# Types of other headers are nobody's business. Another kernel.h is in runtime/cuda.
headers=$TMP/headers
mkdir -p "$headers"
cp compiler/dil.h runtime/*.h runtime/status.def runtime/api/kernel.h \
  runtime/api/library.h runtime/cuda/[!k]*.h "$headers"
describe() { # library, description
  abidw --exported-interfaces-only --drop-private-types --no-corpus-path \
    --no-comp-dir-path --no-show-locs --no-elf-needed --no-architecture \
    --type-id-style hash --headers-dir "$headers" --out-file "$2" "$1"
}

# libdilrt with what it promises alone: what the parts of dil share is no
# host's. Objects of a folder stand for its own.
sed '/^DIL_PRIVATE/d; s/^};/local: *; };/' "$BUILD/libdilrt.map" >"$TMP/map"
link() { # library, map, folder
  objects=
  for object in $(cat "$BUILD/libdilrt.objects"); do
    file=${object##*/}
    [ -e "$3/$file" ] && object=$3/$file
    objects="$objects $object"
  done
  # shellcheck disable=SC2086 # lists of words
  $cc -shared -Wl,-soname,"$(readelf -d "$BUILD/libdilrt.so" |
    sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')" -Wl,--version-script="$2" -o "$1" \
    $objects -Wl,-Bstatic -lcrypto -Wl,-Bdynamic \
    -Wl,--exclude-libs,libcrypto.a -lm -lpthread -ldl
}

same() { # baseline, description
  abidiff "$1" "$2" && return
  echo "the ABI has changed; \`make abi\` records it, once \`abi\` in the" \
    "Makefile was raised if hosts built before would break"
  return 1
}
is "libdilrt is described" link "$TMP/libdilrt.so" "$TMP/map" "$TMP"
describe "$TMP/libdilrt.so" "$TMP/libdilrt.abi"
describe "$BUILD/libdil.so" "$TMP/libdil.abi"
if [ "${1:-}" = record ]; then
  for name in libdilrt libdil; do
    [ ! -e "tests/abi/$name.abi" ] ||
      abidiff "tests/abi/$name.abi" "$TMP/$name.abi"
    cp "$TMP/$name.abi" tests/abi/
  done
  exit $bad
fi
is "libdilrt promises what it did" same tests/abi/libdilrt.abi \
  "$TMP/libdilrt.abi"
is "libdil promises what it did" same tests/abi/libdil.abi "$TMP/libdil.abi"

# ---- and changes are found ---------------------------------------------------

differs() { # what abidiff must say, library
  describe "$2" "$TMP/other.abi" &&
    ! same tests/abi/libdilrt.abi "$TMP/other.abi" >"$TMP/report" || return 1
  cat "$TMP/report"
  grep -q "$1" "$TMP/report"
}
changed() { # name, what abidiff must say, what sed does to header and source
  tree=$TMP/tree
  rm -rf "$tree" && mkdir -p "$tree/objects" "$tree/templates/shared"
  cp -r runtime "$tree" && cp templates/shared/launch.h "$tree/templates/shared"
  sed -i "$3" "$tree/runtime/dilrt.h" "$tree/runtime/api/context.c"
  is "$1" changes_to "$2"
}
changes_to() { # what abidiff must say
  # shellcheck disable=SC2086 # a list of words
  ! cmp -s "$tree/runtime/dilrt.h" runtime/dilrt.h &&
    $cc -g -O1 -std=gnu11 -fPIC -fvisibility=hidden -D_GNU_SOURCE \
      -I"$tree" -I"$BUILD" -c -o "$tree/objects/context.o" "$tree/runtime/api/context.c" &&
    link "$TMP/changed.so" "$TMP/map" "$tree/objects" &&
    differs "$1" "$TMP/changed.so"
}
changed "a field of another size is found" \
  "type of 'int32_t threads' changed" 's/int32_t threads; /int64_t threads; /'
changed "a field in the middle is found" "data member insertion" \
  's/^  int64_t calls; /  int64_t more, calls; /'
changed "a parameter of another type is found" "parameter 2 of type" \
  '/dil_memory_take(dil_context/s/int64_t/int32_t/'
grep -v 'dil_memory_take;' "$TMP/map" >"$TMP/fewer"
link "$TMP/changed.so" "$TMP/fewer" "$TMP"
is "a function less is found" differs "Removed function" "$TMP/changed.so"
exit $bad
