#!/usr/bin/env bash
# Collectives between 1 to 4 processes, and the end of all when one dies.
set -euo pipefail
if [[ ${FSDP_WITH_MPI:-OFF} != ON ]]; then
  echo "built without MPI: nothing to run"
  exit 0
fi
program=$FSDP_BIN_DIR/../tests/test_comm_mpi
for ranks in 1 2 3 4; do
  mpirun -np "$ranks" "$program"
  echo "$ranks ranks: every sum is exact"
done
if timeout 60 mpirun -np 3 "$program" --lose-rank >/dev/null 2>&1; then
  echo "a job that lost a rank ended well"
  exit 1
elif [[ $? == 124 ]]; then
  echo "a job that lost a rank did not end"
  exit 1
fi
echo "a job that loses a rank ends"
