# One file for every image of Octavo. Targets: operator, gateway, server-cpu (numpy, native kernels), server (torch too).
#
#   docker build --target operator .
#   docker build --target server --build-arg CUDA=12 .    (for drivers older than R580: octavo-server-cuda12)
#
# In each, dependencies are one layer that changes with its lock only, and the code is the last layer.
# No instruction mounts anything: some builders do not notice when what is mounted has changed.

# Any base with python3 >= 3.11 and its venv module; the locks hold for all of them.
ARG BASE_IMAGE=python:3.12-slim
# Where the native kernels are compiled; a compiler is installed where there is none. Its C library must not be newer
# than the base's.
ARG BUILDER_IMAGE=${BASE_IMAGE}
# The CUDA that torch in `server` is built for: 13 needs driver R580 or newer, 12 needs R525 and has older libraries.
ARG CUDA=13

FROM ${BASE_IMAGE} AS venv
# A name for the user that images run as: libraries ask for it.
RUN python3 -m venv /opt/venv \
 && echo 'octavo:x:65532:65532:Octavo:/tmp:/usr/sbin/nologin' >> /etc/passwd \
 && echo 'octavo:x:65532:' >> /etc/group

# Dependencies, from locks with hashes. The index is a build argument and never an ENV, which would stay in the image.
# What the image runs needs no installer, so pip leaves with the same layer.
FROM venv AS dependencies-operator
ARG PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_TRUSTED_HOST PIP_PROXY PIP_DEFAULT_TIMEOUT PIP_RETRIES
COPY requirements/operator.txt /opt/requirements.txt
RUN /opt/venv/bin/pip install --no-cache-dir --progress-bar off --no-deps --require-hashes -r /opt/requirements.txt \
 && /opt/venv/bin/pip uninstall --yes --quiet pip setuptools

FROM venv AS dependencies-gateway
ARG PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_TRUSTED_HOST PIP_PROXY PIP_DEFAULT_TIMEOUT PIP_RETRIES
COPY requirements/gateway.txt /opt/requirements.txt
RUN /opt/venv/bin/pip install --no-cache-dir --progress-bar off --no-deps --require-hashes -r /opt/requirements.txt \
 && /opt/venv/bin/pip uninstall --yes --quiet pip setuptools

FROM venv AS dependencies-server-cpu
ARG PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_TRUSTED_HOST PIP_PROXY PIP_DEFAULT_TIMEOUT PIP_RETRIES
COPY requirements/cpu.txt /opt/requirements.txt
RUN /opt/venv/bin/pip install --no-cache-dir --progress-bar off --no-deps --require-hashes -r /opt/requirements.txt \
 && /opt/venv/bin/pip uninstall --yes --quiet pip setuptools

FROM venv AS dependencies-cuda13
COPY requirements/server.txt /opt/requirements.txt

FROM venv AS dependencies-cuda12
COPY requirements/server-cuda12.txt /opt/requirements.txt

FROM dependencies-cuda${CUDA} AS dependencies-server
ARG PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_TRUSTED_HOST PIP_PROXY PIP_DEFAULT_TIMEOUT PIP_RETRIES
RUN /opt/venv/bin/pip install --no-cache-dir --progress-bar off --no-deps --require-hashes -r /opt/requirements.txt \
 && /opt/venv/bin/pip uninstall --yes --quiet pip setuptools

# Octavo itself: a wheel of the parts an image needs, installed below /install for the interpreter of /opt/venv.
FROM venv AS wheel
ARG PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_TRUSTED_HOST PIP_PROXY PIP_DEFAULT_TIMEOUT PIP_RETRIES
COPY requirements/build.txt /opt/requirements.txt
RUN /opt/venv/bin/pip install --no-cache-dir --progress-bar off --no-deps --require-hashes -r /opt/requirements.txt
# The build hook compiles kernels; here a stage of their own does, so that they stay cached.
ENV HATCH_BUILD_NO_HOOKS=true
WORKDIR /src
# The project's description has no place in an image; an empty one keeps the layers apart from it.
RUN touch README.md
COPY LICENSE pyproject.toml ./
COPY protocol protocol
COPY common common

