package test

import (
	"encoding/base64"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/cmd/db-controller/playground"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

// movable is a fixture in which one deployment has its own PostgreSQL server, behind a proxy that can be
// moved to another one.
func movable(t *testing.T, of string, args ...string) (*fixture, *harness.Cluster, *harness.Proxy) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts six processes")
	}
	id, err := schema.ParseDeploymentID(of)
	require.NoError(t, err)
	server := harness.NewCluster(t)
	server.CreateDatabase("own")
	proxy := harness.NewProxy(t, server.Address())
	dsn, err := url.Parse(server.DSN("own"))
	require.NoError(t, err)
	dsn.Host = proxy.Address()
	p := harness.NewProcessesWith(t, everything, playground.Config{
		Databases: playground.Databases{DSNs: map[schema.DeploymentID]string{id: dsn.String()}},
		Args:      append([]string{"--tentative-ttl", "1s"}, args...),
	})
	return &fixture{t: t, Processes: p}, server, proxy
}

// A standby without the last commits takes over while everything runs. The deployment detects it: a target
// whose blockade was lost is never deleted, a target whose holder was lost does not stay blocked, and status
// and metrics report it.
func TestAFailoverThatLosesCommits_I1_I2_I8(t *testing.T) {
	t.Parallel()
	const of = "a.example.com/us-west2"
	f, primary, proxy := movable(t, of, "--owner-grace", "1s")
	f.mustPut(aWest+"targets/kept", nil)
	f.mustPut(aWest+"targets/held", nil)
	f.mustPut(bEast+"holders/held", fields{"block": aWest + "targets/held"})
	f.mustPut(bEast+"holders/owner", nil)
	f.settled()
	primary.Stop()
	standby := primary.Copy()
	primary.Start()
	proxy.Move(primary.Address())
	f.ready(of)
	// Lost: a blockade, a release, a resource, and its references.
	f.eventually("the connections are made again", func() bool {
		_, err := f.put(aWest+"targets/lost", nil)
		return err == nil
	})
	f.mustPut(bEast+"holders/new", fields{"block": aWest + "targets/kept"})
	f.mustPut(bWest+"holders/unsets", fields{"unset": fields{"list": []any{aWest + "targets/kept"}}})
	f.mustPut(bEast+"holders/held", nil)
	f.mustPut(aEast+"targets/elsewhere", nil)
	f.mustPut(aWest+"targets/refers", fields{"needs": fields{"x": aEast + "targets/elsewhere"}})
	f.mustPut(bEast+"holders/lost", fields{"block": aWest + "targets/lost"})
	f.mustPut(bEast+"holders/cascades", fields{"cascade": aWest + "targets/lost"})
	f.mustPut(bWest+"holders/loose", fields{"asyncUnset": aWest + "targets/lost", "kept": "yes"})
	f.mustPut(aWest+"targets/owned", nil, ownedBy("Holder", bEast+"holders/owner"))
	f.settled()
	primary.Stop()
	standby.StartPromoted()
	proxy.Move(standby.Address())

	// At every moment: unavailable, and then blocked by the holder whose blockade was lost.
	f.eventually("the lost blocker is known again", func() bool {
		err := f.delete(aWest + "targets/kept")
		require.Error(t, err, "it is referred to")
		if status.Code(err) == codes.FailedPrecondition {
			require.ErrorContains(t, err, bEast+"holders/new")
		}
		return status.Code(err) == codes.FailedPrecondition
	})
	f.eventually("everybody has confirmed", func() bool {
		e := f.status(of).GetEpoch()
		return e.GetOrdinal() == 2 && !e.GetAwaitingRegistry() && len(e.GetUnconfirmed()) == 0
	})
	f.eventually("nothing is outstanding", func() bool { return len(f.status(of).GetOutstanding()) == 0 })
	out, err := run(t, "status", of, "--context", f.Context)
	require.NoError(t, err, out)
	require.Contains(t, out, "the database was failed over or restored 1 time, last noticed")
	require.EqualValues(t, 2, f.metric(aWest+"x/y", "dbcontroller_epoch"))
	require.Zero(t, f.metric(aWest+"x/y", "dbcontroller_unconfirmed_deployments"))

	require.NoError(t, f.delete(aWest+"targets/held"), "its holder has let go, which was lost")
	require.NoError(t, f.delete(aEast+"targets/elsewhere"), "its holder was lost")
	require.Nil(t, f.get(aWest+"targets/lost"))
	// verify reports that a user has to decide about the holder of a lost target.
	out, err = run(t, "verify", "--context", f.Context)
	require.Error(t, err)
	require.Contains(t, out, "3 differences left")
	require.Contains(t, out, "TARGET_GONE  "+bEast+"holders/lost (block) and "+aWest+"targets/lost")
	require.Contains(t, out, "needs a decision: update "+bEast+
		"holders/lost so that it refers to a resource that exists, or delete it")
	out, err = run(t, "explain", bEast+"holders/lost", "--context", f.Context)
	require.NoError(t, err, out)
	require.Contains(t, out, "DANGLING   block refers to "+aWest+
		"targets/lost, which was deleted without this reference")
	// Those that do not block are acted upon by one decision.
	act := []string{"verify", "--repair", "--dangling=act", "--reason", "the standby lagged", "--context", f.Context}
	out, err = run(t, act...)
	require.Error(t, err)
	require.Contains(t, out, "b.example.com/us-west2: 1 dangling reference with ASYNC_UNSET: values are unset")
	require.Contains(t, out, "2 dangling references would act, which cannot be undone: add --yes")
	require.NotNil(t, f.get(bEast+"holders/cascades"))
	out, err = run(t, append(act, "--yes")...)
	require.Error(t, err, "the one that blocks is left")
	require.Contains(t, out, "1 difference left")
	require.Nil(t, f.get(bEast+"holders/cascades"))
	require.Equal(t, fields{"kept": "yes"}, f.get(bWest+"holders/loose").GetBody().AsMap())
	out, err = run(t, "removals", bEast+"holders/cascades", "--context", f.Context)
	require.NoError(t, err, out)
	require.Contains(t, out, "cascaded with "+aWest+
		"targets/lost, of which no record is kept\n  root: a decision about a.example.com/us-west2, ")
	require.Contains(t, out, "by operator/")
	out, err = run(t, "status", "b.example.com/eastus2", "--context", f.Context)
	require.NoError(t, err, out)
	require.Contains(t, out, "DANGLING_ACTED of a.example.com/us-west2, by operator/")
	require.Contains(t, out, ": the standby lagged")
	f.mustPut(bEast+"holders/lost", nil)
	f.mustPut(bEast+"holders/new", nil)
	f.mustDelete(aWest + "targets/kept")
	f.settled()
	out, err = run(t, "verify", "--context", f.Context)
	require.NoError(t, err, out)
	require.Contains(t, out, "No differences.")
}

