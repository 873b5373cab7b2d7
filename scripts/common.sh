# Sourced by the scripts: moves to the project's root and sets what Open MPI wants of whoever runs it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Open MPI refuses root, and more ranks than cores, unless told. Its copy between processes by CMA is
# forbidden in most containers, where it would only print a warning per rank.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_btl_vader_single_copy_mechanism=none

# The cores that this process may use, which in a container may be fewer than the machine has.
cores() { nproc; }

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
