# shellcheck shell=sh
# job.sh - what the scripts that start MPI jobs share; sourced. In: DIL, TMP,
# BUILD. A script that sources it ends here, well, where MPI is not installed.
if ! command -v mpirun >/dev/null || [ ! -e "$BUILD/dilrt-mpi.so" ]; then
  echo "ok skipped: MPI is not installed"
  exit 0
fi
OMPI_ALLOW_RUN_AS_ROOT=1
OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM
# What Open MPI leaves behind at its end is not ours to find.
ASAN_OPTIONS=detect_leaks=0:${ASAN_OPTIONS:-}
export ASAN_OPTIONS
. tests/support/ok.sh

job() { # processes, options of dil run...
  count=$1
  shift
  mpirun --oversubscribe -n "$count" "$DIL" run "$@"
}