// A process is killed in the middle of acting upon dangling references, after the first of several
// transactions. The decision is made again after its restart, and the end is the same as without the kill.
func TestActingUponDanglingReferencesIsContinuedAfterAKill_I1_I19(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts three processes")
	}
	const of, at, page = "a.example.com/us-west2", "b.example.com/us-west2", 700
	services := strings.NewReplacer("regions: [us-west2, eastus2]", "regions: [us-west2]",
		"  - { deployment: a.example.com/eastus2, version: v1 }\n", "",
		"  - { deployment: b.example.com/eastus2, version: v1 }\n", "").Replace(everything)
	server, f := harness.NewCluster(t), &fixture{t: t}
	server.CreateDatabase("own")
	proxy := harness.NewProxy(t, server.Address())
	dsn, err := url.Parse(server.DSN("own"))
	require.NoError(t, err)
	dsn.Host = proxy.Address()
	f.Processes = harness.NewProcessesWith(t, services, playground.Config{
		Binary:    harness.CrashingBinary(t),
		Databases: playground.Databases{DSNs: map[schema.DeploymentID]string{f.id(aWest + "x/y"): dsn.String()}},
	})
	f.mustPut(aWest+"targets/kept", nil)
	f.settled()
	server.Stop()
	standby := server.Copy()
	server.Start()
	proxy.Move(server.Address())
	f.mustPut(aWest+"targets/lost", nil)
	_, holders := f.named(bWest + "holders/h")
	for kind, field := range map[string]string{"cascade": "cascade", "unset": "asyncUnset"} {
		req := &resourcev1.BatchWriteResourcesRequest{}
		for i := range page {
			put := &resourcev1.Resource{
				Name: fmt.Sprintf("holders/%s%d", kind, i),
				Body: body(t, fields{"kept": "yes", field: aWest + "targets/lost"}),
			}
			req.Writes = append(req.Writes,
				&resourcev1.BatchWriteResourcesRequest_Write{
					Write: &resourcev1.BatchWriteResourcesRequest_Write_Put{Put: put},
				})
		}
		require.NoError(t, patiently(t.Context(), func() error {
			_, err := holders.BatchWriteResources(t.Context(), req)
			return err
		}))
	}
	f.mustPut(bWest+"holders/blocks", fields{"block": aWest + "targets/lost"})
	f.settled()
	server.Stop()
	standby.StartPromoted()
	proxy.Move(standby.Address())
	dangling := func() int64 { return f.status(at).GetDanglingReferences() }
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		e := f.statusFor(c, of).GetEpoch()
		require.True(c, e.GetOrdinal() == 2 && !e.GetAwaitingRegistry() && len(e.GetUnconfirmed()) == 0, "%v", e)
		require.EqualValues(c, 2*page+1, f.statusFor(c, at).GetDanglingReferences())
	}, wait.Limit, 50*time.Millisecond)

	holding := f.Deployments[f.id(bWest+"x/y")]
	require.NoError(t, holding.Stop())
	holding.Environment("DBCONTROLLER_CRASH=crash-dangling-acted")
	require.NoError(t, holding.Start())
	f.ready(at)
	act := []string{
		"verify", "--repair", "--dangling=act", "--reason", "the standby lagged", "--yes",
		"--context", f.Context,
	}
	var out string
	f.eventually("it is killed", func() bool { // the command may fail before it acts, because another process is late
		if !holding.Ended() {
			out, err = run(t, act...)
			t.Log(out)
			assert.Error(t, err, out)
		}
		return holding.Ended()
	})
	_ = holding.Kill() // notes that it has ended
	holding.Environment()
	require.NoError(t, holding.Start())
	f.ready(at)
	left := dangling()
	require.Less(t, left, int64(2*page+1), "a transaction was committed")
	require.Greater(t, left, int64(1), "not all were")
	out, err = run(t, act...)
	require.Error(t, err, "the one that blocks is left")
	require.Contains(t, out, "1 difference left")
	require.EqualValues(t, 1, dangling())
	require.Nil(t, f.get(bWest+"holders/cascade0"))
	require.Nil(t, f.get(bWest+fmt.Sprintf("holders/cascade%d", page-1)))
	for _, i := range []int{0, page - 1} {
		require.Equal(t, fields{"kept": "yes"}, f.get(fmt.Sprintf("%sholders/unset%d", bWest, i)).GetBody().AsMap())
	}
	f.mustPut(bWest+"holders/blocks", nil)
	f.settled()
}

