#!/usr/bin/env bash
# What `cmake --install` leaves is enough: the examples are configured, built and run with the installed
# library alone, through find_package, and print what those of the build folder print.
set -euo pipefail
build=$(cd "$FSDP_BIN_DIR/.." && pwd)
source=$(cd "${FSDP_SOURCE_DIR:-.}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/prefix" >"$work/log" || { cat "$work/log"; exit 1; }
for program in fsdp_train fsdp_plan fsdp_eval fsdp_export fsdp_profile; do
  [ ! -e "$build/bin/$program" ] || "$work/prefix/bin/$program" --version
done

# A copy, which has none of the project's headers above it.
cp -r "$source/examples" "$work/examples"
if command -v ninja >/dev/null; then export CMAKE_GENERATOR=Ninja; fi # a machine may have no make
cmake -S "$work/examples" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" >"$work/log" 2>&1 &&
  cmake --build "$work/build" >>"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
for list in "llama2-7b 8" "tiny 3"; do
  read -ra arguments <<<"$list"
  "$work/build/plan_step" "${arguments[@]}" >"$work/installed"
  "$build/bin/plan_step" "${arguments[@]}" >"$work/built"
  diff "$work/built" "$work/installed"
done

# 6,738,415,616 parameters over 8 ranks, 12 bytes each for fp32 masters and two moments, nothing padded, and
# 32 MiB of scratch for matrix products, which are kept.
valley=$((6738415616 / 8 * 12 + 32 * 1024 * 1024))
"$work/build/plan_step" llama2-7b 8 >"$work/out"
if ! grep -q "^valley $valley bytes, " "$work/out"; then
  cat "$work/out"
  echo "expected a valley of $valley bytes"
  exit 1
fi
if "$work/build/plan_step" no-such-model 2>"$work/err"; then
  echo "an unknown preset is planned"
  exit 1
fi
grep -q "no model preset 'no-such-model'" "$work/err"

# A planner without a runtime: its one header, and a library that pkg-config finds.
PKG_CONFIG_PATH=$(dirname "$(find "$work/prefix" -name fsdp_plan.pc)")
export PKG_CONFIG_PATH
mkdir "$work/alone"
read -ra flags <<<"$(pkg-config --cflags --libs fsdp_plan)"
cc "$work/examples/search_plans.c" -o "$work/alone/search_plans" "${flags[@]}"
LD_LIBRARY_PATH=$(pkg-config --variable=libdir fsdp_plan)
export LD_LIBRARY_PATH
"$work/alone/search_plans" llama-1b 2 >"$work/installed"
"$build/bin/search_plans" llama-1b 2 >"$work/built"
diff "$work/built" "$work/installed"

# libfsdp through pkg-config, in a folder that has none of its headers.
read -ra flags <<<"$(pkg-config --cflags --libs fsdp)"
LD_LIBRARY_PATH=$(pkg-config --variable=libdir fsdp)
cc "$work/examples/train_steps.c" -o "$work/alone/train_steps" "${flags[@]}"

# The scripts that messages name are there, named by their whole path, and run without the source tree.
scripts=$work/prefix/share/fsdp/scripts
cd "$work/alone"
printf 'some text' >text.txt
! "$work/prefix/bin/fsdp_train" --model gpt2 --data text.txt 2>err || exit 1
grep -q "prepare the data with $scripts/prepare_data.py --tokenizer FILE" err || { cat err; exit 1; }
! "$work/prefix/bin/fsdp_train" --dataset alpaca 2>err || exit 1
grep -q "prepare them with $scripts/prepare_data.py$" err || { cat err; exit 1; }
# Those of the source tree likewise, but inside of it.
! "$build/bin/fsdp_train" --dataset alpaca 2>err || exit 1
grep -q "prepare them with $source/scripts/prepare_data.py$" err || { cat err; exit 1; }
! (cd "$source" && "$build/bin/fsdp_train" --dataset alpaca 2>"$work/err") || exit 1
grep -q "prepare them with scripts/prepare_data.py$" "$work/err" || { cat "$work/err"; exit 1; }
"$scripts/prepare_data.py" --out text.tok text.txt >out
"$scripts/prepare_data.py" --verify text.tok >out
mkdir model
echo '{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 256}' >model/config.json
"$scripts/prepare_data.py" --model model --out text.tok text.txt >out
echo '{"model_type": "bloom"}' >model/config.json
! "$scripts/prepare_data.py" --model model --out text.tok text.txt 2>err || exit 1
grep -q '"bloom", but only these can be trained: "llama"' err || { cat err; exit 1; }
"$scripts/plot.py" --help | grep -q -- --timeline
EXPERIMENT=two bash "$scripts/train.slurm" --max-steps 2 >out 2>err || { cat out err; exit 1; }
[ -e outputs/two/log.jsonl ]
cd "$source"

# A model that knows nothing has the loss ln 256 on bytes; twelve steps on one batch lower it by more than 1.
# What the kernels accessed is what was planned, in every step.
for folder in "$build/bin" "$work/build" "$work/alone"; do
  "$folder/train_steps" 12 >"$work/out"
  awk '{ gsub(",", ""); if ($NF != $(NF - 3)) exit 1; loss[NR] = $4 }
       END { first = loss[1]; exit !(NR == 12 && first > 5.445 && first < 5.645 && loss[12] < first - 1) }' \
    "$work/out" || {
    cat "$work/out"
    echo "$folder/train_steps does not train"
    exit 1
  }
done
echo "the installed library plans and trains as the built one does"
