#!/bin/sh
# readme.sh - the README says what is true: every command in its ```sh blocks
# is run, and every file that it links to is there. Blocks marked ```sh slow
# (`make check`, `make bench` and what installs) are only looked up: their make
# targets must exist. In: DIL, TMP. Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/.." || exit 70
bad=0

block() { # marker: the commands of such blocks, one a line
  awk -v marker="$1" '
    /^```/ { inside = ($0 == marker) ; if ($0 == "```") inside = 0; next }
    inside && !/^#/ && NF' README.md
}

# The program under test stands in for ./dil, files go to TMP.
block '```sh' >"$TMP/commands"
while read -r command; do
  line=$(echo "$command" | sed "s,/tmp/,$TMP/,g; s,\./dil ,$DIL ,g")
  if sh -c "$line" >"$TMP/out" 2>&1 </dev/null; then
    echo "ok $command"
  else
    echo "not ok $command"
    head -c 2000 "$TMP/out"
    bad=1
  fi
done <"$TMP/commands"

block '```sh slow' >"$TMP/slow"
while read -r word target _; do
  [ "$word" = make ] || continue
  if make -n "$target" >/dev/null 2>"$TMP/out"; then
    echo "ok make $target exists"
  else
    echo "not ok make $target"
    cat "$TMP/out"
    bad=1
  fi
done <"$TMP/slow"

grep -oE '\]\([^)#]+\)|src="[^"]+"' README.md | sed -E 's/^\]\(|\)$|src="|"$//g' |
  sort -u >"$TMP/links"
while read -r link; do
  case $link in http*) continue ;; esac
  if [ -e "$link" ]; then
    echo "ok link $link"
  else
    echo "not ok link $link"
    bad=1
  fi
done <"$TMP/links"
exit $bad