// takeTransactionIDs makes a database take many transaction ids.
func takeTransactionIDs(t *testing.T, dsn string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer func() { _ = conn.Close(t.Context()) }()
	_, err = conn.Exec(t.Context(), `SET synchronous_commit = off`)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(),
		`DO $$ BEGIN FOR i IN 1..5000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$`)
	require.NoError(t, err)
}

// positionsBeyond waits until all other deployments have stored a position of a deployment's database that is
// not before the present one.
func (f *fixture) positionsBeyond(of, dsn string) {
	f.t.Helper()
	read := func(dsn, sql string, args ...any) (text string) {
		conn, err := pgx.Connect(f.t.Context(), dsn)
		require.NoError(f.t, err)
		defer func() { _ = conn.Close(f.t.Context()) }()
		require.NoError(f.t, conn.QueryRow(f.t.Context(), sql, args...).Scan(&text))
		return text
	}
	now, err := strconv.Atoi(read(dsn, `SELECT pg_snapshot_xmax(pg_current_snapshot())::text`))
	require.NoError(f.t, err)
	for id, d := range f.Deployments {
		if id.String() == of {
			continue
		}
		f.eventually(id.String()+" has stored a position", func() bool {
			token := read(d.DSN,
				`SELECT p.token FROM dbcontroller.position p JOIN dbcontroller.deployment d ON d.id = p.deployment_id WHERE d.service || '/' || d.region = $1`, of)
			raw, err := base64.RawURLEncoding.DecodeString(token)
			require.NoError(f.t, err)
			const mac = 16
			parts := strings.Split(string(raw[mac:]), "|") // format, key, epoch, filter, position, witness
			require.Len(f.t, parts, 6)
			xmax, err := strconv.Atoi(strings.Split(parts[4], ":")[1])
			require.NoError(f.t, err)
			return xmax >= now
		})
	}
}

