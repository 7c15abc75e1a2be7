#!/bin/sh
# coverage.sh - the table of README.md, folder by folder the suites that test
# it, is true, and no source file is left out.
#
# A suite stands in the row of a folder when the suite's own object names a
# symbol that a file of the folder defines. A source file is reached when some
# suite comes to it from symbol to symbol, through the harness and other files,
# or when `scripts` below has it or its folder: the program and the loadable
# parts are no suite's symbols. In: BUILD. Out: ok / not ok lines; `coverage.sh
# write` (`make tests-table`) writes the table.
set -u
cd "$(dirname "$0")/.." || exit 70
. tests/support/ok.sh
BUILD=${BUILD:-build}

# What other tests run: a folder or a single file, and their names.
scripts='
compiler/cli cli/*.sh
compiler/exchange/exchange_cost.c cli/test_cli.sh cli/ring_examples.sh
compiler/exchange/exchange_gradients.c cli/cli_backward.sh
compiler/library/library_header.c cli/build.sh
runtime/stream/stream_bound.c cli/cli_stream.sh
compiler/codegen/gpu nvrtc hopper_gate emulated cli/emulator.sh gpu/gpu.sh
compiler/codegen/gpu/emit nvrtc emulated cli/emulator.sh gpu/gpu.sh
compiler/codegen/gpu/hopper hopper_gate hopper hopper_grid hopper_gather hopper_block_list
compiler/codegen/gpu/hopper emulated cli/emulator.sh gpu/gpu.sh
runtime/cuda emulated cli/emulator.sh gpu/gpu.sh
runtime/cuda/launch cli/emulator.sh gpu/gpu.sh
runtime/cuda/module cli/emulator.sh gpu/gpu.sh
runtime/cuda/ring cli/emulator.sh gpu/gpu-ring.sh gpu/gpu-ring-back.sh
runtime/link/mpi cli/mpi.sh cli/mpi_faults.sh
runtime/link/nccl cli/emulator.sh gpu/gpu-ring.sh
'

sources=$(git ls-files compiler runtime tests/unit tests/support tests/fuzz |
  sed -n 's/\.c$//p')
objects=$(for file in $sources; do
  [ ! -e "$BUILD/$file.o" ] || echo "$BUILD/$file.o"
done)

# Lines `row FOLDER SUITE...` and `left FILE`, in order.
# shellcheck disable=SC2086 # lists of paths without spaces
found=$({
  echo "$scripts" | sed -n 's/^[^ ]/script &/p'
  for file in $sources; do echo "source $file"; done
  nm -A -g $objects "$BUILD"/grammar/*.o
} | awk -v build="$BUILD/" '
  function folder(path) { sub(/\/[^\/]*$/, "", path); return path }
  function add(row, suite) {
    if (!((row, suite) in named)) suites[row] = suites[row] " " suite
    named[row, suite] = 1
  }
  $1 == "script" {
    scripted[$2] = 1
    for (i = 3; i <= NF; i++) hand[$2] = hand[$2] " " $i
    next
  }
  $1 == "source" {
    if ($2 !~ /^tests\//) source[$2] = 1
    order[++count] = $2
    next
  }
  {
    file = $1; sub(/:.*/, "", file); sub(/\.o$/, "", file)
    file = substr(file, length(build) + 1)
    if ($(NF - 1) == "U" || $(NF - 1) == "w") asks[file] = asks[file] " " $NF
    else if (!($NF in home)) home[$NF] = file
  }
  END {
    for (n = 1; n <= count; n++) if (order[n] ~ /^tests\/unit\//) {
      queue[++last] = order[n]; reached[order[n]] = 1
      suite = order[n]; sub(/.*\/test_/, "", suite)
      split(asks[order[n]], symbol, " ")
      for (i in symbol) if (symbol[i] in home && home[symbol[i]] in source)
        add(folder(home[symbol[i]]), suite)
    }
    for (at = 1; at <= last; at++) {
      split(asks[queue[at]], symbol, " ")
      for (i in symbol) {
        next_file = home[symbol[i]]
        if (next_file == "" || next_file in reached) continue
        reached[next_file] = 1; queue[++last] = next_file
      }
    }
    for (n = 1; n <= count; n++) {
      file = order[n]; row = folder(file)
      if (!(file in source)) continue
      if (!(file in reached) && !(row in scripted) &&
          !(file ".c" in scripted)) print "left " file ".c"
      words = split(hand[file ".c"], word, " ")
      for (i = 1; i <= words; i++) add(row, word[i])
    }
    for (n = 1; n <= count; n++) {
      row = folder(order[n])
      if (!(order[n] in source)) continue
      if (row in done) continue
      done[row] = 1
      words = split(hand[row], word, " ")
      for (i = 1; i <= words; i++) add(row, word[i])
      print "row " row suites[row]
    }
  }')

table() {
  echo '| folder | suites |'
  echo '|---|---|'
  echo "$found" | awk '$1 == "row" {
    line = ""
    for (i = 3; i <= NF; i++) line = line (i > 3 ? ", " : "") $i
    print "| `" $2 "` | " (line == "" ? "through other folders" : line) " |"
  }'
}
shown() { sed -n '/^| folder/,/^$/{/^$/!p;}' tests/README.md; }

if [ "${1:-}" = write ]; then
  { sed '/^| folder/,$d' tests/README.md; table; } >tests/README.md.new
  mv tests/README.md.new tests/README.md
  exit 0
fi
is "the table of tests/README.md is true; else: make tests-table" \
  test "$(table)" = "$(shown)"
echo "$found" | sed -n 's/^left //p'
is "every source file is reached" test -z "$(echo "$found" | grep '^left ')"
exit $bad
