#!/bin/sh
# install.sh - what `make install` lays down works from where it lies: the
# program finds its back end, a host in C compiles against the header and
# links with the run time. In: BUILD, TMP. Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/.." || exit 70
bad=0

is() { # name, command...
  name=$1
  shift
  if "$@" >"$TMP/said" 2>&1; then
    echo "ok $name"
  else
    echo "not ok $name"
    head -c 2000 "$TMP/said"
    bad=1
  fi
}

# -o all: installs what is built, whatever the flags of this make.
is "make install" make --no-print-directory -o all install BUILD="$BUILD" \
  PREFIX=/usr DESTDIR="$TMP/root"
root=$TMP/root/usr
for file in bin/dil lib/libdil.so lib/libdilrt.so lib/dil/dil-cpu.so lib/dil/dilrt.o \
  lib/dil/dil-gpu.so lib/dil/dilrt-cuda.so lib/libdil.so.1 \
  lib/libdilrt.so.1 include/dil/dil.h include/dil/dilrt.h \
  include/dil/dlpack.h include/dil/status.def share/man/man1/dil.1; do
  is "installs $file" test -s "$root/$file"
done

cp examples/union.dil "$TMP"
is "the installed program runs a kernel" sh -c \
  "cd '$TMP' && '$root/bin/dil' run union.dil --seq 100 --random 1 --check"

is "and builds a library" sh -c "cd '$TMP' && '$root/bin/dil' build \
  union.dil -o libunion --emit=so,h && '$root/bin/dil' run \
  --library libunion.so --seq 100 --random 1 --check"
is "that may carry the run time" sh -c "cd '$TMP' && '$root/bin/dil' build \
  union.dil -o libalone --emit=a,h --standalone && test -s libalone.a"

cat >"$TMP/host.c" <<'C'
#include <dil/dil.h>
#include <stdio.h>
int main(void) {
  dil_context *context;
  dil_status status = dil_context_new(NULL, &context);
  if (!status) puts(dil_context_device(context));
  dil_context_free(context);
  return status || dil_version() != DIL_VERSION_NUM;
}
C
# A library built with a sanitizer wants a host that is built with it, too.
if nm -D "$root/lib/libdilrt.so" | grep -q '__[at]san_init'; then
  echo "a host in C: left to the plain build"
else
  is "a host in C compiles" "${CC:-cc}" -std=c11 -Wall -Wextra -Wpedantic \
    -Werror -I"$root/include" -o "$TMP/host" "$TMP/host.c" \
    -L"$root/lib" -ldil -ldilrt
  is "and runs" env LD_LIBRARY_PATH="$root/lib" "$TMP/host"
fi
exit $bad
