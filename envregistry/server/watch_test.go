package server_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/envregistry/server"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/migrations"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	"github.com/db-controller/db-controller/test/wait"
)

var operator = identity.Identity{Role: identity.RoleOperator, Name: "o"}

// heard formats an event as a line.
func heard(msg *registryv1.WatchEnvironmentResponse) string {
	said := func(c *registryv1.WatchEnvironmentResponse_Change) string {
		switch item := c.GetItem().(type) {
		case *registryv1.WatchEnvironmentResponse_Change_Region:
			return item.Region.GetName()
		case *registryv1.WatchEnvironmentResponse_Change_Service:
			return item.Service.GetService() + "@" + item.Service.GetVersion()
		default:
			return fmt.Sprintf("%s/%s %s", c.GetDeployment().GetService(), c.GetDeployment().GetRegion(),
				c.GetDeployment().GetVersion())
		}
	}
	switch e := msg.GetEvent().(type) {
	case *registryv1.WatchEnvironmentResponse_Upsert:
		return "+ " + said(e.Upsert)
	case *registryv1.WatchEnvironmentResponse_Delete:
		return "- " + said(e.Delete)
	case *registryv1.WatchEnvironmentResponse_EndOfSnapshot_:
		return "end"
	default:
		return "bookmark"
	}
}

// listen returns the events of a watch, and its last token, when there are enough events or the watch ends.
func listen(t *testing.T, c registryv1.RegistryServiceClient, token string,
	enough func(heard []string) bool,
) (all []string, last string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
	defer cancel()
	stream, err := c.WatchEnvironment(ctx, &registryv1.WatchEnvironmentRequest{ResumeToken: token})
	require.NoError(t, err)
	for !enough(all) {
		msg, err := stream.Recv()
		if err != nil {
			return all, last, err
		}
		all = append(all, heard(msg))
		last = cmpOr(msg.GetEndOfSnapshot().GetResumeToken(), msg.GetBookmark().GetResumeToken(), last)
	}
	return all, last, nil
}

func cmpOr(all ...string) string {
	return all[max(0, slices.IndexFunc(all, func(s string) bool { return s != "" }))]
}

func ends(with ...string) func([]string) bool {
	return func(all []string) bool { return len(all) >= len(with) && slices.Equal(all[len(all)-len(with):], with) }
}

// The watch of the environment follows the rules of all watches: a snapshot, one end of it, then every
// change, and tokens.
func TestTheWatchOfTheEnvironmentFollowsTheRulesOfWatches_I23(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	c := serve(t, dsn, operator)
	all, empty, err := listen(t, c, "", ends("end"))
	require.NoError(t, err)
	require.Equal(t, []string{"end"}, all, "the snapshot of nothing ends")

	apply(t, c, example)
	snapshot := []string{
		"+ eastus2", "+ us-west2", "+ iam.example.com@v1", "+ iam.example.com@v2",
		"+ iam.example.com/eastus2 v1", "+ iam.example.com/us-west2 v1", "end",
	}
	all, token, err := listen(t, c, "", ends("end"))
	require.NoError(t, err)
	require.Equal(t, snapshot, all)
	all, _, err = listen(t, c, empty, ends("bookmark"))
	require.NoError(t, err)
	require.ElementsMatch(t, append(slices.Clone(snapshot[:6]), "bookmark"), all,
		"all of one transaction, and no second end")

	for _, version := range []string{"v2", "v1"} {
		_, err = c.SetDeploymentVersion(t.Context(), &registryv1.SetDeploymentVersionRequest{
			Service: west.Service,
			Region:  west.Region, Version: version,
		})
		require.NoError(t, err)
	}
	_, err = c.DecommissionDeployment(t.Context(), &registryv1.DecommissionDeploymentRequest{
		Service: west.Service,
		Region:  west.Region, Reason: "fire",
	})
	require.NoError(t, err)
	all, token, err = listen(t, c, token, ends("bookmark"))
	require.NoError(t, err)
	require.Equal(t, []string{
		"+ iam.example.com/us-west2 v2", "+ iam.example.com/us-west2 v1",
		"- iam.example.com/us-west2 v1", "bookmark",
	}, all)
	all, _, err = listen(t, c, token, ends("bookmark"))
	require.NoError(t, err)
	require.Equal(t, []string{"bookmark"}, all, "nothing is said twice, and an idle watch speaks")
}

