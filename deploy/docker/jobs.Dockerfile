# Training, distillation and the nightly index.
#   docker build -f deploy/docker/jobs.Dockerfile -t adsieve-jobs .
# On a GPU: --build-arg REQUIREMENTS=gpu.txt --build-arg PIP_EXTRA_INDEX_URL=
FROM python:3.11-slim AS build
ARG REQUIREMENTS=train.txt
ARG PIP_INDEX_URL
# torch for x86-64 is several GB of CUDA unless pip finds the build for CPUs.
ARG PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
RUN python -m venv /opt/adsieve
COPY requirements/ requirements/
RUN /opt/adsieve/bin/python -m pip install --quiet -r "requirements/$REQUIREMENTS" \
    && /opt/adsieve/bin/python -m pip install --quiet --no-deps -r requirements/torchrec.txt
COPY . .
# A pair of torch and fbgemm that does not match fails here, not in a training run.
RUN /opt/adsieve/bin/python -m pip install --quiet --no-deps . && /opt/adsieve/bin/python -c "import torchrec"
# Kernels for the processor that builds; another kind compiles its own when it begins, into the volume.
RUN XDG_CACHE_HOME=/opt/adsieve/share /opt/adsieve/bin/python -I -c "from contracts.compiled import prepare; raise SystemExit(not prepare())"

FROM python:3.11-slim
LABEL org.opencontainers.image.title="adsieve jobs" org.opencontainers.image.licenses="Apache-2.0"
# Long trainings compile themselves. Debian removes old versions, so that none is pinned.
# hadolint ignore=DL3008
RUN apt-get update -qq && apt-get install -qq -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
RUN groupadd --gid 10001 adsieve \
    && useradd --uid 10001 --gid 10001 --no-log-init --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin adsieve \
    && install --directory --owner 10001 --group 10001 --mode 0750 /var/cache/adsieve /data
COPY --from=build /opt/adsieve /opt/adsieve
COPY --chmod=0755 deploy/nightly.sh /usr/local/bin/adsieve-nightly
ENV PATH=/opt/adsieve/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    XDG_CACHE_HOME=/var/cache/adsieve \
    ADSIEVE_KERNELS=/opt/adsieve/share/adsieve/kernels \
    TORCHINDUCTOR_CACHE_DIR=/var/cache/adsieve/inductor \
    MPLCONFIGDIR=/tmp/matplotlib \
    ADSIEVE_STORE=/data/store
WORKDIR /data
VOLUME ["/var/cache/adsieve", "/data"]
USER 10001:10001
STOPSIGNAL SIGTERM
HEALTHCHECK NONE
CMD ["adsieve", "--help"]
