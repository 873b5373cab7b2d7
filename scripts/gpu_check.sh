#!/usr/bin/env bash
# What a machine with a GPU says of the CUDA device: builds for the GPU that is there, runs the kernel tests,
# the golden comparison, ranks against each other, compute-sanitizer on small cases, then the benchmarks, and
# prints one table, whatever failed. Every step has a time limit; all of them together end within 9 minutes.
#   gpu_check.sh [FOLDER] [--only WORDS] [--minutes N]
# FOLDER is the build folder (build-gpu); one that gpu_bundle.sh has made is used as it is. --only runs the
# steps whose name has one of the WORDS (an extended regular expression), so that what one call had no time
# for can follow in another. Nothing is downloaded. The exit status is 0 where no step failed. A step that the
# machine has not the tool for is "skipped".
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

folder="build-gpu"
only=.
minutes=8.6
while [ $# -gt 0 ]; do
  case $1 in
    --only) only=$2; shift 2 ;;
    --minutes) minutes=$2; shift 2 ;;
    -*) echo "gpu_check.sh: unknown argument '$1'; use --only WORDS or --minutes N" >&2; exit 2 ;;
    *) folder=$1; shift ;;
  esac
done
folder=$(realpath -m "$folder")
logs=$folder/gpu_check
mkdir -p "$logs"
deadline=$((SECONDS + $(awk -v m="$minutes" 'BEGIN { print int(60 * m) }')))
rows=()
failed=0

# row NAME RESULT SECONDS NOTE
row() { rows+=("$(printf '%-28s %-8s %5s s  %s' "$1" "$2" "$3" "$4")"); }

# shellcheck disable=SC2317
finish() {
  say "Result"
  printf '%s\n' "${rows[@]}"
  for log in "$logs"/compare_*.log "$logs"/kernels_of_*.log; do
    if [ -e "$log" ] && [ "$log" -nt "$logs/begin" ]; then
      printf '\n== %s\n' "${log##*/}"
      grep -v 'Warning\|W[0-9]\{4\} ' "$log" | tail -n 40
    fi
  done
}
touch "$logs/begin"
trap finish EXIT

# step NAME SECONDS COMMAND...: runs it with what is left of the time, keeps its output, and its last line as
# the note.
step() {
  local name=$1 limit=$2 begin=$SECONDS status=0 left log
  shift 2
  [[ $name =~ $only ]] || return 0
  left=$((deadline - SECONDS))
  [ "$limit" -le "$left" ] || limit=$left
  if [ "$limit" -le 5 ]; then
    row "$name" "not run" 0 "no time was left: gpu_check.sh $folder --only '$name'"
    failed=1
    return
  fi
  echo "$name ..."
  log=$logs/${name//[^a-z0-9]/_}.log
  timeout --kill-after=5 "$limit" "$@" >"$log" 2>&1 || status=$?
  local result=ok note
  note=$(tail -n 1 "$log" | cut -c1-110)
  case $status in
    0) ;;
    77) result=skipped ;;
    124 | 137) result=late note="over its limit of $limit s; $log" failed=1 ;;
    *) result=FAILED note="status $status: $note; $log" failed=1 ;;
  esac
  row "$name" "$result" $((SECONDS - begin)) "$note"
}

if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L >/dev/null 2>&1; then
  trap - EXIT
  echo "gpu_check.sh: there is no NVIDIA GPU here (nvidia-smi shows none)" >&2
  exit 1
fi
nvidia-smi --query-gpu=name,driver_version,compute_cap,memory.total --format=csv,noheader
architecture=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d ' .')
# PyTorch finds its libraries by itself, without what is added below for our programs.
export FSDP_SOURCE_DIR=$PWD FSDP_TEST_BACKEND=cuda FSDP_PEER_LIBRARY_PATH=${LD_LIBRARY_PATH:-}

# Folders of CUDA's libraries that came with PyTorch, for a machine whose toolkit has no NCCL.
wheel_folders() {
  python3 - 2>/dev/null <<'PYTHON' || true
import glob, importlib.util, os
spec = importlib.util.find_spec("torch")
if spec and spec.origin:
    packages = os.path.dirname(os.path.dirname(spec.origin))
    print("\n".join(sorted(glob.glob(os.path.join(packages, "nvidia", "*", "lib")))))
PYTHON
}
mapfile -t wheels < <(wheel_folders)

