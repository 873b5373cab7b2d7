#!/usr/bin/env bash
# scripts/install_deps.sh, build.sh, demo.sh and test.sh, in a copy of their own with tools that only pretend:
# packages that are not required stop nobody, a build says how far it is, the demo leaves build/ and its
# options alone, and while tests run, what comes next is built.
set -euo pipefail
unset FSDP_SKIP_INSTALL # what is tested here may run with it
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/scripts" "$work/tools"
cp "${FSDP_SOURCE_DIR:-.}"/scripts/{common,build,demo,install_deps,test}.sh "$work/scripts"

# A machine with nothing but a package manager: it offers what is in "offered" (nothing: no network), and
# nobody is root there who is not said to be.
mkdir "$work/bare"
for tool in bash env cat; do ln -s "$(command -v $tool)" "$work/bare"; done
cat >"$work/bare/dpkg-query" <<'TOOL'
#!/usr/bin/env bash
while read -r package; do
  if [ "$package" = "${!#}" ]; then echo -n installed && exit; fi
done <"$WORK/installed"
TOOL
cat >"$work/bare/apt-get" <<'TOOL'
#!/usr/bin/env bash
echo "$*" >>"$WORK/apt.log"
case " $* " in
  *" update "*) [ -n "$OFFERED" ] ;;
  *" install "*)
    for word in "$@"; do
      case $word in
        -* | Dpkg::* | install) ;;
        *) if [[ $word != $OFFERED ]]; then exit 100; fi && echo "$word" >>"$WORK/installed" ;;
      esac
    done
    ;;
