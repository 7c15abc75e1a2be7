#!/bin/sh
# readme.sh - the README says what is true: every command in its ```sh blocks
# is run, its ```dil blocks are checked, and every file that it links to is
# there. Blocks marked ```sh slow (`make check`, `make bench` and what installs)
# are only looked up: their make targets must exist. In: DIL, TMP. Out: ok / not
# ok lines.
set -u
cd "$(dirname "$0")/.." || exit 70
. tests/support/ok.sh

block() { # marker: the commands of such blocks, one a line
  awk -v marker="$1" '
    /^```/ { inside = ($0 == marker) ; if ($0 == "```") inside = 0; next }
    inside && !/^#/ && NF' README.md
}

# The program under test stands in for ./dil, files go to TMP.
block '```sh' >"$TMP/commands"
while read -r command; do
  line=$(echo "$command" | sed "s,/tmp/,$TMP/,g; s,\./dil ,$DIL ,g")
  is "$command" sh -c "$line" </dev/null
done <"$TMP/commands"

block '```dil' | awk '/^let/ { n++ } { print > (folder "/" n ".dil") }' \
  folder="$TMP" -
for file in "$TMP"/[0-9].dil; do
  is "$(grep -o 'pattern .* ' "$file")is a pattern" "$DIL" check "$file"
done

block '```sh slow' >"$TMP/slow"
while read -r word target _; do
  [ "$word" = make ] || continue
  is "make $target exists" make -n "$target"
done <"$TMP/slow"

grep -oE '\]\([^)#]+\)|src="[^"]+"' README.md | sed -E 's/^\]\(|\)$|src="|"$//g' |
  sort -u >"$TMP/links"
while read -r link; do
  case $link in http*) continue ;; esac
  is "link $link" test -e "$link"
done <"$TMP/links"
exit $bad
