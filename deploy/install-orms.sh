#!/bin/sh
# install-orms.sh installs Django, SQLAlchemy and psycopg for Debian's Python, if
# they are missing: the proof of adoption runs applications with them, and the
# example of transactions on strict tables uses psycopg.
#
# It installs only as root on Debian and its relatives. Everywhere else it names
# the missing packages and exits with 0: those tests are skipped there.
set -eu

# The interpreter of the distribution: its packages work with no other one.
python=/usr/bin/python3
packages="python3-django python3-sqlalchemy python3-psycopg2"

present() {
	[ -x "$python" ] && "$python" -c 'import django, sqlalchemy, psycopg2' 2>/dev/null
}

skip() {
	echo "install-orms.sh: $*"
	exit 0
}

if present; then
	skip "Django, SQLAlchemy and psycopg are present"
fi
[ -r /etc/debian_version ] || skip "Django, SQLAlchemy or psycopg is missing, and the tests with them are skipped (on Debian: $packages)"
[ "$(id -u)" = 0 ] || skip "Django, SQLAlchemy or psycopg is missing, and the tests with them are skipped; install it with: sudo apt-get install -y $packages"

apt-get -o DPkg::Lock::Timeout=600 update
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 install -y --no-install-recommends $packages
present || { echo "install-orms.sh: apt-get installed $packages, yet $python cannot use them" >&2; exit 1; }
echo "install-orms.sh: Django, SQLAlchemy and psycopg are present now"
