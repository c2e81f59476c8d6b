#!/bin/sh
# build.sh makes the image localhost/db-controller-postgres:15, which the test
# harness takes first, without any image registry: the root file system is put
# together from the Debian packages that this machine's own apt sources offer.
#
# It does nothing when the image is present. Where it cannot be made (no
# engine, not root, not Debian) it says why in one line and ends with 0: the
# harness finds another server then, so a build may always call this.
set -eu

major=15
image=localhost/db-controller-postgres:$major

skip() {
	echo "build.sh: $*"
	exit 0
}

command -v docker >/dev/null 2>&1 || skip "there is no docker command, so $image is not built"
docker version >/dev/null 2>&1 || skip "no container engine answers, so $image is not built"
if docker image inspect "$image" >/dev/null 2>&1; then
	skip "$image is present"
fi
[ "$(id -u)" = 0 ] || skip "$image is not built, that needs root: sudo $0"
[ -r /etc/debian_version ] || skip "$image is not built, that needs Debian"
# shellcheck source=/dev/null
codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
[ -n "$codename" ] || skip "$image is not built, that needs a Debian release with a code name"

apt-get update -qq
apt-cache show "postgresql-$major" >/dev/null 2>&1 ||
	skip "$image is not built, the apt sources of this machine offer no postgresql-$major"
if ! command -v mmdebstrap >/dev/null 2>&1; then
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends mmdebstrap
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

# Only the files of this release count. Other repositories could add nothing
# but failures, and mmdebstrap has no use for their packages.
set --
for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
	if [ -s "$file" ] && grep -v '^[[:space:]]*#' "$file" | grep -qw "$codename"; then
		set -- "$@" "$file"
	fi
done
[ $# -gt 0 ] || skip "$image is not built, no file in /etc/apt names the release $codename"

# How this machine downloads (proxy, date checks), so that the build works
# wherever apt works. It stays out of the image, see the last hook below.
apt-config dump --format '%F "%v";%n' Acquire >"$work/apt.conf"

# Process 1 of the container. It understands the part of the official image's
# environment that the harness uses (POSTGRES_PASSWORD, POSTGRES_INITDB_ARGS,
# PGDATA), so that the harness need not know which of the two it started.
cat >"$work/entrypoint" <<'ENTRYPOINT'
#!/bin/sh
set -eu
[ "${1:-}" = postgres ] || exec "$@"
shift

# initdb and postgres refuse to run as root.
as_postgres() {
	setpriv --reuid=postgres --regid=postgres --init-groups -- "$@"
}

install -d -o postgres -g postgres -m 0755 /run/postgresql # the local socket
install -d -o postgres -g postgres -m 0700 "$PGDATA"
if [ ! -s "$PGDATA/PG_VERSION" ]; then
	password=$(mktemp)
	printf '%s\n' "${POSTGRES_PASSWORD:?set it to the password of the superuser postgres}" >"$password"
	chown postgres "$password"
	# shellcheck disable=SC2086 # POSTGRES_INITDB_ARGS holds several arguments
	as_postgres initdb --username=postgres --pwfile="$password" \
		--auth-local=trust --auth-host=scram-sha-256 ${POSTGRES_INITDB_ARGS:-}
	rm -f "$password"
	echo 'host all all all scram-sha-256' >>"$PGDATA/pg_hba.conf"
fi
unset POSTGRES_PASSWORD
exec setpriv --reuid=postgres --regid=postgres --init-groups -- \
	postgres -c 'listen_addresses=*' "$@"
ENTRYPOINT
chmod 0755 "$work/entrypoint"

# The package would create a cluster of its own at installation.
echo 'create_main_cluster = false' >"$work/no-cluster.conf"

# Nobody reads manuals in the image. In the hooks mmdebstrap sets $1 to the root
# file system.
# shellcheck disable=SC2016
mmdebstrap --quiet --variant=essential --include="postgresql-$major,util-linux" \
	--aptopt="$work/apt.conf" \
	--aptopt='Apt::Install-Recommends "false"' \
	--dpkgopt='path-exclude=/usr/share/doc/*' \
	--dpkgopt='path-exclude=/usr/share/locale/*' \
	--dpkgopt='path-exclude=/usr/share/man/*' \
	--essential-hook='mkdir -p "$1/etc/postgresql-common/createcluster.d"' \
	--essential-hook="upload $work/no-cluster.conf /etc/postgresql-common/createcluster.d/no-cluster.conf" \
	--customize-hook="upload $work/entrypoint /usr/local/bin/entrypoint" \
	--customize-hook='chmod 0755 "$1/usr/local/bin/entrypoint"' \
	--customize-hook='rm -rf "$1"/etc/apt/apt.conf.d/99mmdebstrap "$1"/etc/apt/sources.list "$1"/etc/apt/sources.list.d/*' \
	"$codename" "$work/rootfs.tar" "$@"

docker import \
	--change 'ENTRYPOINT ["/usr/local/bin/entrypoint"]' \
	--change 'CMD ["postgres"]' \
	--change "ENV PATH=/usr/lib/postgresql/$major/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
	--change 'ENV PGDATA=/var/lib/postgresql/data' \
	--change 'ENV LC_ALL=C' \
	--change 'EXPOSE 5432' \
	"$work/rootfs.tar" "$image" >/dev/null
echo "build.sh: built $image from $codename"
