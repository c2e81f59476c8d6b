#!/bin/sh
# run.sh runs every test, and go vet, as make test does: the packages whose code runs in
# several goroutines with the race detector, the others without; the longest
# first. Of the store, whose tests are the most by far, those that start
# goroutines or a second process run with it. A test that fails is run once
# more, alone: one that passes then counts, and is printed at the end, with both
# outputs, as flaky.
#
#     run.sh [FLAG]...    flags for go test, such as -short
#
# What the runs wrote is in bin/test: results-*.json, flaky.txt.
set -u
cd "$(dirname "$0")/.."

out=bin/test
mkdir -p "$out"
rm -f "$out"/results-*.json "$out"/flaky.txt

# Programs of the tests and of this script share what is compiled. The compiler
# needs a quarter less processor time when it collects its garbage later; tests
# have bounds of memory, and do not get the setting.
export GOFLAGS="-trimpath ${GOFLAGS:-}" GOGC=400

(cd tools/test && CGO_ENABLED=0 go build -o ../../$out/gotestsum gotest.tools/gotestsum && CGO_ENABLED=0 go build -o ../../$out/report ./report) || exit 1

# It ends what hangs: no package needs as long on one busy processor.
limit=80m

run() { # name, packages, flags
	name=$1 packages=$2
	shift 2
	"$out/gotestsum" --format pkgname --hide-summary=skipped,output --jsonfile "$out/results-$name.json" \
		--rerun-fails=1 --rerun-fails-max-failures=30 --packages "$packages" -- \
		-exec 'env -u GOGC' -vet=off -ldflags='-s -w' -count=1 -timeout "$limit" "$@"
}

racing='./schema/service ./constraint ./controller ./schema/service/peers ./constraint/cache ./constraint/queue
	./envregistry ./nodemanager ./handlers ./client ./internal/feed ./internal/gather ./internal/budget ./internal/retry ./internal/inprocess'
longest='./test/campaign ./dbctest ./embed ./test/campaign/attached ./internal/scan ./migrations'
others=$(CGO_ENABLED=0 go list -f '{{if or .TestGoFiles .XTestGoFiles}}.{{slice .ImportPath (len .Module.Path)}}{{end}}' ./...) || exit 1
for package in ./schema/shadow ./test $racing $longest; do
	others=$(printf '%s\n' "$others" | grep -vx "$package")
done

# The names of the tests of the store that start goroutines, as one expression.
concurrent=^\($(awk '
	/^func / { name = match($0, /^func Test[A-Za-z0-9_]+/) ? substr($0, 6, RLENGTH - 5) : "" }
	name != "" && /go func|errgroup|\.Go\(|SecondProcess|synctest/ { print name; name = "" }' schema/shadow/*_test.go | paste -sd '|')\)\$

{
	CGO_ENABLED=1 run race "$(echo $racing)" -race -p 2 "$@"
	race=$?
	CGO_ENABLED=1 run concurrent ./schema/shadow -race -run "$concurrent" "$@"
	exit $((race + $?))
} &
racers=$!
CGO_ENABLED=0 run store ./schema/shadow -skip "$concurrent" "$@" &
storers=$!
# Its tests wait for processes most of the time.
CGO_ENABLED=0 run processes ./test -parallel 6 "$@" &
processors=$!
CGO_ENABLED=0 go vet -trimpath ./... &
vet=$!
CGO_ENABLED=0 run plain "$(echo $longest $others)" -p 2 "$@"
failed=$?
wait "$vet" || { failed=1; echo "go vet: see above" >&2; }
for group in "$racers" "$storers" "$processors"; do
	wait "$group" || failed=1
done
"$out/report" "$out"/results-*.json
exit "$failed"
