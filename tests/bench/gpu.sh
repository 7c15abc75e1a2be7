#!/bin/sh
# gpu.sh - `tests/run.sh bench-gpu`: speeds on a GPU beside PyTorch's, one table
# (gpu.py); `bench-gpu-ring`: on several (gpu_ring.py). In: which of them; BUILD,
# or its bundle of `make gpu-bundle` where there is one; words that choose cases
# by the beginnings of their names. Skipped with a word where there is no GPU or
# no python3. Not a test: nothing passes or fails by speed.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh
take_bundle
has_gpu || leave "$1" "skipped, no GPU here"
command -v python3 >/dev/null || leave "$1" "skipped, no python3"
table=gpu.py
[ "$1" = bench-gpu ] || table=gpu_ring.py
nccl=$(python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0] + "/lib")' \
  2>/dev/null)
LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}${nccl:+:$nccl}
export LD_LIBRARY_PATH
shift
exec python3 "tests/bench/$table" "$@"
