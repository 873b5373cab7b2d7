#!/usr/bin/env bash
# scripts/build.sh and demo.sh, in a copy of their own with a compiler that only pretends: a build says how
# far it is, and the demo leaves build/ and its options alone.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/scripts" "$work/tools"
cp "${FSDP_SOURCE_DIR:-.}"/scripts/{common,build,demo}.sh "$work/scripts"
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
echo "demo.sh: builds in a folder of its own"
