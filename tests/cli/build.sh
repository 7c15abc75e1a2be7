#!/bin/sh
# build.sh - `dil build`: every kind of file, what is in a library, programs
# that use one. Standalone libraries are run where nothing of dil, LLVM or CUDA
# can be reached. In: BUILD, DIL, TMP. Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh
top=$PWD

cat >"$TMP/first.dil" <<'E'
pattern first { heads 2; head_dim 16; dtype f32; causal; branch { } }
E
cat >"$TMP/second.dil" <<'E'
pattern second { heads 2; head_dim 16; dtype f32; scale runtime; branch { } }
E
cat >"$TMP/many.dil" <<'E'
import "second.dil";
pattern p { heads 4 kv 2; head_dim 8 value 24; dtype f32; causal; dropout 0.25;
            input slope : f32[H]; input doc : i32[B, M];
            score s - slope[h] * abs(i - j); mask doc[b, i] == doc[b, j];
            segments 64, 128; dilations 1, 2; }
pattern means { heads 3; head_dim 32; dtype f16; combine mean;
                segments 32, 64; dilations 1, 2; }
kernel one = p;
kernel two = means;
kernel three = second;
E
cd "$TMP" || exit 70

# ---- what is written ---------------------------------------------------------

is "builds the default" "$DIL" build first.dil -o libdefault
is "which is a shared library and a header" sh -c \
  'test "$(echo libdefault.*)" = "libdefault.h libdefault.so"'
every=so,a,o,h,pc,json,ll,s
is "builds every kind" "$DIL" build many.dil -o libmany --emit=$every -MD
for kind in so a o h pc json ll s d; do
  is "writes .$kind" test -s libmany.$kind
done
is "lists what it would write" sh -c "
  mkdir list && cd list &&
  '$DIL' build ../many.dil -o x --emit=$every -MD --list-outputs >../listed &&
  test -z \"\$(ls)\" && test \"\$(sort ../listed | tr '\n' ' ')\" = \
  'x.a x.d x.h x.json x.ll x.o x.pc x.s x.so '"
is "the rule names imports" grep -q "second.dil" libmany.d
is "and make reads it" sh -c \
  'printf "all: libmany.so\ninclude libmany.d\n" >rule && make -sqf rule'
is "-MF says where the rule goes" sh -c \
  "'$DIL' build first.dil -o libdefault --emit=h -MF else.mk && test -s else.mk"
is "the IR has a function of each instruction set" sh -c \
  'grep -q "one.avx2.tiles.qk" libmany.ll && grep -q "two.avx512.rows.row_qk" libmany.ll'
is "the description is JSON" sh -c \
  'grep -q "\"library\": \"many\"" libmany.json'
is "a header by itself is the same" sh -c "
  mkdir header && '$DIL' build many.dil -o header/libmany --emit=h &&
  cmp libmany.h header/libmany.h"
is "and that of a standalone library" sh -c "
  '$DIL' build many.dil -o header/a --emit=a,h --standalone && mv header/a.h b.h
  '$DIL' build many.dil -o header/a --emit=h --standalone && cmp b.h header/a.h"
is "the same input gives the same bytes" sh -c "
  mkdir again && '$DIL' build many.dil -o again/libmany --emit=$every &&
  for kind in so a o h pc json ll s; do
    cmp libmany.\$kind again/libmany.\$kind || exit 1; done"
is "some processors alone" sh -c \
  "'$DIL' build first.dil -o libsome --cpu avx512,avx2 &&
  '$DIL' inspect libsome.so | grep -qx '  processors: avx2, avx512'"
is "each kernel in several dtypes" sh -c \
  "'$DIL' build first.dil -o libtypes --dtype bf16,f32 &&
  '$DIL' inspect libtypes.so | grep -c '^kernel first_' | grep -qx 2"

is "kernels in sizes of the command line" sh -c \
  "'$DIL' build many.dil -o libsizes --emit=json --heads 12 --head-dim 24 &&
  grep -c '\"heads\": 12,' libsizes.json | grep -qx 3 &&
  grep -c '\"head_dim\": 24,' libsizes.json | grep -qx 3"
is "a name before those of several kernels" sh -c "
  '$DIL' build many.dil -o libnamed --emit=h,a --cpu avx2 --name of \
    --dtype f32,f16 && nm -g --defined-only libnamed.a | awk 'NF == 3' |
  cut -d' ' -f3 | grep -v '_prepare\$' | sort | tr '\n' ' ' | grep -qx \
  'of_last_error of_one_f16 of_one_f32 of_three_f16 of_three_f32 of_two_f16 of_two_f32 '
  grep -q '^#ifndef OF_H' libnamed.h"
