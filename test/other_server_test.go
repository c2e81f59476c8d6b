package test

import (
	"context"
	"os/exec"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/cmd/db-controller/playground"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

// A deployment moves to other servers while one of its deletions waits: by a dump, to a server that has used
// fewer transactions, and by logical replication, which copies no sequences. The deletions end, others are
// accepted, and a watch receives nothing of before its snapshot.
func TestADeploymentMovesToAnotherServer_I1_I13_I23(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"pg_dump", "pg_restore", "psql"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	const of = "a.example.com/us-west2"
	if testing.Short() {
		t.Skip("starts six processes")
	}
	server := newHome(t)
	proxy := harness.NewProxy(t, server.Address())
	id, err := schema.ParseDeploymentID(of)
	require.NoError(t, err)
	f := &fixture{t: t, Processes: harness.NewProcessesWith(t, everything,
		playground.Config{Databases: playground.Databases{DSNs: map[schema.DeploymentID]string{
			id: homeAt(proxy.Address()),
		}}})}
	execute(t, homeAt(server.Address()), `DO $$ BEGIN
		FOR i IN 1..200000 LOOP
			BEGIN
				CREATE TEMPORARY TABLE IF NOT EXISTS used (i int) ON COMMIT DROP;
				INSERT INTO used VALUES (i);
			EXCEPTION WHEN division_by_zero THEN NULL;
			END;
		END LOOP;
	END $$`)
	for _, moved := range []struct {
		by   string
		move func(source, target string)
	}{
		{"dump", func(source, target string) {
			script(t, `pg_dump -Fc "$0" | pg_restore --no-owner --exit-on-error -d "$1"`, source, target)
		}},
		{"subscriber", func(source, target string) { replicate(t, source, target) }},
	} {
		waits, holder := aWest+"targets/"+moved.by, bEast+"holders/"+moved.by
		f.mustPut(waits, nil)
		f.mustPut(holder, fields{"cascade": waits})
		f.mustPut(aWest+"targets/kept", fields{"x": "before"})
		f.mustPut(aWest+"targets/kept", fields{"x": moved.by})
		f.settled()
		require.NoError(t, f.Deployments[f.id(bEast+"x/y")].Kill())
		f.mustDelete(waits)
		require.NoError(t, f.Deployments[f.id(aWest+"x/y")].Stop())
		other := newHome(t)
		moved.move(homeAt(server.Address()), homeAt(other.Address()))
		server.Stop()
		server = other
		proxy.Move(server.Address())
		require.NoError(t, f.Deployments[f.id(aWest+"x/y")].Start())
		f.ready(of)

		stream, err := resourcev1.NewResourceServiceClient(f.asUser(of)).WatchResources(t.Context(),
			&resourcev1.WatchResourcesRequest{})
		require.NoError(t, err)
		var heard []string
		hear := func(last string) {
			for {
				msg, err := stream.Recv()
				require.NoError(t, err)
				if u := msg.GetUpsert(); u != nil {
					heard = append(heard, u.GetName())
				}
				if msg.GetEndOfSnapshot() != nil && last == "" || msg.GetUpsert().GetName() == last {
					return
				}
			}
		}
		hear("")
		require.ElementsMatch(t, []string{"targets/kept", "targets/" + moved.by}, heard)
		f.mustPut(aWest+"targets/kept", fields{"x": "after"})
		hear("targets/kept")
		require.Len(t, heard, 3, "the change of after the move is the first one")

		require.NoError(t, f.Deployments[f.id(bEast+"x/y")].Start())
		f.ready("b.example.com/eastus2")
		f.gone(waits, holder)
		f.settled()
		f.mustPut(waits, nil)
		f.eventually("a delete is accepted", func() bool { return f.delete(waits) == nil })
		f.gone(waits)
	}
}

// newHome starts a server with a database for homeAt, which can be a publisher.
func newHome(t *testing.T) *harness.Cluster {
	t.Helper()
	c := harness.NewCluster(t)
	c.CreateDatabase("own")
	execute(t, c.DSN("own"), `ALTER SYSTEM SET wal_level = logical`)
	execute(t, c.DSN("own"), `CREATE ROLE mover SUPERUSER LOGIN PASSWORD 'moves'`)
	c.Stop()
	c.Start()
	return c
}

func homeAt(address string) string {
	return "postgres://mover:moves@" + address + "/own?sslmode=disable"
}

func execute(t *testing.T, dsn, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	_, err = conn.Exec(t.Context(), sql)
	require.NoError(t, err)
}

func script(t *testing.T, text string, args ...string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "bash", append([]string{"-euo", "pipefail", "-c", text}, args...)...).
		CombinedOutput() //nolint:gosec // of these tests
	require.NoError(t, err, "%s", out)
}

// replicate copies a database as a blue/green upgrade does: its schema by a dump, its rows by a subscription,
// which ends.
func replicate(t *testing.T, source, target string) {
	t.Helper()
	script(t, `pg_dump --schema-only "$0" | psql -qX -v ON_ERROR_STOP=1 "$1" >/dev/null`, source, target)
	execute(t, source, `CREATE PUBLICATION moves FOR ALL TABLES`)
	execute(t, target, `CREATE SUBSCRIPTION moves CONNECTION '`+source+`' PUBLICATION moves`)
	conn, err := pgx.Connect(t.Context(), target)
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	require.Eventually(t, func() bool {
		var copied bool
		err := conn.QueryRow(t.Context(),
			`SELECT count(*) > 0 AND bool_and(srsubstate IN ('r', 's')) FROM pg_subscription_rel`).Scan(&copied)
		return err == nil && copied
	}, wait.Limit, poll)
	_, err = conn.Exec(t.Context(), `DROP SUBSCRIPTION moves`)
	require.NoError(t, err)
}
