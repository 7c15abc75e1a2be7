#!/bin/sh
# processes.sh - ranks that are processes of nobody's job: they meet in a file or
# at a port, as launchers say it, and go on without those that are killed or
# frozen, in a run or behind it. In: DIL, TMP. Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh
cat >"$TMP/p.dil" <<'END_OF_FILE'
pattern p { heads 4; head_dim 32; dtype f32; branch { window 8, 8; } }
topology one { devices 4; }
topology grid { devices 4; ring 2; heads 2; }
topology three { devices 3; }
topology line { devices 4; link process; timeout 10s; }
topology mesh { devices 4; ring 2; heads 2; link process; timeout 10s; }
topology soon { devices 4; link process; timeout 4s; }
END_OF_FILE
port=$((20000 + $$ % 12000))

one() { # rank, topology, options...
  rank=$1 topology=$2
  shift 2
  "$DIL" run "$TMP/p.dil" --topology "$topology" --random 7 --threads 1 "$@" \
    >"$TMP/rank.$rank" 2>&1
}

# Four processes, whose environment `as RANK` makes. Sets `pids`.
start() { # topology, options...
  pids=
  rm -f "$TMP"/rank.* "$TMP/meet"*
  for start_rank in 0 1 2 3; do
    (as "$start_rank" && one "$start_rank" "$@") &
    pids="$pids $!"
  done
}
by_file() {
  DIL_MEET=$TMP/meet DIL_RANK=$1
  export DIL_MEET DIL_RANK
}

finished() { # all have ended well
  for pid in $pids; do
    wait "$pid" || { cat "$TMP"/rank.*; return 1; }
  done
}

# ---- meeting --------------------------------------------------------------------

# Of two processes that are one rank the later is told so; and a file that is no
# meeting stays as it is.
twice() ( # rank
  rm -f "$TMP/meet"* "$TMP/rank."*
  DIL_MEET=$TMP/meet pids=
  export DIL_MEET
  for DIL_RANK in 0 1 "$1"; do
    export DIL_RANK
    "$DIL" run "$TMP/p.dil" --topology line --random 7 --seq 100 --threads 1 \
      >>"$TMP/rank.$DIL_RANK" 2>&1 &
    pids="$pids $!"
  done
  for turn in $(seq 300); do
    ! grep "rank $1 has come to '$TMP/meet' already, as process " \
      "$TMP/rank.$1" || break
    sleep 0.1
  done
  kill $pids
  wait
  [ "$turn" -lt 300 ]
)
is "two processes are rank 0" twice 0
is "two processes are rank 1" twice 1
no_meeting() (
  echo "my own" >"$TMP/mine"
  DIL_MEET=$TMP/mine DIL_RANK=0
  export DIL_MEET DIL_RANK
  says "cannot meet in '$TMP/mine': File exists" \
    "$DIL" run "$TMP/p.dil" --topology line --random 7 --seq 100 &&
    [ "$(cat "$TMP/mine")" = "my own" ]
)
is "a file that is no meeting is left alone" no_meeting

same() { # topology, and the same of threads: the same bits
  rm -f "$TMP/out.npy"
  start "$1" --seq 1000 --out "$TMP/out.npy" --check && finished &&
    grep '^good' "$TMP/rank.0" &&
    "$DIL" run "$TMP/p.dil" --topology "$2" --seq 1000 --random 7 \
      --out "$TMP/threads.npy" && cmp "$TMP/out.npy" "$TMP/threads.npy"
}
alias_as() { # the environment of a rank
  eval "as() { $1; }"
}
next() { port=$((port + 1)); }
torchrun() { # rank, address
  RANK=$1 LOCAL_RANK=$1 WORLD_SIZE=4 MASTER_ADDR=$2 MASTER_PORT=$port
  SLURM_PROCID=0 SLURM_NTASKS=1 # the agent's own
  export RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT SLURM_PROCID \
    SLURM_NTASKS
}
srun() { # rank
  SLURM_PROCID=$1 SLURM_LOCALID=$1 SLURM_NTASKS=4 SLURM_STEP_NUM_TASKS=4
  DIL_MEET=localhost:$port
  export SLURM_PROCID SLURM_LOCALID SLURM_NTASKS SLURM_STEP_NUM_TASKS DIL_MEET
}
alias_as 'by_file "$1"'
is "in a file: the bits of threads" same line one
is "in a file, a mesh: the bits of threads" same mesh grid

