#!/bin/sh
# Start a program with the keys of model providers in its environment, read from a file: what is in
# the environment of a container can be read by whoever may inspect it.
set -eu
if [ -r /run/secrets/provider.keys ]; then
    set -a
    . /run/secrets/provider.keys
    set +a
fi
exec "$@"
