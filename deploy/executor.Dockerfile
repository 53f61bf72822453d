# An executor and no other part of Assay: no agent, no models, no provider libraries.
#
#   make images                            # downloads wheels with pip, then builds all images
#   make images BASE_IMAGE=python:3.12-slim
#   make images EXECUTOR_EXTRAS=,docker    # can start sibling containers; see docs/reference/docker.md
#
# Built without a network, from the wheels in its context (deploy/wheels.py). compose.yaml shows how to start
# it so that programs are isolated from the executor and from each other.
ARG BASE_IMAGE=python:3.11-slim

FROM ${BASE_IMAGE} AS build
COPY wheels /wheels
# uv is extracted from its wheel, because not every base image has an installer.
RUN python3 -m zipfile -e /wheels/uv-*.whl /uv && chmod +x /uv/uv-*.data/scripts/uv \
 && mv /uv/uv-*.data/scripts/uv /usr/local/bin/uv && python3 -m venv --without-pip /opt/assay
ENV VIRTUAL_ENV=/opt/assay UV_NO_CACHE=1 UV_COMPILE_BYTECODE=1
# Installs only the wheels that this image needs. This layer stays in the build cache.
RUN uv pip install --quiet --no-index --find-links /wheels \
      anyio click pydantic rich cryptography grpcio grpcio-health-checking grpcio-reflection limits \
      opentelemetry-exporter-otlp-proto-http opentelemetry-sdk prometheus-client protobuf uv \
      matplotlib numpy openpyxl pandas pyarrow scikit-learn seaborn xlrd
COPY own /own
# More extras of Assay, each after a comma.
ARG EXTRAS=
RUN uv pip install --quiet --no-index --find-links /wheels --find-links /own "assay-agent[executor,packages,data${EXTRAS}]" \
 && cd /opt/assay/lib/python3*/site-packages/assay \
 && find . -mindepth 1 -maxdepth 1 ! -name contracts ! -name sandbox ! -name settings ! -name executor \
      ! -name auth ! -name telemetry ! -name files.py ! -name text ! -name asyncx ! -name screening ! -name cli ! -name '__*' -exec rm -r {} + \
 && find cli -mindepth 1 -maxdepth 1 ! -name __init__.py ! -name errors.py ! -name options.py \
      ! -name executor.py -exec rm -r {} + \
 && rm /opt/assay/bin/assay && python3 -m compileall -qq . \
 && /opt/assay/bin/assay-executor serve --help

FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title=assay-executor
COPY --from=build /opt/assay /opt/assay
# Writable for any user that the container runs as: the audit log and the package layers.
RUN mkdir -m 1777 /var/lib/assay
ENV PATH=/opt/assay/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/var/lib/assay \
    ASSAY_RUNTIME_DIR=/run/assay \
    PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /
EXPOSE 50051
STOPSIGNAL SIGTERM
# Because it listens on all addresses, it starts only with TLS, and with tokens or client certificates.
ENTRYPOINT ["assay-executor"]
CMD ["serve", "--host", "0.0.0.0"]
