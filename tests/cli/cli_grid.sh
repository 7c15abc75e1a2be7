#!/bin/sh
# cli_grid.sh - `dil check`, `run` and `show` of patterns with a grid: they take its
# cells for the call, and refuse by name what a grid cannot do. In: DIL, TMP.
# Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh

file=examples/neighborhood2d.dil
cat >"$TMP/g.dil" <<'END'
pattern p {
    heads 2; head_dim 16; dtype f32;
    grid any x 7 x 9;
    branch { neighborhood 3 x 5 x 3; dilation 1 x 1 x 2; causal z; }
}
topology t { devices 2; heads 2; }
kernel k = p;
kernel shared = p on t;
END

says() { # words, command...
  words=$1
  shift
  "$@" >"$TMP/out" 2>&1
  cat "$TMP/out"
  grep -q -- "$words" "$TMP/out"
}
good() { says '^good ' "$@"; }

is "a file with a grid is checked" "$DIL" check $file
is "without --seq a run has the grid's cells" \
  says ' of 32768 rows compared; output error' "$DIL" run $file --random 5 --check
is "gradients over a grid" \
  says '^dk  *good' "$DIL" run "$TMP/g.dil" -k k --seq 189 --random 5 --backward --check
is "any first extent takes a multiple" \
  good "$DIL" run "$TMP/g.dil" -k k --seq 252 --random 5 --check
is "heads of a grid are shared out" \
  good "$DIL" run "$TMP/g.dil" -k shared --seq 126 --random 5 --check
is "another --seq is refused" \
  says 'grid has 16384 queries, but --seq has 100' "$DIL" run $file --seq 100 --random 5
is "other --keys are refused" \
  says 'grid has 16384 keys, but --keys has 5' "$DIL" run $file --keys 5 --random 5
is "what is no multiple is refused" \
  says 'has a multiple of 63 cells' "$DIL" run "$TMP/g.dil" -k k --seq 100 --random 5
is "a grid is not streamed" \
  says "'neighborhood2d' has a grid" "$DIL" run $file --random 5 --stream
printf '\223NUMPY\001\000\166\000%-117s\n\077\000\000\000' \
  "{'descr': '<i4', 'fortran_order': False, 'shape': (1,), }" >"$TMP/l.npy"
is "a grid takes no lengths" \
  says 'takes no lengths' "$DIL" run "$TMP/g.dil" -k k --seq 63 --random 5 \
  --lengths "$TMP/l.npy"
is "the middle query is shown" \
  says 'the keys of query (64, 64) in a grid of 128 by 128' "$DIL" show $file
is "a query is shown" \
  says '^  aaaaaaaaaaaaa\.' "$DIL" show $file --query 0
is "as a picture" "$DIL" show $file -o "$TMP/n.png"
is "there is no such query" \
  says 'cells 0..16383, not 16384' "$DIL" show $file --query 16384
cat >"$TMP/video.dil" <<'END'
pattern video { heads 2; head_dim 64; dtype f32; grid 30 x 48 x 80;
                neighborhood 5 x 9 x 9; branch { } }
END
is "pairs of a large grid are counted by its axes" \
  says '^density  *93312000 distinct pairs' "$DIL" explain "$TMP/video.dil"
"$DIL" print --after plan "$TMP/g.dil" -k k >"$TMP/g.plan"
is "a plan is read back" \
  good "$DIL" run --from plan "$TMP/g.plan" --seq 126 --random 5 --check

# Tables of lists of blocks of cells, of a grid with and without a first extent.
lists_read_back() { # grid, --seq
  cat >"$TMP/l.dil" <<END
pattern p {
    heads 2; head_dim 16; dtype f32; grid $1; block 4 x 8;
    input rows : i32[H, nbq + 1]; input cols : i32[H, *];
    keep from rows, cols;
    branch { }
}
END
  "$DIL" print --after plan "$TMP/l.dil" >"$TMP/l.plan" &&
    grep "from rows, cols block 4 x 8;" "$TMP/l.plan" &&
    good "$DIL" run --from plan "$TMP/l.plan" --seq "$2" --random 5 --check \
      --input rows=random --input cols=random
}
is "lists of blocks of cells are read back" lists_read_back "16 x 24" 384
is "and where the first extent is any" lists_read_back "any x 24" 288
exit $bad
