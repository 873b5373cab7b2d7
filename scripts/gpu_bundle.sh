#!/usr/bin/env bash
# gpu_bundle.sh [FOLDER] [ARCHITECTURE]: builds for a GPU here (build-gpu, 90), with no GPU needed, and
# gathers in FOLDER/bundle what a machine wants that has a GPU, its driver and the CUDA toolkit (or PyTorch
# with its CUDA libraries), but none of this project's packages and no network: programs, tests, their
# libraries, and Open MPI. There, scripts/gpu_check.sh FOLDER builds nothing and uses it.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

folder=${1:-build-gpu}
architecture=${2:-90}
programs=(bin/fsdp_train bin/fsdp_plan bin/bench_gpu tests/gpu_kernels tests/test_golden
  tests/test_strategies)
targets=()
for program in "${programs[@]}"; do targets+=("$(basename "$program")"); done
BUILD_TARGETS="${targets[*]}" scripts/build.sh "$folder" -DFSDP_CUDA=on -DFSDP_BLAS=builtin \
  "-DCMAKE_CUDA_ARCHITECTURES=$architecture"

bundle=$folder/bundle
rm -rf "$bundle"
mkdir -p "$bundle/bin" "$bundle/tests" "$bundle/lib" "$bundle/openmpi"
for program in "${programs[@]}"; do
  strip -o "$bundle/$program" "$folder/$program"
done

# What every machine has, or must have of its own kind: the C and C++ libraries, and those of CUDA.
left_out='^(linux-vdso|ld-linux|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|cuda|cudart|cublas|cublasLt|nccl)\.so)'
gather() {
  ldd "$@" 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | sort -u |
    while read -r name path; do
      [[ $name =~ $left_out ]] || [ -e "$bundle/lib/$name" ] || cp -L "$path" "$bundle/lib/$name"
    done
}
gather "$bundle"/bin/* "$bundle"/tests/*

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
fi

# Sourced by gpu_check.sh, with $here the bundle's place.
cat >"$bundle/env.sh" <<'ENV'
export FSDP_BIN_DIR=$here/bin
export PATH=$here/bin:$PATH LD_LIBRARY_PATH=$here/lib:${LD_LIBRARY_PATH:-}
if [ -x "$here/bin/mpirun" ]; then
  export OPAL_PREFIX=$here OPAL_LIBDIR=$here/lib OPAL_PKGLIBDIR=$here/openmpi/components
  export OPAL_PKGDATADIR=$here/openmpi/help OPAL_BINDIR=$here/bin OPAL_SYSCONFDIR=$here/openmpi
  # One machine: nobody is asked to start anything elsewhere.
  export OMPI_MCA_plm=isolated OMPI_MCA_btl=vader,self OMPI_MCA_pml=ob1
fi
ENV
du -sh "$bundle" | cut -f1 | sed "s|^|$bundle: |"
