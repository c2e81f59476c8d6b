#!/bin/sh
# install-mkdocs.sh installs mkdocs with the theme material, and Graphviz, if they
# are missing: the documentation site is built with them.
#
# It installs only as root on Debian and its relatives. Everywhere else it
# prints the command and fails: without mkdocs there is no site.
set -eu

packages="mkdocs mkdocs-material graphviz fonts-dejavu-core"

# mkdocs lists the installed themes in its usage.
present() {
	command -v dot >/dev/null 2>&1 && command -v mkdocs >/dev/null 2>&1 && mkdocs build --help | grep -q material
}

present && exit 0
if [ ! -r /etc/debian_version ] || [ "$(id -u)" != 0 ]; then
	echo "install-mkdocs.sh: mkdocs, its theme material or Graphviz is missing; install them, on Debian with: sudo apt-get install -y $packages" >&2
	exit 1
fi
apt-get -o DPkg::Lock::Timeout=600 update
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 install -y --no-install-recommends $packages
present || { echo "install-mkdocs.sh: apt-get installed $packages, yet mkdocs does not know the theme" >&2; exit 1; }