func TestATokenOfTheEnvironmentThatCannotBeResumedIsReset_I24(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	c := serve(t, dsn, operator)
	_, token, err := listen(t, c, "", ends("end"))
	require.NoError(t, err)
	reset := func(c registryv1.RegistryServiceClient, token, why string) {
		t.Helper()
		all, _, err := listen(t, c, token, func([]string) bool { return false })
		require.Equal(t, codes.OutOfRange, status.Code(err), "%v", err)
		require.ErrorContains(t, err, why)
		require.Empty(t, all)
	}
	reset(c, "nonsense", "malformed")
	reset(c, token[:len(token)-2]+"AA", "it was not made by this database")
	reset(serve(t, database(t), operator), token, "restored, copied or failed over")

	for _, rotate := range []func(){func() {}, func() { // a token outlives one rotation of the keys
		conn, err := pgx.Connect(t.Context(), dsn)
		require.NoError(t, err)
		require.NoError(t, migrations.RotateKeys(t.Context(), conn, migrations.Registry))
		require.NoError(t, conn.Close(t.Context()))
	}} {
		rotate()
		all, _, err := listen(t, c, token, ends("bookmark"))
		require.NoError(t, err)
		require.Equal(t, []string{"bookmark"}, all)
	}

	apply(t, c, example)
	pool, err := postgres.Connect(t.Context(), dsn, "test", 2)
	require.NoError(t, err)
	defer pool.Close()
	_, err = pool.Exec(t.Context(), `UPDATE dbcontroller_registry.change SET changed_at = now() - interval '25 hours'`)
	require.NoError(t, err)
	require.NoError(t, server.New(pool, nil, nil, zap.NewNop()).Tidy(t.Context()))
	reset(c, token, "older than the retention of changes")
	// A transaction that was open all the time, in any database of the server, would make the next token
	// older than the removed changes, which are not really a day old.
	require.Eventually(t, func() bool {
		var passed bool
		err := pool.QueryRow(t.Context(),
			`SELECT pg_snapshot_xmin(pg_current_snapshot()) > compacted FROM dbcontroller_registry.meta`).Scan(&passed)
		require.NoError(t, err)
		return passed
	}, wait.Limit, 10*time.Millisecond)

	// The server is another one, which may call its timeline as the one before.
	_, token, err = listen(t, c, "", ends("end"))
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), `UPDATE dbcontroller_registry.meta SET server = 'another'`)
	require.NoError(t, err)
	reset(c, token, "failed over")
	_, token, err = listen(t, c, "", ends("end"))
	require.NoError(t, err)
	_, _, err = listen(t, c, token, ends("bookmark"))
	require.NoError(t, err, "the epoch that was begun goes on")
}

// The registry's rows on another server, which has used fewer transactions and whose sequences have not
// moved: a dump, or a subscriber of logical replication. A server starts, and a watch receives the
// environment once, and later changes alone.
func TestTheRowsOfAnotherServer_I23_I24(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	pool, err := postgres.Connect(t.Context(), dsn, "test", 2)
	require.NoError(t, err)
	defer pool.Close()
	start := func() registryv1.RegistryServiceClient {
		require.NoError(t, server.New(pool, nil, nil, zap.NewNop()).Begin(t.Context()))
		return serve(t, dsn, operator)
	}
	apply(t, start(), example)
	for _, sql := range []string{
		`UPDATE dbcontroller_registry.change SET xid = (xid::text::bigint + 1000000)::text::xid8`,
		`UPDATE dbcontroller_registry.meta SET server = 'another', compacted = (SELECT max(xid) FROM dbcontroller_registry.change)`,
		`ALTER TABLE dbcontroller_registry.change ALTER seq RESTART`,
		`ALTER TABLE dbcontroller_registry.history ALTER seq RESTART`,
	} {
		_, err = pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	c := start()
	all, token, err := listen(t, c, "", ends("bookmark"))
	require.NoError(t, err)
	require.Equal(t, []string{
		"+ eastus2", "+ us-west2", "+ iam.example.com@v1", "+ iam.example.com@v2",
		"+ iam.example.com/eastus2 v1", "+ iam.example.com/us-west2 v1", "end", "bookmark",
	}, all)
	_, err = c.SetDeploymentVersion(t.Context(), &registryv1.SetDeploymentVersionRequest{
		Service: west.Service,
		Region:  west.Region, Version: "v2",
	})
	require.NoError(t, err)
	all, _, err = listen(t, c, token, ends("bookmark"))
	require.NoError(t, err)
	require.Equal(t, []string{"+ iam.example.com/us-west2 v2", "bookmark"}, all)
}
