#!/usr/bin/env bash
# Applies mutants (one-line changes that a test must notice; tests/mutants/*.mutants) one at a time to a copy
# of the sources, builds what is needed, runs the tests that should notice, and prints a table.
#   mutate.sh [NAME...]   those mutants, or all of an area (scheduler, partition, waits, memory, verifier,
#                         executor, kernels, checkpoints, launcher); default: all
#   --check               only whether every pattern still matches exactly once (no build)
#   --again               also those that build-mutate/results.tsv knows as killed: without it a run resumes
#   --folder DIR          for the copy, its build and the results; default: build-mutate
#   --seconds N           begins no other mutant after N seconds: a run goes on where the last one ended
# The exit status is 1 if a mutant that was tested survives, does not build, or no longer matches.
#   mutate.sh --draw COUNT [ID...]   bugs drawn at random over all lines of C and CUDA, each run against the
#                         tests of its module and of the programs that run it, CUDA on the emulated GPU
#   --seed N, --of COMMIT the same ones again: drawn from the sources of that commit, planted in those that
#                         there are; default: those that drawn.verdicts are of
#   --check               only whether so many have a verdict, and their line (no build)
#   --each N              begins no other test of a bug after N seconds; default: 180
#   --no-cuda             leaves bugs in CUDA's lines for another run: the emulated GPU is not built
#   --again               tries survivors again (or those named): without it a run resumes in --folder, and
#                         tries none of those that drawn.verdicts knows; --afresh: these too
#   --folder, --seconds   as above; default: build-draw
# tests/mutants/drawn.verdicts says of survivors what they are; the exit status is 1 if one has no verdict.
folder="$(dirname "${BASH_SOURCE[0]}")/../tests/mutants"
case " $* " in
  *" --draw "*) exec python3 "$folder/draw.py" "$@" ;;
  *) exec python3 "$folder/mutate.py" "$@" ;;
esac
