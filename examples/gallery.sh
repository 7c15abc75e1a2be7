#!/bin/sh
# gallery.sh - writes README.md and gallery/*.svg into a folder: of each preset a
# picture by `dil show`, the pattern, and its cost by `dil explain`; of each
# example its first line. `make gallery` writes them into examples; the suite
# `gallery` compares. In: a folder, DIL. Out: files.
set -eu
mkdir -p "$1/gallery"
to=$(realpath "$1")
cd "$(dirname "$0")"
dil=${DIL:-../dil}
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT

# ---- what calls bring --------------------------------------------------------

# A .npy file of the bytes that standard input lists in decimal.
npy() { # descr, shape, file
  {
    printf '\223NUMPY\001\000\166\000'
    printf "%-117s\n" "{'descr': '$1', 'fortran_order': False, 'shape': ($2), }"
    awk '{ for (k = 1; k <= NF; k++) printf "\\0%03o", $k } END { print "" }' |
      while read -r line; do printf '%b' "$line"; done
  } >"$3"
}

# Every `step`-th token is global.
chosen() { # tokens, step
  awk -v n="$1" -v step="$2" 'BEGIN {
    for (t = 0; t < n; t++) print t % step == 0 ? 1 : 0 }' |
    tr '\n' ' ' | npy '|u1' "1, $1" "$made/chosen.npy"
}

# Documents of unequal length: each ends where the list says.
starts() { # tokens, ends...
  n=$1
  shift
  awk -v n="$n" -v ends="$*" 'BEGIN {
    count = split(ends, end, " ")
    for (t = 0; t < n; t++) {
      while (at < count && end[at + 1] <= t) start = end[++at]
      print start % 256, int(start / 256), 0, 0
    } }' | tr '\n' ' ' | npy '<i4' "1, $n" "$made/start.npy"
}

# Two drafts follow each.
leads() { # drafts
  awk -v n="$1" 'BEGIN {
    for (row = 0; row < n; row++) {
      for (c = row; c > 0; c = int((c - 1) / 2)) on[row, c] = 1
      on[row, 0] = 1
      for (c = 0; c < n; c++) print (row, c) in on ? 1 : 0
    } }' | tr '\n' ' ' | npy '|u1' "1, $1, $1" "$made/leads.npy"
}

# Vertical lines and slashes of a head each: some at the begin, then ever fewer.
lines() { # tokens, heads
  awk -v n="$1" -v heads="$2" 'BEGIN {
    for (h = 0; h < heads; h++)
      for (c = 0; c < 8; c++) {
        t = int(n * c * c / 80)
        print t % 256, int(t / 256), 0, 0
      } }' | tr '\n' ' ' | npy '<i4' "$2, 8" "$made/vertical.npy"
  awk -v n="$1" -v heads="$2" 'BEGIN {
    for (h = 0; h < heads; h++)
      for (t = 0; t < n; t++)
        print t < n / 16 || (t > n / 3 && t < n / 3 + n / 48) ? 1 : 0 }' |
    tr '\n' ' ' | npy '|u1' "$2, $1" "$made/slash.npy"
}

# ---- each preset -------------------------------------------------------------

# The options of its picture; nothing where that of another one serves.
drawn() { # preset
  case $1 in
  bigbird) echo --seq 96 -D size=4 ;;
  block_causal) echo --seq 96 -D size=12 ;;
  block_diffusion) echo --seq 96 -D size=8 ;;
  dense) echo --seq 96 -D ahead=0 ;;
  dilated_window) echo --seq 96 -D w=6 -D r=4 ;;
  documents) echo --seq 96 -D w=10 -D sinks=2 --input "start=$made/start.npy" ;;
  fixed) echo --seq 96 -D l=12 -D c=2 ;;
  gigapath) ;;
  longformer) echo --seq 96 -D w=8 -D g=3 ;;
  longformer_global) echo --seq 96 -D w=8 --input "chosen=$made/chosen.npy" ;;
  longnet | torchscale) echo --seq 48 -D w=3 --head 1 ;;
  moba | nsa_selected) echo --seq 96 -D size=8 -D blocks=5 ;;
  seer) echo --seq 96 -D size=8 -D blocks=4 ;;
  neighborhood2d) echo --seq 64 -D wide=8 -D k=3 ;;
  neighborhood3d) echo --seq 48 -D tall=4 -D wide=4 -D k=3 ;;
  prefix) echo --seq 96 -D p=24 ;;
  sliding) echo --seq 96 -D w=10 ;;
  streaming) echo --seq 96 -D w=16 ;;
  strided) echo --seq 60 -D l=10 ;;
  swin) echo --seq 64 -D wide=8 -D w=4 ;;
  tree) echo --seq 31 --keys 48 --input "leads=$made/leads.npy" ;;
  vertical_slash) echo --seq 96 -D q_heads=1 --input "vertical=$made/vertical.npy" \
    --input "slash=$made/slash.npy" ;;
  vsa) echo --seq 48 -D tall=4 -D wide=4 -D deep=1 -D high=2 -D broad=2 \
    -D blocks=4 ;;
  *) echo --seq 96 ;;
  esac
}

