#!/usr/bin/env bash
# Makes a base image where no registry can be reached: base.sh FOLDER NAME. Needs root, debootstrap and podman.
#
# It stands for python:3.11-slim: Debian 12 with its own Python 3.11, without what Debian's slim images leave out. It is
# for checks alone; what is published is built on the upstream image, by its digest.
set -euo pipefail
folder=$1 name=$2
root=$folder/base
mkdir -p "$folder"
rm -rf "$root"
debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv bookworm "$root" http://deb.debian.org/debian
# The upstream image has Python's headers, without which no package can be compiled.
chroot "$root" sh -c 'cd /tmp && apt-get -qq download libpython3.11-dev && dpkg -x libpython3.11-dev_*.deb headers'
cp -r "$root"/tmp/headers/usr/include "$root"/usr/
rm -rf "$root"/tmp/*
rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/var/log/* "$root"/usr/share/{doc,man,info,locale,lintian}/*
tar -C "$root" -c . | podman import --change 'CMD ["python3"]' --change 'ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin' - "$name"
rm -rf "$root"
