#!/usr/bin/env bash
# Installs what building, testing and running need, from the distribution's packages (Debian 12, Ubuntu
# 24.04). Does nothing, quickly, if everything is installed. FSDP_SKIP_INSTALL=1 skips it.
set -euo pipefail

required=(gcc g++ cmake ninja-build pkg-config python3 libjansson-dev libyaml-dev libxxhash-dev zlib1g-dev
  libcmocka-dev libopenmpi-dev openmpi-bin libhwloc-dev libopenblas-dev)
# Faster gemms, the checks of style, the fuzzers, and for tests two hosts on one machine and worktrees. A
# build and its tests work without them.
optional=(libdnnl-dev clang-format clang-tidy clang libclang-rt-dev iproute2 git)

if [ "${FSDP_SKIP_INSTALL:-0}" = 1 ]; then exit 0; fi
if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  echo "install_deps.sh: this machine has no apt; install the equivalents of" >&2
  echo "  ${required[*]} ${optional[*]}" >&2
  echo "and run again with FSDP_SKIP_INSTALL=1" >&2
  exit 1
fi

installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }
missing() {
  local package
  for package in "$@"; do installed "$package" || echo "$package"; done
}

mapfile -t needed < <(missing "${required[@]}")
mapfile -t wanted < <(missing "${optional[@]}")
if [ ${#needed[@]} -eq 0 ] && [ ${#wanted[@]} -eq 0 ]; then exit 0; fi

# Packages that are not required stop nobody: who cannot install them goes on without.
go_on_without() {
  echo "install_deps.sh: continuing without $*" >&2
  exit 0
}

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if [ ${#needed[@]} -eq 0 ] && ! sudo -n true 2>/dev/null; then go_on_without "${wanted[@]}"; fi
  if ! command -v sudo >/dev/null; then
    echo "install_deps.sh: missing ${needed[*]}; run as root, install sudo, or have an administrator run" >&2
    echo "  apt-get install --no-install-recommends ${needed[*]} ${wanted[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "installing:" "${needed[@]}" "${wanted[@]}"
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o Dpkg::Use-Pty=0 "$@"; }
updated=1
apt update -qq || updated=0
if [ ${#needed[@]} -gt 0 ]; then
  if ! apt install -y -qq --no-install-recommends "${needed[@]}"; then
    echo "install_deps.sh: apt-get could not install what a build requires: ${needed[*]}" >&2
    echo "  check the network and the sources of apt (on Ubuntu also the component universe)" >&2
    exit 1
  fi
elif [ $updated -eq 0 ]; then
  go_on_without "${wanted[@]}"
fi
mapfile -t wanted < <(missing "${optional[@]}")
for package in "${wanted[@]}"; do
  apt install -y -qq --no-install-recommends "$package" ||
    echo "install_deps.sh: continuing without $package" >&2
done
