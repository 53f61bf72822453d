#!/bin/sh
# Start a program with the API keys of model providers in its environment. The keys are read from a file,
# because every user who may inspect a container can read the environment of the container itself.
set -eu
if [ -r /run/secrets/provider.keys ]; then
    set -a
    . /run/secrets/provider.keys
    set +a
fi
exec "$@"
