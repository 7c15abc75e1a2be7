#!/bin/sh
# bench.sh - the table of CPU speeds: case, time, rate, share of the peak that
# the same process measures between the runs, error. NOTES.md says what is
# measured and how. In: BUILD; words choose cases by name. Not a test: nothing
# passes or fails by speed.
set -eu
export DIL_CACHE=off # the compile column means a compiler
cd "$(dirname "$0")/../.."
dil=${BUILD:-build}/dil
here=tests/bench

# The value of a key in a JSON object of one line.
field() { printf '%s' "$1" | sed -nE "s/.*\"$2\": *\"?([^,\"}]*).*/\1/p"; }

row() { # name, options of dil bench...
  name=$1
  shift
  case " $chosen " in "  " | *" $name "*) ;; *) return 0 ;; esac
  json=$("$dil" bench "$@" --json) || {
    printf '%-30s could not be measured\n' "$name"
    return 0
  }
  printf '%-30s %10.3f %9.1f %7.1f %9.1e %8.1f\n' "$name" \
    "$(field "$json" seconds | awk '{ print $1 * 1e3 }')" \
    "$(field "$json" gflops)" \
    "$(field "$json" peak_share | awk '{ print $1 * 100 }')" \
    "$(field "$json" rel_error)" \
    "$(field "$json" compile_seconds | awk '{ print $1 * 1e3 }')"
}

chosen="$*"
grep -m 1 'model name' /proc/cpuinfo | sed 's/.*: //'
printf '%-30s %10s %9s %7s %9s %8s\n' case ms GFLOP/s '% peak' error compile
for d in 64 128; do
  for type in f32 bf16 f16; do
    row "$type-$d" $here/branch_$type.dil -D d=$d -D head_count=1 --seq 2048 \
      --threads 1 --repeat 41
    row "$type-$d-heads" $here/branch_$type.dil -D d=$d --seq 8192 --threads 1
  done
  row "f32-$d-avx2" $here/branch_f32.dil -D d=$d -D head_count=1 --seq 2048 \
    --threads 1 --cpu avx2 --repeat 41
done
for type in f32 bf16; do
  for force in multiset dedup; do
    row "longnet-$type-$force" $here/longnet_$type.dil --seq 8192 --threads 1 \
      --force fuse,$force
  done
done
for type in f32 bf16; do
  row "$type-64-two-threads" $here/branch_$type.dil --seq 8192 --threads 2
  row "longnet-$type-two-threads" $here/longnet_$type.dil --seq 8192 --threads 2
done
row decode-1 examples/decode_gqa.dil --seq 1 --keys 32768 --threads 1
row decode-8 examples/decode_gqa.dil --seq 8 --keys 32768 --threads 1
row causal-8192 examples/causal.dil --seq 8192 --threads 1
row longformer-16384 examples/longformer.dil --seq 16384 --threads 1

# Patterns besides LongNet. Their rate beside that of `dense` is what their kept
# pairs cost.
for name in dense past sliding sinks prefix dilated strided longformer \
  neighborhood blocks128 blocks64 alibi softcap; do
  row "pattern-$name" $here/patterns.dil -k $name -D n=4 --dtype f32 \
    --seq 16384 --threads 1 --repeat 3
done

# A tenth of the blocks of 64, chosen at each call: by numbers that the call brings,
# for which nothing is estimated, and by estimates.
row chosen-gate $here/patterns.dil -k by_gate -D n=4 --dtype f32 --seq 16384 \
  --threads 1 --repeat 3 --input g=random
for name in mean each; do
  row "chosen-$name" $here/patterns.dil -k "by_$name" -D n=4 --dtype f32 --seq 16384 \
    --threads 1 --repeat 3
done

# Few queries over many keys: decoding, by rows, and a few tiles.
for n in 1 8 16; do
  row few-dense-$n $here/patterns.dil -k dense -D n=4 --dtype f32 --seq $n \
    --keys 16384 --threads 1 --repeat 31
  row few-blocks64-$n $here/patterns.dil -k blocks64 -D n=4 --dtype f32 --seq $n \
    --keys 16384 --threads 1 --repeat 31
  row few-gate-$n $here/patterns.dil -k by_gate -D n=4 --dtype f32 --seq $n \
    --keys 16384 --threads 1 --repeat 31 --input g=random
done

# A window beside 64 keys of a list: positions 7, 263, 519 and on.
keys=$(mktemp)
printf '\223NUMPY\1\0\166\0%-117s\n' \
  "{'descr': '<i4', 'fortran_order': False, 'shape': (64,), }" >"$keys"
n=0
while [ $n -lt 64 ]; do
  # shellcheck disable=SC2059 # the format is the four bytes
  printf "\\7\\$(printf %03o $n)\\0\\0" >>"$keys"
  n=$((n + 1))
done
for list in listed listed_once; do
  row "keys-$list" $here/patterns.dil -k $list -D n=4 --seq 16384 --threads 1 \
    --repeat 3 --input g="$keys"
  row "keys-$list-backward" $here/patterns.dil -k $list -D n=4 --seq 16384 --threads 1 \
    --repeat 3 --input g="$keys" --backward
done
rm -f "$keys"

# Gradients alone, counted at 10 D a pair.
for d in 64 128; do
  for type in f32 bf16 f16; do
    row "$type-$d-backward" $here/branch_$type.dil -D d=$d -D head_count=1 \
      --seq 2048 --threads 1 --repeat 21 --backward
  done
  row "f32-$d-heads-backward" $here/branch_f32.dil -D d=$d --seq 8192 \
    --threads 1 --repeat 5 --backward
  row "bf16-$d-heads-backward" $here/branch_bf16.dil -D d=$d --seq 8192 \
    --threads 1 --repeat 5 --backward
done
row f32-64-avx2-backward $here/branch_f32.dil -D d=64 -D head_count=1 \
  --seq 2048 --threads 1 --cpu avx2 --repeat 21 --backward
row longnet-bf16-backward $here/longnet_bf16.dil --seq 8192 --threads 1 \
  --repeat 5 --backward
row causal-8192-backward examples/causal.dil --seq 8192 --threads 1 \
  --repeat 5 --backward
row longformer-16384-backward examples/longformer.dil --seq 16384 \
  --threads 1 --repeat 5 --backward
row f32-64-one-head-two-threads $here/branch_f32.dil -D d=64 \
  -D head_count=1 --seq 2048 --threads 2 --repeat 21 --backward

# What `dil explain` foretells, beside what is measured.
foretold() { # kernel, options of both...
  kernel=$1
  shift
  case " $chosen " in "  " | *" foretold "*) ;; *) return 0 ;; esac
  before=$("$dil" explain $here/foretold.dil -k "$kernel" "$@" --json) || return 0
  json=$("$dil" bench $here/foretold.dil -k "$kernel" "$@" --repeat 5 --json) ||
    return 0
  printf '%s %s %s\n' "foretold-$kernel" "$(field "$before" predicted_seconds)" \
    "$(field "$json" seconds)" |
    awk '{ printf "%-30s %10.3f %10.3f foretold, %.2f of it\n", $1, $3 * 1e3,
           $2 * 1e3, $2 / $3 }'
}
for name in dense strided levels plane; do
  foretold $name --seq 4096 --threads 1
done
foretold buckets --seq 4096 --threads 1 --input bucket=random
foretold distances --seq 4096 --threads 1 --input bias=random
foretold pairs --seq 2048 --threads 1 --input bias=random
foretold decode --seq 8 --keys 32768 --threads 1

if command -v python3 >/dev/null; then
  python3 $here/peers/torch_cpu.py
else
  echo "peer torch: skipped, no python3"
fi
