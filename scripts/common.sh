# Sourced by the scripts: moves to the project's root and sets the environment that Open MPI needs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Open MPI refuses root, and more ranks than cores, by default. Most containers forbid its copy between
# processes by CMA, which would then only print a warning per rank.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_btl_vader_single_copy_mechanism=none

# The cores that this process may use, which in a container may be fewer than the machine has.
cores() { nproc; }

# A heading, bold on a terminal.
say() {
  if [ -t 1 ]; then printf '\n\033[1m== %s\033[0m\n' "$*"; else printf '\n== %s\n' "$*"; fi
}
