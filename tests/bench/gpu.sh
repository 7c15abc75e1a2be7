#!/bin/sh
# gpu.sh - `tests/run.sh bench-gpu`: speeds on a GPU beside PyTorch's, one table
# (gpu.py). In: BUILD, or its bundle of `make gpu-bundle` where there is one;
# words choose cases by the beginnings of their names. Skipped with a word where
# there is no GPU or no python3. Not a test: nothing passes or fails by speed.
set -u
cd "$(dirname "$0")/../.." || exit 70
BUILD=${BUILD:-build}
if [ -d "$BUILD/gpu/tests" ]; then
  BUILD=$BUILD/gpu
  LD_LIBRARY_PATH=$BUILD/lib:${LD_LIBRARY_PATH:-/usr/local/cuda/lib64}
  export LD_LIBRARY_PATH
fi
if ! [ -e /dev/nvidiactl ] && ! nvidia-smi >/dev/null 2>&1; then
  echo "bench-gpu: skipped, no GPU here"
  exit 0
fi
if ! command -v python3 >/dev/null; then
  echo "bench-gpu: skipped, no python3"
  exit 0
fi
export BUILD
exec python3 tests/bench/gpu.py "$@"
