#!/bin/sh
# train.sh - the example that trains: the loss of a small transformer falls, and
# the same steps give the same losses for any number of threads. In: BUILD. Out:
# ok / not ok lines.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh

train=$BUILD/examples/host/train
text=examples/data/tokens.txt

loss_falls() { # below, steps: from that of a guess among 64 letters
  "$train" $text "$2" >"$TMP/losses" || return
  cat "$TMP/losses"
  awk -v most="$1" '{ loss[NR] = $4 }
    END { exit !(loss[1] > 3.9 && loss[NR] < most && loss[NR] > 0) }' \
    "$TMP/losses"
}
is "the loss falls" loss_falls 2.1 300
same_losses() {
  DIL_THREADS=1 "$train" $text 60 >"$TMP/one" &&
    DIL_THREADS=2 "$train" $text 60 >"$TMP/two" && cmp "$TMP/one" "$TMP/two"
}
is "alike for one thread and two" same_losses
is "a text that is not there is told" says "cannot open the text" \
  exits 1 "$train" /none
exit $bad
