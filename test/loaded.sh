#!/bin/sh
# loaded.sh runs every test RUNS times (10) beside LOOPS busy loops (16), and
# prints which tests failed, how often. It fails if one did.
set -u
cd "$(dirname "$0")/.."

runs=${RUNS:-10} loops=${LOOPS:-16} kept=bin/loaded
rm -rf "$kept"
mkdir -p "$kept"

busy=
trap 'kill $busy 2>/dev/null' EXIT
trap 'exit 1' HUP INT TERM
for _ in $(seq "$loops"); do
	sh -c 'while :; do :; done' &
	busy="$busy $!"
done

for run in $(seq "$runs"); do
	began=$(date +%s)
	result=passed
	sh test/run.sh "$@" >"$kept/run-$run.txt" 2>&1 || result=FAILED
	echo "run $run of $runs: $result after $(($(date +%s) - began)) s ($kept/run-$run.txt)"
	cat bin/test/results-*.json >"$kept/run-$run.json"
done

failed=$(grep -h '"Action":"fail"' "$kept"/run-*.json | grep -o '"Package":"[^"]*","Test":"[^"/]*"' | sort | uniq -c | sort -rn)
if [ -n "$failed" ]; then
	printf 'Failures of %s runs:\n%s\n' "$runs" "$failed"
	exit 1
fi
echo "no test failed in $runs runs"