// A deployment starts over an older copy of its server's files, no operator announces it, and the processes
// of all others have restarted as well: the positions that they have stored reveal it, and the lost blocker
// is known again before anything is deleted.
func TestARestoredCopyIsNoticedByRestartedDeployments_I1_I2(t *testing.T) {
	t.Parallel()
	const of = "a.example.com/us-west2"
	f, server, proxy := movable(t, of)
	p := f.Deployments[f.id(aWest+"x/y")]
	f.mustPut(aWest+"targets/kept", nil)
	f.settled()
	require.NoError(t, p.Stop())
	server.Stop()
	backup := server.Copy()
	server.Start()
	proxy.Move(server.Address())
	require.NoError(t, p.Start())
	f.ready(of)
	f.eventually("the connections are made again", func() bool {
		_, err := f.put(bEast+"holders/new", fields{"block": aWest + "targets/kept"})
		return err == nil
	})
	takeTransactionIDs(t, server.DSN("own")) // more than the start of a process takes
	f.settled()
	f.positionsBeyond(of, server.DSN("own"))
	others := slices.DeleteFunc(slices.Collect(maps.Values(f.Deployments)), func(d *playground.Deployment) bool {
		return d == p
	})
	for _, d := range append(others, p) {
		require.NoError(t, d.Stop())
	}
	server.Stop()
	backup.Start()
	proxy.Move(backup.Address())
	for _, d := range append(others, p) {
		require.NoError(t, d.Start())
	}
	for id := range f.Deployments {
		f.ready(id.String())
	}
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		e := f.status(of).GetEpoch()
		require.True(c, e.GetOrdinal() == 2 && !e.GetAwaitingRegistry() && len(e.GetUnconfirmed()) == 0, "%v", e)
	}, wait.Limit, poll)
	require.ErrorContains(t, f.delete(aWest+"targets/kept"), bEast+"holders/new")
}

