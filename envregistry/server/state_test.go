package server_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/envregistry/server"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/internal/postgres"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
)

// The state has the counts of deployments, and agrees with GetEnvironment on the completeness of their list.
func TestTheStateHasCountsAndCompleteness(t *testing.T) {
	t.Parallel()
	dsn, ctx := database(t), context.Background()
	pool, err := postgres.Connect(ctx, dsn, "test", 4)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	s := server.New(pool, nil, nil, zap.NewNop())
	state := func() server.State {
		st, err := s.State(ctx)
		require.NoError(t, err)
		return st
	}
	operator := serve(t, dsn, identity.Identity{Role: identity.RoleOperator, Name: "o"})
	agrees := func() {
		answer, err := operator.GetEnvironment(ctx, &registryv1.GetEnvironmentRequest{})
		require.NoError(t, err)
		require.Equal(t, !answer.GetIncomplete(), state().Complete)
	}
	require.Equal(t, server.State{}, state(), "an empty list is not complete")
	agrees()

	apply(t, operator, example)
	st := state()
	require.Positive(t, st.Revision)
	st.Revision = 0
	require.Equal(t, server.State{Complete: true, Awaited: 2}, st)
	agrees()

	own := serve(t, dsn, identity.Deployment(west))
	_, err = own.RegisterDeployment(ctx, &registryv1.RegisterDeploymentRequest{
		Service: west.Service,
		Region:  west.Region, Address: "a:1", Generation: 1,
	})
	require.NoError(t, err)
	apply(t, operator, "regions: []\ndeployments: [{deployment: iam.example.com/eastus2, version: v1, disabled: true}]")
	st = state()
	require.Equal(t, []int64{1, 0, 1}, []int64{st.Registered, st.Awaited, st.Disabled})
	agrees()

	conn, err := pgx.Connect(ctx, dsn)
	require.NoError(t, err)
	defer func() { _ = conn.Close(ctx) }()
	_, err = conn.Exec(ctx, `UPDATE dbcontroller_registry.meta SET history = 'another'`) // west is not heard of in it
	require.NoError(t, err)
	require.False(t, state().Complete)
	agrees()
}