if [ -e "$folder/bundle/env.sh" ]; then
  here=$folder/bundle
  # shellcheck source=/dev/null
  source "$here/env.sh"
  tests=$here/tests
  row "build" "ok" 0 "brought along: $folder/bundle"
else
  hints=()
  for place in "${wheels[@]}"; do
    [ -e "$place/libnccl.so.2" ] || continue
    [ -e /usr/include/nccl.h ] || [ -e "${CUDA_HOME:-/usr/local/cuda}/include/nccl.h" ] ||
      hints=("-DNCCL_INCLUDE_DIR=${place%/lib}/include" "-DNCCL_LIBRARY=$place/libnccl.so.2")
  done
  export FSDP_BIN_DIR=$folder/bin
  tests=$folder/tests
  only_before=$only only=.
  BUILD_TARGETS="fsdp_train fsdp_plan bench_gpu gpu_kernels test_golden test_strategies" \
    step "build" 280 scripts/build.sh "$folder" -DFSDP_CUDA=on "-DCMAKE_CUDA_ARCHITECTURES=$architecture" \
    "${hints[@]}"
  only=$only_before
  [ $failed -eq 0 ] || { cat "$logs/build.log"; exit 1; }
fi
train=$FSDP_BIN_DIR/fsdp_train
# Last in the path: only for what nothing else has.
for place in "${wheels[@]}"; do LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}:$place; done
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}
missing=$(ldd "$train" | awk '/not found/ { print $1 }' | tr '\n' ' ')
if [ -n "$missing" ]; then
  row "libraries" "FAILED" 0 "fsdp_train lacks $missing"
  exit 1
fi

# Choosing products by time is nothing that these look at, and takes long under them.
sanitizer() {
  local tool=$1
  shift
  command -v compute-sanitizer >/dev/null || return 77
  FSDP_GEMM_CANDIDATES=1 compute-sanitizer --tool "$tool" --error-exitcode 1 "$@"
}
export -f sanitizer
compare() {
  python3 -c 'import torch' 2>/dev/null || return 77
  TORCHINDUCTOR_CACHE_DIR=$logs/inductor python3 bench/compare_torch.py --device cuda --build "$1" \
    --cases "$2" --steps 9 --json "$logs/compare_$2.json"
}
export -f compare
export logs
build=${FSDP_BIN_DIR%/bin}
tiny=("$train" --backend cuda --model tiny -s 64 -b 2 --max-steps 2)

step "kernels against the CPU's" 90 "$tests/gpu_kernels"
step "golden" 60 "$tests/test_golden"
step "one rank, all settings" 60 "$tests/test_strategies"
for part in refuse agree kill stop memory; do
  step "ranks: $part" 120 env FSDP_GEMM_CANDIDATES=$([ $part = memory ] && echo 8 || echo 1) \
    python3 tests/gpu_ranks.py $part
done
step "compare llama-1b-6" 100 bash -c 'compare "$@"' _ "$build" llama-1b-6
step "kernels of llama-1b" 40 "$FSDP_BIN_DIR/bench_gpu" --model llama-1b -b 6 -s 2048 --wrap block
step "compare llama3-8b-4-block" 150 bash -c 'compare "$@"' _ "$build" llama3-8b-4-block
for tool in memcheck racecheck initcheck; do
  step "$tool of a step" 45 bash -c 'sanitizer "$@"' _ "$tool" "${tiny[@]}"
done
step "racecheck of attention" 45 bash -c 'sanitizer "$@"' _ racecheck "$tests/gpu_kernels" attention_bf16
step "compare llama-1b-24" 100 bash -c 'compare "$@"' _ "$build" llama-1b-24
step "compare llama3-8b-2" 150 bash -c 'compare "$@"' _ "$build" llama3-8b-2
step "kernels of llama3-8b" 40 "$FSDP_BIN_DIR/bench_gpu" --model llama3-8b -b 4 -s 4096 --wrap block \
  --param-dtype bf16 --reduce-dtype bf16 --master-dtype bf16 --moment-dtype bf16
exit $failed