FROM wheel AS code-operator
COPY operator operator
RUN /opt/venv/bin/pip install --no-deps --no-build-isolation --no-index --prefix /install . \
 && find /install/bin -type f ! -name octavo-operator -delete

FROM wheel AS code-gateway
COPY gateway gateway
RUN /opt/venv/bin/pip install --no-deps --no-build-isolation --no-index --prefix /install . \
 && find /install/bin -type f ! -name octavo-gateway -delete

# The kernels: one object per instruction set, chosen at start. They need the C library and nothing else.
FROM ${BUILDER_IMAGE} AS kernels
RUN command -v g++ || (apt-get update && apt-get install --yes --no-install-recommends g++)
WORKDIR /native
COPY inference/octavo_inference/backends/cpu/native/build.py \
     inference/octavo_inference/backends/cpu/native/*.cpp inference/octavo_inference/backends/cpu/native/*.h ./
# Objects that are in the cache already, by compiler, C library, flags and sources, are not compiled again; a builder that
# can mount has the machine's cache here.
RUN OCTAVO_CACHE=/cache python3 build.py

# What Triton would compile in a pod at its first use, where there is neither a compiler nor Python's headers. The
# builder's Python must be the base's.
FROM ${BUILDER_IMAGE} AS driver-stub
RUN (command -v gcc && test -e "$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h") \
 || (apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev python3-dev)
COPY --from=dependencies-server /opt/venv/lib/python3*/site-packages/triton/backends/nvidia/driver.c /triton/
COPY --from=dependencies-server /opt/venv/lib/python3*/site-packages/triton/backends/nvidia/include /triton/include/
COPY inference/octavo_inference/backends/cuda/aot/driver_stub.py ./
RUN python3 driver_stub.py /triton /stub

FROM wheel AS code-server
COPY inference inference
COPY --from=kernels /native/*.so inference/octavo_inference/backends/cpu/native/
RUN /opt/venv/bin/pip install --no-deps --no-build-isolation --no-index --prefix /install . \
 && find /install/bin -type f ! -name octavo-server -delete

# Kernels, compiled for cards that are not here: a pod that computes one of these models starts without a compiler run.
# Minutes of CPU; others are compiled in their pod's first start. Empty: none at all.
FROM dependencies-server AS kernel-cache
ARG KERNEL_OPTIONS="--capability 8.0 8.6 8.9 9.0 10.0"
COPY --from=code-server /install /opt/venv
RUN mkdir /kernels \
 && (test -z "${KERNEL_OPTIONS}" || /opt/venv/bin/python -m octavo_inference.tools.precompile --out /kernels ${KERNEL_OPTIONS})

FROM dependencies-operator AS operator
ARG VERSION=0
LABEL org.opencontainers.image.title="octavo-operator" \
      org.opencontainers.image.description="Reconciles and scales LLMDeployments" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
EXPOSE 8081
ENTRYPOINT ["octavo-operator"]
COPY --from=code-operator /install /opt/venv

FROM dependencies-gateway AS gateway
ARG VERSION=0
LABEL org.opencontainers.image.title="octavo-gateway" \
      org.opencontainers.image.description="One OpenAI-compatible endpoint for all models of an installation" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
EXPOSE 8080 9000
ENTRYPOINT ["octavo-gateway"]
COPY --from=code-gateway /install /opt/venv

FROM dependencies-server-cpu AS server-cpu
ARG VERSION=0
LABEL org.opencontainers.image.title="octavo-server-cpu" \
      org.opencontainers.image.description="OpenAI-compatible inference server with native CPU kernels" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
EXPOSE 8000 9000
ENTRYPOINT ["octavo-server"]
COPY --from=code-server /install /opt/venv

FROM dependencies-server AS server
ARG VERSION=0
LABEL org.opencontainers.image.title="octavo-server" \
      org.opencontainers.image.description="OpenAI-compatible inference server" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# What NVIDIA's runtime is to bring: the driver's library, and nvidia-smi. Some clouds mount both instead, here.
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64
USER 65532:65532
EXPOSE 8000 9000
ENTRYPOINT ["octavo-server"]
COPY --from=driver-stub /stub /opt/venv/lib/octavo
COPY --from=kernel-cache /kernels /opt/venv/lib/octavo/kernels
COPY --from=code-server /install /opt/venv
