#!/bin/sh
# Makes the image that benchmarks/sandbox.py measures Docker with: Debian's Python, numpy and pandas.
#
# Built from packages, not pulled, so that it also works where no image registry can be reached.
# Needs root, `debootstrap`, a running Docker daemon, and a Debian package mirror: the one that
# debootstrap knows by itself, or the one in $MIRROR. Does nothing if the image is there already;
# `docker rmi assay-bench-python` makes room for a new one.
set -eu

image=assay-bench-python
release=bookworm

if docker image inspect "$image" >/dev/null 2>&1; then
    echo "$image is there already"
    exit 0
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

# The smallest variant, as slim images are made. Configuring the packages also compiles their byte
# code, without which every import in the container would compile it anew.
debootstrap --variant=minbase --include=python3,python3-numpy,python3-pandas \
    "$release" "$work/root" ${MIRROR:+"$MIRROR"}

# llm-sandbox starts `python`, which Debian does not have by that name.
ln -s python3 "$work/root/usr/bin/python"

# What a running container never reads.
rm -rf "$work"/root/var/cache/apt/* "$work"/root/var/lib/apt/lists/* "$work"/root/usr/share/doc/*

# /dev, /proc and /sys are the container's own.
tar --create --directory "$work/root" --one-file-system \
    --exclude='./dev/*' --exclude='./proc/*' --exclude='./sys/*' . |
    docker import --change 'CMD ["python3"]' - "$image"

# An image that cannot do this would be measured as a very fast one.
docker run --rm --network none "$image" python3 -c 'import numpy, pandas'
echo "$image is ready"
