#!/bin/sh
# wc.sh - the size of the house: lines by folder, and what is longer than the
# habits allow (functions of 80 lines, files of 500, lines of 100 columns).
set -eu
cd "$(dirname "$0")/.."

sources() {
  git ls-files -- "$@" | grep -E '\.(c|h|l|y|def|sh|py|mk|cu|cuh|in)$' || true
}

printf '%-28s %6s %6s\n' folder files lines
for folder in $(git ls-files | sed -n 's,/[^/]*$,,p' | sort -u |
  grep -v -e '^tests/golden' -e '^tests/abi'); do
  files=$(sources ":(glob)$folder/*")
  [ -n "$files" ] || continue
  # shellcheck disable=SC2086 # a list of paths without spaces
  printf '%-28s %6d %6d\n' "$folder" "$(echo "$files" | wc -l)" \
    "$(cat $files | wc -l)"
done

# A function begins with { at the end of an unindented line, and ends with }
# in the first column.
sources . | while read -r file; do
  awk -v file="$file" '
    length > 100 { printf "%s:%d: %d columns\n", file, FNR, length }
    /^[A-Za-z_].*\{$/ && !/^(struct|enum|union|typedef|static const)/ {
      start = FNR; name = $0
    }
    /^}/ && start { if (FNR - start + 1 > 80)
        printf "%s:%d: function of %d lines: %s\n", file, start,
          FNR - start + 1, name
      start = 0 }
    END { if (FNR > 500) printf "%s: %d lines\n", file, FNR }' "$file"
done
