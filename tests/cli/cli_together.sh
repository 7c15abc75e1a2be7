#!/bin/sh
# cli_together.sh - what goes with what: each kind of pattern with each way to call
# it is right against the oracle, or refused by name. Graphs of a GPU are captured
# by test_launch. In: DIL, TMP. Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh

# A pattern by its name, after what all share; on two ranks, too.
pattern() { # name, statements
  cat >"$TMP/$1.dil" <<EOF
pattern p { heads 4 kv 2; head_dim 16; dtype f32; $2 }
topology two { devices 2; ring 2; link thread; }
kernel p = p;
EOF
}
pattern each 'causal; branch { dilation 5; phase each - 2; window 60, 0; }'
pattern sink 'causal; input z : f32[H] gradient; sink z[h]; branch { window 40, 0; }
  branch { segment 64; dilation 2; sink log(2.0); }'
pattern dropout 'causal; dropout 0.2; branch { segment 64; } branch { dilation 4; }'
pattern segment 'mask (i + 9) / 32 == (j + 9) / 32; branch { }'
pattern residue 'mask i % 3 == j % 3 && i - j < 90 && i - j >= 0; branch { }'
pattern union 'causal; mask i - j < 16 || j < 4 || (i - j) % 16 == 0; branch { }'
pattern range 'mask j < 20 && i >= 5 || abs(i - j) <= 30; branch { }'
pattern sorted 'input doc : i32[B, N]; mask doc[b, i] == doc[b, j]; causal; branch { }'
pattern interval 'input lo : i32[N]; input hi : i32[N];
  mask lo[row] <= j && j < hi[row] + 40; branch { }'
pattern guard 'mask h < 2 && i - j < 20 || h >= 2 && j <= i; branch { }'
pattern grid 'grid 8 x 25; branch { neighborhood 3 x 5; }'
pattern table 'block 16; input kept : u8[H, nb, nb]; keep from kept; branch { }'
pattern lists 'block 16; input rows : i32[H, nbq + 1]; input cols : i32[H, *];
  keep from rows, cols; branch { }'
pattern top 'causal; block 16; keep bi == bj; keep top 3 by mean; branch { }'
pattern mass 'causal; block 1, 16; keep mass 0.8, 6 by mean each; branch { }'

# Numbers of one dimension, i32: offsets, lengths.
numbers() { # name, count, bytes as printf has them
  printf '\223NUMPY\001\000v\000%-117s\n' \
    "{'descr': '<i4', 'fortran_order': False, 'shape': ($2,), }" >"$TMP/$1.npy"
  printf "$3" >>"$TMP/$1.npy"
}
numbers lengths 2 '\310\0\0\0\144\0\0\0'
numbers offsets 4 '\0\0\0\0\120\0\0\0\141\0\0\0\310\0\0\0'

# The options with which a pattern is run on random numbers.
given() { # pattern
  echo "$TMP/$1.dil --random 3 --check"
  sed -n 's/.*dropout.*/--train --seed 7/p' "$TMP/$1.dil"
  sed -n 's/input \([a-z]*\) :/\n&/gp' "$TMP/$1.dil" |
    sed -n 's/^input \([a-z]*\) :.*/--input \1=random/p'
}

# The ways to call a pattern, with the options of each.
options() { # way
  case $1 in
  alone) echo --seq 200 ;;
  ring) echo --seq 200 --topology two ;;
  stream) echo --seq 200 --stream=64M ;;
  lengths) echo --seq 200 --batch 2 --lengths "$TMP/lengths.npy" ;;
  packed) echo --seq 200 --offsets "$TMP/offsets.npy" ;;
  pages) echo --seq 200 --pages random:8 ;;
  few) echo --seq 3 --keys 200 ;;
  esac
}

# Runs a pattern and checks it. Every number that is told of is good.
good() { # pattern, way, more options
  name=$1 way=$2
  shift 2
  # shellcheck disable=SC2046 # lists of words
  "$DIL" run $(given "$name") $(options "$way") "$@" >"$TMP/out" 2>&1 || {
    cat "$TMP/out"
    return 1
  }
  cat "$TMP/out"
  grep -q '^good ' "$TMP/out" && ! grep -q BAD "$TMP/out"
}

# The same with gradients of q, k and v.
both() { # pattern, way
  good "$@" --backward && [ "$(grep -c '^d[qkv]  *good' "$TMP/out")" -eq 3 ]
}

# The words of the error, and nothing has been computed.
refused() { # words, pattern, way, more options
  because=$1
  shift
  ! good "$@" && grep -qF -e "$because" "$TMP/out" && ! grep -q '^good ' "$TMP/out"
}

# A library, with gradients and without them.
library() { # pattern
  lib="$TMP/lib$1"
  # shellcheck disable=SC2046 # lists of words
  "$DIL" build "$TMP/$1.dil" -k p --backward -o "$lib" &&
    set -- $(given "$1") && shift &&
    "$DIL" run --library "$lib.so" -k p --seq 200 --backward "$@" >"$TMP/out" 2>&1
  status=$?
  cat "$TMP/out"
  [ $status -eq 0 ] && [ "$(grep -c 'good' "$TMP/out")" -ge 4 ] &&
    ! grep -q BAD "$TMP/out"
}

# A row of the table: `+` both directions, `f` forward and no gradients, `-` refused.
# The words of what is refused stand behind it, for all its cells.
row() { # pattern, cells: ring stream lengths packed pages few, words
  name=$1 cells=$2 words=$3
  is "$name: alone" both "$name" alone
  is "$name: library" library "$name"
  for way in ring stream lengths packed pages few; do
    rest=${cells#?}
    case $cells in
    +*) is "$name: $way" both "$name" $way ;;
    f*)
      is "$name: $way" good "$name" $way
      is "$name: $way, no gradients" refused --backward "$name" $way --backward
      ;;
    -*) is "$name: $way, refused" refused "$words" "$name" $way ;;
    esac
    cells=$rest
  done
}

for name in each sink segment residue union range sorted interval guard table; do
  row $name +f++f+ ''
done
row dropout +f++-+ '--pages cannot be used with --train'
row grid ------ 'grid'
row lists --+-f+ "lists of blocks ('rows', 'cols') do not go with"
row top --+-f+ '`keep mass`) do not go with'
row mass --+-f+ '`keep mass`) do not go with'
exit $bad
