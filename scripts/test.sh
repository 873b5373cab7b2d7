#!/usr/bin/env bash
# Installs what is missing, builds, and runs the tests of the plain build, with the checks of style.
#   test.sh NAME...  only what has one of the NAMEs in its name: a test of ctest's list, or tidy, clang-tidy,
#                    fuzz
#     --asan, --tsan   in that sanitizer's build instead
#   --full   with those of it that take long (tests/CMakeLists.txt), and then the tests under AddressSanitizer
#            with UBSan and under ThreadSanitizer, clang-tidy, and a few seconds of each fuzzer
#   --all    --full with all random cases (the suite runs a fifth otherwise), every product of settings that
#            the suites otherwise cover by pairs, the static analyzer, and the CUDA kernels' sources under
#            AddressSanitizer
# NAMEs run all their random cases.
# The last line is "N passed, N failed"; the exit status is 0 if none failed.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

full=0
analyze=()
names=()
sanitizer=
fuzz_seconds=2
# The kernels' harness on the CPU finds what AddressSanitizer would, and takes minutes under it.
simt_sanitized=OFF
for argument in "$@"; do
  case $argument in
    --full) full=1 ;;
    --all)
      full=1
      export FSDP_TEST_ALL=1
      analyze=(--analyze)
      simt_sanitized=ON
      fuzz_seconds=60
      ;;
    --asan) sanitizer=address ;;
    --tsan) sanitizer=thread ;;
    -*)
      echo "test.sh: unknown option '$argument'; use --full, --all, or NAME... with --asan or --tsan" >&2
      exit 2
      ;;
    *) names+=("$argument") ;;
  esac
done
if [ -n "$sanitizer" ] && [ ${#names[@]} -eq 0 ]; then
  echo "test.sh: --asan and --tsan require the NAME of a test; --full tests every build" >&2
  exit 2
fi

passed=0
failed=0
failures=()
notes=()

# check NAME COMMAND...: one result; 77: the check's tool is not installed.
check() {
  local name=$1 status=0
  shift
  is_wanted "$name" || return 0
  "$@" || status=$?
  case $status in
    0) passed=$((passed + 1)) ;;
    77) notes+=("$name: skipped") ;;
    *)
      failed=$((failed + 1))
      failures+=("$name")
      ;;
  esac
}

