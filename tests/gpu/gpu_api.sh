#!/bin/sh
# gpu_api.sh - the public interface on a real GPU: a host in C, the same made
# and freed over and over, PyTorch's tensors from Python, the cache, a trace and
# metrics. In: BUILD (its bundle of `make gpu-bundle` where there is one), TMP.
# Out: ok / not ok lines; one that says so where there is no GPU.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh
take_bundle
has_gpu || leave skipped "no GPU here"
DIL_MODULE_DIR=$BUILD
DIL_LIBRARY=$BUILD/libdil.so.2
DIL_CACHE_DIR=$TMP/kept
export DIL_MODULE_DIR DIL_LIBRARY DIL_CACHE_DIR
host=$BUILD/tests/library/gpu_host
[ -x "$host" ] || host=$BUILD/tests/gpu_host

"$host" compute || bad=1
"$host" cycles "${GPU_CYCLES:-1000}" || bad=1

# ---- the cache ---------------------------------------------------------------

any="run examples/longnet.dil --random 1 --device cuda"
run="$any --seq 8192"
# Milliseconds of the line that says how the code was had.
had() { # how, file
  sed -nE "s/^code    $1 in ([0-9.]+) (us|ms|s).*/\1 \2/p" "$2" |
    awk '{ print $1 * ($2 == "us" ? 1e-3 : $2 == "ms" ? 1 : 1e3) }'
}
# shellcheck disable=SC2086 # a list of words
starts() {
  "$DIL" $run >"$TMP/cold" &&
    "$DIL" $any --seq 32 >/dev/null || return # waits for what comes late
  for i in 1 2 3 4 5; do
    LD_DEBUG=files LD_DEBUG_OUTPUT=$TMP/files "$DIL" $run >"$TMP/warm.$i" ||
      return
  done
  best=$(for i in 1 2 3 4 5; do
    had 'from the cache' "$TMP/warm.$i"
  done | sort -g | head -1)
  echo "cold $(had compiled "$TMP/cold") ms, warm $best ms"
  ! grep -q 'calling init.*nvrtc' "$TMP"/files.* &&
    ! grep -q 'calling init.*dil-gpu' "$TMP"/files.* &&
    awk "BEGIN { exit !(${best:-9} < 5) }"
}
is "a kept kernel is there within 5 ms, without NVRTC" starts
cat "$TMP/said"
is "the cache is whole" "$DIL" cache verify
is "and says what it has" sh -c "'$DIL' cache list | grep 'longnet.*sm_'"

# ---- what can be seen --------------------------------------------------------

# shellcheck disable=SC2086 # a list of words
is "a run with a trace and metrics" env DIL_TRACE="$TMP/t.json" \
  DIL_METRICS="$TMP/m.prom" "$DIL" $run
is "the trace has the device's work" python3 -c "
import json, sys
events = json.load(open('$TMP/t.json'))
events = events['traceEvents'] if isinstance(events, dict) else events
spans = [e for e in events if e.get('ph') == 'X']
device = [e for e in spans if e.get('cat') == 'gpu']
print(sorted({(e.get('cat'), e['name']) for e in spans}))
assert device and all(e['dur'] > 0 for e in device)
run = [e for e in spans if e.get('cat') == 'run']
assert not run or min(e['ts'] for e in device) >= min(e['ts'] for e in run)
"
cat "$TMP/said"
is "metrics count the run" grep -E '^dil_runs_total.device="cuda".* [1-9]' \
  "$TMP/m.prom"
is "and no compiler" grep -xE 'dil_compiles_total.compiler="cuda".* 0' \
  "$TMP/m.prom"

# ---- Python ------------------------------------------------------------------

if python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
  python3 tests/python/python_cuda.py || bad=1
else
  echo "ok skipped: python3 has no PyTorch for this GPU"
fi
exit $bad