# ---- gradients ------------------------------------------------------------------

cat >"$TMP/g.dil" <<'END_OF_FILE'
pattern g { heads 4 kv 2; head_dim 16; dtype bf16; input t : f32[H] gradient;
  causal; score s - t[h] * abs(i - j); branch { segment 64; }
  branch { dilation 3; } }
topology line { devices 4; layout zigzag; exchange gather; link process; }
topology groups { devices 4; heads 4; link process; }
topology mesh { devices 4; ring 2; heads 2; link process; }
topology threads_line { devices 4; layout zigzag; exchange gather; }
topology threads_groups { devices 4; heads 4; }
topology threads_mesh { devices 4; ring 2; heads 2; }
END_OF_FILE
of=g
gradients() { # folder, topology, options...
  folder=$1 topology=$2
  shift 2
  mkdir -p "$TMP/$folder"
  "$DIL" run "$TMP/$of.dil" --topology "$topology" --random 5 --backward \
    --input t=random --dlse random --threads 1 --dq "$TMP/$folder/dq.npy" \
    --dk "$TMP/$folder/dk.npy" --dv "$TMP/$folder/dv.npy" \
    --grad t="$TMP/$folder/t.npy" "$@"
}
start_gradients() { # folder, topology, options...
  pids=
  rm -f "$TMP"/rank.* "$TMP/meet"*
  for start_rank in 0 1 2 3; do
    (by_file "$start_rank" && gradients "$@" >"$TMP/rank.$start_rank" 2>&1) &
    pids="$pids $!"
  done
}
same_gradients() { # topology, options...: of processes and of threads
  name=$1
  shift
  set -- --seq 300 --check "$@"
  start_gradients "of_$name" "$name" "$@"
  finished && grep '^t  *good' "$TMP/rank.0" &&
    gradients "threads_$name" "threads_$name" "$@" || return 1
  for file in dq dk dv t; do
    cmp "$TMP/of_$name/$file.npy" "$TMP/threads_$name/$file.npy" || return 1
  done
}
is "gradients of a ring: the bits of threads" same_gradients line
is "of groups of heads that are split" same_gradients groups
gradients one threads_mesh --seq 300 >/dev/null
is "of a mesh, of a dO that a file has" same_gradients mesh \
  --do "$TMP/one/dq.npy"

# ---- as launchers say it --------------------------------------------------------

next
alias_as 'torchrun "$1" 127.0.0.1'
is "as torchrun says it" same line one
next
alias_as 'torchrun "$1" localhost; TORCHELASTIC_USE_AGENT_STORE=True;
  export TORCHELASTIC_USE_AGENT_STORE'
is "as torchrun says it, which listens there" same mesh grid
next
alias_as 'srun "$1"'
is "as srun says it" same mesh grid

# Ranks of one host know each other by its loopback, and others by its address.
own=$(hostname -I 2>/dev/null | tr ' ' '\n' | grep -m 1 '^[0-9.]*$')
six=$(hostname -I 2>/dev/null | tr ' ' '\n' | grep -m 1 ':')
meet_by() { # rank, address of the first two, of the others
  DIL_RANK=$1 DIL_MEET=$2:$port
  [ "$1" -lt 2 ] || DIL_MEET=$3:$port
  export DIL_RANK DIL_MEET
}
next
alias_as 'meet_by "$1" 127.0.0.1 "${own:-127.0.0.2}"'
is "by two addresses of this host" same line one
if [ -e /proc/net/if_inet6 ]; then
  next
  alias_as 'meet_by "$1" "[::1]" "${six:+[}${six:-127.0.0.1}${six:+]}"'
  is "by IPv6, and by another of its addresses" same line one
  next
  alias_as 'meet_by "$1" 127.0.0.1 "[::1]"'
  is "by IPv4 and IPv6" same mesh grid
