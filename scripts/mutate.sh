#!/usr/bin/env bash
# Applies mutants (one-line changes that a test must notice; tests/mutants/*.mutants) one at a time to a copy
# of the sources, builds what is needed, runs the tests that should notice, and prints a table.
#   mutate.sh [NAME...]   those mutants, or all of an area (scheduler, partition, waits, memory, verifier,
#                         executor, kernels, checkpoints, launcher); default: all
#   --check               only whether every pattern still matches exactly once (no build)
#   --again               also those that build-mutate/results.tsv knows as killed: without it a run resumes
#   --folder DIR          for the copy, its build and the results; default: build-mutate
#   --write FILE          the table, as Markdown; verdicts that are there, and whose sources are as they were,
#                         are not tested again
#   --seconds N           begins no other mutant after N seconds: a run goes on where the last one ended
# The exit status is 1 if a mutant that was tested survives, does not build, or no longer matches.
exec python3 "$(dirname "${BASH_SOURCE[0]}")/../tests/mutants/mutate.py" "$@"
