package clusters

import (
	"context"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

// Both databases are behind pgbouncer, set up as the manual says, and migrated directly.
func TestClustersPgBouncer(t *testing.T) {
	chosen(t)
	for _, mode := range []string{"session", "transaction"} {
		t.Run(mode, func(t *testing.T) {
			server := harness.NewCluster(t)
			dsns := map[string]string{}
			for database, at := range map[string]string{"a": aWest, "b": bWest} {
				server.CreateDatabase(database)
				out, err := exec.CommandContext(t.Context(), harness.Binary(t), "migrate", "up", "--postgres",
					server.DSN(database)).CombinedOutput()
				require.NoError(t, err, "%s", out)
				dsns[at] = harness.Pooled(t, server, database, mode)
			}
			f := start(t, services, dsns)
			ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
			defer cancel()
			_, holders := f.named(bWest + "holders/x")
			watch, err := holders.WatchResources(ctx, &resourcev1.WatchResourcesRequest{})
			require.NoError(t, err)
			f.mustPut(aWest+"targets/blocked", nil)
			f.mustPut(aWest+"targets/cascades", nil)
			f.mustPut(bWest+"holders/blocks", fields{"block": aWest + "targets/blocked"})
			f.mustPut(bWest+"holders/cascades", fields{"cascade": aWest + "targets/cascades"})
			err = f.delete(aWest + "targets/blocked")
			require.Equal(t, codes.FailedPrecondition, status.Code(err), "%v", err)
			require.ErrorContains(t, err, bWest+"holders/blocks")
			require.NoError(t, f.delete(aWest+"targets/cascades"))
			require.Eventually(t, func() bool { return !f.exists(bWest + "holders/cascades") }, wait.Limit, wait.Poll)
			for seen := map[string]bool{}; !seen["put"] || !seen["gone"]; {
				event, err := watch.Recv()
				require.NoError(t, err)
				seen["put"] = seen["put"] || event.GetUpsert().GetName() == "holders/cascades"
				seen["gone"] = seen["gone"] || event.GetDelete().GetName() == "holders/cascades"
			}
			f.settled()
			f.verified()
		})
	}
}
