package server_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/identity"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
)

// A deployment that registers other addresses without end leaves few rows, and keeps no other caller from the
// registry.
func TestADeploymentThatRegistersWithoutEndStopsNobody_I20(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	operator := serve(t, dsn, identity.Identity{Role: identity.RoleOperator, Name: "o"})
	apply(t, operator, example)
	hostile := serve(t, dsn, identity.Deployment(west))
	var flood sync.WaitGroup
	var done, refused atomic.Int64
	for i := range 50 {
		flood.Go(func() {
			for n := range 20 {
				_, err := hostile.RegisterDeployment(t.Context(), &registryv1.RegisterDeploymentRequest{
					Service: west.Service, Region: west.Region, Address: fmt.Sprintf("host-%d-%d:1", i, n),
					Generation: next(t, hostile, west),
				})
				switch status.Code(err) {
				case codes.OK, codes.FailedPrecondition: // another one was faster
					done.Add(1)
				case codes.ResourceExhausted:
					refused.Add(1)
				default:
					t.Errorf("%v", err)
				}
			}
		})
	}
	east := west
	east.Region = "eastus2"
	other := serve(t, dsn, identity.Deployment(east))
	for i := range 5 {
		_, err := other.RegisterDeployment(t.Context(), &registryv1.RegisterDeploymentRequest{
			Service: east.Service,
			Region:  east.Region, Address: fmt.Sprintf("east-%d:1", i), Generation: next(t, other, east),
		})
		require.NoError(t, err)
		_, err = operator.GetEnvironment(t.Context(), &registryv1.GetEnvironmentRequest{})
		require.NoError(t, err)
	}
	flood.Wait()
	require.Less(t, done.Load(), int64(100), "20, and one a second")
	require.Greater(t, refused.Load(), int64(900))
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	var rows int
	require.NoError(t,
		conn.QueryRow(t.Context(), `SELECT count(*) FROM dbcontroller_registry.change WHERE address LIKE 'host-%'`).
			Scan(&rows))
	require.LessOrEqual(t, int64(rows), done.Load())
}
