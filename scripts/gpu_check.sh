#!/usr/bin/env bash
# Checks the CUDA device on a machine with a GPU: builds for that GPU, then runs tests, training and
# benchmarks, the most informative first (scripts/checking/steps.py), within 10 minutes.
#   gpu_check.sh [FOLDER] [--only WORDS] [--minutes N] [--python PATH] [--list]
# FOLDER is the build folder (build-gpu); one that gpu_bundle.sh has made is used unchanged. --only runs the
# steps whose name has one of the WORDS (a regular expression), so that steps for which one call had no time
# can follow in the next. Every line is printed as soon as it is known; the last ones say what to change. The
# table, JSON and logs are in $OUT, else in FOLDER/gpu_check, complete after every step. What a check that is
# killed had started ends too. Nothing is downloaded. Exit status: 0 if no step
# failed, 1 if one did, 3 if results cannot be written, 5 if there is no GPU. A step whose tool the machine
# lacks is "skipped".
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if ! command -v python3 >/dev/null; then
  echo "gpu_check.sh: this machine has no python3, which runs the steps" >&2
  exit 5
fi
exec python3 -u scripts/checking/main.py "$@"
