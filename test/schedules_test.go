package test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/cmd/db-controller/dev"
	"github.com/db-controller/db-controller/cmd/db-controller/playground"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/test/harness"
)

// killed kills the process of a deployment, and starts it again, without waiting until it is ready.
func (f *fixture) killed(name string) {
	f.t.Helper()
	d := f.Deployments[f.id(name+"x/y")]
	require.NoError(f.t, d.Kill())
	require.NoError(f.t, d.Start())
}

// The processes of both sides are killed repeatedly in the middle of a cascade, with little time between two
// kills.
func TestAKillLoopInTheMiddleOfACascade_I1_I19(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "--lease", "1s")
	const target = aWest + "targets/loop"
	f.mustPut(target, nil)
	require.NoError(t, dev.PutMany(t.Context(), f.Client, f.id(bEast+"x/y"), "holders/c", 6000,
		fields{"cascade": target}))
	require.NoError(t, dev.PutMany(t.Context(), f.Client, f.id(bWest+"x/y"), "holders/u", 3000,
		fields{"unset": fields{"list": []any{target}}}))
	f.mustDelete(target)
	r, midway := rand.New(rand.NewPCG(7, 7)), 0
	for range 10 {
		if f.find(target) {
			midway++
		}
		name := []string{aWest, bEast, bWest}[r.IntN(3)]
		f.killed(name)
		if name == aWest {
			f.ready(f.id(aWest + "x/y").String()) // the target is looked for there
		}
		<-time.After(harness.Some(r, 120*time.Millisecond))
	}
	t.Logf("%d of 10 kills came before the end", midway)
	require.GreaterOrEqual(t, midway, 2, "the cascade was over before anything was killed")
	for _, name := range []string{bEast, bWest} {
		f.ready(f.id(name + "x/y").String())
	}
	f.gone(target, bEast+"holders/c1", bEast+"holders/c6000")
	f.settled()
	require.NotNil(t, f.get(bWest+"holders/u3000"))
}

// One target has DBCONTROLLER_TEST_HOLDERS holders (a million in `make campaign`), and processes of both
// sides are killed while the holders are deleted.
func TestVeryManyHoldersWithKills_I19(t *testing.T) {
	t.Parallel()
	n, err := strconv.Atoi(cmp.Or(os.Getenv("DBCONTROLLER_TEST_HOLDERS"), "20000"))
	require.NoError(t, err)
	f := newFixture(t, "--lease", "1s")
	const target = aWest + "targets/many"
	f.mustPut(target, nil)
	began := time.Now()
	require.NoError(t, dev.PutMany(t.Context(), f.Client, f.id(bEast+"x/y"), "holders/m", n, fields{"cascade": target}))
	t.Logf("%d holders written in %s", n, time.Since(began).Round(time.Millisecond))
	f.analyze(bEast) // from now on the planner takes it that nothing is ever deleted
	began = time.Now()
	f.mustDelete(target)
	for _, name := range []string{bEast, aWest, bEast} {
		<-time.After(time.Duration(n) * 5 * time.Microsecond)
		f.killed(name)
		f.ready(f.id(name + "x/y").String())
	}
	require.Eventually(t, func() bool {
		return f.get(target) == nil
	}, time.Minute+time.Duration(n)*time.Millisecond, 20*time.Millisecond)
	t.Logf("gone in %s, with three kills", time.Since(began).Round(time.Millisecond))
	require.Nil(t, f.get(bEast+fmt.Sprintf("holders/m%d", n)))
	f.settled()
}

// The disk of one deployment's database server is full for a while. Answered requests hold, others can be
// repeated, and afterwards everything continues.
func TestAFullDisk_I8_I29(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts six processes")
	}
	server, disk := harness.NewSmallCluster(t, 320<<20)
	server.CreateDatabase("own")
	proxy := harness.NewProxy(t, server.Address())
	dsn, err := url.Parse(server.DSN("own"))
	require.NoError(t, err)
	dsn.Host = proxy.Address()
	id := schema.DeploymentID{Service: "a.example.com", Region: "us-west2"}
	f := &fixture{t: t, Processes: harness.NewProcessesWith(t, everything, playground.Config{
		Databases: playground.Databases{DSNs: map[schema.DeploymentID]string{id: dsn.String()}},
		Args:      []string{"--tentative-ttl", "1s"},
	})}
	for i := range 20 {
		f.mustPut(fmt.Sprintf("%stargets/t%d", aWest, i), nil)
		f.mustPut(fmt.Sprintf("%sholders/h%d", bEast, i), fields{"block": fmt.Sprintf("%stargets/t%d", aWest, i)})
	}
	ballast := fill(t, disk)
	written, failed := map[string]bool{}, 0
	for i := 0; failed < 5 && i < 2000; i++ {
		name := fmt.Sprintf("%stargets/full%d", aWest, i)
		_, err := f.put(name, fields{"text": fmt.Sprintf("%04000d", i)})
		switch status.Code(err) {
		case codes.OK:
			written[name] = true
		default:
			failed++
			require.NotEqual(t, codes.FailedPrecondition, status.Code(err), "%v", err)
		}
	}
	require.NotZero(t, failed, "the disk never was full")
	_, err = f.put(bEast+"holders/new", fields{"block": aWest + "targets/t19"})
	t.Logf("%d writes before the disk was full; a reference to there: %v", len(written), err)
	full := func() bool {
		told := f.statusFor(t, id.String()).GetNotReady()
		return len(told) > 0 && told[0].GetCheck() == "writes"
	}
	if server.Runs() {
		f.eventually("it is told that the disk is full", full)
	}
	require.NoError(t, os.Remove(ballast))
	if !server.Runs() { // it ends when it cannot write its log
		server.Restart()
		proxy.Move(server.Address())
	}
	f.insist(func() error { _, err := f.put(aWest+"targets/after", nil); return err })
	for name := range written {
		require.True(t, f.find(name), "%s was answered", name)
	}
	for i := range 10 {
		f.insist(func() error { _, err := f.put(fmt.Sprintf("%sholders/h%d", bEast, i), nil); return err })
		f.insist(func() error {
			err := f.delete(fmt.Sprintf("%stargets/t%d", aWest, i))
			if status.Code(err) == codes.NotFound {
				return nil
			}
			return err
		})
	}
	require.Equal(t, codes.FailedPrecondition, status.Code(f.delete(aWest+"targets/t15")), "it is referred to")
	f.settled()
	f.eventually("it is told that there is space", func() bool { return !full() })
}

// fill writes a file until the disk is full.
func fill(t *testing.T, disk string) (ballast string) {
	t.Helper()
	ballast = filepath.Join(disk, "ballast")
	file, err := os.Create(ballast)
	require.NoError(t, err)
	defer func() { _ = file.Close() }()
	chunk := make([]byte, 64<<10)
	for {
		if _, err := file.Write(chunk); err != nil {
			break
		}
	}
	return ballast
}
