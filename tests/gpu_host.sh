#!/bin/sh
# gpu_host.sh - the public interface on a GPU's context. Without a GPU: on a
# driver that takes everything and computes nothing (library/driver.c), so what
# is checked, copied and launched. In: BUILD, TMP. Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/.." || exit 70
cc=${CC:-cc} # may be several words

if nm -D "$BUILD/libdilrt.so" | grep -q '__[at]san_init'; then
  echo "ok a host on a GPU: left to the plain build"
  exit 0
fi
if ! "$BUILD/dil" print --after ptxas examples/dense.dil --force general \
  >"$TMP/said" 2>&1; then
  echo "ok a host on a GPU: left out, $(head -1 "$TMP/said")"
  exit 0
fi
mkdir "$TMP/fake"
for part in -DDEFAULTS=1 -UDEFAULTS; do
  # shellcheck disable=SC2086
  $cc -std=gnu2x -w -fPIC $part -iquote runtime -c \
    -o "$TMP/fake/part$part.o" tests/library/driver.c || exit 1
done
# shellcheck disable=SC2086
$cc -shared -Wl,-soname,libcuda.so.1 -o "$TMP/fake/libcuda.so.1" \
  "$TMP"/fake/*.o || exit 1
LD_LIBRARY_PATH=$TMP/fake DIL_MODULE_DIR=$BUILD FAKE_CHIP=90 \
  "$BUILD/tests/library/gpu_host" 2>"$TMP/launches"
status=$?
if [ "$(grep -c '^launch of' "$TMP/launches")" -ge 2 ]; then
  echo "ok two calls are launched"
else
  echo "not ok two calls are launched"
  cat "$TMP/launches"
  status=1
fi
exit $status
