#!/bin/sh
# gallery.sh - the gallery of examples is what `make gallery` writes today, has a
# section for each preset, and links to files that are there. In: DIL, TMP. Out:
# ok / not ok lines.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh

says_nothing() {
  "$@" >"$TMP/out" 2>&1 || return 1
  cat "$TMP/out"
  [ ! -s "$TMP/out" ]
}

is "it is made without a message" says_nothing examples/gallery.sh "$TMP/new"
is "examples/README.md" diff "$TMP/new/README.md" examples/README.md
for name in $(ls "$TMP/new/gallery" examples/gallery | grep svg | sort -u); do
  is "picture $name" cmp "$TMP/new/gallery/$name" "examples/gallery/$name"
done
for file in examples/presets/*.dil; do
  is "$file has its costs" \
    grep "^\[The file\](${file#examples/}): [0-9.]* [kMG] pairs, " \
    examples/README.md
done
grep -oE '\]\([^)#h][^)#]*\)|src="[^"]+"' examples/README.md |
  sed -E 's/^\]\(|\)$|src="|"$//g' | sort -u >"$TMP/links"
while read -r link; do
  is "link $link" test -e "examples/$link"
done <"$TMP/links"
exit $bad
