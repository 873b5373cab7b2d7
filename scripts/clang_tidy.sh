#!/usr/bin/env bash
# clang_tidy.sh [--analyze] [FOLDER]: clang-tidy over every C file of a configured build folder; with
# --analyze also clang's static analyzer, except for checks with false findings here: copies with
# checked sizes, va_list, loops over a picture's ticks.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

checks=()
if [ "${1:-}" = --analyze ]; then
  shift
  left_out=(security.insecureAPI.DeprecatedOrUnsafeBufferHandling security.FloatLoopCounter
    optin.performance.Padding valist.Uninitialized)
  checks=("--checks=clang-analyzer-*$(printf ',-clang-analyzer-%s' "${left_out[@]}")")
fi
folder=${1:-build}
if ! command -v clang-tidy >/dev/null; then
  echo "clang-tidy is not installed: skipped"
  exit 0
elif ! clang-tidy --version | grep -q 'version 14\.'; then
  echo "clang-tidy is not version 14, the reference, and others have different checks: skipped"
  exit 0
fi
find kernels models runtime launcher bench examples tests -name '*.c' -print0 |
  xargs -0 -n 4 -P "$(cores)" clang-tidy -p "$folder" --quiet "${checks[@]}" 2> >(
    grep -vE '^[0-9]+ warnings? |^Suppressed|^Use -header-filter' >&2)
echo "clang-tidy: no finding"
