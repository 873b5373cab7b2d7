#!/usr/bin/env bash
# Installs what is missing, builds, and trains a small model on the built-in text, sharded over several ranks.
# DEMO_RANKS and DEMO_STEPS change its size; further arguments go to fsdp_train.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

ranks=${DEMO_RANKS:-4}
steps=${DEMO_STEPS:-500}
out=outputs/demo

say "What is missing"
scripts/install_deps.sh
say "Build"
# The CUDA device takes minutes to compile and is of use only with a GPU. It has its own folder, so that later
# builds do not find this choice in build/.
cuda=off
if compgen -G "/dev/nvidia[0-9]*" >/dev/null; then cuda=auto; fi
build=build-demo
BUILD_TARGETS="fsdp_train fsdp_plan fsdp_eval" scripts/build.sh $build -DFSDP_CUDA=$cuda
if [ -e "$out" ]; then
  echo "removed: $out of an earlier demo"
  rm -rf "$out"
fi
mkdir -p "$out"

say "The plan, before anything is allocated"
options=(--model tiny --strategy full --wrap block --batch-size 2 --seq-length 256)
$build/bin/fsdp_plan --ranks "$ranks" "${options[@]}"

say "Training on $ranks ranks"
mpirun -np "$ranks" $build/bin/fsdp_train "${options[@]}" --max-steps "$steps" --num-epochs 1000 --lr 3e-3 \
  --warmup-steps 10 --log-freq 20 --log "$out/log.jsonl" --memory-profile "$out/memory.svg" "$@" \
  --save-dir outputs -e demo

say "Summary"
python3 - "$out" "$ranks" <<'PYTHON'
import json, sys
folder, ranks = sys.argv[1], sys.argv[2]
log = [json.loads(line) for line in open(f"{folder}/log.jsonl")]
first, last = log[0]["loss"], sum(line["loss"] for line in log[-5:]) / len(log[-5:])
rate = sorted(line["tokens_per_s"] for line in log)[len(log) // 2]
end = log[-1]
print(f"loss          {first:.3f} at the first step, {last:.3f} over the last five of {len(log)}")
print(f"speed         {rate:,.0f} tokens/s over {ranks} ranks (median step)")
print(f"memory        valley {end['valley_bytes']:,} bytes, peak {end['peak_bytes']:,} bytes per rank;")
print(f"              planned {end['planned_valley_bytes']:,} and {end['planned_peak_bytes']:,}")
print(f"picture       {folder}/memory.svg")
if not last < 0.8 * first:
    sys.exit("demo: the loss did not fall as it should")
PYTHON
test -s "$out/memory.svg"

say "What it writes now"
mpirun -np "$ranks" $build/bin/fsdp_eval --save-dir outputs -e demo --prompt "It was " --max-new-tokens 120 \
  --temperature 0.7