// An older copy of a server's files cannot be distinguished from the server at that time, once it has taken
// as many transaction ids, and numbers of the sequence mark, as it had lost. Without --restored, verify finds
// and repairs the differences; with it, the deployment recovers by itself.
func TestARestoredBackup_I1_I8(t *testing.T) {
	t.Parallel()
	for _, said := range []bool{false, true} {
		t.Run(map[bool]string{false: "verify", true: "said"}[said], func(t *testing.T) {
			t.Parallel()
			const of = "a.example.com/us-west2"
			f, server, proxy := movable(t, of, "--owner-grace", "1s", "--audit-interval", "500ms")
			p := f.Deployments[f.id(aWest+"x/y")]
			f.mustPut(aWest+"targets/kept", nil)
			f.mustPut(aWest+"targets/held", nil)
			f.mustPut(bEast+"holders/held", fields{"block": aWest + "targets/held"})
			f.mustPut(bEast+"holders/owner", nil)
			f.settled()
			require.NoError(t, p.Stop())
			server.Stop()
			backup := server.Copy()
			server.Start()
			proxy.Move(server.Address())
			require.NoError(t, p.Start())
			f.ready(of)
			f.eventually("the connections are made again", func() bool {
				_, err := f.put(bEast+"holders/new", fields{"block": aWest + "targets/kept"})
				return err == nil
			})
			f.mustPut(bEast+"holders/held", nil)
			f.mustPut(aWest+"targets/owns", nil)
			f.mustPut(bEast+"holders/owned", nil, ownedBy("Target", aWest+"targets/kept"))
			f.settled()
			require.NoError(t, p.Stop())
			server.Stop()
			backup.Start()
			proxy.Move(backup.Address())
			if said {
				p.Add("--restored")
			} else {
				takeTransactionIDs(t, backup.DSN("own"))
				execute(t, backup.DSN("own"), `SELECT nextval('dbcontroller.mark') FROM generate_series(1, 10000)`)
			}
			require.NoError(t, p.Start())
			f.ready(of)
			if said {
				f.eventually("it recovers", func() bool {
					s := f.status(of)
					return s.GetEpoch().GetOrdinal() == 2 && len(s.GetEpoch().GetUnconfirmed()) == 0 &&
						len(s.GetOutstanding()) == 0
				})
			} else {
				require.EqualValues(t, 1, f.status(of).GetEpoch().GetOrdinal(), "it cannot know")
				f.eventually("audits find it", func() bool {
					return f.metric(aWest+"x/y", `dbcontroller_audit_differences{kind="BLOCKADE_OF_NOTHING"}`) == 1 &&
						f.metric(bEast+"x/y", `dbcontroller_audit_differences{kind="REFERENCE_NOT_KNOWN"}`) == 1
				})
				out, err := run(t, "verify", "--context", f.Context)
				require.Error(t, err)
				require.Contains(t, out, "3 differences left: verify --repair makes the certain repairs")
				for _, found := range []string{
					"REFERENCE_NOT_KNOWN  " + bEast + "holders/new (block) and " + aWest + "targets/kept",
					"BLOCKADE_OF_NOTHING  " + bEast + "holders/held (block) and " + aWest + "targets/held",
					"OWNEE_NOT_KNOWN  " + bEast + "holders/owned (@owner) and " + aWest + "targets/kept",
					"remedy: verify --repair", "cause:  a.example.com/us-west2 has no record of the reference",
				} {
					require.Contains(t, out, found)
				}
				out, err = run(t, "verify", "--repair", "--context", f.Context)
				require.NoError(t, err, out)
				require.Contains(t, out, "3 differences repaired.")
			}
			f.settled()
			out, err := run(t, "verify", "--context", f.Context)
			require.NoError(t, err, out)
			f.eventually("audits find nothing", func() bool {
				at := aWest + "x/y"
				return f.metric(at, "dbcontroller_audit_timestamp_seconds") > 0 &&
					f.metric(at, `dbcontroller_audit_differences{kind="BLOCKADE_OF_NOTHING"}`) == 0
			})
			require.ErrorContains(t, f.delete(aWest+"targets/kept"), bEast+"holders/new")
			f.mustDelete(aWest + "targets/held")
			// A deployment that does not answer is named.
			away := f.Deployments[f.id(bWest+"x/y")]
			require.NoError(t, away.Kill())
			out, err = run(t, "verify", "--context", f.Context)
			require.Error(t, err)
			require.Contains(t, out,
				"the comparison is incomplete, these deployments did not answer: b.example.com/us-west2")
			require.Contains(t, out, "b.example.com/us-west2: NOT VERIFIED")
		})
	}
}
