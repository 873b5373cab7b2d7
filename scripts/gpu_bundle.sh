#!/usr/bin/env bash
# gpu_bundle.sh [FOLDER] [ARCHITECTURE] [--no-build]: builds for a GPU (default: into build-gpu, for 90) on a
# machine that needs no GPU, and gathers programs, tests, their libraries and Open MPI in FOLDER/bundle. The
# machine that runs them needs a GPU, its driver, the CUDA toolkit or PyTorch with its CUDA libraries, Python,
# and a C library no older than this one. It needs no package manager and none of this project's packages.
# There, scripts/gpu_check.sh FOLDER builds nothing and uses the bundle. bundle/machine.txt names the
# libraries that the machine must have. Fails if the bundle, with the sources that travel beside it, is larger
# than 64 MiB (FSDP_BUNDLE_MIB_MAX).
# --no-build gathers what FOLDER holds.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

build=1
arguments=()
for argument in "$@"; do
  case $argument in
    --no-build) build=0 ;;
    -*) echo "gpu_bundle.sh: unknown argument '$argument'; use --no-build" >&2; exit 2 ;;
    *) arguments+=("$argument") ;;
  esac
done
folder=${arguments[0]:-build-gpu}
architecture=${arguments[1]:-90}
bundle=${FSDP_BUNDLE_FOLDER:-$folder/bundle}
mib_max=${FSDP_BUNDLE_MIB_MAX:-64}
programs=(bin/fsdp_train bin/fsdp_plan bin/fsdp_profile bin/bench_gpu bin/bench_grouped tests/gpu_kernels
  tests/test_golden tests/test_strategies)
if [ $build -eq 1 ]; then
  targets=()
  for program in "${programs[@]}"; do targets+=("$(basename "$program")"); done
  BUILD_TARGETS="${targets[*]}" scripts/build.sh "$folder" -DFSDP_CUDA=on -DFSDP_BLAS=builtin \
    "-DCMAKE_CUDA_ARCHITECTURES=$architecture-real"
fi

rm -rf "$bundle"
mkdir -p "$bundle/bin" "$bundle/tests" "$bundle/lib" "$bundle/openmpi"
for program in "${programs[@]}"; do
  [ -e "$folder/$program" ] || { echo "gpu_bundle.sh: $folder/$program is not built" >&2; exit 3; }
  strip -o "$bundle/$program" "$folder/$program"
done

# What every machine has, or must have of its own kind: the C and C++ libraries, and those of CUDA.
machines='^(linux-vdso|ld-linux|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|cuda|cudart|cublas|cublasLt|nccl)\.so)'
gather() {
  ldd "$@" 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | sort -u |
    while read -r name path; do
      if [[ $name =~ $machines ]]; then
        echo "$name" >>"$bundle/machine.txt"
      elif [ ! -e "$bundle/lib/$name" ]; then
        cp -L "$path" "$bundle/lib/$name"
      fi
    done
}
gather "$bundle"/bin/* "$bundle"/tests/*
for opened in 'libcublasLt\.so\.[0-9]*' 'libnccl\.so\.2'; do # when a GPU is used
  grep -aoh -m 1 "$opened" "$bundle/bin/fsdp_train" >>"$bundle/machine.txt" || true
done

if command -v ompi_info >/dev/null && command -v mpirun >/dev/null; then
  place() { ompi_info --path "$1" --parsable | sed 's/^path:[a-z]*://'; }
  cp -L "$(command -v mpirun)" "$bundle/bin/mpirun"
  cp -L "$(command -v orted)" "$bundle/bin/orted"
  cp -rL "$(place pkglibdir)" "$bundle/openmpi/components"
  cp -rL "$(place pkgdatadir)" "$bundle/openmpi/help"
  # Fabrics and schedulers bring great libraries of their own, and one machine needs none of them.
  find "$bundle/openmpi/components" \( -name '*.la' -o -name '*ofi*' -o -name '*ucx*' -o -name '*psm*' \
    -o -name '*openib*' -o -name '*usnic*' -o -name '*verbs*' -o -name '*slurm*' \) -delete
  gather "$bundle/bin/mpirun" "$bundle/bin/orted" "$bundle"/openmpi/components/*.so
  # PMIx has components too, and those of the other machine may be of another version.
  pmix=$(ldd "$bundle"/openmpi/components/*.so | awk '$1 ~ /^libpmix/ { path = $3 } END { print path }')
  if [ -d "$(dirname "$(readlink -f "${pmix:-/}")")/pmix" ]; then
    cp -rL "$(dirname "$(readlink -f "$pmix")")/pmix" "$bundle/pmix"
    gather "$bundle"/pmix/*.so
  fi
fi
sort -u -o "$bundle/machine.txt" "$bundle/machine.txt"

# Sourced by gpu_check.sh, with $here the bundle's place.
cat >"$bundle/env.sh" <<'ENV'
export FSDP_BIN_DIR=$here/bin
export PATH=$here/bin:$PATH LD_LIBRARY_PATH=$here/lib:${LD_LIBRARY_PATH:-}
if [ -x "$here/bin/mpirun" ]; then
  export OPAL_PREFIX=$here OPAL_LIBDIR=$here/lib OPAL_PKGLIBDIR=$here/openmpi/components
  export OPAL_PKGDATADIR=$here/openmpi/help OPAL_BINDIR=$here/bin OPAL_SYSCONFDIR=$here/openmpi
  if [ -d "$here/pmix" ]; then export PMIX_PKGLIBDIR=$here/pmix; fi
  # One machine: nobody is asked to start anything elsewhere.
  export OMPI_MCA_plm=isolated OMPI_MCA_btl=vader,self OMPI_MCA_pml=ob1
fi
ENV

newest() {
  find "$bundle" -type f \( -perm -u+x -o -name '*.so*' \) -exec objdump -T {} + 2>/dev/null |
    grep -o "$1[0-9.]*" | sort -uV | tail -n 1
}
kib=$(du -s --apparent-size -k "$bundle" | cut -f1)
# Scripts, tests' data and sources: what git does not ignore. Without git nothing is counted.
sources_kib=$({ git ls-files -z --cached --others --exclude-standard 2>/dev/null || true; } |
  xargs -0 -r stat -c %s 2>/dev/null | awk '{ bytes += $1 } END { print int(bytes / 1024) }')
needs="$(newest GLIBC_), $(newest GLIBCXX_) or later and $(
  grep -E 'cu|nccl' "$bundle/machine.txt" | paste -sd ' ')"
echo "$bundle: $((kib / 1024)) MiB, and $((sources_kib / 1024)) MiB of sources, for a machine with $needs"
if [ $((kib + sources_kib)) -gt $((mib_max * 1024)) ]; then
  echo "gpu_bundle.sh: $bundle takes $kib KiB and the sources $sources_kib, more than $mib_max MiB;" \
    "build for one architecture" >&2
  exit 4
fi
