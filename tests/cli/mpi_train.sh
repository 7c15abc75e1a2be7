#!/bin/sh
# mpi_train.sh - the example that trains, over the processes of an MPI job: its
# losses are those of one process. In: DIL, TMP, BUILD. Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/mpi/job.sh

text=examples/data/tokens.txt
DIL_MODULE_DIR=$BUILD
DIL_TRAIN_PLAN=examples/host/train.dil
DIL_THREADS=1
export DIL_MODULE_DIR DIL_TRAIN_PLAN DIL_THREADS
"$BUILD/examples/host/train" $text 60 >"$TMP/one"

train() { # processes
  timeout 200 mpirun --oversubscribe -n "$1" \
    "$BUILD/examples/host/train_ranks" $text 60
}

# They are printed to a thousandth, the last digit of which rounding may change.
same_losses() { # processes
  train "$1" >"$TMP/ranks" || return
  cat "$TMP/one" "$TMP/ranks"
  paste "$TMP/one" "$TMP/ranks" | awk '
    NF != 8 || $2 != $6 || ($4 - $8) ^ 2 > 0.0011 ^ 2 { bad = 1 }
    END { exit bad || NR != 3 }'
}
for processes in 1 2 3; do
  is "the losses of $processes ranks" same_losses $processes
done

no_plan() {
  DIL_TRAIN_PLAN=/none train 2 2>&1 | grep "train: .*/none"
}
is "a plan that is not there is told" no_plan
exit $bad
