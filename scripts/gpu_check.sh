#!/usr/bin/env bash
# What a machine with a GPU says of the CUDA device: builds for the GPU that is there, then runs tests,
# training and benchmarks in the order of what they tell (scripts/checking/steps.py), within 9 minutes.
#   gpu_check.sh [FOLDER] [--only WORDS] [--minutes N] [--python PATH] [--list]
# FOLDER is the build folder (build-gpu); one that gpu_bundle.sh has made is used as it is. --only runs the
# steps whose name has one of the WORDS (a regular expression), so that what one call had no time for can
# follow in another. Every line is printed when it is known; the table, JSON and logs are in $OUT, else in
# FOLDER/gpu_check, complete after every step. Nothing is downloaded. Exit status: 0 where no step failed, 1
# where one did, 5 where there is no GPU. A step that the machine has not the tool for is "skipped".
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if ! command -v python3 >/dev/null; then
  echo "gpu_check.sh: there is no python3 here, which runs the steps" >&2
  exit 5
fi
exec python3 -u scripts/checking/main.py "$@"
