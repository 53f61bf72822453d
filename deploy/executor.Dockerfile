# An executor, and nothing else of Assay that needs a model: no agent, no provider's library.
#
#   docker build -f deploy/executor.Dockerfile -t assay-executor .
#   docker run --rm -p 50051:50051 -v "$PWD/certs:/certs:ro" --security-opt seccomp=unconfined \
#     assay-executor --cert /certs/server.crt --key /certs/server.key --client-ca /certs/ca.crt
#
# The native backend makes namespaces of its own, which the usual seccomp profile of a container
# refuses; without them it falls back to Landlock, and says so in every result.

FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN python -m venv /opt/assay && /opt/assay/bin/pip install --no-cache-dir '.[executor,packages,data]'

FROM python:3.11-slim
COPY --from=build /opt/assay /opt/assay
RUN useradd --create-home --uid 10001 assay
USER assay
ENV PATH=/opt/assay/bin:$PATH PYTHONUNBUFFERED=1
EXPOSE 50051
# Reached from outside the container, it starts only with TLS, and tokens or client certificates.
ENTRYPOINT ["assay-executor", "serve", "--host", "0.0.0.0"]
STOPSIGNAL SIGTERM
