#!/bin/sh
# install.sh - what `make install` lays down works from where it lies: the
# program finds its parts, the example hosts build against it with pkg-config
# and with CMake, and run; `make uninstall` leaves nothing. In: BUILD, TMP.
# Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/.." || exit 70
. tests/support/ok.sh

# -o all: installs what is built, whatever the flags of this make.
staged() { # target
  make --no-print-directory -o all "$1" BUILD="$BUILD" PREFIX=/opt/dil \
    DESTDIR="$TMP/root"
}
is "make install" staged install
root=$TMP/root/opt/dil
for file in bin/dil lib/libdil.so lib/libdilrt.so lib/libdil.so.2 \
  lib/libdilrt.so.2 lib/libdilrt.a lib/dil/dil-cpu.so lib/dil/dil-gpu.so \
  lib/dil/dilrt-cuda.so lib/dil/dilrt.o include/dil/dil.h \
  include/dil/dilrt.h include/dil/dlpack.h include/dil/status.def \
  lib/pkgconfig/dil.pc lib/pkgconfig/dilrt.pc \
  lib/cmake/dil/dilConfig.cmake share/man/man1/dil.1 share/man/man5/dil.5 \
  share/dil/presets/longnet.dil share/bash-completion/completions/dil \
  share/zsh/site-functions/_dil share/fish/vendor_completions.d/dil.fish; do
  is "installs $file" test -s "$root/$file"
done
is "no place is left open" sh -c "! grep -r '@[A-Z]*@' '$root/lib/pkgconfig' \
  '$root/lib/cmake'"

cp examples/union.dil "$TMP"
is "the installed program runs a kernel" sh -c \
  "cd '$TMP' && '$root/bin/dil' run union.dil --seq 100 --random 1 --check"

# ---- manual pages ------------------------------------------------------------

manual_knows_words() {
  sed -nE 's/^KEYWORD\(.*"(.*)"\)/\1/p' grammar/keywords.def | while read -r w; do
    grep -qw "$w" grammar/dil.5 || { echo "$w is missing" && return 1; }
  done
}
is "dil(5) has every keyword" manual_knows_words
if command -v mandoc >/dev/null; then
  is "the manual pages are well formed" sh -c \
    "! mandoc -T lint -W error '$root'/share/man/man[15]/* | grep ."
else
  echo "skipped: there is no mandoc here"
fi

# ---- hosts in C ----------------------------------------------------------------

# A library built with a sanitizer wants a host that is built with it, too.
if is_sanitized; then
  echo "hosts in C: left to the plain build"
  exit $bad
fi
if ! command -v pkg-config >/dev/null; then
  echo "hosts in C: skipped, there is no pkg-config here"
  exit $bad
fi
PKG_CONFIG_LIBDIR=$root/lib/pkgconfig
PKG_CONFIG_SYSROOT_DIR=$TMP/root
LD_LIBRARY_PATH=$root/lib
export PKG_CONFIG_LIBDIR PKG_CONFIG_SYSROOT_DIR LD_LIBRARY_PATH
strict="-std=c11 -O2 -Wall -Wextra -Wpedantic -Wshadow -Werror"

host() { # package, source, more...
  package=$1 source=$2
  shift 2
  # shellcheck disable=SC2046,SC2086 # lists of words
  $cc $strict "examples/host/$source.c" "$@" \
    $(pkg-config --cflags --libs "$package") -lm
}
tells() { # pattern, command...: succeeds and says so
  pattern=$1
  shift
  "$@" >"$TMP/heard" 2>&1
  status=$?
  cat "$TMP/heard"
  [ $status -eq 0 ] && grep -qE "$pattern" "$TMP/heard"
}

is "pkg-config knows the version" sh -c \
  "[ dil\ \$(pkg-config --modversion dil) = \"\$('$root/bin/dil' --version)\" ]"
is "the headers stand alone" sh -c "echo '#include <dil/dil.h>' |
  $cc -std=c99 -Wall -Werror -x c -fsyntax-only \
    \$(pkg-config --cflags dil) -"
is "and are C++" sh -c "! command -v c++ >/dev/null ||
  echo '#include <dil/dil.h>
