#!/bin/sh
# install-chromium.sh installs Chromium if it is missing: the tests of the
# console run in it.
#
# It installs only as root on Debian and its relatives. Everywhere else it
# prints the command and fails: without a browser there is nothing to run.
set -eu

packages="chromium fonts-dejavu-core"

command -v chromium >/dev/null 2>&1 && exit 0
if [ ! -r /etc/debian_version ] || [ "$(id -u)" != 0 ]; then
	echo "install-chromium.sh: chromium is missing; install it, on Debian with: sudo apt-get install -y $packages" >&2
	exit 1
fi
apt-get -o DPkg::Lock::Timeout=600 update
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 install -y --no-install-recommends $packages
