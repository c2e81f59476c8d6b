#!/bin/sh
# install-languages.sh installs gRPC for Python, with its generator of modules
# from .proto files, and the compiler of TypeScript, if they are missing: the
# tests of clients in other languages need them, and so do the examples of
# docs/other-languages.md.
#
# It installs only as root on Debian and its relatives. Everywhere else it names
# the missing packages and exits with 0: those tests are skipped there.
set -eu

# The interpreter of the distribution: its packages work with no other one.
python=/usr/bin/python3
packages="python3-grpcio protobuf-compiler-grpc libprotobuf-dev node-typescript"

present() {
	[ -x "$python" ] && "$python" -c 'import grpc, google.protobuf' 2>/dev/null &&
		command -v protoc >/dev/null 2>&1 && command -v grpc_python_plugin >/dev/null 2>&1 &&
		[ -r /usr/include/google/protobuf/timestamp.proto ] && command -v tsc >/dev/null 2>&1 && command -v node >/dev/null 2>&1
}

skip() {
	echo "install-languages.sh: $*"
	exit 0
}

if present; then
	skip "gRPC for Python and TypeScript are present"
fi
[ -r /etc/debian_version ] || skip "gRPC for Python or TypeScript is missing, its tests are skipped (on Debian: $packages)"
[ "$(id -u)" = 0 ] || skip "gRPC for Python or TypeScript is missing, its tests are skipped; install them with: sudo apt-get install -y $packages"

apt-get -o DPkg::Lock::Timeout=600 update
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 install -y --no-install-recommends $packages
present || { echo "install-languages.sh: apt-get installed $packages, yet they cannot be used" >&2; exit 1; }
echo "install-languages.sh: gRPC for Python and TypeScript are present now"