is "and in place of one" sh -c "
  '$DIL' build first.dil -o libalone --emit=h --dtype f16,f32 --name of &&
  grep -q 'int of_f16(' libalone.h && grep -q 'int of_f32(' libalone.h"

# ---- archives and headers ----------------------------------------------------

is "ar reads the archive" says libmany.o ar t libmany.a
is "nm reads its table of symbols" says "one in libmany.o" nm -s libmany.a
is "the functions are there and nothing else is" sh -c \
  'test "$(nm -g --defined-only libmany.o | cut -d" " -f3 | tr "\n" " ")" = \
   "many_last_error one one_packed one_prepare three three_packed \
three_prepare two two_packed two_prepare "'
is "the header is C" $cc -std=c99 -Wall -Wextra -Wpedantic -Werror \
  -fsyntax-only -x c libmany.h
if command -v c++ >/dev/null; then
  is "and C++" c++ -Wall -Wextra -Wpedantic -Werror -fsyntax-only -x c++ libmany.h
fi
examples() { # header: a program of the calls that its comments show
  echo '#include "libmany.h"'
  echo '#include <math.h>'
  echo '#include <stdio.h>'
  awk '/_arguments a = / { print "void f" ++n "(DLTensor q, DLTensor k, " \
         "DLTensor v, DLTensor o, DLTensor slope, DLTensor doc);" \
         "void f" n "(DLTensor q, DLTensor k, DLTensor v, DLTensor o, " \
         "DLTensor slope, DLTensor doc) { (void)slope; (void)doc;"; on = 1 }
       on { sub(/^ \* */, ""); print }
       /_last_error\(\)\);$/ && on { print "}"; on = 0 }' "$1"
}
examples libmany.h >calls.c
is "the calls that it shows are C" sh -c "cat calls.c
  grep -c '(NULL, &a)' calls.c | grep -qx 3 && grep -q 'a.doc = &doc;' calls.c &&
  grep -q 'a.scale = ' calls.c &&
  $cc -std=c99 -Wall -Wextra -Werror -fsyntax-only calls.c"
is "and for cffi declarations alone" sh -c "
  $cc -E -P -DDIL_CFFI libmany.h >plain &&
  grep -q 'int one(dil_context \*context, const one_arguments \*arguments);' plain &&
  ! grep -nE '#|__|extern' plain"
is "pkg-config reads the .pc file" sh -c \
  '! command -v pkg-config >/dev/null ||
   PKG_CONFIG_PATH=. pkg-config --exists --print-errors libmany ||
   grep -q "^Requires: dilrt" libmany.pc'

# A name in the tongues of pkg-config and make. The former takes a blank in a
# module's own name for its end, so this one is asked for under another.
odd="a dir/a 'b' \"c\" #d"
mkdir 'a dir'
odd_is_linked() {
  cp "$odd.pc" 'a dir/odd.pc'
  printf '#include <a %cb%c "c" #d.h>\nint main(void) { return !*%s(); }\n' \
    "'" "'" a__b___c___d_last_error >odd.c
  words=$(PKG_CONFIG_PATH='a dir' pkg-config --cflags --libs odd) || return
  echo "$words"
  eval "$cc odd.c -o odd $words" && readelf -d odd | grep -qF "[a 'b' \"c\" #d.so]"
}
if is_sanitized; then
  echo "a library that stands alone: left to the plain build"
else
  is "a name that has to be quoted" says \
    "pkg-config cannot ask for 'a 'b' \"c\" #d.pc'" \
    "$DIL" build first.dil -o "$odd" --standalone --cpu avx2 --emit=so,h,pc
  if command -v pkg-config >/dev/null; then
    is "pkg-config tells it to the linker" odd_is_linked
  fi
fi
odd_is_remade() { # when its source is newer, or gone
  cp first.dil 'a:b%.dil'
  "$DIL" build 'a:b%.dil' -o 'a dir/t:%u #v' --emit=h -MF odd.rule || return
  sed 's/@/a\\ dir\/t\\:/' >odd.mk <<'E'
all: @%u\ \#v.h
include odd.rule
@\%u\ \#v.h:
	echo made
E
  make -sqf odd.mk && touch -d 'next minute' 'a:b%.dil' &&
    [ "$(make -sf odd.mk)" = made ] && rm 'a:b%.dil' &&
    [ "$(make -sf odd.mk)" = made ]
}
is "make reads a rule of odd names" odd_is_remade
is "a name of more than one line" says "a name that is of one line" "$DIL" build \
  first.dil -o "$(printf 'a\nb')"

