#!/bin/sh
# install-clusters.sh installs Patroni with etcd, HAProxy, PgBouncer, pgBackRest
# and pg_repack if they are missing: make clusters runs db-controller beside them. It starts no
# service: the tests run the programs themselves, in folders of their own.
#
# It installs only as root on Debian and its relatives. Everywhere else it prints
# the command and fails: without the programs there is nothing to run.
set -eu

# pg_repack is of one version of PostgreSQL: the newest one that is installed.
major=$(ls /usr/lib/postgresql 2>/dev/null | sort -n | tail -1)
packages="patroni python3-etcd etcd-server haproxy pgbouncer pgbackrest postgresql-${major:-15}-repack"

present() {
	for program in patroni patronictl etcd haproxy pgbouncer pgbackrest setpriv; do
		[ -x "/usr/bin/$program" ] || [ -x "/usr/sbin/$program" ] || return 1
	done
	[ -x "/usr/lib/postgresql/$major/bin/pg_repack" ] || return 1
	/usr/bin/python3 -c 'import etcd' 2>/dev/null # Patroni's package only recommends it
}

present && exit 0
if [ ! -r /etc/debian_version ] || [ "$(id -u)" != 0 ]; then
	echo "install-clusters.sh: a program is missing; install them, on Debian with: sudo apt-get install -y $packages" >&2
	exit 1
fi

# The packages would start services at installation. A machine that forbids it already keeps its file.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
	trap 'rm -f "$policy"' EXIT
	trap 'exit 1' HUP INT TERM
	printf '#!/bin/sh\nexit 101\n' >"$policy"
	chmod 755 "$policy"
fi
apt-get -o DPkg::Lock::Timeout=600 update
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 install -y --no-install-recommends $packages
present || { echo "install-clusters.sh: apt-get installed $packages, yet a program is missing" >&2; exit 1; }
