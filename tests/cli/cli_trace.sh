#!/bin/sh
# cli_trace.sh - what `dil run` tells of its inside while it runs: traces,
# metrics, progress on a terminal, logs. In: DIL, TMP, BUILD. Out: ok / not ok
# lines.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh

export DIL_CACHE=off # what compiles, compiles

tiny="examples/longnet.dil -D w=16 --seq 64 --random 3"
traced() {
  DIL_TRACE=$TMP/%p.json DIL_METRICS=$TMP/m.prom "$DIL" run $tiny --threads 2 \
    >/dev/null || return
  for name in '"parse and check"' '"plan"' '"pass by tiles"' '"pack"' \
    '"strip"' '"kernel"' '"thread_name"'; do
    grep -q "$name" "$TMP"/[0-9]*.json || { echo "$name" && return 1; }
  done
  grep -qx 'dil_runs_total{device="cpu"} 1' "$TMP/m.prom" &&
    tail -1 "$TMP"/[0-9]*.json | grep -qx ']}'
}
is "a trace and metrics of a run" traced
ring_run() { # options...: a ring of four, traced and counted
  DIL_TRACE=$TMP/ring.json DIL_METRICS=$TMP/ring.prom "$DIL" run \
    examples/longnet_ring.dil -D w=16 --topology four --seq 256 --random 1 \
    "$@" >/dev/null
}
spans() { # how many, name
  echo "$1 of $2, $(grep -c "\"$2\"" "$TMP/ring.json") found"
  [ "$(grep -c "\"$2\"" "$TMP/ring.json")" -eq "$1" ]
}
received() { # so many bytes besides those that came in steps
  awk -v besides="$1" '
    /^dil_ring_step_bytes_total/ { steps += $2 }
    /^dil_ring_bytes_total{direction="received"}/ { all = $2 }
    END { print steps, all; exit !(steps + besides == all && steps > 0) }' \
    "$TMP/ring.prom"
}
traced_ring() {
  ring_run && spans 16 'ring step' && spans 4 'rank [0-3]' &&
    grep -q '"cat":"ring","name":"wait"' "$TMP/ring.json" &&
    grep -qx 'dil_ring_steps_total 16' "$TMP/ring.prom" &&
    [ "$(grep -c '^dil_ring_step_bytes_per_second{' "$TMP/ring.prom")" -eq 12 ] &&
    received 0
}
is "the steps of a ring, rank by rank" traced_ring
# After a run forward, by threads of its own. Two branches have queries that come;
# their dQ goes back in f32: 60 KiB, as `explain` foretells.
traced_backward() {
  ring_run --backward && spans 16 'ring step' && spans 8 'rank [0-3]' &&
    spans 16 'ring step backward' && spans 12 'wait for gradients' &&
    spans 12 'sum gradients' &&
    grep -qx 'dil_ring_steps_total 32' "$TMP/ring.prom" && received 61440 &&
    python_reads_steps
}
# Each rank waits for what it sums, and sums steps 1, 2, 3 in turn.
python_reads_steps() {
  ! command -v python3 >/dev/null || python3 - "$TMP/ring.json" <<'END'
import json, sys
spans = {}
for e in sorted(json.load(open(sys.argv[1]))["traceEvents"],
                key=lambda e: e.get("ts", 0)):
    if e["name"] in ("wait for gradients", "sum gradients"):
        spans.setdefault(e["tid"], []).append((e["name"], e["args"]["number"]))
wanted = [(name, step) for step in (1, 2, 3)
          for name in ("wait for gradients", "sum gradients")]
sys.exit(len(spans) != 4 or any(s != wanted for s in spans.values()))
END
}
is "and of its gradients, which are summed in the order of steps" \
  traced_backward
# On a terminal, when a run takes long, there is a line that is wiped at the end;
# in a pipe there is none.
shows_progress() { # what the line says, arguments of run...
  line=$1
  shift
  timeout 120 script -qec "$DIL run --random 1 $*" /dev/null </dev/null \
    >"$TMP/terminal" 2>&1 &&
    tr '\r' '\n' <"$TMP/terminal" >"$TMP/lines" && tail -30 "$TMP/lines" &&
    grep -q "^$line" "$TMP/lines" &&
    awk '/^\033\[Kkernel /  { wiped = NR } /\] .* %|^running/ { last = NR }
         END { exit !(wiped == last + 1) }' "$TMP/lines"
}
is_quiet() { # arguments of run...
  "$DIL" run --random 1 "$@" >"$TMP/pipe" 2>&1 && ! grep -q '%' "$TMP/pipe"
}
cat >"$TMP/slow.dil" <<'END'
pattern p { heads 2; head_dim 16; dtype f32; branch { } }
topology t { devices 8; ring 8; link thread; }
END
bar='\[#*\.*\]  *[0-9]* %'
if command -v script >/dev/null; then
  is "a run's progress, on a terminal" shows_progress "running $bar" \
    "$TMP/slow.dil" --seq 40k --threads 1
  is "that of several runs is one line" shows_progress \
    "running \[##########[#.]*\]  *[3-9][0-9] %" \
    "$TMP/slow.dil" --seq 24k --threads 1 --repeat 3
  is "a ring's" shows_progress "ring $bar" \
    "$TMP/slow.dil" --topology t --seq 70000 --threads 1
  is "the oracle's" shows_progress "oracle $bar" \
    "$TMP/slow.dil" --seq 4k --device oracle --threads 1
  if emulates; then
    LD_LIBRARY_PATH=$BUILD/emulator
    export LD_LIBRARY_PATH
    is "a GPU's time" shows_progress "running, [0-9]* s" \
      examples/longnet.dil -D w=64 --seq 10k --device cuda
    unset LD_LIBRARY_PATH
  fi
fi
is "no progress of a ring in a pipe" is_quiet "$TMP/slow.dil" --topology t \
  --seq 70000
is "nor of a run" is_quiet "$TMP/slow.dil" --seq 40k
is "a trace that cannot be written" exits 3 \
  env DIL_TRACE=/nosuch/folder/t.json "$DIL" run $tiny
is "metrics that cannot be written" exits 3 \
  env DIL_METRICS=/nosuch/folder/m.prom "$DIL" run $tiny
is "that is told once, before the run" told_once \
  env DIL_METRICS=/nosuch/folder/m.prom "$DIL" run $tiny
is "a log of the wrong level" exits 2 env DIL_LOG=loud "$DIL" --version
logs() {
  isa=$("$DIL" doctor | awk '/^cpu  *found/ { print $3 }')
  DIL_LOG=info:$TMP/log "$DIL" run $tiny >/dev/null &&
    grep -q "info: kernel 'longnet' for ${isa:?} tiles: " "$TMP/log"
}
is "a log of a run" logs
exit $bad
