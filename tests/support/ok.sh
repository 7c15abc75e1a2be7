# shellcheck shell=sh disable=SC2034,SC2030,SC2031
# ok.sh - what test scripts share; sourced from the top of the tree. A test is
# a line `ok NAME` or `not ok NAME`, and below the latter what its command said.
# In: TMP, BUILD, CC. Out: bad, the status to end with; cc, the compiler, which
# may be several words.
bad=0
cc=${CC:-cc}

is() { # name, command...: ok when the command succeeds
  test_name=$1
  shift
  "$@" >"$TMP/said" 2>&1
  test_status=$?
  if [ $test_status -eq 0 ]; then
    echo "ok $test_name"
  else
    echo "not ok $test_name"
    echo "status $test_status of: $*"
    head -c 4000 "$TMP/said"
    bad=1
  fi
}

not() { ! "$@"; }

isnt() { # name, command...: ok when the command fails
  test_name=$1
  shift
  is "$test_name" not "$@"
}

exits() { # status, command...: ends with this status
  wanted=$1
  shift
  "$@"
  [ $? -eq "$wanted" ]
}

told_once() { # command...: says one line, before anything is run
  "$@" >"$TMP/out" 2>&1
  cat "$TMP/out"
  [ "$(grep -c . "$TMP/out")" -eq 1 ]
}

says() { # text, command...: has the text in its output
  text=$1
  shift
  "$@" >"$TMP/out" 2>&1
  cat "$TMP/out"
  grep -qF -e "$text" "$TMP/out"
}

# Whether lines of JSON, one object each, make a Python expression of `all` true.
json_is() { # expression, command...
  wanted=$1
  shift
  "$@" >"$TMP/json"
  cat "$TMP/json"
  if ! command -v python3 >/dev/null; then
    grep -q '^{.*}$' "$TMP/json"
    return
  fi
  python3 -c 'import json, sys
all = [json.loads(line) for line in open(sys.argv[1])]
sys.exit(not eval("(" + sys.argv[2] + ")", {"all": all}))' "$TMP/json" "$wanted"
}

# ---- what there is here -----------------------------------------------------

leave() { # name, why not: ends a script
  echo "ok $1: $2"
  exit $bad
}

# Programs that bring no sanitizer cannot load the libraries of such a build.
is_sanitized() {
  nm -D "$BUILD/libdilrt.so" 2>/dev/null | grep -q '__[at]san_init'
}

leave_sanitized() { # name: ends the script in such a build
  ! is_sanitized || leave "$1" "left to the plain build"
}

# Kernels run on emulated devices (emulator/README.md) in plain builds, which
# are not on every machine.
emulates() {
  [ "$(uname -m)" = x86_64 ] && command -v c++ >/dev/null &&
    [ -e "$BUILD/emulator/libcuda.so.1" ] && ! is_sanitized
}

leave_unless_emulated() { # name: ends the script where they do not
  leave_sanitized "$1"
  emulates ||
    leave "$1" "left out, the emulator wants x86-64 and a C++ compiler"
}

has_gpu() {
  [ -e /dev/nvidiactl ] || nvidia-smi >/dev/null 2>&1
}

# The bundle of `make gpu-bundle` in place of the build, where there is one.
take_bundle() {
  [ -d "$BUILD/gpu/tests" ] || return 0
  BUILD=$BUILD/gpu
  DIL=$BUILD/dil
  LD_LIBRARY_PATH=$BUILD/lib:${LD_LIBRARY_PATH:-/usr/local/cuda/lib64}
  export BUILD DIL LD_LIBRARY_PATH
}

# ---- several at once --------------------------------------------------------

# Tests that need nothing of each other may run at once, where there are the
# processors for it: each in a folder of its own, told in their order by `told`.
crowd=0
at_once=$((($(nproc) + 3) / 4))
beside() { # command... that tells of a test
  crowd=$((crowd + 1))
  mkdir "$TMP/beside.$crowd"
  (
    TMP=$TMP/beside.$crowd
    "$@"
  ) >"$TMP/told.$crowd" &
  [ $((crowd % at_once)) -ne 0 ] || wait
}

told() {
  wait
  for number in $(seq $crowd); do
    cat "$TMP/told.$number"
    ! grep -q '^not ok' "$TMP/told.$number" || bad=1
    rm -r "$TMP/told.$number" "$TMP/beside.$number"
  done
  crowd=0
}
