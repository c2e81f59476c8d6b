package test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/cmd/db-controller/playground"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

// The crash points, and the deployment whose process is killed there: the targets' deployment, or the
// holders'.
var crashPoints = map[string]string{
	"crash-save-established":    bEast,
	"crash-save-committed":      bEast,
	"crash-establish-committed": aWest,
	"crash-delete-uncommitted":  aWest,
	"crash-delete-committed":    aWest,
	"crash-finalise-committed":  aWest,
	"crash-confirm-told":        bEast,
	"crash-release-told":        bEast,
	"crash-owners-answered":     aWest,
	"crash-disown-told":         bEast,
	"crash-act-committed":       bEast,
	"crash-act-acknowledged":    bEast,
}

// A process is killed at each crash point and started again: answered requests hold, others can be repeated,
// and at rest the state is the same as without the crash.
func TestACrashBetweenTwoSteps_I1_I3_I6_I8_I19(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts five processes, twelve times")
	}
	f := &fixture{t: t, Processes: harness.NewProcessesWith(t, everything, playground.Config{
		Binary: harness.CrashingBinary(t), Args: []string{"--tentative-ttl", "1s", "--owner-grace", "1s"},
	})}
	for point, at := range crashPoints {
		began, name := time.Now(), fmt.Sprintf("%s-x", point)
		d := f.Deployments[f.id(at+"x/y")]
		require.NoError(t, d.Stop())
		d.Environment("DBCONTROLLER_CRASH=" + point)
		require.NoError(t, d.Start())
		ctx, stop := context.WithCancel(t.Context())
		crashed := make(chan bool, 1)
		go func() { // an orchestrator: restarts processes that have ended
			for ctx.Err() == nil {
				if d.Ended() {
					_ = d.Kill() // notes that it has ended
					d.Environment()
					crashed <- d.Start() == nil // f.ready waits for the rest
					return
				}
				<-time.After(time.Millisecond)
			}
			crashed <- false
		}()
		f.ready(d.Name)
		target, owned := aWest+"targets/"+name, aWest+"targets/owned-"+name
		f.insist(func() error { _, err := f.put(target, nil); return err })
		for kind, content := range map[string]fields{
			"block": {"block": target}, "cascade": {"cascade": target},
			"unset": {"unset": fields{"list": []any{target}}}, "late": {"asyncCascade": target},
		} {
			f.insist(func() error { _, err := f.put(bEast+"holders/"+kind+"-"+name, content); return err })
		}
		f.insist(func() error {
			_, err := f.put(owned, nil, ownedBy("Holder", bEast+"holders/cascade-"+name))
			return err
		})
		if point == "crash-disown-told" {
			f.settled() // the owner knows its ownee, so that it has an ownee to tell
		}
		f.insist(func() error { _, err := f.put(bEast+"holders/block-"+name, nil); return err })
		f.insist(func() error {
			if err := f.delete(target); err != nil && f.find(target) {
				return err
			}
			return nil
		})
		f.eventually(point+": the cascade is complete", func() bool {
			return !f.find(target) && !f.find(bEast+"holders/cascade-"+name) && !f.find(bEast+"holders/late-"+name) &&
				!f.find(owned)
		})
		select {
		case <-crashed:
		case <-time.After(wait.Limit):
			t.Errorf("%s was never reached", point)
			stop()
			<-crashed
			d.Environment()
		}
		stop()
		f.settled()
		require.NotNil(t, f.get(bEast+"holders/block-"+name))
		unset := f.get(bEast + "holders/unset-" + name)
		require.NotNil(t, unset)
		require.NotContains(t, unset.GetBody().String(), target)
		audit(t, f.Processes)
		t.Logf("%s: killed and well again in %s", point, time.Since(began).Round(10*time.Millisecond))
	}
}

// insist repeats a call that a crashed process has not answered.
func (f *fixture) insist(do func() error) {
	f.t.Helper()
	require.EventuallyWithT(f.t, func(c *assert.CollectT) { require.NoError(c, do()) }, wait.Limit, 50*time.Millisecond)
}

// find reports whether a resource exists; true while that cannot be read.
func (f *fixture) find(name string) bool {
	f.t.Helper()
	full, resources := f.named(name)
	_, err := resources.GetResource(f.t.Context(), &resourcev1.GetResourceRequest{Name: full})
	return status.Code(err) != codes.NotFound
}

// A binary built without the tag contains no crash points, nor their names.
func TestReleasesHaveNoCrashPoints(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds the program with crash points")
	}
	for binary, has := range map[string]bool{harness.Binary(t): false, harness.CrashingBinary(t): true} {
		program, err := os.ReadFile(binary)
		require.NoError(t, err)
		for point := range crashPoints {
			require.Equal(t, has, bytes.Contains(program, []byte(point)), point)
		}
		for _, variable := range []string{"DBCONTROLLER_CRASH", "DBCONTROLLER_CLOCK"} {
			require.Equal(t, has, bytes.Contains(program, []byte(variable)), variable)
		}
	}
}
