#!/bin/sh
# presets.sh - every preset as a person runs it, whichever way it is named:
# accepted without a message, run forward and backward, and equal to the oracle;
# looking back only where it has `ahead`. In: DIL, TMP. Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh

quiet() { # succeeds only without a word
  "$@" >"$TMP/out" 2>&1
  status=$?
  cat "$TMP/out"
  [ $status -eq 0 ] && [ ! -s "$TMP/out" ]
}

# Sizes at which a preset's own terms meet the edges of tiles, and what the call
# brings.
sizes() { # preset
  case $1 in
  bigbird) echo --seq 300 -D size=16 ;;
  block_causal | block_diffusion) echo --seq 260 ;;
  dense) echo --seq 200 --keys 301 ;;
  dilated_window) echo --seq 300 -D w=9 -D r=5 ;;
  documents) echo --seq 300 -D w=64 --input start=random ;;
  fixed) echo --seq 300 -D l=32 -D places=2 ;;
  gigapath) echo --seq 300 ;;
  longformer) echo --seq 300 -D w=32 ;;
  longformer_global) echo --seq 300 -D w=32 --input chosen=random ;;
  longnet | torchscale) echo --seq 300 -D w=32 ;;
  nsa_selected) echo --seq 300 -D size=16 -D blocks=6 ;;
  seer) echo --seq 300 -D size=32 -D blocks=3 --input gate=random ;;
  neighborhood2d) echo --seq 299 -D wide=23 -D r=2 ;;
  neighborhood3d) echo --seq 280 -D tall=7 -D wide=8 -D k=3 ;;
  moba) echo --seq 300 -D size=32 ;;
  prefix) echo --seq 300 -D p=77 ;;
  sliding | streaming) echo --seq 300 -D w=64 ;;
  strided) echo --seq 300 -D l=32 ;;
  swin) echo --seq 299 -D wide=23 ;;
  vertical_slash)
    echo --seq 300 --input vertical=random --input slash=random
    ;;
  vsa) echo --seq 256 -D tall=8 -D wide=8 -D blocks=2 ;;
  tree) echo --seq 40 --keys 300 --input leads=random ;;
  *) echo --seq 300 ;;
  esac
}

for file in examples/presets/*.dil; do
  preset=$(basename "$file" .dil)
  case $preset in
  gigapath) # one of its segments is as torchscale would misplace it
    is "check $file" says 'warning: dilation 8 does not divide' \
      "$DIL" check "$file" ;;
  *) is "check $file" quiet "$DIL" check "$file" ;;
  esac
  is "$file opens with its name" says "# preset:$preset - " head -1 "$file"
  # shellcheck disable=SC2046 # words
  {
    is "run preset:$preset" "$DIL" run "preset:$preset" $(sizes "$preset") \
      --random 1 --backward --check -D q_heads=4 -D kv_heads=2 -D width=32
    ! grep -q '^let ahead ' "$file" ||
      is "run preset:$preset causal" "$DIL" run "$file" $(sizes "$preset") \
        -D ahead=0 -D q_heads=2 -D width=16 --random 2 --check
  }
  is "the manual page names $preset" \
    grep "^[^#]*\b$preset\b" compiler/cli/dil.1
done

# What makes no sense is an error at its place in the preset.
located() { # preset, define, words
  "$DIL" check "preset:$1" -D "$2" >"$TMP/out" 2>&1
  status=$?
  cat "$TMP/out"
  [ $status -eq 1 ] &&
    grep -q "^preset:$1:[0-9]*:[0-9]*: error: .*$3" "$TMP/out"
}

while read -r preset define words; do
  is "preset:$preset refuses $define" located "$preset" "$define" "$words"
done <<'END'
bigbird size=0 at least 1, got 0
block_causal size=0 division by zero
block_diffusion size=0 division by zero
documents w=-1 at least 0, got -1
fixed c=0 division by zero
fixed l=0 at least 1, got 0
longformer_global w=-1 at least 0, got -1
neighborhood2d k=0 at least 1, got 0
neighborhood2d r=0 at least 1, got 0
neighborhood2d wide=0 at least 1, got 0
neighborhood3d k=0 at least 1, got 0
neighborhood3d tall=-4 at least 1, got -4
swin w=-2 at least 0, got -171
swin wide=0 division by zero
vsa blocks=0 at least 1, got 0
vsa wide=7 no multiple of 4
END
exit $bad
