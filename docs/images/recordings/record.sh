#!/usr/bin/env bash
# record.sh writes the terminal recordings of the documents (docs/images/recordings/*.svg): make recordings.
# Each is the output of the program, over deployments that db-controller dev starts.
set -euo pipefail
cd "$(dirname "$0")/../../.."

# shown prints a command as a person types it, and runs it.
shown() {
	printf '\e[1;32m$\e[0m '
	for word in $1; do
		printf '%s ' "$word"
		sleep 0.2
	done
	echo
	eval "$1" || true # a refused delete is what the recording shows
	sleep "${2:-1.5}"
}

if [ "${1:-}" = delete ]; then
	PATH="$PWD/bin:$PATH"
	iam=//iam.example.com/us-west2 devices=//devices.example.com/eastus2
	shown "db-controller put $iam/projects/acme '{title: Acme}'" 0.5
	shown "db-controller put $iam/projects/acme/serviceAccounts/robot" 0.5
	shown "db-controller put $devices/fleets/north \"{project: $iam/projects/acme}\"" 0.5
	shown "db-controller put $devices/fleets/north/devices/d1 \"{account: $iam/projects/acme/serviceAccounts/robot}\"" 1
	shown "db-controller delete $iam/projects/acme/serviceAccounts/robot" 3
	shown "db-controller plan $iam/projects/acme" 4
	shown "db-controller delete $iam/projects/acme --wait 10s" 2
	shown "db-controller removals $devices/fleets/north/devices/d1" 5
	exit
fi

# record writes an animation of a command: it needs a terminal, which script has.
record() { # file, columns x rows, command
	script -qec "termtosvg 'docs/images/recordings/$1' -g $2 -m 20 -M 4000 -t gjm8 -c '$3'" /dev/null </dev/null
}

command -v termtosvg >/dev/null || { echo "record.sh: termtosvg is missing: apt-get install termtosvg" >&2; exit 1; }
HOME=$(mktemp -d)
export HOME TERM=xterm-256color
trap 'kill "${dev:-}" 2>/dev/null || true; wait; rm -rf "$HOME"' EXIT
bin/db-controller dev >"$HOME/log" 2>&1 &
dev=$!
until grep -q 'Ctrl-C stops it' "$HOME/log"; do
	kill -0 "$dev" || { cat "$HOME/log"; exit 1; }
	sleep 0.2
done
record delete.svg 118x32 "bash docs/images/recordings/record.sh delete"
kill -INT "$dev"
wait "$dev" || true
record adopt.svg 118x40 "bin/db-controller dev --scenario adopt"