# ---- inspecting and running --------------------------------------------------

for kind in so a o; do
  is "inspects .$kind" says "input doc: i32 [B, M]" "$DIL" inspect libmany.$kind
done
is "inspects as JSON" says '"dropout": 0.25' "$DIL" inspect --json libmany.so
is "runs a kernel with inputs" "$DIL" run --library libmany.so -k one \
  --seq 300 --batch 2 --random 5 --check --input slope=random --input doc=random
is "with dropout" "$DIL" run --library libmany.so -k one --train --seed 7 \
  --seq 200 --random 5 --check --input slope=random --input doc=random
is "with few queries" "$DIL" run --library libmany.so -k one --seq 2 --keys 500 \
  --random 5 --check --input slope=random --input doc=random
is "in f16, without an lse" "$DIL" run --library libmany.so -k two --seq 333 \
  --random 5 --check
is "with a scale" "$DIL" run --library libmany.so -k three --seq 333 \
  --random 5 --scale 0.3 --check
for isa in avx2 avx512 avx512bf16 amx; do
  "$DIL" print --after schedule --cpu $isa first.dil >/dev/null 2>&1 || continue
  is "with the code for $isa" "$DIL" run --library libmany.so -k two --seq 333 \
    --random 5 --check --cpu $isa
done
is "gives the bits of a run from source" sh -c "
  '$DIL' run many.dil -k one --seq 200 --random 2 --input slope=random \
    --input doc=random -o a.npy &&
  '$DIL' run --library libmany.so -k one --seq 200 --random 2 \
    --input slope=random --input doc=random -o b.npy && cmp a.npy b.npy"
is "a processor that has none of them is told" says \
  "runs on processors with avx2, avx512, avx512bf16, amx" env DIL_CPU=none \
  "$DIL" run --library libmany.so -k three --seq 9 --random 1 --scale 1

# ---- for GPUs -----------------------------------------------------------------

if "$DIL" build first.dil -o chips --cuda sm_80 --cpu none \
  --emit=so,cubin,cu >said 2>&1; then
  is "a chip's cubin by itself" test -s chips.sm_80.cubin
  "$DIL" build "$top/examples/causal.dil" -o members --cuda sm_80 --cpu none \
    --emit=so,cubin
  is "and what it has besides, in the order of inspect" sh -c "
    test \"\$(ls members.*cubin | wc -l)\" -eq \
      \"\$('$DIL' inspect members.so | grep -c '^  sm_80: ')\" &&
    test \"\$(echo members.*cubin)\" = \
      'members.general.sm_80.cubin members.sm_80.cubin'"
  is "CUDA source" grep -q 'define HEAD_DIM 16' chips.sm_80.cu
  is "a library of cubins alone" says "nothing: it is for GPUs" \
    "$DIL" run --library chips.so --seq 9 --random 1
  "$DIL" build first.dil second.dil -o two --cuda sm_80 --emit=so,cubin \
    --cpu avx2
  is "cubins of two kernels" sh -c \
    'ls two.first.sm_80.cubin two.second.sm_80.cubin'
  is "all of which are in the library" sh -c "test \$(ls two.*.cubin | wc -l) \
    = \$('$DIL' inspect two.so | grep -c '^  sm_80: general')"
  "$DIL" build first.dil -o libtwo --cpu avx2
  is "which runs on a processor, too" "$DIL" run --library two.so -k first \
    --seq 100 --random 1 --check
  wishes() { # more options for NVRTC
    env DIL_CACHE=off DIL_NVRTC_OPTIONS="$*" "$DIL" build first.dil -o wished \
      --cuda sm_80 --cpu none --emit=cubin
  }
  wished() {
    wishes -lineinfo -DX=1 && grep -q debug_line wished.sm_80.cubin
  }
  is "more options reach NVRTC" wished
  is "and one that it does not know is told" says \
    'for sm_80 with DIL_NVRTC_OPTIONS=--bogus: NVRTC_ERROR_INVALID_OPTION' \
    not wishes --bogus
  # shellcheck disable=SC2046 # words
  is "more than it takes are refused" says \
    "DIL_NVRTC_OPTIONS has 89 bytes and 30 words, more than 999 or 20" \
    not wishes $(yes -- -w | head -n 30)
  # Launches on a driver that has no device behind it: only told.
  on_fake() { # chip, words to expect, library
    env LD_LIBRARY_PATH="$BUILD/emulator" FAKE_CHIP="$1" "$DIL" run --library "$3" \
      -k first --seq 200 --random 1 --device cuda 2>&1 | grep -F -e "$2"
  }
  is "the cubin is launched" on_fake 80 "launch of " two.so
  is "on a later chip of the generation, too" on_fake 86 "launch of " two.so
  is "but on no other" on_fake 90 "runs on chips with sm_80; this one is sm_90" \
    two.so
  is "nor where there is none" on_fake 80 "nothing: it is for processors" \
    libtwo.so
  if ! is_sanitized; then
    is "a standalone library brings the GPU's part" sh -c "
      '$DIL' build first.dil -o libgpu --cuda sm_80 --standalone --cpu none &&
      DIL_MODULE_DIR= && ! nm -D --undefined-only libgpu.so | grep -i ' cu'"
    is "and launches by itself" on_fake 80 "launch of " libgpu.so
  fi
