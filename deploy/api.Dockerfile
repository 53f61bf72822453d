# The HTTP API and the web page, with the agent and the model providers. No sandboxed program runs in this
# container; an executor runs them. The embedded model is not included; use a model over the network.
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
      anyio click pydantic rich cryptography grpcio grpcio-health-checking protobuf \
      fastapi fastapi-offline limits opentelemetry-exporter-otlp-proto-http opentelemetry-sdk prometheus-client \
      python-multipart 'uvicorn[standard]' langgraph langgraph-checkpoint-sqlite pytest \
      openai anthropic google-genai genai-prices jsonschema prompt-toolkit pyyaml
COPY own /own
RUN uv pip install --quiet --no-index --find-links /wheels --find-links /own \
      'assay-agent[serve,agent,chat,openai,anthropic,gemini,executor]' \
 && /opt/assay/bin/assay serve --help

FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title=assay-api
COPY --from=build /opt/assay /opt/assay
COPY with_keys.sh /opt/assay/bin/with-keys
# Writable for any user that the container runs as: sessions, runs, and hashes of the users' keys.
RUN mkdir -m 1777 /var/lib/assay
ENV PATH=/opt/assay/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/var/lib/assay \
    PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /
EXPOSE 8000
STOPSIGNAL SIGTERM
ENTRYPOINT ["with-keys", "assay"]
CMD ["serve", "--host", "0.0.0.0"]
