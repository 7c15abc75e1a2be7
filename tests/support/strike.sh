# shellcheck shell=sh disable=SC2034,SC2046,SC2086
# strike.sh - what the scripts that kill and freeze ranks share; sourced. A rank
# is struck at a random moment of a run, forward or backward: the others end in
# time, without success, and the run can be resumed to the same bits. In: TMP;
# STRIKES, how many of each kind in place of a few; and from the script `job`,
# which runs so many ranks, `rank_word`, the variable that tells a process its
# rank, and `names`, which finds a rank and a signal in what the others said.
# Out: ok / not ok lines, and the longest that an end took.

# Steps of some 200 ms forward, 150 backward, in which rows travel.
cat >"$TMP/forward.dil" <<'END'
pattern p { heads 2; head_dim 16; dtype f32; branch { } }
topology jobs { devices 4; ring 4; link mpi; timeout 4s; }
topology mesh { devices 4; ring 2; heads 2; link mpi; timeout 4s; }
topology meet { devices 4; ring 4; link process; timeout 4s; }
END
{
  echo 'pattern p { heads 2; head_dim 16; dtype f32; input t : f32[H] gradient;'
  echo 'score s - 0.001 * t[h] * abs(i - j); branch { } }'
  grep '^topology' "$TMP/forward.dil"
} >"$TMP/backward.dil"
moment=0.5 # seconds, at most
as=forward # the direction of the run that is struck

run_of() { # name: the options of a run, and the files that it writes
  case $as in
  forward)
    echo "--seq 20000 --out $TMP/$1.o.npy"
    ;;
  *)
    echo "--seq 8000 --backward --input t=random \
      --dq $TMP/$1.dq.npy --dk $TMP/$1.dk.npy --dv $TMP/$1.dv.npy \
      --grad t=$TMP/$1.t.npy"
    ;;
  esac
}

run() { # file, name, options...
  file=$1 name=$2
  shift 2
  job 4 "$TMP/$file.dil" --topology "$topology" $(run_of "$name") --random 7 \
    --threads 1 "$@"
}

states() { # end of the names: how many ranks have kept such a state
  ls "$TMP"/state.[0-3]$1 2>/dev/null | wc -l
}

# A run forward needs the states of all to go on from; a run backward also goes
# on where a rank has kept no sums yet.
has_begun() { # seed
  case $as in
  forward) [ "$(states "")" -eq 4 ] ;;
  *) [ "$(states .back)" -gt $(($1 % 4)) ] ;;
  esac
}

of_job() { # pids of the launcher's ranks, in no order
  pgrep -P "$(pgrep -d , -P "$1"),$1" -x dil
}

rank_of() { # pid
  tr '\0' '\n' <"/proc/$1/environ" | sed -n "s/^$rank_word=//p"
}

# A rank is struck at a random moment after the run has begun and while the rank
# records its flight; the job must end in time and without success, and say who
# is silent. Where the moment was too late, the next is tried: a process that is
# stopped on its way out, when all is done, is the launcher's affair.
strike() { # signal, milliseconds that the end may take
  rm -f "$TMP"/state* "$TMP"/struck.*
  (run $as struck --state "$TMP/state") >"$TMP/job" 2>&1 &
  launcher=$!
  while ! has_begun "$SEED" && kill -0 $launcher 2>/dev/null; do
    sleep 0.002
  done
  sleep "$(awk -v s="$SEED" -v most="$moment" \
    'BEGIN { srand(s); print rand() * most }')"
  victim=$(of_job $launcher | shuf -n 1)
  rank=$([ -n "$victim" ] && rank_of "$victim")
  if [ -z "$rank" ] || [ ! -e "$TMP/state.$rank.flight" ]; then
    wait $launcher || { cat "$TMP/job" && return 1; } # nobody struck it
    SEED=$((SEED + 7919))
    strike "$@"
    return
  fi
  kill -"$1" "$victim"
  began=$(date +%s%N)
  (sleep 30 && kill -KILL "$victim") >"$TMP/guard" 2>&1 & # no hang stays
  guard=$!
  wait $launcher
  status=$?
  took=$((($(date +%s%N) - began) / 1000000))
  kill $guard 2>/dev/null
  echo "rank $rank, $took ms, status $status"
  echo "$took $1 $rank" >>"$TMP/times"
  cat "$TMP/job"
  [ "$took" -le "$2" ] || return 1
  [ $status -ne 0 ] || { echo "the job succeeded" && return 1; }
  names "$rank" "$1"
}

# What is left is enough to go on from.
resumes() {
  [ "$(states "")" -eq 4 ] || { echo "$(states "") states" && return 1; }
  rm -f "$TMP"/resumed.*
  run calm resumed --state "$TMP/state" --resume || return 1
  for whole in "$TMP"/whole.*.npy; do
    cmp "$whole" "$TMP/resumed.${whole#"$TMP"/whole.}" || return 1
  done
}

# Killed and frozen ranks of one direction, each run resumed after it.
strikes() { # direction, topology, kills, stops, milliseconds to end after each
  as=$1 topology=$2
  rm -f "$TMP"/whole.*
  # Runs that nobody strikes have time: a rank that waits for a processor is no
  # silent one.
  sed 's/timeout 4s/timeout 60s/' "$TMP/$as.dil" >"$TMP/calm.dil"
  is "$as: a whole run" run calm whole
  for turn in $(seq "${STRIKES:-$3}"); do
    SEED=$turn
    is "$as: killed rank, turn $turn" strike KILL "$5"
    is "$as: resumed after it" resumes
  done
  for turn in $(seq "${STRIKES:-$4}"); do
    SEED=$((1000 + turn))
    is "$as: frozen rank, turn $turn" strike STOP "$6"
    is "$as: resumed after it" resumes
  done
}

latest() { # tells the longest ends
  for signal in KILL STOP; do
    grep "$signal" "$TMP/times" | sort -n | awk -v signal=$signal '
      { took = $1 } END { if (NR) print NR " ends after " signal \
        ", the latest " took " ms" }'
  done
}
