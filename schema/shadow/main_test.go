package shadow_test

import (
	"flag"
	"os"
	"runtime"
	"strconv"
	"testing"

	"github.com/db-controller/db-controller/test/harness"
)

// These tests mostly wait: for locks, commits, time limits. Twice as many run at once as there are
// processors, or as many as -parallel says.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0))); err != nil {
		panic(err)
	}
	os.Exit(harness.Main(m))
}

// Two services in two regions, with a kind of holder for each behaviour, for all tests of this package.
const services = `
service: a.example.com
version: v1
kinds:
  - kind: Target
    patterns: ["targets/{target}"]
    references:
      - { path: next, targets: [Target], behaviour: CASCADE_DELETE }
      - { path: peer, targets: [Target], behaviour: BLOCK }
  - kind: Child
    patterns: ["targets/{target}/children/{child}"]
    parents: [{ kind: Target, behaviour: CASCADE_DELETE }]
---
service: b.example.com
version: v1
imports: [a.example.com@v1]
kinds:
  - kind: Holder
    patterns: ["holders/{holder}"]
    references:
      - { path: block, targets: [a.example.com/Target], behaviour: BLOCK }
      - { path: unset, targets: [a.example.com/Target], behaviour: UNSET }
      - { path: list.*, targets: [a.example.com/Target], behaviour: UNSET }
      - { path: roles.*.who, targets: [a.example.com/Target], behaviour: UNSET }
      - { path: cascade, targets: [a.example.com/Target], behaviour: CASCADE_DELETE }
      - { path: asyncCascade, targets: [a.example.com/Target], behaviour: ASYNC_CASCADE_DELETE }
      - { path: dangling, targets: [a.example.com/Target], behaviour: ALLOW_DANGLING }
      - { path: near.block, targets: [Holder], behaviour: BLOCK }
      - { path: near.unset, targets: [Holder], behaviour: UNSET }
      - { path: near.cascade, targets: [Holder], behaviour: CASCADE_DELETE }
      - { path: near.asyncUnset, targets: [Holder], behaviour: ASYNC_UNSET }
      - { path: near.asyncCascade, targets: [Holder], behaviour: ASYNC_CASCADE_DELETE }
`

const (
	aWest = "a.example.com/us-west2"
	aEast = "a.example.com/eastus2"
	bWest = "b.example.com/us-west2"
	bEast = "b.example.com/eastus2"

	target  = "//" + aWest + "/targets/t"
	target2 = "//" + aWest + "/targets/t2"
	holder  = "//" + bEast + "/holders/h"
	holder2 = "//" + bEast + "/holders/h2"
)

// newBox has four deployments: tests of the deployments that get questions and notices, and of the
// deployments that do not, need them all.
func newBox(t testing.TB, configure harness.BoxConfig) *harness.Box {
	t.Helper()
	return harness.NewBox(t, services, configure, aWest, aEast, bWest, bEast)
}

// newPair has the deployments of targets and of holders, at half the price.
func newPair(t testing.TB, configure harness.BoxConfig) *harness.Box {
	t.Helper()
	return harness.NewBox(t, services, configure, aWest, bEast)
}

type body = harness.Body