esac
TOOL
printf '#!/usr/bin/env bash\necho "$USER_ID"\n' >"$work/bare/id"
chmod +x "$work/bare"/*
all="gcc g++ cmake ninja-build pkg-config python3 libjansson-dev libyaml-dev libxxhash-dev zlib1g-dev"
all+=" libcmocka-dev libopenmpi-dev openmpi-bin libhwloc-dev libopenblas-dev"

# install NAME STATUS USER-ID OFFERED INSTALLED MESSAGE: OFFERED is a pattern of packages.
install() {
  local status=0
  printf '%s\n' $5 >"$work/installed"
  : >"$work/apt.log"
  WORK=$work USER_ID=$3 OFFERED=$4 PATH="$work/bare" "$work/scripts/install_deps.sh" >"$work/out" 2>&1 ||
    status=$?
  if [ $status -ne "$2" ] || ! grep -q -- "$6" "$work/out"; then
    echo "install_deps.sh, $1: status $status, and not '$6' in:"
    cat "$work/out"
    exit 1
  fi
}
install "a user without sudo" 1 1000 '*' "" 'missing gcc g++ .*run as root'
install "a user without sudo" 1 1000 '*' "" '^  apt-get install .*gcc g++ .*libdnnl-dev'
install "a user who has what is required" 0 1000 '*' "$all" 'continuing without libdnnl-dev clang-format'
install "root without a network" 1 0 '' "" 'could not install what a build requires: gcc g++'
install "root without a network who has what is required" 0 0 '' "$all" 'continuing without libdnnl-dev'
install "root" 0 0 '*' "gcc" '^installing: g++ cmake '
grep -qx libopenblas-dev "$work/installed" && grep -qx iproute2 "$work/installed"
install "root where one package is unknown" 0 0 '[!i]*' "$all" 'continuing without iproute2'
grep -qx libdnnl-dev "$work/installed"
echo iproute2 >>"$work/installed"
: >"$work/apt.log"
WORK=$work USER_ID=1000 OFFERED='' PATH="$work/bare" "$work/scripts/install_deps.sh" >"$work/out" 2>&1
if [ -s "$work/apt.log" ] || [ -s "$work/out" ]; then
  echo "install_deps.sh: does something if nothing is missing"
  exit 1
fi
for tool in dirname nproc; do ln -s "$(command -v $tool)" "$work/bare"; done
if PATH="$work/bare" "$work/scripts/build.sh" >"$work/out" 2>&1; then
  echo "build.sh: builds without cmake"
  exit 1
fi
grep -q 'build.sh: cmake is missing; scripts/install_deps.sh installs' "$work/out"
echo "install_deps.sh: what is not required stops nobody"
printf '#!/bin/sh\n' >"$work/scripts/install_deps.sh"

# Configuring makes the folder's cache; building prints as ninja does and makes programs that write what the
# demo reads.
cat >"$work/tools/cmake" <<'TOOL'
#!/usr/bin/env bash
echo "$*" >>"$WORK/cmake.log"
if [ "$1" = --build ]; then
  for i in 1 2 3; do
    echo "[$i/3] Building C object $i"
    sleep 0.6
  done
  if [ -n "${BREAK:-}" ]; then
    echo "main.c:1: error: broken"
    exit 1
  fi
  mkdir -p "$2/bin"
  printf '#!/bin/sh\necho planned\n' >"$2/bin/fsdp_plan"
  printf '#!/bin/sh\necho sampled\n' >"$2/bin/fsdp_eval"
  cat >"$2/bin/fsdp_train" <<'PROGRAM'
#!/usr/bin/env python3
import json
line = {"tokens_per_s": 1.0} | dict.fromkeys(("valley_bytes", "peak_bytes", "planned_valley_bytes",
                                              "planned_peak_bytes"), 1)
with open("outputs/demo/log.jsonl", "w") as log:
    for loss in (5, 1, 1, 1, 1, 1):
        log.write(json.dumps(line | {"loss": loss}) + "\n")
open("outputs/demo/memory.svg", "w").write("<svg/>")
PROGRAM
  chmod +x "$2/bin"/*
else
  while [ "$1" != -B ]; do shift; done
  mkdir -p "$2"
  touch "$2/CMakeCache.txt"
fi
TOOL
printf '#!/bin/sh\nshift 2\nexec "$@"\n' >"$work/tools/mpirun"
chmod +x "$work/tools"/* "$work/scripts"/*
export WORK=$work PATH="$work/tools:$PATH"

out=$(BUILD_STATUS_S=0 "$work/scripts/build.sh" build -DFSDP_CUDA=auto)
grep -qE '^\[[123]/3\] [0-9]+ s$' <<<"$out" || { echo "no progress in: $out"; exit 1; }
tail -n 1 <<<"$out" | grep -qx 'built into build/bin'
if BREAK=1 "$work/scripts/build.sh" build >"$work/out" 2>"$work/err"; then
  echo "a broken build is built"
  exit 1
fi
grep -q 'error: broken' "$work/err"
if "$work/scripts/build.sh" "$work/err" 2>"$work/out"; then
  echo "a file is built into"
  exit 1
fi
grep -q "cannot write to '$work/err'" "$work/out"
sleep 1
if pgrep -f "$work/scripts/build.sh" >/dev/null; then echo "something of the build still runs"; exit 1; fi
echo "build.sh: says how far it is"

: >"$work/cmake.log"
"$work/scripts/demo.sh" >"$work/out"
grep -q '^loss .*5.000 at the first step, 1.000' "$work/out" || { cat "$work/out"; exit 1; }
if grep -qE -- '(-B|--build) build( |$)' "$work/cmake.log"; then
  echo "the demo builds in build/:"
  cat "$work/cmake.log"
  exit 1
fi
tail -n 1 "$work/out" | grep -qx sampled || { echo "the demo ends without a sample"; exit 1; }
echo "demo.sh: builds in a folder of its own"

# The first tests take longer than the build that runs ahead of them, the next ones end before it.
mkdir "$work/tests"
printf '#!/bin/sh\n' | tee "$work/scripts/clang_tidy.sh" "$work/tests/tidy" >/dev/null
cat >"$work/scripts/fuzz.sh" <<'TOOL'
#!/usr/bin/env bash
echo "fuzz $*" >>"$WORK/calls"
TOOL
cat >"$work/tools/cmake" <<'TOOL'
#!/usr/bin/env bash
if [ "$1" = --build ]; then
  echo "build $2 at $(chrt -p $$ | sed -n 's/.*policy: SCHED_//p')" >>"$WORK/calls"
  if [ -e "$WORK/slow" ] && chrt -p $$ | grep -q IDLE; then sleep 300; fi
fi
TOOL
cat >"$work/tools/ctest" <<'TOOL'
#!/usr/bin/env bash
case $PWD in
  */build)
    if [ -e "$WORK/plain" ]; then
      echo "a part of ${FSDP_TEST_PART:-1}" >>"$WORK/calls"
    else
      until grep -q '^fuzz' "$WORK/calls"; do sleep 0.1; done
      mv "$WORK/calls" "$WORK/first"
    fi
    ;;
  */build-asan)
    touch "$WORK/slow"
    until grep -q tsan "$WORK/calls"; do sleep 0.1; done
    ;;
  *) rm "$WORK/slow" ;;
esac
echo '100% tests passed, 0 tests failed out of 3'
TOOL
chmod +x "$work/tools"/* "$work/scripts"/* "$work/tests/tidy"
: >"$work/calls"
timeout 60 "$work/scripts/test.sh" --full >"$work/out"
idle=IDLE
chrt --idle 0 true 2>/dev/null || idle=OTHER # not allowed here: these builds only have a low priority
printf '%s\n' 'build build at OTHER' "build build-asan at $idle" "build build-tsan at $idle" 'fuzz --build' |
  diff - "$work/first" || { echo "not built while tests run"; exit 1; }
for phase in style build{,-asan,-tsan}:\ {build,tests} clang-tidy fuzzers; do
  grep -qE "^$phase +[0-9]+ s +[0-9]+ s$" "$work/out" || { echo "no time of '$phase'"; exit 1; }
done
tail -n 1 "$work/out" | grep -qx '12 passed, 0 failed'
if pgrep -f "$work/tools/cmake" >/dev/null; then echo "something of test.sh still runs"; exit 1; fi
touch "$work/plain" && : >"$work/calls"
timeout 60 "$work/scripts/test.sh" >"$work/out"
printf '%s\n' 'build build at OTHER' 'a part of 5' | diff - "$work/calls" ||
  { echo "not the plain suite"; exit 1; }
tail -n 1 "$work/out" | grep -qx '4 passed, 0 failed'
echo "test.sh: the plain build's suite alone, unless --full"
echo "test.sh: builds ahead while tests run, and says what took how long"
