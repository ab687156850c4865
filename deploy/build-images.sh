#!/usr/bin/env bash
# Builds the images of deploy/Dockerfile without a Docker engine and without a registry: buildah runs
# the Dockerfile as it is, on a stand-in for its base image that debootstrap makes of Debian's packages.
#
#   deploy/build-images.sh FOLDER [TARGET ...]     as root; without targets: gateway and engine-cpu
#
# FOLDER becomes a store of buildah with an image localhost/paceline/TARGET:built each; what else is in it
# makes the next build short. One is shipped by
#   buildah --root FOLDER/storage --runroot FOLDER/run push localhost/paceline/TARGET:built docker://...
#
# pip inside the build takes this machine's settings from the environment: PIP_* variables, folders that
# they name, and the certificates of PIP_CERT or SSL_CERT_FILE. They are mounted meanwhile, so that of them
# an image keeps empty places only.
set -euo pipefail

if [ $# -eq 0 ]; then
  sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"
  exit 2
fi
mkdir -p "$1"
FOLDER=$(cd "$1" && pwd)
shift
TARGETS=("$@")
[ $# -gt 0 ] || TARGETS=(gateway engine-cpu)
REPOSITORY=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
DOCKERFILE=$REPOSITORY/deploy/Dockerfile
BASE=localhost/$(sed -n 's/^ARG PYTHON=//p' "$DOCKERFILE")
CERTIFICATES=/etc/ssl/certs/ca-certificates.crt

store() {
  BUILDAH_ISOLATION=chroot buildah --root "$FOLDER/storage" --runroot "$FOLDER/run" "$@"
}

# Debian's own python3.11 with the name that the base image gives it, and what the Dockerfile would
# fetch from Debian.
make_base() {
  local release=${BASE##*-} system=$FOLDER/base
  rm -rf "$system"
  debootstrap --variant=minbase --include=python3-venv,ca-certificates,libgomp1 "$release" "$system" >&2
  ln -s python3 "$system/usr/bin/python"
  rm -rf "$system"/var/cache/apt/archives/*.deb "$system"/var/lib/apt/lists/*
  local container
  container=$(store from scratch)
  store add -q "$container" "$system" /
  store commit -q --rm "$container" "$BASE" >/dev/null
  rm -rf "$system"
}

# The machine's settings of pip as flags for a build: a file and folders that are mounted meanwhile.
pip_flags() {
  local settings=$FOLDER/pip.conf name value word
  echo '[global]' >"$settings"
  while IFS='=' read -r name value; do
    case $name in PIP_CONFIG_FILE | PIP_CERT) continue ;; esac
    name=${name#PIP_}
    name=${name,,}
    echo "${name//_/-} = $value" >>"$settings"
    for word in $value; do
      word=${word#file://}
      if [ -d "$word" ]; then FLAGS+=(--volume "$word:$word:ro"); fi
    done
  done < <(env | grep '^PIP_')
  local certificates=${PIP_CERT:-${SSL_CERT_FILE:-}}
  if [ -n "$certificates" ]; then
    echo "cert = $CERTIFICATES" >>"$settings"
    FLAGS+=(--volume "$certificates:$CERTIFICATES:ro")
  fi
  FLAGS+=(--volume "$settings:/etc/pip.conf:ro")
}

FLAGS=()
pip_flags
store inspect --type image "$BASE" >/dev/null 2>&1 || make_base
for target in "${TARGETS[@]}"; do
  store bud --pull-never --layers --build-arg "PYTHON=$BASE" "${FLAGS[@]}" \
    -f "$DOCKERFILE" --target "$target" -t "localhost/paceline/$target:built" "$REPOSITORY"
done
store images
