#!/bin/sh
# schedule.sh - results do not depend on the schedule: examples with the knobs of
# each device, against the oracle; on a GPU where there is one. In: DIL, BUILD,
# TMP. Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh
bundle=
if [ -x "$BUILD/gpu/dil" ] && ! [ -x "$DIL" ]; then
  bundle=$BUILD/gpu # without the CPU's back end
  DIL=$bundle/dil
  LD_LIBRARY_PATH=$bundle/lib:$bundle:${LD_LIBRARY_PATH:-/usr/local/cuda/lib64}
  export LD_LIBRARY_PATH
fi

# The pattern of an example with a schedule, and a kernel of both.
runs() { # device, example, knobs, options...
  device=$1 name=$2 knobs=$3
  shift 3
  {
    cat "examples/$name.dil"
    echo "schedule turned { $knobs }"
    echo "kernel turned = $name with turned;"
  } >"$TMP/turned.dil"
  is "$device $name $knobs" "$DIL" run "$TMP/turned.dil" -k turned \
    --device "$device" --random 1 --check "$@"
}

cpu_runs() {
  for keys in 32 33 47 64 100 128; do
    runs cpu longnet "tile_keys $keys;" -D w=64 --seq 333
    runs cpu blocksparse "tile_keys $keys;" --seq 333
  done
  runs cpu dense "tile_keys 39;" --seq 100 --keys 301 --cpu avx2
}
[ "$bundle" ] || cpu_runs
if has_gpu; then
  for knobs in "tile 128, 64;" "tile 192, 96; stages 2;" "stages 5;" \
    "family general;" "family general; tile 32, 32;" "family general; tile 128, 48; parts 3;" \
    "family general; parts 64; blocks 2;" "family general; tile 128, 32; warps 4;"; do
    runs cuda longnet "$knobs" -D w=256 --seq 1000
  done
  runs cuda blocksparse "tile 16, 16; parts 7;" --seq 900
  runs cuda dense "tile 64, 16; parts 2;" --seq 300 --keys 451
else
  echo "ok skipped: no GPU here"
fi
exit $bad
