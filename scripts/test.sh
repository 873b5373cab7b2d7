#!/usr/bin/env bash
# Installs what is missing, builds, and runs all the tests: the plain build, then under AddressSanitizer
# with UBSan, then under ThreadSanitizer, with the checks of style.
#   --quick  the plain build and the checks of style alone
#   --all    also every product of settings that the suites otherwise cover by pairs, the static analyzer,
#            and the CUDA kernels' sources under AddressSanitizer
# The last line is "N passed, N failed"; the exit status is 0 where none failed.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

quick=0
analyze=()
# The kernels' harness on the CPU finds by itself what AddressSanitizer would, and takes minutes under it.
simt_sanitized=OFF
for argument in "$@"; do
  case $argument in
    --quick) quick=1 ;;
    --all)
      export FSDP_TEST_ALL=1
      analyze=(--analyze)
      simt_sanitized=ON
      ;;
    *) echo "test.sh: unknown argument '$argument'; use --quick or --all" >&2; exit 2 ;;
  esac
done

passed=0
failed=0
failures=()
notes=()

# check NAME COMMAND...: one result.
check() {
  local name=$1
  shift
  if "$@"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    failures+=("$name")
  fi
}

# ThreadSanitizer's map of the address space clashes with how far newer kernels randomise it.
fixed_addresses=()
if setarch -R true 2>/dev/null; then fixed_addresses=(setarch -R); fi

# suite FOLDER CMAKE-OPTIONS...: builds, runs ctest, adds its results.
suite() {
  local folder=$1 log results total bad skipped
  shift
  say "Build and test: $folder $*"
  if ! scripts/build.sh "$folder" -DFSDP_WERROR=ON "$@"; then
    failed=$((failed + 1))
    failures+=("$folder: does not build")
    return
  fi
  log=$folder/ctest.log
  (cd "$folder" && "${fixed_addresses[@]}" ctest --parallel "$(cores)" --output-on-failure 2>&1) |
    tee "$log" || true
  results=$(grep -E 'tests passed, [0-9]+ tests? failed out of' "$log" || true)
  total=$(sed -E 's/.* out of ([0-9]+).*/\1/' <<<"$results")
  bad=$(sed -E 's/.*, ([0-9]+) tests? failed.*/\1/' <<<"$results")
  if [ -z "$total" ] || [ "$total" -eq 0 ]; then
    failed=$((failed + 1))
    failures+=("$folder: ctest ran nothing")
    return
  fi
  skipped=$(grep -cE '\*\*\*Skipped' "$log" || true)
  [ "$skipped" -eq 0 ] || notes+=("$folder: $skipped skipped, for what they need is not here")
  passed=$((passed + total - bad - skipped))
  failed=$((failed + bad))
  while read -r name; do failures+=("$folder: $name"); done < <(
    sed -n '/The following tests FAILED/,$p' "$log" | sed -nE 's/^[[:space:]]+[0-9]+ - ([^ ]+).*/\1/p')
}

say "What is missing"
scripts/install_deps.sh
say "Style"
check tests/tidy tests/tidy
# Two architectures are enough to see every kernel compile and to check its registers; PTX of the second
# serves later GPUs.
suite build -DFSDP_CUDA=auto "-DCMAKE_CUDA_ARCHITECTURES=80-real;90"
if [ $quick -eq 0 ]; then
  say "clang-tidy"
  check clang-tidy scripts/clang_tidy.sh "${analyze[@]}" build
  suite build-asan -DFSDP_SANITIZE=address -DFSDP_SIMT=$simt_sanitized
  suite build-tsan -DFSDP_SANITIZE=thread
fi

say "Result"
for note in "${notes[@]}"; do echo "$note"; done
for name in "${failures[@]}"; do echo "failed: $name"; done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