fi

# Two hosts: the second's loopback is not the first's.
cat >"$TMP/hosts.sh" <<'END_OF_FILE'
ip link set lo up
unshare -n sleep 600 &
other=$!
until [ "$(readlink /proc/$other/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do
  sleep 0.1
done
ip link add here type veth peer name there netns $other
ip addr add 10.231.7.1/24 dev here
ip link set here up
in_other() { nsenter -t $other -n "$@"; }
in_other ip link set lo up
in_other ip addr add 10.231.7.2/24 dev there
in_other ip link set there up
pids=
for rank in 0 1 2 3; do
  at=127.0.0.1 where=
  [ $rank -lt 2 ] || at=10.231.7.1 where=in_other
  DIL_MEET=$at:29400 DIL_RANK=$rank $where "$DIL" run "$TMP/p.dil" \
    --topology line --random 7 --threads 1 --seq 1000 --out "$TMP/out.npy" &
  pids="$pids $!"
done
failed=0
for pid in $pids; do wait "$pid" || failed=1; done
kill $other
exit $failed
END_OF_FILE
hosts() {
  "$DIL" run "$TMP/p.dil" --topology one --seq 1000 --random 7 \
    --out "$TMP/threads.npy" && rm -f "$TMP/out.npy" &&
    unshare -Urn sh "$TMP/hosts.sh" && cmp "$TMP/out.npy" "$TMP/threads.npy"
}
if command -v ip >/dev/null && command -v nsenter >/dev/null &&
  unshare -Urn unshare -n true 2>/dev/null &&
  unshare -Urn ip link add here type veth 2>/dev/null; then
  is "on two hosts" hosts
else
  echo "ok on two hosts: skipped, no network namespaces"
fi

misfit() { # words of the message; the fourth believes in five
  start line --seq 1000
  finished && return 1
  cat "$TMP"/rank.*
  grep -q "$1" "$TMP/rank.3"
}
next
alias_as 'torchrun "$1" localhost; [ "$1" != 3 ] || WORLD_SIZE=5'
is "another number of processes is told where the topology stands" misfit \
  "p.dil:5:10: error: topology 'line' has 4 devices, and there are 5 processes"

# All are told so, whoever comes soon after, and who both are.
twice_for_all() ( # place, rank
  rm -f "$TMP/meet"* "$TMP/rank."*
  DIL_MEET=$1 pids=
  shift
  export DIL_MEET
  began=$(date +%s)
  for DIL_RANK in 0 1 "$1" 2; do
    export DIL_RANK
    [ "$DIL_RANK" != 2 ] || sleep 1
    "$DIL" run "$TMP/p.dil" --topology line --random 7 --seq 100 --threads 1 \
      >"$TMP/rank.$DIL_RANK.$(echo "$pids" | wc -w)" 2>&1 &
    pids="$pids $!"
  done
  for pid in $pids; do ! wait "$pid" || return 1; done
  took=$(($(date +%s) - began))
  cat "$TMP"/rank.*
  who='process [0-9]*\( on [0-9a-f.:]*\)\?'
  [ $took -lt 20 ] && [ "$(cat "$TMP"/rank.* | grep -c -e \
    "two processes are rank $1, $who and $who: each process has" -e \
    "rank $1 has come to '$TMP/meet' already")" -eq 4 ]
)
next
is "by a port: two processes are rank 0" twice_for_all "localhost:$port" 0
next
is "by a port: two processes are rank 1" twice_for_all "localhost:$port" 1
is "in a file: all hear of two that are rank 0" twice_for_all "$TMP/meet" 0
is "in a file: all hear of two that are rank 1" twice_for_all "$TMP/meet" 1

# The last has another file or options, and no other waits until its time is up.
sed '/line/s/devices 4/devices 5/' "$TMP/p.dil" >"$TMP/five.dil"
sed 's/window 8, 8/window 8, 9/' "$TMP/p.dil" >"$TMP/wider.dil"
short() { # file, options...
  file=$1
  shift
  "$DIL" run "$TMP/$file.dil" --topology line --random 7 --seq 100 --threads 1 "$@"
}
unlike() ( # place, words of all, file and options of the last...
  rm -f "$TMP/meet"* "$TMP/rank."*
  DIL_MEET=$1 words=$2 pids=
  export DIL_MEET
  began=$(date +%s)
  shift 2
  for DIL_RANK in 0 1 2; do
    export DIL_RANK
    short p >"$TMP/rank.$DIL_RANK" 2>&1 &
    pids="$pids $!"
  done
  DIL_RANK=3 short "$@" >"$TMP/rank.3" 2>&1 &
  pids="$pids $!"
  for pid in $pids; do ! wait "$pid" || return 1; done
  took=$(($(date +%s) - began))
  cat "$TMP"/rank.*
  [ $took -lt 20 ] && [ "$(cat "$TMP"/rank.* | grep -c -e "$words")" -eq 4 ]
)
five='a process is rank 3 of 5, here are 4: process [0-9]'
for place in "$TMP/meet" port; do
  next
  [ "$place" != port ] || place=localhost:$port
  is "another number of ranks, at ${place#"$TMP"}" unlike "$place" "$five" five
  next
  [ "${place#localhost}" = "$place" ] || place=localhost:$port
  is "another pattern, at ${place#"$TMP"}" unlike "$place" 'another plan' wider
done
is "a rank alone resumes" unlike "$TMP/meet" \
  'another word on resuming: --resume is for all ranks' p --state "$TMP/none" --resume

# Processes that nothing joins do all of it each, which one of them says.
apart() {
  RANK=1 WORLD_SIZE=4 "$DIL" run "$TMP/p.dil" --topology one --seq 100 \
    --random 7 >"$TMP/apart" 2>&1 || return 1
  cat "$TMP/apart"
  grep -q 'note: this is one of 4 processes (WORLD_SIZE) that each run all of it' \
    "$TMP/apart"
}
is "processes that nothing joins" apart

# ---- ranks that are lost ----------------------------------------------------------

mkdir "$TMP/three" "$TMP/lost"
"$DIL" run "$TMP/p.dil" --topology three --seq 60000 --random 7 \
  --out "$TMP/three/o.npy" >"$TMP/said" 2>&1

appears() { # file: within a minute
  for _ in $(seq 1200); do
    [ ! -e "$1" ] || return 0
    sleep 0.05
  done
  return 1
}
same_as_three() { # of every file that those left have written
  for file in "$TMP"/lost/*.npy; do
    cmp "$file" "$TMP/three/${file##*/}" || return 1
  done
}
goes() { # file: within a minute
  for _ in $(seq 12000); do
    [ -e "$1" ] || return 0
    sleep 0.005
  done
  return 1
}
process_of() { # rank
  victim_shell=$(echo "$pids" | awk -v n=$(($1 + 1)) '{ print $n }')
  pgrep -P "$victim_shell"
}
# Those left end well. 2: nobody has missed the rank, it was done.
others() { # rank, words of the first of those left
  left=0
  for pid in $pids; do
    if [ $left -ne "$1" ]; then
      wait "$pid" || { head -50 "$TMP"/rank.*; return 1; }
    fi
    left=$((left + 1))
  done
  kill -KILL "$victim" 2>/dev/null
  first=$([ "$1" -ne 0 ]; echo $?)
  head -50 "$TMP"/rank.*
  grep -q 'go.* on, without' "$TMP"/rank.? || return 2
  grep -q "3 ranks go on, without $1: rank $1 is $2" "$TMP/rank.$first" &&
    grep -q '^good' "$TMP/rank.$first" &&
    same_as_three
}
lose() { # topology
  rm -f "$TMP"/lost/* "$TMP/state"*
  start "$1" --seq 60000 --shrink --state "$TMP/state" --out "$TMP/lost/o.npy" \
    --check
}
# While all of them run.
in_run() { # topology, rank, signal, word
  lose "$1" && appears "$TMP/state.$2.flight" || return 1
  victim=$(process_of "$2")
  kill -"$3" "$victim"
  others "$2" "$4"
}
# Behind the run, while the first collects: it waits for rank 1, who is held up;
# or, where that came too late, for nobody any more.
in_collection() { # topology, rank, signal, word
  for _ in 1 2 3 4 5; do
    in_one_collection "$@"
    ended=$?
    [ $ended -eq 2 ] || return $ended
    next
  done
  return 1
}
in_one_collection() {
  lose "$1" && appears "$TMP/state.1.flight" || return 1
  held=$(process_of 1)
  goes "$TMP/state.1.flight"
  kill -STOP "$held"
  goes "$TMP/state.2.flight" && goes "$TMP/state.3.flight" &&
    goes "$TMP/state.0.flight" || return 1
  victim=$(process_of "$2")
  kill -"$3" "$victim"
  [ "$victim" = "$held" ] || kill -CONT "$held"
  others "$2" "$4.*while rows were collected"
}
# While they make gradients, again and again.
cat >"$TMP/w.dil" <<'END_OF_FILE'
pattern w { heads 4 kv 2; head_dim 16; dtype f32; input t : f32[H] gradient;
  score s - t[h] * abs(i - j) / 8; branch { window 8, 8; }
  branch { dilation 50; } }
topology soon { devices 4; link process; timeout 4s; }
topology mesh { devices 4; ring 2; heads 2; link process; timeout 4s; }
topology three { devices 3; }
END_OF_FILE
in_backward() { # topology, rank, signal, word
  rm -f "$TMP"/lost/* "$TMP/state"*
  of=w start_gradients lost "$1" --seq 6000 --repeat 9 --shrink \
    --state "$TMP/state" --check
  appears "$TMP/state.$2.back" || return 1
  victim=$(process_of "$2")
  kill -"$3" "$victim"
  others "$2" "$4"
}
# Of two, one cannot know that it goes on alone.
alone() {
  rm -f "$TMP/state"*
  sed 's/devices 4; link/devices 2; link/' "$TMP/p.dil" >"$TMP/two.dil"
  for pair in 0 1; do
    DIL_MEET=localhost:$port DIL_RANK=$pair "$DIL" run "$TMP/two.dil" \
      --topology soon --random 7 --threads 1 --seq 60000 --shrink \
      --state "$TMP/state" --repeat 1000 >"$TMP/rank.$pair" 2>&1 &
    [ $pair -eq 1 ] || first=$!
  done
  appears "$TMP/state.1.flight" || return 1
  kill -STOP $!
  wait $first && return 1
  kill -KILL $!
  cat "$TMP/rank.0"
  grep -q 'rank 1 is silent.*; 1 of 2 ranks cannot tell' "$TMP/rank.0"
}
alias_as 'by_file "$1"'
is "a rank is frozen" in_run soon 1 STOP silent
is "a rank of a mesh is killed" in_run mesh 3 KILL gone
is "rank 0 of a mesh is frozen" in_run mesh 0 STOP silent
is "a rank is killed behind the run" in_collection line 3 KILL gone
is "a rank is frozen behind the run" in_collection soon 1 STOP silent
is "rank 0 is killed behind the run" in_collection line 0 KILL gone
of=w gradients three three --seq 6000 >/dev/null
is "a rank is killed as it makes gradients" in_backward soon 2 KILL gone
is "rank 0 is killed as it makes gradients" in_backward soon 0 KILL gone
is "rank 0 of a mesh is frozen as it makes gradients" in_backward mesh 0 STOP \
  silent
alias_as 'meet_by "$1" localhost 127.0.0.1'
next
is "by a port: rank 0 is killed" in_run line 0 KILL gone
next
is "by a port: a rank of a mesh is frozen" in_run mesh 1 STOP silent
next
is "by a port: a rank is killed behind the run" in_collection line 3 KILL gone
next
is "by a port: rank 0 of a mesh is killed behind the run" in_collection mesh 0 \
  KILL gone
next
is "by a port: of two one is frozen" alone
exit $bad
