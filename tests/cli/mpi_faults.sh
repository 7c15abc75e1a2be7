#!/bin/sh
# mpi_faults.sh - a rank of an MPI job is killed or frozen at a random moment,
# forward or backward: the job ends in time, without success, and can be resumed
# to the same bits (support/strike.sh). In: DIL, TMP, BUILD, STRIKES. Out: ok /
# not ok lines, and the longest that an end took.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/mpi/job.sh
. tests/support/strike.sh
rank_word=OMPI_COMM_WORLD_RANK

# Without a name where only the end of MPI was left.
names() { # rank, signal
  [ "$2" = KILL ] || grep -a "rank $1 is silent\|job does not end" "$TMP/job"
}

# The timeout, the time to ask others, and the launcher's own time to end.
strikes forward jobs 3 2 4000 11000
strikes backward jobs 3 2 4000 11000
# Of two rings, by its number in the job; they have two steps alone.
as=forward topology=mesh moment=0.1
SEED=2001
is "frozen rank of a mesh" strike STOP 11000
as=backward
SEED=2002
is "frozen rank of a mesh, backward" strike STOP 11000
latest
exit $bad
