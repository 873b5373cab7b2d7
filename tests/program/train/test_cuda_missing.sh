#!/usr/bin/env bash
# --backend cuda if it cannot work: one message that says why, exit status 5, and nothing else; --backend
# auto uses the CPU. A driver that is too old, or shows no GPU, is played by a library of that name.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
train=$FSDP_BIN_DIR/fsdp_train
failed=0

# expect NAME STATUS WORDS COMMAND...: the exit status, and one error line that has the words.
expect() {
  local name=$1 wanted=$2 words=$3 status=0 lines
  shift 3
  "$@" >"$work/out" 2>"$work/err" || status=$?
  lines=$(grep -c '^fsdp_train: error: ' "$work/err" || true)
  if [[ $status != "$wanted" || $lines != 1 ]] || ! grep -q -- "$words" "$work/err"; then
    echo "failed: $name: status $status (wanted $wanted), $lines error lines (wanted 1 with '$words')"
    cat "$work/err"
    failed=1
  else
    echo "$name: $(grep '^fsdp_train: error: ' "$work/err")"
  fi
}

if [[ ${FSDP_WITH_CUDA:-OFF} != ON ]]; then
  expect "a build without CUDA" 5 "this build has no CUDA device" "$train" --backend cuda
  exit $failed
fi

# driver FOLDER VERSION: a libcuda.so.1 of that version which has no GPU (status 100).
driver() {
  mkdir -p "$work/$1"
  cat >"$work/driver.c" <<'SOURCE'
#include <string.h>
int cuInit(unsigned flags) { return 100; }
int cuDriverGetVersion(int *version) { *version = VERSION; return 0; }
static int none(void) { return 100; }
int cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long long flags,
                        int *found) {
  *function = (void *)none;
  if (strcmp(name, "cuInit") == 0) *function = (void *)cuInit;
  if (strcmp(name, "cuDriverGetVersion") == 0) *function = (void *)cuDriverGetVersion;
  if (strncmp(name, "cuGetProcAddress", 16) == 0) *function = (void *)cuGetProcAddress_v2;
  if (found) *found = 0;
  return 0;
}
int cuGetProcAddress(const char *name, void **function, int version, unsigned long long flags) {
  return cuGetProcAddress_v2(name, function, version, flags, 0);
}
SOURCE
  "${CC:-cc}" -shared -fPIC -w "-DVERSION=$2" "$work/driver.c" -o "$work/$1/libcuda.so.1"
}
driver old 11000
driver new 99000

old=(env "LD_LIBRARY_PATH=$work/old:${LD_LIBRARY_PATH:-}")
new=(env "LD_LIBRARY_PATH=$work/new:${LD_LIBRARY_PATH:-}")
expect "a driver that is too old" 5 "serves CUDA 11.0" "${old[@]}" "$train" --backend cuda
expect "no GPU" 5 "shows this process no GPU" "${new[@]}" "$train" --backend cuda
expect "no GPU is made visible" 5 "CUDA_VISIBLE_DEVICES is '7'" \
  "${new[@]}" CUDA_VISIBLE_DEVICES=7 "$train" --backend cuda
if ! ldconfig -p | grep -q 'libcuda\.so\.1'; then
  expect "no driver" 5 "no NVIDIA driver" "$train" --backend cuda
  if [[ ${FSDP_WITH_MPI:-OFF} == ON ]]; then
    expect "no driver, three ranks" 5 "no NVIDIA driver" mpirun -np 3 "$train" --backend cuda
  fi
fi
for drivers in old new; do
  libraries=$work/$drivers:${LD_LIBRARY_PATH:-}
  why="serves CUDA 11.0"
  if [[ $drivers == new ]]; then why="shows this process no GPU"; fi
  if ! LD_LIBRARY_PATH=$libraries "$train" -s 32 --max-steps 2 >"$work/out" 2>&1; then
    echo "failed: --backend auto did not go on with the CPU ($drivers driver)"
    cat "$work/out"
    failed=1
  elif ! grep -q "^device: *cpu, .*$why" "$work/out"; then
    echo "failed: --backend auto does not say why it is on the CPU ($drivers driver)"
    cat "$work/out"
    failed=1
  fi
done
echo "--backend auto goes on with the CPU, and says why"
exit $failed
