#!/bin/sh
# gpu.sh - the numeric suites, the laws and random patterns on a GPU, spread
# over processes because most of the time goes into compiling. In: BUILD (its
# bundle of `make gpu-bundle` where there is one), GPU_PROCESSES, GPU_PATTERNS,
# FUZZ_SEED, GPU_SHARES; GPU_SUITES names suites that run alone; GPU_OLDER=80 has
# the kernels of that chip assembled for the one at hand and compared
# (older/older.h). Out: ok / not ok lines; one that says so where there is no GPU.
set -u
cd "$(dirname "$0")/../.." || exit 70
BUILD=${BUILD:-build}
. tests/support/ok.sh
take_bundle
processes=${GPU_PROCESSES:-$(nproc)}
patterns=${GPU_PATTERNS:-160}
shares=${GPU_SHARES:-$processes} # more than processes: not all is compared
limit=${GPU_LIMIT:-500} # seconds a process may take
has_gpu || leave skipped "no GPU here"
if [ "${GPU_OLDER:-}" ]; then
  real() { # library: where the loader finds it
    echo "${LD_LIBRARY_PATH:-}" | tr : '\n' | sed "s,$,/$1," |
      while read -r file; do [ -e "$file" ] && echo "$file"; done
    ldconfig -p | sed -n "s/.*$1 .*x86-64.*=> //p"
  }
  OLDER_CUDA=${OLDER_CUDA:-$(real libcuda.so.1 | head -n 1)}
  OLDER_NVRTC=${OLDER_NVRTC:-$(real libnvrtc.so.13 | head -n 1)}
  export OLDER_CHIP="$GPU_OLDER" OLDER_CUDA OLDER_NVRTC
  LD_LIBRARY_PATH=$BUILD/older:${LD_LIBRARY_PATH:-}
  "$BUILD/dil" doctor | sed -n 's/^\(gpu compiler\|cuda:0\)/# &/p'
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export DIL_TEST_DEVICE=cuda CK_FORK=no CK_DEFAULT_TIMEOUT=600

# Logs of one suite's processes: one line, then what went wrong.
tell() { # name, logs...
  name=$1
  shift
  if grep -L '^100%: Checks\|^ok ' "$@" | grep -q .; then
    echo "not ok $name"
    grep -hv '^Running\|^ok \|^# \|^[0-9]*%: Checks' "$@" | sort -u |
      head -c 9000
    echo
  else
    echo "ok $name"
  fi
  cat "$@" | awk '/^# compared / { n += $3 } /^ok [0-9]+ random/ { n += $2 }
                  END { if (n) print "# of " n " comparisons" }'
}

# A program of ok and not ok lines, which says of itself what went wrong.
tell_lines() { # name, log
  if grep -q '^ok ' "$2" && ! grep -v '^ok ' "$2" | grep -q .; then
    echo "ok $1"
  else
    echo "not ok $1"
    grep -v '^ok ' "$2" | head -c 2000
  fi
}

spread() { # name, command with @ for the number of the process
  name=$1
  wanted "$name" || return 0
  shift
  i=0
  pids=
  while [ $i -lt "$processes" ]; do
    # shellcheck disable=SC2001,SC2046,SC2048,SC2086 # words on purpose
    DIL_TEST_SHARE=$i/$shares timeout "$limit" $(echo $* |
      sed "s/@/$((${FUZZ_SEED:-1} + i * each))/") >"$work/$name.$i" 2>&1 &
    pids="$pids $!"
    i=$((i + 1))
  done
  # shellcheck disable=SC2086
  wait $pids
  tell "$name" "$work/$name".*
}

wanted() { # name: whether it is to run
  known="$known $1 "
  case " ${GPU_SUITES:-$1} " in *" $1 "*) return 0 ;; esac
  return 1
}

tell_unknown() { # words that no suite is called by
  for word in ${GPU_SUITES:-}; do
    case $known in *" $word "*) ;; *) echo "not ok no suite is called '$word'" ;; esac
  done
}

known=
each=$(((patterns + processes - 1) / processes))
if [ "${GPU_OLDER:-}" ]; then
  spread edges "$BUILD/tests/test_edges"
  spread numeric "$BUILD/tests/test_numeric"
  spread fuzz "$BUILD/tests/fuzz/fuzz_pattern" --count $each --seed @
  tell_unknown
  exit 0
fi
one() { # name, command...: one process of a suite
  name=$1
  shift
  wanted "$name" && timeout "$limit" "$@" >"$work/$name" 2>&1
}
# What a launch costs is timed first, while nothing else holds the processor.
one launch env DIL_POOL=off "$BUILD/tests/test_launch"
one pooled env DIL_POOL=on "$BUILD/tests/test_launch"
one laws "$BUILD/tests/test_laws" &
laws=$!
one rerun "$BUILD/tests/test_rerun" &
rerun=$!
one host env DIL_MODULE_DIR="$BUILD" "$BUILD/tests/gpu_host" compute &
host=$!
spread edges "$BUILD/tests/test_edges"
spread numeric "$BUILD/tests/test_numeric"
spread gradients_cuda "$BUILD/tests/test_gradients_cuda"
spread grid_kernels "$BUILD/tests/test_grid_kernels"
spread hopper "$BUILD/tests/test_hopper"
spread hopper_grid "$BUILD/tests/test_hopper_grid"
spread hopper_gather "$BUILD/tests/test_hopper_gather"
spread hopper_block_list "$BUILD/tests/test_hopper_block_list"
spread decode "$BUILD/tests/test_decode"
spread choice "$BUILD/tests/test_choice"
spread packed "$BUILD/tests/test_packed"
spread pages "$BUILD/tests/test_pages"
spread shards "$BUILD/tests/test_shards"
spread linked_ranks "$BUILD/tests/test_linked_ranks"
wait $laws $rerun $host
for name in laws rerun launch pooled; do
  if wanted $name; then tell $name "$work/$name"; fi
done
if wanted host; then tell_lines host "$work/host"; fi
spread fuzz "$BUILD/tests/fuzz/fuzz_pattern" --count $each --seed @
spread fuzz_choices "$BUILD/tests/fuzz/fuzz_pattern" --hopper --choices --count 4 \
  --seed @
tell_unknown
