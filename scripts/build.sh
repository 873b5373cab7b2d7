#!/usr/bin/env bash
# build.sh [FOLDER] [-DNAME=VALUE ...]: configures and builds, into build/ unless told otherwise. Warnings
# are errors only with -DFSDP_WERROR=ON, so that a newer compiler's new warning stops nobody from using the
# programs. BUILD_TARGETS names the targets, if not all. Shows its progress: on a terminal in one line,
# else every BUILD_STATUS_S seconds (10).
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

folder=build
if [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; then
  folder=$1
  shift
fi
if ! command -v cmake >/dev/null; then
  echo "build.sh: cmake is missing; scripts/install_deps.sh installs what a build requires" >&2
  exit 1
fi
generator=()
if command -v ninja >/dev/null && [ ! -e "$folder/CMakeCache.txt" ]; then generator=(-G Ninja); fi

# What was compiled before, in any folder, is taken from ccache if it is installed.
launchers=()
if command -v ccache >/dev/null && [ -z "${CMAKE_C_COMPILER_LAUNCHER:-}" ]; then
  for language in C CXX CUDA; do launchers+=("-DCMAKE_${language}_COMPILER_LAUNCHER=ccache"); done
fi

mkdir -p "$folder" || true # says why not
if [ ! -d "$folder" ] || [ ! -w "$folder" ]; then
  echo "build.sh: cannot write to '$folder'; scripts/build.sh FOLDER builds in another one" >&2
  exit 1
fi
if ! cmake -S . -B "$folder" "${generator[@]}" "${launchers[@]}" -DFSDP_WERROR=OFF "$@" \
  >"$folder/configure.log" 2>&1; then
  cat "$folder/configure.log" >&2
  echo "build.sh: not configured, see above; scripts/install_deps.sh installs what a build requires" >&2
  exit 1
fi
grep -- '-- fsdp:' "$folder/configure.log" || true
# Prints the log's last "[12/345]" or "[ 12%]" again and again.
watch() {
  local every=${BUILD_STATUS_S:-10} began=$SECONDS last=0 now
  while sleep 0.5; do
    now=$(grep -oE '^\[ *[0-9]+(/[0-9]+|%)\]' "$folder/build.log" | tail -n 1) || continue
    if [ -t 1 ]; then
      printf '\r%s %d s ' "$now" $((SECONDS - began))
    elif [ $((SECONDS - began - last)) -ge "$every" ]; then
      last=$((SECONDS - began))
      echo "$now $last s"
    fi
  done
}

read -ra targets <<<"${BUILD_TARGETS:-all}"
: >"$folder/build.log"
watch &
watcher=$!
trap 'kill $watcher 2>/dev/null || true' EXIT
if ! cmake --build "$folder" --parallel "$(cores)" --target "${targets[@]}" >"$folder/build.log" 2>&1; then
  # The command that makes the library would fill the screen.
  grep -v '^\[[0-9/]*\] Building' "$folder/build.log" | tail -n 80 | cut -c 1-400 >&2
  exit 1
fi
kill $watcher
wait $watcher 2>/dev/null || true
if [ -t 1 ]; then printf '\r\033[K'; fi
echo "built into $folder/bin"
