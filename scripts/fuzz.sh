#!/usr/bin/env bash
# fuzz.sh SECONDS [NAME...]: builds the fuzzers of the parsers (tests/fuzz/) with clang into build-fuzz/, runs
# each for SECONDS, as many at a time as there are cores, and prints one table. NAME is a parser: config,
# safetensors, safetensors_index, manifest, tokens, records, options, profile, network, strategies. What is
# found new is kept in build-fuzz/corpus/NAME, so that runs build on each other.
#   --build     only builds them (without SECONDS)
#   --coverage  afterwards, lines of the parsers that the kept inputs reach (requires llvm-profdata, llvm-cov)
# The exit status is 0 without a finding, 1 with one (its input is kept, and the command that repeats it
# printed), 77 if this machine has no clang with libFuzzer.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

all=(config safetensors safetensors_index manifest tokens records options profile network strategies)
seconds=
coverage=0
build_only=0
names=()
for argument in "$@"; do
  case $argument in
    --build) build_only=1 ;;
    --coverage) coverage=1 ;;
    -*)
      echo "fuzz.sh: unknown option '$argument'; use: fuzz.sh SECONDS [NAME...] [--coverage], or --build" >&2
      exit 2
      ;;
    *[!0-9]*)
      if [ ! -e "tests/fuzz/fuzz_$argument.c" ]; then
        echo "fuzz.sh: no fuzzer '$argument'; there are: ${all[*]}" >&2
        exit 2
      fi
      names+=("$argument")
      ;;
    *) seconds=$argument ;;
  esac
done
if [ -z "$seconds" ] && [ $build_only -eq 0 ]; then
  echo "fuzz.sh: say for how many seconds: fuzz.sh SECONDS [NAME...] [--coverage], or --build" >&2
  exit 2
fi
[ ${#names[@]} -gt 0 ] || names=("${all[@]}")

folder=build-fuzz
probe=$(mktemp -d)
trap 'rm -rf "$probe"' EXIT
echo 'int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n) { return d && n ? 0 : 0; }' \
  >"$probe/probe.c"
if ! clang -fsanitize=fuzzer,address "$probe/probe.c" -o "$probe/probe" 2>/dev/null; then
  echo "fuzz.sh: skipped: clang with libFuzzer is not installed (packages clang and libclang-rt-dev)"
  exit 77
fi

options=(-DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ -DFSDP_FUZZ=ON -DFSDP_TESTS=OFF -DFSDP_CUDA=off
  -DFSDP_MPI=off -DFSDP_HWLOC=off -DFSDP_BLAS=builtin
  "-DCMAKE_C_FLAGS_RELWITHDEBINFO=-O2 -g1 -DNDEBUG")
BUILD_TARGETS=fuzzers scripts/build.sh $folder "${options[@]}" -DFSDP_SANITIZE=address
if [ $build_only -eq 1 ]; then exit 0; fi

# The numbers that libFuzzer prints at its end.
stat_of() { sed -nE "s/^stat::$2: +([0-9]+).*/\1/p" "$1" | tail -n 1; }
edges_of() { sed -nE 's/^#[0-9]+\t.* cov: ([0-9]+) .*/\1/p' "$1" | tail -n 1; }

fuzz_one() {
  local name=$1 log=$folder/fuzz/$1.log dictionary=() more=() status=0
  mkdir -p "$folder/corpus/$name" "$folder/findings"
  [ ! -e "tests/fuzz/$name.dict" ] || dictionary=("-dict=tests/fuzz/$name.dict")
  case $name in network | strategies) more=(tests/golden/strategies) ;; esac
  "$folder/fuzz/fuzz_$name" "${dictionary[@]}" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
    -print_final_stats=1 -artifact_prefix="$folder/findings/$name-" "$folder/corpus/$name" \
    "tests/fuzz/seeds/$name" "${more[@]}" >"$log" 2>&1 || status=$?
  printf '%-18s %12s %10s %8s %8s MB  %s\n' "$name" "$(stat_of "$log" number_of_executed_units)" \
    "$(stat_of "$log" average_exec_per_sec)" "$(edges_of "$log")" "$(stat_of "$log" peak_rss_mb)" \
    "$([ $status -eq 0 ] && echo ok || echo "FINDING, $log")"
  if [ $status -ne 0 ]; then
    grep -E 'ERROR|SUMMARY|runtime error|failed' "$log" | head -n 4
    sed -nE 's|^.*Test unit written to (.*)$|repeat with: '"$folder/fuzz/fuzz_$name"' \1|p' "$log"
  fi
  return $status
}

printf '%-18s %12s %10s %8s %11s\n' parser inputs inputs/s edges memory
failed=0
running=0
for name in "${names[@]}"; do
  fuzz_one "$name" &
  running=$((running + 1))
  if [ $running -ge "$(cores)" ]; then
    wait -n || failed=1
    running=$((running - 1))
  fi
done
while [ $running -gt 0 ]; do
  wait -n || failed=1
  running=$((running - 1))
done
total=0
for name in "${names[@]}"; do
  count=$(stat_of "$folder/fuzz/$name.log" number_of_executed_units)
  total=$((total + ${count:-0}))
done
echo "$total inputs"

if [ $coverage -eq 1 ]; then
  counted=build-fuzz-coverage
  BUILD_TARGETS=fuzzers scripts/build.sh $counted "${options[@]}" \
    "-DCMAKE_C_FLAGS=-fprofile-instr-generate -fcoverage-mapping"
  objects=()
  for name in "${names[@]}"; do
    LLVM_PROFILE_FILE=$counted/$name.profraw "$counted/fuzz/fuzz_$name" -runs=0 "$folder/corpus/$name" \
      "tests/fuzz/seeds/$name" >/dev/null 2>&1 || true
    objects+=(-object "$counted/fuzz/fuzz_$name")
  done
  llvm-profdata merge -o $counted/all.profdata $counted/*.profraw
  llvm-cov report "${objects[@]:1}" -instr-profile=$counted/all.profdata \
    runtime/checkpoint/{json_file,safetensors,safetensors_header,checkpoint_json}.c \
    runtime/data/token_file.c runtime/data/json_text.c launcher/profile/profile_{file,reader,rows}.c \
    runtime/plan/text/yaml_document.c launcher/options/yaml_options.c \
    launcher/setup/{listed_file,strategies_file}.c
fi
exit $failed
