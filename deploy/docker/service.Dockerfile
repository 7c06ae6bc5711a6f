# The service on a CPU, either role: no torch, no compiler, no shell script.
#   docker build -f deploy/docker/service.Dockerfile -t adsieve-service .
FROM python:3.11-slim AS build
# Another index: --build-arg PIP_INDEX_URL=... --build-arg PIP_EXTRA_INDEX_URL=...
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
RUN python -m venv /opt/adsieve
COPY requirements/ requirements/
RUN /opt/adsieve/bin/python -m pip install --quiet -r requirements/serve.txt
COPY . .
RUN /opt/adsieve/bin/python -m pip install --quiet --no-deps . && /opt/adsieve/bin/adsieve serve --help >/dev/null
# Kernels for the processor that builds; another kind compiles its own when it begins, into the volume.
RUN XDG_CACHE_HOME=/opt/adsieve/share /opt/adsieve/bin/python -I -c "from contracts.compiled import prepare; raise SystemExit(not prepare())"

FROM python:3.11-slim
LABEL org.opencontainers.image.title="adsieve service" org.opencontainers.image.licenses="Apache-2.0"
# Numeric, so that Kubernetes can tell that it is not root. What is written lies in two volumes and /tmp.
RUN groupadd --gid 10001 adsieve \
    && useradd --uid 10001 --gid 10001 --no-log-init --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin adsieve \
    && install --directory --owner 10001 --group 10001 --mode 0750 /var/cache/adsieve /var/lib/adsieve
COPY --from=build /opt/adsieve /opt/adsieve
ENV PATH=/opt/adsieve/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    XDG_CACHE_HOME=/var/cache/adsieve \
    ADSIEVE_KERNELS=/opt/adsieve/share/adsieve/kernels \
    ADSIEVE_STORE=/var/lib/adsieve/store \
    ADSIEVE_LOCAL=/var/cache/adsieve/local
WORKDIR /var/lib/adsieve
VOLUME ["/var/cache/adsieve", "/var/lib/adsieve"]
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health/live', timeout=4)"]
ENTRYPOINT ["adsieve"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8000", "--log-format", "json"]
