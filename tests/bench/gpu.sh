#!/bin/sh
# gpu.sh - `tests/run.sh bench-gpu`: speeds on a GPU beside PyTorch's, one table
# (gpu.py); `bench-gpu-ring`: on several (gpu_ring.py). In: which of them; BUILD,
# or its bundle of `make gpu-bundle` where there is one; words that choose cases
# by the beginnings of their names. Skipped with a word where there is no GPU or
# no python3. Not a test: nothing passes or fails by speed.
set -u
cd "$(dirname "$0")/../.." || exit 70
BUILD=${BUILD:-build}
if [ -d "$BUILD/gpu/tests" ]; then
  BUILD=$BUILD/gpu
  LD_LIBRARY_PATH=$BUILD/lib:${LD_LIBRARY_PATH:-/usr/local/cuda/lib64}
  export LD_LIBRARY_PATH
fi
if ! [ -e /dev/nvidiactl ] && ! nvidia-smi >/dev/null 2>&1; then
  echo "$1: skipped, no GPU here"
  exit 0
fi
if ! command -v python3 >/dev/null; then
  echo "$1: skipped, no python3"
  exit 0
fi
export BUILD
table=gpu.py
[ "$1" = bench-gpu ] || table=gpu_ring.py
nccl=$(python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0] + "/lib")' \
  2>/dev/null)
LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}${nccl:+:$nccl}
export LD_LIBRARY_PATH
shift
exec python3 "tests/bench/$table" "$@"
