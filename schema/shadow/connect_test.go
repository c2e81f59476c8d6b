package shadow_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

// A connection that lost its settings on the way, as behind a pooler, is refused, and told what gives it them for good.
func TestConnectionsHaveTheirSettings_I22(t *testing.T) {
	t.Parallel()
	dsn := harness.Postgres(t).NewDatabase(t, "")
	pool, err := pgxpool.New(t.Context(), dsn)
	require.NoError(t, err)
	defer pool.Close()
	err = shadow.CheckSettings(t.Context(), pool)
	require.ErrorContains(t, err, "a pooler ignores them; run once, directly at the server: ALTER DATABASE ")
	for _, command := range []string{"SET enable_seqscan = 'off';", "SET statement_timeout = '60000';"} {
		require.ErrorContains(t, err, command)
	}
	_, commands, _ := strings.Cut(err.Error(), "server: ")
	_, err = pool.Exec(t.Context(), commands)
	require.NoError(t, err)
	pool.Reset()
	require.NoError(t, shadow.CheckSettings(t.Context(), pool))
}
