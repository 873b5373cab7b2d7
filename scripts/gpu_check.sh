#!/usr/bin/env bash
# What a machine with a GPU says of the CUDA device: builds for the GPU that is there, runs the kernel tests,
# the golden comparison, ranks against each other, compute-sanitizer on small cases, then whole training
# steps, and prints one table. Every step has a time limit; all of them together end within 9 minutes.
#   gpu_check.sh [FOLDER]   build folder (build-gpu)
# The exit status is 0 where no step failed. A step that the machine has not the tool for is "skipped".
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

folder=${1:-build-gpu}
logs=$folder/gpu_check
mkdir -p "$logs"
deadline=$((SECONDS + 520))
rows=()
failed=0

# row NAME RESULT SECONDS NOTE
row() { rows+=("$(printf '%-28s %-8s %5s s  %s' "$1" "$2" "$3" "$4")"); }

# step NAME SECONDS COMMAND...: runs it with what is left of the time, keeps its output, and its last line as
# the note.
step() {
  local name=$1 limit=$2 begin=$SECONDS status=0 left log
  shift 2
  left=$((deadline - SECONDS))
  [ "$limit" -le "$left" ] || limit=$left
  if [ "$limit" -le 5 ]; then
    row "$name" "not run" 0 "no time was left"
    failed=1
    return
  fi
  log=$logs/${name//[^a-z0-9]/_}.log
  timeout --kill-after=5 "$limit" "$@" >"$log" 2>&1 || status=$?
  local result=ok note
  note=$(tail -n 1 "$log" | cut -c1-90)
  case $status in
    0) ;;
    77) result=skipped ;;
    124 | 137) result=late note="over its limit of $limit s; $log" failed=1 ;;
    *) result=FAILED note="status $status: $note; $log" failed=1 ;;
  esac
  row "$name" "$result" $((SECONDS - begin)) "$note"
}

if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L >/dev/null 2>&1; then
  echo "gpu_check.sh: there is no NVIDIA GPU here (nvidia-smi shows none)" >&2
  exit 1
fi
nvidia-smi --query-gpu=name,driver_version,compute_cap,memory.total --format=csv,noheader
architecture=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d ' .')
export FSDP_BIN_DIR=$PWD/$folder/bin FSDP_SOURCE_DIR=$PWD

sanitizer() {
  local tool=$1
  shift
  command -v compute-sanitizer >/dev/null || return 77
  compute-sanitizer --tool "$tool" --error-exitcode 1 "$@"
}
export -f sanitizer

train=$folder/bin/fsdp_train
tiny=("$train" --backend cuda --model tiny -s 64 -b 2 --max-steps 3)
step "build" 280 scripts/build.sh "$folder" -DFSDP_CUDA=on "-DCMAKE_CUDA_ARCHITECTURES=$architecture"
if [ $failed -eq 0 ]; then
  step "kernels against the CPU's" 90 "$folder/tests/gpu_kernels"
  step "golden, fp32" 60 env FSDP_TEST_BACKEND=cuda "$folder/tests/test_golden"
  step "one rank, all settings" 60 env FSDP_TEST_BACKEND=cuda "$folder/tests/test_strategies"
  step "ranks against each other" 150 python3 tests/gpu_ranks.py
  for tool in memcheck racecheck initcheck; do
    step "$tool of a step" 40 bash -c 'sanitizer "$@"' _ "$tool" "${tiny[@]}"
  done
  step "llama-1b, batch 6" 60 "$train" --backend cuda --model llama-1b -s 2048 -b 6 --wrap block \
    --max-steps 12 --log-freq 4
fi

say "Result"
printf '%s\n' "${rows[@]}"
exit $failed