else
  echo "cubins: left out, $(head -1 said)"
fi

# ---- what is refused ---------------------------------------------------------

head -c 3000 libmany.so >cut.so
is "half a library is none" says "is no library" "$DIL" inspect cut.so
mkfifo pipe
is "a pipe is no library" says "it is no file" timeout 10 "$DIL" inspect pipe
is "nor is a folder" says "it is no file" "$DIL" inspect .
is "no compiler is told" says "'no-such-compiler' cannot be run" \
  env CC=no-such-compiler "$DIL" build first.dil -o libno
is "by dil doctor, too" sh -c \
  "CC=no-such-compiler '$DIL' doctor | grep '^linker  *missing' &&
  '$DIL' doctor | grep '^standalone  *found  *.*dilrt.o'"
is "with exit 3" sh -c \
  "CC=no-such-compiler '$DIL' build first.dil -o libno 2>/dev/null; test \$? = 3"
is "and an archive needs none" env CC=no-such-compiler PATH=/nowhere \
  "$DIL" build first.dil -o libno --emit=a,h
isnt "a folder that is not there" "$DIL" build first.dil -o no/lib --emit=h

# ---- programs ----------------------------------------------------------------

# A library built with a sanitizer wants a program that is built with it, too.
if is_sanitized; then
  echo "programs in C: left to the plain build"
  exit $bad
fi

alone() { # a program, where there is nothing but the system's own libraries
  (cd "$1" && env -i PATH=/nowhere HOME=/nowhere LD_LIBRARY_PATH=/nowhere \
    DIL_MODULE_DIR=/nowhere "./$2" >"../$2.out" 2>&1)
  status=$?
  cat "$2.out"
  grep '^ok \|^not ok ' "$2.out" | grep -v '^ok ' && return 1
  return $status
}

only_the_system() { # output of a program: the files in its memory
  sed -n 's/^file //p' "$1" | sort -u | grep -vE \
    '/(ld-linux-x86-64|libc|libm|libpthread|libdl|libgcc_s)[^/]*$|/alone/' |
    (! grep .)
}

mkdir alone
for one in first second; do
  is "builds the standalone library $one" "$DIL" build $one.dil \
    -o alone/lib$one --standalone --emit=so,a,o,h
  is "which shows its own functions alone" sh -c "
    nm -D --defined-only alone/lib$one.so | cut -d' ' -f3 | tr '\n' ' ' |
    grep -qx '$one ${one}_context_free ${one}_context_new ${one}_last_error \
${one}_packed ${one}_prepare '"
  is "and asks for nothing of dil" sh -c \
    "! nm -D --undefined-only alone/lib$one.so | grep -i dil"
  scale=
  [ $one = first ] || scale="--scale 0.25"
  # shellcheck disable=SC2086 # two words or none
  is "and dil runs it" "$DIL" run --library alone/lib$one.so --seq 200 \
    --random 1 $scale --check --threads 2
done
compile() { # output, what is linked...
  out=$1
  shift
  $cc -std=gnu11 -Wall -Wextra -Werror -Ialone -o "alone/$out" \
    "$top/tests/library/host.c" "$@" -lm -lpthread
}
is "two of them in one program" compile shared alone/libfirst.so \
  alone/libsecond.so -Wl,-rpath,"\$ORIGIN"
