#!/bin/sh
# torch_ring_gpu.sh - rings of processes in PyTorch on GPUs, or on emulated ones. In:
# BUILD, or its bundle of `make gpu-bundle`. Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh
. tests/support/python.sh
leave_unless_python torch_ring_gpu numpy torch
if has_gpu; then
  take_bundle
  DIL_LIBRARY=$BUILD/libdil.so.2
  DIL_MODULE_DIR=$BUILD
else
  leave_unless_emulated torch_ring_gpu
  # PyTorch brings NCCL and NVRTC, and a process has one library of a name: the
  # emulated ones have other names here, also where dil opens them.
  mkdir "$TMP/parts"
  ln -s "$BUILD"/*.so "$TMP/parts"
  for file in dilrt-nccl.so dil-gpu.so emulator/libnccl.so.2 emulator/libnvrtc.so.13; do
    made=$(echo "${file##*/}" | sed 's/so\.2$/so.E/; s/so\.13$/so.1E/')
    rm -f "$TMP/parts/$made"
    sed 's/libnccl\.so\.2/libnccl.so.E/g; s/libnvrtc\.so\.13/libnvrtc.so.1E/g' \
      "$BUILD/$file" >"$TMP/parts/$made"
  done
  ln -s "$BUILD"/emulator/libcuda.so.1 "$BUILD"/emulator/*.h "$TMP/parts"
  DIL_MODULE_DIR=$TMP/parts
  LD_LIBRARY_PATH=$BUILD/emulator:$TMP/parts:${LD_LIBRARY_PATH:-}
  export LD_LIBRARY_PATH
fi
python3 tests/python/torch_ring_gpu.py "$@"
