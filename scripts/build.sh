#!/usr/bin/env bash
# build.sh [FOLDER] [-DNAME=VALUE ...]: configures and builds, into build/ unless told otherwise. Warnings
# are errors only with -DFSDP_WERROR=ON, so that a newer compiler's new warning stops nobody from using the
# programs. BUILD_TARGETS names what is wanted, where that is less than all.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

folder=build
if [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; then
  folder=$1
  shift
fi
generator=()
if command -v ninja >/dev/null && [ ! -e "$folder/CMakeCache.txt" ]; then generator=(-G Ninja); fi

mkdir -p "$folder"
if ! cmake -S . -B "$folder" "${generator[@]}" -DFSDP_WERROR=OFF "$@" >"$folder/configure.log" 2>&1; then
  cat "$folder/configure.log" >&2
  exit 1
fi
grep -- '-- fsdp:' "$folder/configure.log" || true
read -ra targets <<<"${BUILD_TARGETS:-all}"
if ! cmake --build "$folder" --parallel "$(cores)" --target "${targets[@]}" >"$folder/build.log" 2>&1; then
  grep -v '^\[[0-9/]*\] Building' "$folder/build.log" | tail -n 80 >&2
  exit 1
fi
echo "built into $folder/bin"