dil_arguments a = DIL_ARGUMENTS_INIT; dil_kernel_info i = DIL_KERNEL_INFO_INIT;
dil_attention_options o = DIL_ATTENTION_OPTIONS_INIT;' |
  c++ -Wall -Wextra -Werror -x c++ -fsyntax-only \
    \$(pkg-config --cflags dil) -"
# The README's lines in C, as the body of a function.
awk '/^```/ { inside = ($0 == "```c"); next }
  inside && /^#include/ { print >"/dev/stderr"; next } inside' README.md \
  >"$TMP/body" 2>"$TMP/readme.c"
{
  echo '#include <stdio.h>'
  echo 'void host(DLTensor q, DLTensor k, DLTensor v, DLTensor out);'
  echo 'void host(DLTensor q, DLTensor k, DLTensor v, DLTensor out) {'
  cat "$TMP/body"
  echo '}'
} >>"$TMP/readme.c"
is "the README's program is one" sh -c "grep -q dil_attention '$TMP/body' &&
  $cc -Wall -Werror -fsyntax-only \$(pkg-config --cflags dil) '$TMP/readme.c'"
# Those in the comment that opens dil.h.
{
  echo '#include <dil/dil.h>'
  echo '#include <stdio.h>'
  echo 'void host(void);'
  echo 'void host(void) {'
  sed -n '/^ \*\//q; s/^ \*   //p' compiler/dil.h
  echo '}'
} >"$TMP/opening.c"
is "and the opening of dil.h is one" sh -c \
  "grep -q dil_program_kernel '$TMP/opening.c' &&
  $cc -Wall -Werror -fsyntax-only \$(pkg-config --cflags dil) '$TMP/opening.c'"
is "jit builds" host dil jit -o "$TMP/jit"
is "jit runs a preset" tells 'longformer on cpu .*scratch' "$TMP/jit" \
  preset:longformer 512
is "jit runs a file" tells 'lse of the last row: [0-9]' "$TMP/jit" \
  examples/longnet.dil 300
is "jit shows the caret" sh -c "echo 'pattern p { hads 3; }' >'$TMP/p.dil'
  '$TMP/jit' '$TMP/p.dil' 2>&1 | grep -q '\^\^\^\^'"
# A host that opens the library for itself alone, as scripting languages do,
# and closes it again.
cat >"$TMP/open.c" <<'C'
#include <dil/dil.h>
#include <dlfcn.h>
#include <stdio.h>
#define FIND(name) __typeof__(&name) name##_ = (__typeof__(&name))dlsym(l, #name)
static int once(void) {
  void *l = dlopen("libdil.so.2", RTLD_NOW | RTLD_LOCAL);
  if (!l) return puts(dlerror()), 1;
  FIND(dil_attention);
  FIND(dil_kernel_prepare);
  FIND(dil_kernel_free);
  FIND(dil_last_error);
  dil_attention_options o = DIL_ATTENTION_OPTIONS_INIT;
  dil_sizes sizes = {1, 64, 64};
  dil_kernel *kernel;
  o.preset = "sliding";
  int status = dil_attention_(0, &o, &kernel);
  if (!status) status = dil_kernel_prepare_(kernel, &sizes);
  if (status) puts(dil_last_error_());
  dil_kernel_free_(kernel);
  return dlclose(l) || status;
}
int main(void) { return once() || once() || once(); }
C
is "a host with dlopen builds" sh -c "$cc -std=gnu11 -Wall \
  \$(pkg-config --cflags dil) '$TMP/open.c' -o '$TMP/open' -ldl"
is "and opens the library for itself" "$TMP/open"
is "retriever builds" host dil retriever -o "$TMP/retriever"
is "retriever finds what goes together" tells ' 193: .*\[to\]' \
  "$TMP/retriever" examples/data freedom
is "retriever wants a word of the text" sh -c \
  "! '$TMP/retriever' examples/data xyzzy"

# ---- libraries of kernels --------------------------------------------------------

made=$TMP/made
mkdir -p "$made"
is "dil build writes a library" "$root/bin/dil" build \
  examples/longnet_text.dil -o "$made/liblongnet_text"
is "generated builds with the shared one" host dilrt generated -I"$made" \
  -L"$made" -llongnet_text -o "$TMP/shared"
is "and runs" tells 'saw 448 keys' env \
  LD_LIBRARY_PATH="$root/lib:$made" "$TMP/shared"
