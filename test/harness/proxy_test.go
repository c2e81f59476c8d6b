package harness

import (
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// A commit whose response is lost has taken effect, and returns an error to the client.
func TestALineThatLosesTheAnswersOfCommits(t *testing.T) {
	t.Parallel()
	direct := Postgres(t).NewDatabase(t, "")
	dsn, err := url.Parse(direct)
	require.NoError(t, err)
	proxy := NewProxy(t, dsn.Host)
	dsn.Host = proxy.Address()
	conn, err := pgx.Connect(t.Context(), dsn.String())
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), `CREATE TABLE t (a int)`)
	require.NoError(t, err)
	proxy.SetLine(CommitsUnanswered)
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `INSERT INTO t VALUES ($1)`, 1)
	require.NoError(t, err, "everything else is answered")
	require.Error(t, tx.Commit(t.Context()))
	require.True(t, conn.IsClosed())
	other, err := pgx.Connect(t.Context(), direct)
	require.NoError(t, err)
	defer func() { _ = other.Close(t.Context()) }()
	var n int
	require.NoError(t, other.QueryRow(t.Context(), `SELECT count(*) FROM t`).Scan(&n))
	require.Equal(t, 1, n)
}
