#!/bin/sh
# gpu_decode.sh - calls with few rows on a GPU of sm_90: what they compute, whether two
# calls in turn keep their bits, then four times. In: BUILD (its bundle of `make
# gpu-bundle` where there is one). Out: ok / not ok lines; a line of milliseconds and of
# TB/s for each of the four calls, beside the time that it shall reach.
set -u
cd "$(dirname "$0")/../.." || exit 70
BUILD=${BUILD:-build}
. tests/support/ok.sh
take_bundle
has_gpu || leave skipped "no GPU here"
TMP=$(mktemp -d)
trap 'rm -rf "$TMP"' EXIT
DIL=${DIL:-$BUILD/dil}

# Each case in one process of several, since most of the time goes into compiling.
suites() {
  shares=8
  for share in $(seq 0 $((shares - 1))); do
    DIL_TEST_DEVICE=cuda CK_FORK=no DIL_TEST_SHARE=$share/$shares \
      timeout 60 "$BUILD/tests/test_decode" >"$TMP/said.$share" 2>&1 &
  done
  wait
  for share in $(seq 0 $((shares - 1))); do
    grep -q '^100%: Checks' "$TMP/said.$share" || {
      echo "not ok decode $share"
      head -c 3000 "$TMP/said.$share"
      bad=1
    }
  done
  [ $bad -ne 0 ] || echo "ok decode"
}

# Two calls in turn, where there is PyTorch.
turns() {
  if python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
    DIL_LIBRARY=$BUILD/libdil.so.2 PYTHONPATH=examples/python \
      timeout 120 python3 -W ignore tests/gpu/decode_turns.py || bad=1
  else echo "ok skipped: python3 has no PyTorch for this GPU"; fi
}

# The bytes of k and v are read once: elements of two bytes.
row() { # heads, heads of keys, head_dim, batch, keys, milliseconds to reach
  cat >"$TMP/row.dil" <<END
pattern row { heads $1 kv $2; head_dim $3; dtype bf16; causal; branch { } }
END
  "$DIL" bench "$TMP/row.dil" --device cuda --seq 1 --batch "$4" --keys "$5" \
    --repeat 41 --json >"$TMP/row.json" 2>&1 || cat "$TMP/row.json"
  sed -n 's/.*"variant": "\([^"]*\)".*"seconds": \([^,]*\),.*"rel_error": \([^,]*\),.*/\1|\2|\3/p' \
    "$TMP/row.json" | awk -F'|' -v bytes="$((4 * $2 * $3 * $4 * $5))" -v aim="$6" \
    -v name="batch $4, $5 keys, $1 heads on $2, D $3" '
    { printf "%-42s %8.4f ms  %5.2f TB/s  aim %.3f  error %s  %s\n", name,
             $2 * 1e3, bytes / $2 / 1e12, aim, $3, $1 }'
}

suites
turns
row 32 8 128 1 131072 0.145
row 32 8 128 8 8192 0.072
row 32 8 128 64 32768 2.15
row 64 8 64 128 4096 0.28
exit $bad