# With the run time's archive: in a program that is static altogether (glibc
# warns that opening a driver would want its shared form), or but for the C
# library, where that has no archive.
static_libs() { pkg-config --static --libs dilrt; }
is "pkg-config --static says what the archive wants" sh -c "case \"\$(pkg-config \
  --static --libs dilrt)\" in *-ldilrt*-lm*-lpthread*-ldl*) ;; *) exit 1 ;; esac"
is "the archive shows names of dil alone" sh -c \
  "! nm -g --defined-only '$root/lib/libdilrt.a' | awk 'NF == 3 { print \$3 }' |
    grep -v '^dil_'"
is "dil build writes an archive" "$root/bin/dil" build \
  examples/longnet_text.dil -o "$made/liblongnet_text" --emit=a,h
if echo 'int main(void) { return 0; }' |
  $cc -static -x c - -o "$TMP/whole" -lm 2>/dev/null; then
  mode=-static runtime=$(static_libs)
else
  echo "skipped: there is no C library for static programs here"
  mode='' runtime=$(static_libs | sed 's/-ldilrt/-l:libdilrt.a/')
fi
# shellcheck disable=SC2046,SC2086 # lists of words
is "generated builds without shared libraries" $cc $strict $mode \
  examples/host/generated.c -I"$made" $(pkg-config --cflags dilrt) \
  "$made/liblongnet_text.a" $runtime -o "$TMP/whole"
is "and runs with nothing in reach" tells 'saw 448 keys' env -i "$TMP/whole"
is "and asks for no library of dil" sh -c \
  "! readelf -d '$TMP/whole' | grep 'NEEDED.*dil'"

is "dil build writes one that stands alone" "$root/bin/dil" build \
  examples/longnet_text.dil -o "$made/liblongnet_text" --standalone --emit=a,h
# shellcheck disable=SC2086 # a list of words
is "generated builds with the one that stands alone" $cc $strict \
  examples/host/generated.c -I"$made" "$made/liblongnet_text.a" -lm -lpthread \
  -o "$TMP/alone"
is "and runs without dil" tells 'saw 448 keys' env -i "$TMP/alone"
is "and needs nothing of dil" sh -c "! ldd '$TMP/alone' | grep -i dil"

# ---- CMake -----------------------------------------------------------------------

if command -v cmake >/dev/null; then
  is "cmake configures" env CC="$cc" cmake -S examples/host -B "$TMP/cmake" \
    -DCMAKE_PREFIX_PATH="$root"
  is "cmake builds the hosts and a library of kernels" \
    cmake --build "$TMP/cmake"
  is "and they run" tells 'saw 448 keys' "$TMP/cmake/generated"
  is "with the installed library" tells 'heads of' "$TMP/cmake/jit" \
    preset:dense 100
  is "and with gradients" tells 'step    2  loss' "$TMP/cmake/train" \
    examples/data/tokens.txt 2
  mkdir "$TMP/static" && cat >"$TMP/static/CMakeLists.txt" <<CMAKE
cmake_minimum_required(VERSION 3.16)
project(static C)
find_package(dil REQUIRED)
dil_add_library(liblongnet_text $PWD/examples/longnet_text.dil STATIC
  OPTIONS --cpu avx2)
add_executable(generated $PWD/examples/host/generated.c)
target_link_libraries(generated liblongnet_text)
CMAKE
  is "cmake builds a host with the archive" sh -c "CC='$cc' cmake \
    -S '$TMP/static' -B '$TMP/static/build' -DCMAKE_PREFIX_PATH='$root' &&
    cmake --build '$TMP/static/build'"
  is "which asks for no library of dil, and runs" sh -c \
    "! readelf -d '$TMP/static/build/generated' | grep 'NEEDED.*dil' &&
    env -i '$TMP/static/build/generated' | grep 'saw 448 keys'"
  touch "$TMP/later"
  is "cmake builds nothing twice" sh -c "cmake --build '$TMP/cmake' >/dev/null
    ! find '$TMP/cmake' -name '*.a' -newer '$TMP/later' | grep ."

  # A pattern of a file that another imports, by each generator.
  mkdir "$TMP/import" && cat >"$TMP/import/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.16)
project(import C)
find_package(dil REQUIRED)
add_subdirectory(below)
CMAKE
  mkdir "$TMP/import/below" && cat >"$TMP/import/below/CMakeLists.txt" <<'CMAKE'
