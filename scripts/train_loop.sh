#!/usr/bin/env bash
# train_loop.sh [--max-failures N] [--wait SECONDS] [--folder DIR] [--restarted] -- COMMAND...
# Runs COMMAND, a training command with -e NAME, and restarts it after a failure, as long as it makes
# progress: after N failures (3) in a row without a new checkpoint it gives up with the last status. It does
# not restart after 0 (done), 2, 3, 4 and 6 (errors that would repeat: an option, a file, memory, the
# numbers), 126 and 127 (no such program), 130 and 143 (stopped by a signal).
#   SIGTERM, SIGUSR1 and SIGINT to the loop end the run's step, save, and end the loop with 143, 143 and 130:
#   it sends SIGUSR1 to COMMAND, which mpirun passes on with no deadline. A second signal kills.
#   --folder is the experiment's, if COMMAND itself lacks -e and --save-dir (--config).
#   --wait is the time between a failure and the next start (5).
#   --resume in COMMAND is for its first start: behind it a restart has `--resume auto`, so that it goes on
#   from what was saved since. With --restarted the first start here is a restart already.
set -uo pipefail

fail() { echo "train_loop.sh: error: $*" >&2; exit 2; }
say() { echo "train_loop.sh: $*" >&2; }

max_failures=3
wait_s=5
folder=
restarted=0
while [ $# -gt 0 ]; do
  case $1 in
    --max-failures | --wait | --folder)
      [ $# -ge 2 ] || fail "$1 requires a value"
      case $1 in
        --max-failures) max_failures=$2 ;;
        --wait) wait_s=$2 ;;
        --folder) folder=$2 ;;
      esac
      shift 2
      ;;
    --restarted) restarted=1; shift ;;
    --) shift; break ;;
    *)
      fail "unknown argument '$1': use [--max-failures N] [--wait SECONDS] [--folder DIR] [--restarted] --" \
        "COMMAND..."
      ;;
  esac
done
[ $# -gt 0 ] || fail "no command behind --"
[[ $max_failures =~ ^[1-9][0-9]*$ ]] || fail "--max-failures '$max_failures': use a number from 1"
[[ $wait_s =~ ^[0-9]+(\.[0-9]+)?$ ]] || fail "--wait '$wait_s': use a number of seconds"

# The experiment's folder, as COMMAND names it.
find_folder() {
  local name='' save_dir=outputs
  while [ $# -gt 0 ]; do
    case $1 in
      -e | --experiment-name) name=${2-}; shift ;;
      --experiment-name=*) name=${1#*=} ;;
      --save-dir) save_dir=${2-}; shift ;;
      --save-dir=*) save_dir=${1#*=} ;;
    esac
    shift
  done
  [ -z "$name" ] || printf '%s/%s\n' "$save_dir" "$name"
}
[ -n "$folder" ] || folder=$(find_folder "$@")
[ -n "$folder" ] ||
  fail "without -e NAME nothing is saved, and a restart would begin anew; name it, or give --folder"

# The measure of progress: the complete checkpoints and their times.
checkpoints() { stat -c '%n %Y' "$folder"/step-????????/checkpoint.json 2>/dev/null; }

stopping=0
child=
stop() {
  if [ $stopping -ne 0 ]; then
    kill -KILL -- "-$child" 2>/dev/null
    return
  fi
  stopping=$1
  [ -z "$child" ] || kill -USR1 "$child" 2>/dev/null
}
trap 'stop 130' INT
trap 'stop 143' TERM USR1

# What a restart adds to COMMAND, whose --resume and --overwrite were for the first start.
again=()
for word in "$@"; do
  case $word in
    --resume | --resume=* | --resume[-_]from[-_]checkpoint*) again=(--resume auto --overwrite=off) ;;
  esac
done
command=("$@")
[ $restarted -eq 0 ] || command+=("${again[@]}")

failures=0
before=$(checkpoints)
while :; do
  # A process group of its own: Ctrl-C on a terminal is for the loop, as mpirun would leave a second for it.
  set -m
  "${command[@]}" </dev/null &
  child=$!
  set +m
  [ $stopping -eq 0 ] || kill -USR1 "$child" 2>/dev/null # it came while this one was started
  # A trap ends the wait, but not the command.
  while :; do
    wait "$child"
    status=$?
    kill -0 "$child" 2>/dev/null || break
  done
  child=
  [ $stopping -eq 0 ] || exit "$stopping"
  case $status in
    0) exit 0 ;;
    2 | 3 | 4 | 6 | 126 | 127 | 130 | 143)
      say "ended with status $status: not started again"
      exit "$status"
      ;;
  esac
  command=("$@" "${again[@]}")
  now=$(checkpoints)
  if [ "$now" != "$before" ]; then failures=0; fi
  before=$now
  failures=$((failures + 1))
  said="ended with status $status, failure $failures of $max_failures without a new checkpoint"
  if [ "$failures" -ge "$max_failures" ]; then
    say "$said: giving up"
    exit "$status"
  fi
  say "$said: starting again in $wait_s s"
  sleep "$wait_s" &
  wait $!
  [ $stopping -eq 0 ] || exit "$stopping"
done
