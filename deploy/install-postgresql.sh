#!/bin/sh
# install-postgresql.sh installs the PostgreSQL server programs (initdb, postgres)
# if they are missing. It starts no server and creates no cluster: db-controller
# runs the programs itself, in folders of its own.
#
# It installs only as root on Debian and its relatives. Everywhere else it
# prints the command to run and exits with 1.
set -eu

found() {
	for dir in /usr/lib/postgresql/*/bin /usr/pgsql-*/bin \
		/opt/homebrew/opt/postgresql*/bin /usr/local/opt/postgresql*/bin \
		/Applications/Postgres.app/Contents/Versions/*/bin; do
		if [ -x "$dir/postgres" ] && [ -x "$dir/initdb" ]; then
			echo "$dir"
			return 0
		fi
	done
	if command -v postgres >/dev/null 2>&1 && command -v initdb >/dev/null 2>&1; then
		dirname "$(command -v postgres)"
		return 0
	fi
	return 1
}

by_hand() {
	echo "install-postgresql.sh: PostgreSQL is missing, install it with: $*" >&2
	exit 1
}

if dir=$(found); then
	echo "install-postgresql.sh: PostgreSQL is present in $dir"
	exit 0
fi

[ "$(uname -s)" != Darwin ] || by_hand "brew install postgresql@17"
family=
if [ -r /etc/os-release ]; then
	# shellcheck source=/dev/null
	family=$(. /etc/os-release && echo "${ID:-} ${ID_LIKE:-}")
fi
case " $family " in
*" debian "* | *" ubuntu "*) ;;
*" fedora "* | *" rhel "*) by_hand "sudo dnf install postgresql-server" ;;
*) by_hand "your package manager (the server programs, version 15 or newer)" ;;
esac
[ "$(id -u)" = 0 ] || by_hand "sudo apt-get install -y postgresql"

# The package would create and start a cluster on port 5432 at installation.
# The setting is removed afterwards, so that a later installation of a cluster
# is not affected.
conf=/etc/postgresql-common/createcluster.d/db-controller-install.conf
trap 'rm -f "$conf"' EXIT
trap 'exit 1' HUP INT TERM
mkdir -p "${conf%/*}"
echo 'create_main_cluster = false' >"$conf"

apt-get -o DPkg::Lock::Timeout=600 update
DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 install -y --no-install-recommends postgresql

if ! dir=$(found); then
	echo "install-postgresql.sh: apt-get installed the package postgresql, yet there is no postgres program" >&2
	exit 1
fi
echo "install-postgresql.sh: PostgreSQL is in $dir now"
