# The MCP servers. No sandboxed program runs in this container: an executor has the files and runs the programs.
#
#   make images
#
# Built without a network, from the wheels in its context (deploy/wheels.py).
ARG BASE_IMAGE=python:3.11-slim

FROM ${BASE_IMAGE} AS build
COPY wheels /wheels
# uv is extracted from its wheel, because not every base image has an installer.
RUN python3 -m zipfile -e /wheels/uv-*.whl /uv && chmod +x /uv/uv-*.data/scripts/uv \
 && mv /uv/uv-*.data/scripts/uv /usr/local/bin/uv && python3 -m venv --without-pip /opt/assay
ENV VIRTUAL_ENV=/opt/assay UV_NO_CACHE=1 UV_COMPILE_BYTECODE=1
# Installs only the wheels that this image needs. This layer stays in the build cache.
RUN uv pip install --quiet --no-index --find-links /wheels \
      mcp anyio click pydantic rich cryptography grpcio grpcio-health-checking protobuf
COPY own /own
RUN uv pip install --quiet --no-index --find-links /wheels --find-links /own 'assay-agent[mcp,executor]' \
 && /opt/assay/bin/assay mcp serve --help

FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title=assay-mcp
COPY --from=build /opt/assay /opt/assay
ENV PATH=/opt/assay/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/tmp \
    PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /
EXPOSE 7101 7102
STOPSIGNAL SIGTERM
ENTRYPOINT ["assay", "mcp"]
CMD ["serve", "all", "--host", "0.0.0.0"]
