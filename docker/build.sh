#!/usr/bin/env bash
# Builds the images on a base: build.sh BASE [TARGET...]. The targets are cpu, standalone, controller, worker and learner; default: all.
#
# BASE is an image by its digest, or one that was made here (localhost/…). docker builds, or buildah where no docker answers.
# REGISTRY (localhost): what the names begin with. VARIANT: what the tags end with, such as -gpu.
# BUILD_OPTIONS: further options of `docker build` or `buildah build`.
set -euo pipefail
cd "$(dirname "$0")/.."
base=${1:?"build.sh BASE [TARGET...]: name the base image by its digest (docker/README.md)"}
shift
[[ $base =~ @sha256:[0-9a-f]{64}$ || $base == localhost/* ]] || {
  echo "build.sh: $base may be another image tomorrow: name it by its digest, NAME@sha256:…" >&2
  exit 2
}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
if docker info > /dev/null 2>&1; then
  build=(docker build)
else
  build=(buildah build --format docker --layers --isolation chroot --network host)
fi
read -ra options <<< "${BUILD_OPTIONS:-}"
(($# > 0)) || set -- cpu standalone controller worker learner
for target in "$@"; do
  name=${REGISTRY:-localhost}/echo-queue-$target:$version${VARIANT:-}
  "${build[@]}" "${options[@]}" --file docker/Dockerfile --build-arg "BASE=$base" --target "$target" \
    --label "org.opencontainers.image.version=$version" --tag "$name" .
  echo "built $name"
done
