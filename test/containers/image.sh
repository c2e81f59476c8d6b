#!/bin/sh
# image.sh makes the container image localhost/db-controller-postgres without a
# registry: from the programs of PostgreSQL on this machine, the libraries that
# they need, and a shell. It does nothing when the engine has the image of these
# programs.
#
#     image.sh FOLDER    FOLDER has the programs postgres and initdb
#
# It prints the name of the image.
set -eu

programs=$1
version=$("$programs/postgres" --version | sed 's/^[^0-9]*\([0-9.]*\).*/\1/')
image=localhost/db-controller-postgres:$version

if docker image inspect "$image" >/dev/null 2>&1; then
	echo "$image"
	exit 0
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

# The server's own user, in a file system of its own. (initdb and postgres refuse
# to run as root.)
mkdir -p "$work/root/etc" "$work/root/tmp" "$work/root/usr/local/bin"
chmod 1777 "$work/root/tmp"
echo 'postgres:x:70:70::/tmp:/bin/sh' >"$work/root/etc/passwd"
echo 'postgres:x:70:' >"$work/root/etc/group"

# Process 1. It understands the part of the official image's environment that the
# tests use: POSTGRES_PASSWORD and PGDATA.
cat >"$work/root/usr/local/bin/entrypoint" <<'ENTRYPOINT'
#!/bin/sh
set -eu
as_postgres() {
	setpriv --reuid=70 --regid=70 --clear-groups "$@"
}
mkdir -p "$PGDATA"
chown postgres:postgres "$PGDATA"
chmod 0700 "$PGDATA"
if [ ! -s "$PGDATA/PG_VERSION" ]; then
	password=/tmp/password
	printf '%s\n' "${POSTGRES_PASSWORD:?set it to the password of the superuser postgres}" >"$password"
	chown postgres "$password"
	# shellcheck disable=SC2086 # POSTGRES_INITDB_ARGS holds several arguments
	as_postgres initdb --username=postgres --pwfile="$password" --auth-local=trust --auth-host=scram-sha-256 --no-sync ${POSTGRES_INITDB_ARGS:-}
	rm -f "$password"
	echo 'host all all all scram-sha-256' >>"$PGDATA/pg_hba.conf"
fi
unset POSTGRES_PASSWORD
exec setpriv --reuid=70 --regid=70 --clear-groups "$@" -c listen_addresses='*' -c unix_socket_directories=/tmp
ENTRYPOINT
chmod 0755 "$work/root/usr/local/bin/entrypoint"

library=$("$programs/pg_config" --pkglibdir)
{
	for program in postgres initdb pg_isready; do
		echo "$programs/$program"
		ldd "$programs/$program"
	done
	for file in /bin/sh /bin/cat /bin/chmod /bin/chown /bin/mkdir /bin/rm /usr/bin/setpriv; do
		echo "$file"
		ldd "$file"
	done
	for module in plpgsql dict_snowball; do
		echo "$library/$module.so"
		ldd "$library/$module.so"
	done
} | tr ' ' '\n' | tr -d '\t' | grep '^/' | sort -u >"$work/files"
"$programs/pg_config" --sharedir >>"$work/files"
if [ -d /usr/share/zoneinfo ]; then
	echo /usr/share/zoneinfo >>"$work/files"
fi

# Links become files, so that each path of this machine is one of the image.
tar -C / -chf "$work/image.tar" -T "$work/files" 2>/dev/null
tar -C "$work/root" -rf "$work/image.tar" etc tmp usr
docker import \
	--change 'ENTRYPOINT ["/usr/local/bin/entrypoint"]' \
	--change "ENV PATH=$programs:/usr/local/bin:/usr/bin:/bin" \
	--change 'ENV LC_ALL=C' \
	--change 'ENV PGDATA=/var/lib/postgresql/data' \
	--change 'CMD ["postgres"]' \
	--change 'EXPOSE 5432' \
	"$work/image.tar" "$image" >/dev/null
echo "$image"