is "which runs with nothing of dil in reach" alone alone shared
is "and has none of it in memory" only_the_system shared.out
is "two archives in one program" compile static alone/libfirst.a \
  alone/libsecond.a
is "which runs, too" alone alone static
is "and has nothing more in memory" only_the_system static.out
is "an object that stands alone is one file" sh -c \
  "test \"\$('$DIL' build first.dil -o x --standalone --emit=o \
    --list-outputs)\" = x.o"
is "and shows no name of the run time" sh -c \
  "! nm -g --defined-only alone/libfirst.o | grep -E ' (dil|pool|log)_' &&
   ! readelf -sW alone/libfirst.o | grep 'GLOBAL DEFAULT *[0-9]' |
     awk '{ print \$8 }' | grep -vE '^first(_|\$)' | grep ."
is "the same bytes again" sh -c "
  mkdir twice && '$DIL' build first.dil -o twice/libfirst --standalone \
    --emit=o && cmp alone/libfirst.o twice/libfirst.o"
is "without a C compiler it is refused" sh -c "
  CC=/none/cc '$DIL' build first.dil -o x --standalone --emit=o 2>said2; s=\$?
  cat said2; test \$s -eq 3 && test ! -e x.o && grep -q 'emit=a,h' said2"
is "two such objects" compile objects alone/libfirst.o alone/libsecond.o
is "run likewise" alone alone objects

# Two libraries of one pattern in one program, told apart by --name.
cat >twin.dil <<'E'
let keys = 8;
pattern twin { heads 2; head_dim 16; dtype f32; causal; mask i - j < keys;
               branch { } }
