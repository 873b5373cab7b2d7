#!/usr/bin/env bash
# clang_tidy.sh FOLDER: clang-tidy, with .clang-tidy's checks, over every C file of a configured build folder.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

folder=${1:-build}
if ! command -v clang-tidy >/dev/null; then
  echo "clang-tidy is not installed: skipped"
  exit 0
fi
find kernels models runtime launcher bench tests -name '*.c' -print0 |
  xargs -0 -n 4 -P "$(cores)" clang-tidy -p "$folder" --quiet --warnings-as-errors='*' 2> >(
    grep -vE '^[0-9]+ warnings? (generated|and)|^Suppressed|^Use -header-filter' >&2)