# The options of its cost, for 16384 keys.
counted() { # preset
  case $1 in
  documents) echo --input "start=$made/start.npy" ;;
  longformer_global) echo --input "chosen=$made/chosen.npy" ;;
  neighborhood2d) echo -D wide=128 -D k=13 ;;
  neighborhood3d) echo -D k=5 ;;
  swin) echo -D wide=128 -D w=8 ;;
  tree) echo --input "leads=$made/leads.npy" ;;
  vertical_slash) echo --input "vertical=$made/vertical.npy" \
    --input "slash=$made/slash.npy" ;;
  vsa) echo -D tall=16 -D wide=16 -D blocks=4 ;;
  esac
}

queries() { # preset
  case $1 in
  tree | moba | nsa_selected) echo 64 ;;
  vsa) echo 1024 ;;
  *) echo 16384 ;;
  esac
}

keys() { # preset
  case $1 in
  vsa) echo 1024 ;;
  *) echo 16384 ;;
  esac
}

bring() { # tokens: of a picture or of a cost
  if [ "$1" -lt 1000 ]; then
    chosen 96 32
    starts 96 20 58
    leads 31
    lines 96 1
  else
    chosen 16384 1024
    starts 16384 700 3000 4500 5000 9000 9400 12000 16000
    leads 64
    lines 16384 16
  fi
}

# Options as a reader would write them.
told() {
  echo "$*" | sed "s,=$made/,=,g"
}

field() { # name, line of JSON
  printf '%s\n' "$2" | sed -n "s/.*\"$1\": \([-0-9.e+]*\).*/\1/p"
}

# 12345678 is 12.3 M.
short() {
  awk -v x="$1" 'BEGIN {
    split(" k M G T", unit, " "); n = 0
    while (x >= 999.5 && n < 4) { x /= 1000; n++ }
    printf "%.3g%s", x, n ? " " unit[n] : "" }'
}

pictures() {
  bring 96
  for file in presets/*.dil; do
    preset=$(basename "$file" .dil)
    [ -n "$(drawn "$preset")" ] || continue
    # shellcheck disable=SC2046 # words
    "$dil" show "preset:$preset" $(drawn "$preset") \
      -o "$to/gallery/$preset.svg" 2>"$made/said" || cat "$made/said" >&2
  done
}

cost() { # preset
  # shellcheck disable=SC2046 # words
  line=$("$dil" explain "preset:$1" --seq "$(queries "$1")" --keys "$(keys "$1")" \
    --heads 16 --head-dim 64 $(counted "$1") --json 2>"$made/said") ||
    cat "$made/said" >&2
  pairs=$(short "$(field pairs "$line")")
  share=$(awk -v x="$(field density "$line")" 'BEGIN { printf "%.3g", 100 * x }')
  work=$(short "$(field flops "$line")")
  options=$(told "$(counted "$1")")
  [ "$(queries "$1")" = 16384 ] ||
    options="--seq $(queries "$1")${options:+ $options}"
  echo "$pairs pairs, $share % of dense, ${work}FLOP${options:+ (\`$options\`)}"
}

# Its first comment without the name and without commands, its arXiv numbers as
# links.
about() { # file
  awk '/^$/ { exit } /^#   / { next } { sub(/^# ?/, ""); printf "%s ", $0 }' "$1" |
    sed 's/^preset:[a-z0-9_]* - //; s/^[a-z0-9_]*\.dil: //; s/ $//
         s,arXiv \([0-9.]*[0-9]\),[arXiv \1](https://arxiv.org/abs/\1),g
         s/^./\U&/'
  echo
}

# What it says besides its sizes; of a long one the first lines.
body() { # file
  awk '/^pattern/ { on = 1; next } !on || /^}/ { next }
    /heads  |head_dim|dtype|window    inf, ahead|branch { }/ { next }
    { sub(/^    /, ""); n++; if (n <= 8) print; else rest = 1 }
    END { if (rest) print "# ..." }' "$1"
}

section() { # preset
  file=presets/$1.dil
  printf '\n### %s\n\n' "$1"
  options=$(told "$(drawn "$1")")
  [ -z "$options" ] || printf \
    '<img src="gallery/%s.svg" width="420" alt="the pairs of %s">\n\n' "$1" "$1"
  about "$file" | fmt -w 88
  text=$(body "$file")
  [ -z "$text" ] || printf '\n```\n%s\n```\n' "$text"
  printf '\n[The file](%s): %s.\n' "$file" "$(cost "$1")"
  [ -z "$options" ] || printf 'The picture: `%s`.\n' "$options"
}

page() {
  cat <<'END'
# Gallery

These patterns come with dil: `dil run preset:NAME -D w=64 ...`, or
`import "preset:NAME";`. Their lets are for `-D`: heads (`q_heads`, `kv_heads`),
the size of a head (`width`), in most of them `ahead=0` for causality, and what the
files name. [All examples](#all-examples) stand below.

A picture has queries down, keys across, and a colour for each branch; it is of a
small case, whose options stand under it; of a grid it has the cells that one query
sees. The costs are those of 16384 queries and
keys, 16 heads of 64, as `dil explain` counts them; other options stand in brackets.
`make gallery` writes this page, and gallery.sh makes the inputs that it names.

## Presets
END
  bring 16384
  for file in presets/*.dil; do
    section "$(basename "$file" .dil)"
  done
  printf '\n## All examples\n\n| file | shows |\n|---|---|\n'
  for file in *.dil; do
    what=$(about "$file" | sed 's/|/\\|/g; s/\([a-z0-9)]\)\. [A-Z`].*/\1./')
    printf '| [%s](%s) | %s |\n' "$file" "$file" "$what"
  done
}

pictures
page >"$to/README.md"
