#!/bin/sh
# sanitizers.sh - NVIDIA's compute-sanitizer over the examples: memcheck,
# initcheck, synccheck and racecheck. Races are looked for in kernels in which
# each thread says itself what it has read (ALL_ARRIVE, templates/README.md):
# the tool cannot know of the order that products and turns bring. In: BUILD
# (its bundle of `make gpu-bundle` where there is one), TMP, GPU_PROCESSES. Out:
# ok / not ok lines. Without a GPU such kernels run on an emulated one.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh
arrive=DIL_NVRTC_OPTIONS=-DALL_ARRIVE=1
look='timeout 300 compute-sanitizer --error-exitcode 9 --tool'

run() { # name:rows, options..., --, command in front...
  name=${1%:*} rows=${1#*:}
  shift
  options=
  while [ "$1" != -- ]; do
    options="$options $1"
    shift
  done
  shift
  case $name in
  decode_gqa) options="$options --keys 3000 --batch 3" ;;
  alibi) options="$options --input slope=random" ;;
  documents) options="$options --input doc=random" ;;
  blocktable) options="$options --input kept=random" ;;
  esac
  # shellcheck disable=SC2086 # words
  "$@" "$DIL" run "examples/$name.dil" --device cuda --random 3 \
    --seq "$rows" $options
}

# One of several processes, in a folder of its own: a way of running one row.
if [ "${1:-}" = --one ]; then
  TMP=$(mktemp -d)
  # shellcheck disable=SC2086 # words
  case $2 in
  plain) is "$3" run "$3" --check -- env ;;
  arriving) is "$3, all arrive" run "$3" --check -- env $arrive ;;
  racecheck) is "$3 under $2" run "$3" -- env $arrive $look "$2" ;;
  *) is "$3 under $2" run "$3" -- $look "$2" ;;
  esac
  rm -rf "$TMP"
  exit $bad
fi

if ! has_gpu; then
  leave_unless_emulated "kernels where all arrive"
  export LD_LIBRARY_PATH="$BUILD/emulator" FAKE_CHIP=90
  for row in causal:600 longnet:700 documents:500; do
    "$0" --one arriving $row || bad=1
  done
  exit $bad
fi
take_bundle
command -v compute-sanitizer >/dev/null ||
  leave skipped "no compute-sanitizer here"

# Enough keys for every place in shared memory to be used again.
list='dense:600 causal:900 longnet:3000 longnet_torchscale:3000
      longnet_text:2000 headsplit_mean:1500 longformer:1500 strided:1000
      blocksparse:1000 random_hash:600 alibi:800 softcap:800 documents:800
      decode_gqa:1 union:2000 blocktable:900 sinks:1500'
ways() { # ways...: each with each row, as many at once as there are processors
  for way; do
    for row in $list; do echo "$way $row"; done
  done | xargs -P "${GPU_PROCESSES:-$(nproc)}" -n 2 "$0" --one || bad=1
}
ways plain arriving # and the code is in the cache
ways racecheck memcheck initcheck synccheck
exit $bad
