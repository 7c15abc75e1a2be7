#!/bin/sh
# torch_cuda.sh - dil.torch on a GPU. In: BUILD, or its bundle of `make
# gpu-bundle`. Out: ok / not ok lines; one that says so where there is no GPU.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh
. tests/support/python.sh
leave_unless_python torch_cuda numpy torch
take_bundle
has_gpu || leave torch_cuda "skipped, no GPU here"
DIL_LIBRARY=$BUILD/libdil.so.2
DIL_MODULE_DIR=$BUILD
python3 tests/python/torch_cuda.py
bad=$?
python3 tests/python/torch_projections.py && exit $bad