# Whether one of the NAMEs of the command line is in this name, or none was given.
is_wanted() {
  local name
  [ ${#names[@]} -gt 0 ] || return 0
  for name in "${names[@]}"; do
    if [[ $1 == *"$name"* ]]; then return 0; fi
  done
  return 1
}

# lap NAME: the time since the last call was NAME's.
laps=()
began=$SECONDS
cpu_before=0
lap() {
  local cpu
  # The last line is of the processes that were waited for: "1m2.345s 0m6.789s".
  times >"$scratch"
  cpu=$(tr ms '  ' <"$scratch" | awk 'END { print int(60 * ($1 + $3) + $2 + $4) }')
  laps+=("$(printf '%-28s %5d s %9d s' "$1" $((SECONDS - began)) $((cpu - cpu_before)))")
  began=$SECONDS
  cpu_before=$cpu
}

# ahead COMMAND...: while tests run, which leave the cores idle for a part of their time, runs COMMAND with
# what is idle. stop_ahead ends it; what it builds is then completed in its turn.
ahead_group=
ahead() {
  set -m # a process group of its own, to end all of it
  (
    chrt --idle --pid 0 $BASHPID || renice -n 19 -p $BASHPID
    "$@"
  ) >/dev/null 2>&1 &
  ahead_group=$!
  set +m
}
stop_ahead() {
  if [ -n "$ahead_group" ]; then
    kill -- -"$ahead_group" 2>/dev/null || true
    wait "$ahead_group" 2>/dev/null || true
    ahead_group=
  fi
}
scratch=$(mktemp)
trap 'stop_ahead; rm -f "$scratch"' EXIT

# ThreadSanitizer's map of the address space clashes with how far newer kernels randomise it.
fixed_addresses=()
if setarch -R true 2>/dev/null; then fixed_addresses=(setarch -R); fi

# build FOLDER CMAKE-OPTIONS...
build() { scripts/build.sh "$1" -DFSDP_WERROR=ON "${@:2}"; }

# suite FOLDER CMAKE-OPTIONS...: builds, runs ctest, adds its results. If ahead_of_suite is set, it is a
# command that runs ahead meanwhile.
ahead_of_suite=
suite() {
  local folder=$1 log results total bad skipped chosen=()
  if [ ${#names[@]} -gt 0 ]; then
    chosen=(-R "$(IFS='|' && echo "${names[*]}")")
  elif [ $full -eq 0 ]; then
    chosen=(-LE '^long$')
  fi
  say "Build and test: $*"
  if ! build "$@"; then
    failed=$((failed + 1))
    failures+=("$folder: does not build")
    return
  fi
  lap "$folder: build"
  if [ -n "$ahead_of_suite" ]; then ahead "$ahead_of_suite"; fi
  log=$folder/ctest.log
  # More than there are cores: tests spend half of their time waiting, for ranks, files, and ends of limits.
  # In a sanitizer's build nothing is timed.
  local jobs=$((3 * $(cores)))
  if [[ $folder == build-* ]]; then jobs=$((4 * $(cores))); fi
  (cd "$folder" && "${fixed_addresses[@]}" ctest --parallel $jobs --output-on-failure "${chosen[@]}") \
    2>&1 | tee "$log" || true
  stop_ahead
  lap "$folder: tests"
  results=$(grep -E 'tests passed, [0-9]+ tests? failed out of' "$log" || true)
  total=$(sed -E 's/.* out of ([0-9]+).*/\1/' <<<"$results")
  bad=$(sed -E 's/.*, ([0-9]+) tests? failed.*/\1/' <<<"$results")
  if [ -z "$total" ] || [ "$total" -eq 0 ]; then
    [ ${#names[@]} -eq 0 ] || return 0 # the end reports a name that no check has
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
if [ ${#names[@]} -eq 0 ]; then say "Style"; fi
check tidy tests/tidy
lap "style"
# The library holds kernels of one architecture; the test cuda_resources compiles them for others.
plain=(build -DFSDP_CUDA=auto -DCMAKE_CUDA_ARCHITECTURES=90-real)
# A report names functions and lines, which need no more than -g1.
flags="-O2 -g1 -DNDEBUG"
sanitized=("-DCMAKE_C_FLAGS_RELWITHDEBINFO=$flags" "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=$flags")
asan=(build-asan -DFSDP_SANITIZE=address "${sanitized[@]}")
tsan=(build-tsan -DFSDP_SANITIZE=thread "${sanitized[@]}")

# Of a named test all cases run, as of every test with --all (FSDP_TEST_ALL).
if [ ${#names[@]} -eq 0 ]; then export FSDP_TEST_PART=5; fi
if [ ${#names[@]} -gt 0 ]; then
  case $sanitizer in
    address) suite "${asan[@]}" ;;
    thread) suite "${tsan[@]}" ;;
    *)
      suite "${plain[@]}"
      check clang-tidy scripts/clang_tidy.sh "${analyze[@]}" build
      check fuzz scripts/fuzz.sh $fuzz_seconds
      ;;
  esac
elif [ $full -eq 0 ]; then
  suite "${plain[@]}"
else
  asan+=("-DFSDP_SIMT=$simt_sanitized")
  build_tsan() { build "${tsan[@]}"; }
  build_rest() {
    build "${asan[@]}"
    build_tsan
    scripts/fuzz.sh --build
  }
  ahead_of_suite=build_rest suite "${plain[@]}"
  say "clang-tidy and fuzzers"
  check clang-tidy scripts/clang_tidy.sh "${analyze[@]}" build
  lap "clang-tidy"
  check fuzz scripts/fuzz.sh $fuzz_seconds
  lap "fuzzers"
  ahead_of_suite=build_tsan suite "${asan[@]}"
  suite "${tsan[@]}"
fi

say "Result"
if [ ${#names[@]} -eq 0 ]; then
  # Programs that run ahead are counted where they are ended.
  printf '%-28s %7s %11s\n' phase time processors
  printf '%s\n' "${laps[@]}"
fi
for note in "${notes[@]}"; do echo "$note"; done
for name in "${failures[@]}"; do echo "failed: $name"; done
if [ $((passed + failed)) -eq 0 ]; then
  echo "test.sh: no test has '${names[*]}' in its name; ctest -N in build/ lists them" >&2
  failed=1
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
