#!/bin/sh
# test_cli.sh - the command line. Transcripts under golden/cli are replayed:
# after a line `$ COMMAND` stands all that it writes, standard error included,
# and `exit N` when that is not 0; `dil` is the program under test. Then come
# start, options, exit codes and pictures; runs and the cache have scripts of
# their own (cli_*.sh). In: DIL, TMP; UPDATE=1 rewrites the transcripts. Out: ok
# / not ok lines.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh

dil() { "$DIL" "$@"; }

export DIL_CACHE=off # what compiles, compiles

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

# One of many starts, so that a busy machine does not fail it.
starts_quickly() {
  most=5000000 best=1000000000 i=0
  case $BUILD in *asan | *tsan) most=500000000 ;; esac
  while [ $best -ge $most ] && [ $i -lt 400 ]; do
    began=$(date +%s%N)
    "$DIL" --version >/dev/null
    took=$(($(date +%s%N) - began))
    [ $took -lt $best ] && best=$took
    i=$((i + 1))
  done
  echo "$best ns, start $i"
  [ $best -lt $most ]
}
is "starts in 5 ms" starts_quickly

# ---- one table --------------------------------------------------------------

options_of() { # verb: its long options
  "$DIL" help "$1" | sed -nE 's/^  (-., |    )--([a-z-]+).*/\2/p'
}

manual_has_all() {
  for verb in check explain show print run bench tune cache; do
    for option in $(options_of $verb); do
      sed 's/\\-/-/g' compiler/cli/dil.1 | grep -q -- "^.*--$option" ||
        { echo "--$option is missing" && return 1; }
    done
  done
}
is "the manual page has every option" manual_has_all

# In parentheses below the option, which may stand there twice.
manual_has_verbs() {
  for verb in check explain show print build run bench tune cache; do
    for option in $(options_of $verb); do
      sed 's/\\-/-/g' compiler/cli/dil.1 |
        grep -A1 -- "^\\\\fB.*--$option\\\\fR" | grep -qw "^(.*$verb.*)" ||
        { echo "--$option is not told of $verb" && return 1; }
    done
  done
}
is "the manual page says which verbs have it" manual_has_verbs

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
is "1 for a message in JSON that cannot be written" sh -c \
  'echo "pattern p { }" | "$DIL" check - --error-format json 2>/dev/full; [ $? -eq 1 ]'
limited() { # file, options...: it is past the limit on files, and not left over
  file=$1
  shift
  (ulimit -f 1 && "$DIL" "$@" 2>&1; echo "exit $?") | cat >"$TMP/limited"
  cat "$TMP/limited"
  grep -qF "cannot write '$file': File too large" "$TMP/limited" &&
    grep -qx 'exit 3' "$TMP/limited" && [ ! -e "$file" ]
}
dense=examples/dense.dil
is "3 for an array past the limit on files" limited "$TMP/o.npy" run $dense \
  --seq 64 --random 1 --out "$TMP/o.npy"
is "for one of a stream" limited "$TMP/s.o.npy" run $dense --seq 64 --random 1 \
  --stream=1M --state "$TMP/s" --out "$TMP/o.npy"
is "for a library" limited "$TMP/liblimited.a" build $dense --emit=a \
  -o "$TMP/liblimited"

# f32 overflows on the way to a score where the oracle's float64 does not.
is "4 for another result than the oracle's" sh -c '
  echo "pattern p { heads 1; head_dim 8; dtype f32; score log(exp(100 * s));
    branch { } }" >"$TMP/over.dil"
  "$DIL" run "$TMP/over.dil" --seq 50 --random 1 --check --json >"$TMP/json"
  [ $? -eq 4 ] && grep -q rel_error "$TMP/json"'

# ---- pictures ---------------------------------------------------------------

draws() { # ending, bytes that it begins with, in octal
  "$DIL" show examples/longnet.dil -D w=8 --seq 48 -o "$TMP/p.$1" &&
    [ "$(head -c 4 "$TMP/p.$1" | od -An -to1 | tr -d ' ')" = "$2" ]
}
is "a picture as .png" draws png 211120116107
is "a picture as .svg" draws svg 074163166147
ln -s /dev/full "$TMP/full.png"
is "a picture that cannot be written" says \
  "cannot write '$TMP/full.png': No space left on device" \
  "$DIL" show examples/dense.dil --seq 30 -o "$TMP/full.png"
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
# What is most of no cell has no colour in the picture, and none in the legend.
legend_agrees() {
  echo 'pattern p { heads 16; head_dim 48; dtype f16;
    segments 1024, 5792, 32768, 185363, 1048576;
    dilations 1, 2, 4, 8, 16; }' >"$TMP/giga.dil"
  "$DIL" show "$TMP/giga.dil" --seq 12000 -o "$TMP/giga.svg" &&
    [ "$(grep -c 'most of no cell' "$TMP/giga.svg")" -eq 3 ] &&
    grep -q '"#2ba363"' "$TMP/giga.svg" && # the swatch of branch 2
    ! grep -qE '"#(b455c6|e4505f|1f2a44)"' "$TMP/giga.svg"
}
is "the legend has the colours of the picture" legend_agrees
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
exit $bad
