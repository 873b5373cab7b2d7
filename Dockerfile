# fsdp on CPUs: docker build -t fsdp . && docker run --rm fsdp mpirun -np 4 fsdp_train --max-steps 20
# Packages are those of scripts/install_deps.sh, nothing else.
FROM debian:12
COPY scripts/install_deps.sh /usr/src/fsdp/scripts/
RUN /usr/src/fsdp/scripts/install_deps.sh
COPY . /usr/src/fsdp
RUN cd /usr/src/fsdp && scripts/build.sh build -DFSDP_CUDA=off -DFSDP_TESTS=off \
 && cmake --install build --prefix /usr/local && rm -rf build
ENV OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 \
    OMPI_MCA_btl_vader_single_copy_mechanism=none
WORKDIR /work
CMD ["fsdp_train", "--help"]