dil_add_library(imports ../top.dil NAME named OPTIONS --cpu avx2)
add_executable(heads heads.c)
target_link_libraries(heads imports)
CMAKE
  echo 'import "common.dil"; kernel k = common;' >"$TMP/import/top.dil"
  cat >"$TMP/import/below/heads.c" <<'C'
#include "imports.h"
int main(void) { return named_heads + !named(0, 0); }
C
  has_heads() { # count: the program that was built of that many
    echo "pattern common { heads $1; head_dim 16; dtype f32; branch { } }" \
      >"$TMP/import/common.dil"
    cmake --build "$TMP/import/build" &&
      exits "$1" "$TMP/import/build/below/heads"
  }
  follows_imports() { # generator: builds again for a changed import, once
    rm -rf "$TMP/import/build"
    cmake -G "$1" -S "$TMP/import" -B "$TMP/import/build" \
      -DCMAKE_PREFIX_PATH="$root" && has_heads 2 && has_heads 3 || return
    touch "$TMP/later"
    cmake --build "$TMP/import/build" || return
    find "$TMP/import/build" -name '*.a' -newer "$TMP/later" | not grep .
  }
  is "make follows what patterns import" follows_imports 'Unix Makefiles'
  if command -v ninja >/dev/null; then
    is "ninja follows what patterns import" follows_imports Ninja
  else
    echo "skipped: there is no ninja here"
  fi
else
  echo "skipped: there is no cmake here"
fi

# ---- another place -----------------------------------------------------------

unset PKG_CONFIG_SYSROOT_DIR
# With pkg-config, whose words a shell takes to pieces as they are quoted.
runs_there() { # prefix
  PKG_CONFIG_LIBDIR=$1/lib/pkgconfig
  words=$(pkg-config --cflags --libs dilrt) && echo "$words" || return
  eval "$cc $strict examples/host/generated.c '-I$made' $words -lm \
    '-L$made' -llongnet_text -o '$TMP/there'" &&
    LD_LIBRARY_PATH="$1/lib:$made" tells 'saw 448 keys' "$TMP/there"
}
cmake_there() { # folder of libraries, heads of the pattern
  command -v cmake >/dev/null || return 0
  rm -rf "$TMP/import/build"
  cmake -S "$TMP/import" -B "$TMP/import/build" -Ddil_DIR="$1/cmake/dil" &&
    LD_LIBRARY_PATH="$1" has_heads "$2"
}
mkdir "$TMP/a place"
cp -a "$root" "$TMP/a place/moved"
mv "$TMP/root" "$TMP/hidden" # so that the copy alone is there
is "dil build writes a library" "$TMP/a place/moved/bin/dil" build \
  examples/longnet_text.dil -o "$made/liblongnet_text"
is "a copy elsewhere is known to pkg-config" runs_there "$TMP/a place/moved"
is "and to CMake" cmake_there "$TMP/a place/moved/lib" 5
mv "$TMP/hidden" "$TMP/root"

unset LD_LIBRARY_PATH
is "make uninstall" staged uninstall
is "and nothing is left" sh -c "! find '$TMP/root' -type f -o -type l | grep ."

# Headers that do not lie below the prefix stay where they are when that moves.
apart() { # more assignments...
  make --no-print-directory -o all install BUILD="$BUILD" \
    PREFIX="$TMP/apart" libdir="$TMP/apart/lib/here" "$@"
}
is "make install to several places says how programs find them" says \
  "LD_LIBRARY_PATH=$TMP/apart/lib/here" apart includedir="$TMP/headers"
mv "$TMP/apart" "$TMP/gone"
is "CMake finds what was not moved" cmake_there "$TMP/gone/lib/here" 6
includes() { PKG_CONFIG_LIBDIR=$1 pkg-config --cflags-only-I dilrt; }
is "and so does pkg-config" says "-I$TMP/headers" \
  includes "$TMP/gone/lib/here/pkgconfig"
rm -rf "$TMP/gone" "$TMP/headers"
is "make install to several places below a DESTDIR" apart \
  DESTDIR="$TMP/root" includedir="$TMP/headers"
is "CMake finds them there" cmake_there "$TMP/root$TMP/apart/lib/here" 7
exit $bad