E
twins() { # folder, options of build...
  mkdir "$1" && folder=$1 && shift &&
    "$DIL" build twin.dil -o "$folder/libnear" --cpu avx2 --name near "$@" &&
    "$DIL" build twin.dil -o "$folder/libwide" --cpu avx2 --name wide \
      -D keys=50 "$@"
}
twins_run() { # folder, what is linked...
  folder=$1
  shift
  $cc -std=c11 -Wall -Wextra -Wpedantic -Werror "-I$folder" \
    "$top/tests/library/twins.c" "$@" -lm -lpthread -o "$folder/twins" &&
    env -i LD_LIBRARY_PATH="$folder:$BUILD" "$folder/twins"
}
names_of_twins() { # folder
  nm -g --defined-only "$1/libnear.a" "$1/libwide.a" | awk 'NF == 3 { print $3 }'
}
is "builds twins that stand alone" twins lone --standalone --emit=so,a,h
is "which share no name" sh -c "
  test \$(echo \"$(names_of_twins lone)\" | wc -l) -ge 10 &&
  test -z \"$(names_of_twins lone | sort | uniq -d)\""
is "archives of twins run in one program" twins_run lone lone/libnear.a \
  lone/libwide.a
is "and shared libraries" twins_run lone lone/libnear.so lone/libwide.so
is "builds twins for a host with the run time" twins hosted --emit=a,h
is "which run, too" twins_run hosted hosted/libnear.a hosted/libwide.a \
  -L"$BUILD" -ldilrt -Wl,-rpath-link,"$BUILD"
is "inspect knows a twin by its name" says "kernel wide" \
  "$DIL" inspect hosted/libwide.a

mkdir shared
for one in first second; do
  is "builds the library $one" "$DIL" build $one.dil -o shared/lib$one
done
mkdir include && ln -s "$top/runtime" include/dil
is "a program with libdilrt" $cc -std=gnu11 -DWITH_DILRT -Iinclude -Ishared \
  -o shared/host \
  "$top/tests/library/host.c" shared/libfirst.so shared/libsecond.so \
  -L"$BUILD" -ldilrt -lm -lpthread -Wl,-rpath-link,"$BUILD"
is "runs" env LD_LIBRARY_PATH="$TMP/shared:$BUILD" shared/host

# ---- chosen blocks ------------------------------------------------------------

cat >chooser.dil <<'E'
pattern chooser { heads 1; head_dim 16; dtype f32; causal; block 8;
                  keep top 3 by mean; branch { } }
E
is "builds a kernel that chooses blocks" "$DIL" build chooser.dil -o libchooser \
  --cpu avx2 --standalone
is "its header tells the shapes of the lists" grep -Fq \
  '[0] rows: i32 [B, 1, ceil(M / 8) + 1],' libchooser.h
is "a program that asks for them" $cc -std=c11 -Wall -Wextra -Wpedantic -Werror \
  -I. "$top/tests/library/chooser.c" libchooser.so -lm -lpthread -o chooser
is "finds the same blocks itself" says "21 blocks chosen, 0 wrong" \
  env LD_LIBRARY_PATH="$TMP" ./chooser
is "run takes the lists of a library" says "8 of 8 lists of blocks" "$DIL" run \
  -L ./libchooser.so --seq 60 --random 2 --check --selection chosen.npy
# What a run keeps for its gradients: the lists, which they read.
sed 's/chooser/saver/' chooser.dil >saver.dil
is "builds one with gradients" "$DIL" build saver.dil -o libsaver --cpu avx2 \
  --standalone --backward
is "a program that keeps its lists" $cc -std=c11 -Wall -Wextra -Wpedantic -Werror \
  -I. "$top/tests/library/saver.c" libsaver.so -lm -lpthread -o saver
is "has the same gradients" says "the same bits, 0 of 1024 are 0, then 1024" \
  env LD_LIBRARY_PATH="$TMP" ./saver
is "and is told of memory too small" says "2: saved has" \
  env LD_LIBRARY_PATH="$TMP" ./saver
sed 's/keep top 3 by mean;/keep local(1);/' chooser.dil >none.dil
is "builds one that chooses none" "$DIL" build none.dil -o libchooser --cpu avx2 \
  --standalone
is "which has no place for lists" says "selection must be NULL" not \
  env LD_LIBRARY_PATH="$TMP" ./chooser

# ---- gradients ----------------------------------------------------------------

cat >biased.dil <<'E'
pattern biased { heads 4 kv 2; head_dim 16 value 8; dtype f32;
                 input slope : f32[H] gradient; input doc : i32[B, M];
                 score s - slope[h] * abs(i - j);
                 mask doc[b, i] == doc[b, j]; branch { } }
pattern plain { heads 2; head_dim 16; dtype f32; causal; branch { } }
kernel trained = biased backward;
kernel served = plain;
E
is "builds a kernel that the file calls backward" "$DIL" build biased.dil \
  -o libbiased --emit=so,h,o --cpu avx2
is "which alone has gradients" sh -c \
  'test "$(nm -g --defined-only libbiased.o | cut -d" " -f3 | tr "\n" " ")" = \
   "biased_last_error served served_packed served_prepare trained \
trained_backward trained_backward_workspace trained_packed trained_prepare \
trained_saved "'
is "the header of gradients is C" $cc -std=c99 -Wall -Wextra -Wpedantic -Werror \
  -fsyntax-only -x c libbiased.h
is "it shows how to ask" grep -q 'g.forward = &a, g.d_o = &d_o' libbiased.h
is "a gradient is a member" grep -q 'DLTensor \*slope; /\* written, f32 \[4\]' \
  libbiased.h
is "inspect tells of gradients" says "kernel trained, with gradients" \
  "$DIL" inspect libbiased.so
is "and of the input that has one" says "input slope: f32 [4], gradient" \
  "$DIL" inspect libbiased.so
biased="--seq 70 --keys 90 --random 3 --input slope=random --input doc=random"
for emit in "" --standalone; do
  is "builds with --backward $emit" "$DIL" build biased.dil -k trained \
    --backward $emit -o libtrained
  is "its gradients are right" says "slope   good" "$DIL" run \
    -L ./libtrained.so $biased --backward --dlse random --check \
    --dq dq.npy --grad slope=slope.npy
done
is "as the kernel's itself" sh -c "
  '$DIL' run biased.dil -k trained $biased --backward --dlse random \
    --dq dq2.npy --grad slope=slope2.npy &&
  cmp dq.npy dq2.npy && cmp slope.npy slope2.npy"
for options in "" --backward; do
  # shellcheck disable=SC2086 # a word or none
  is "a library takes documents $options" "$DIL" run -L ./libtrained.so \
    --offsets "$top/examples/data/offsets.npy" --random 3 --input slope=random \
    --input doc=random --check $options
done
is "a kernel without says so" says "has no gradients: " \
  "$DIL" run -L ./libbiased.so -k served --seq 9 --random 1 --backward
echo 'pattern p { heads 1; head_dim 16; dtype f32; input dq : f32[H];
               score s + dq[h]; branch { } }' >taken.dil
is "an input may be called dq" "$DIL" build taken.dil -o libtaken --emit=h
is "but not beside a gradient dq" says "input 'dq' cannot become a member" \
  "$DIL" build taken.dil --backward -o libtaken --emit=h
exit $bad
