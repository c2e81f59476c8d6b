package postgres_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/test/harness"
)

// trips counts the round trips of a connection: the first write, and each write that follows a read.
type trips struct {
	net.Conn
	mu    sync.Mutex
	wrote bool
	n     int
}

func (c *trips) Write(p []byte) (int, error) {
	c.mu.Lock()
	if !c.wrote {
		c.n++
	}
	c.wrote = true
	c.mu.Unlock()
	return c.Conn.Write(p)
}

func (c *trips) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	c.wrote = false
	c.mu.Unlock()
	return n, err
}

func (c *trips) take() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.n
	c.n = 0
	return n
}

// onePool returns a pool of one connection with a table, and the counter of its round trips.
func onePool(t *testing.T) (*pgxpool.Pool, *trips) {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(harness.Postgres(t).NewDatabase(t, ""))
	require.NoError(t, err)
	cfg.MaxConns = 1
	counter := &trips{}
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		counter.Conn = conn
		return counter, err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	_, err = pool.Exec(t.Context(), `CREATE TABLE public.t (id int PRIMARY KEY)`)
	require.NoError(t, err)
	return pool, counter
}

func statement(sql string, args ...any) *pgx.Batch {
	b := &pgx.Batch{}
	b.Queue(sql, args...)
	return b
}

const insertSQL = `INSERT INTO public.t VALUES ($1)`

func count(t *testing.T, pool *pgxpool.Pool) (n int) {
	t.Helper()
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM public.t`).Scan(&n))
	return n
}

// BEGIN travels with the first statement, and COMMIT with the last: a transaction of two takes two round
// trips.
func TestATransactionTakesTwoRoundTrips(t *testing.T) {
	t.Parallel()
	pool, counter := onePool(t)
	for i := range 3 {
		tx, err := postgres.Begin(t.Context(), pool)
		require.NoError(t, err)
		tx.Open(func(row pgx.Row) error { return row.Scan(new(int)) }, `SELECT $1::int`, i)
		counter.take()
		var level string
		require.NoError(t,
			tx.QueryRow(t.Context(), `SELECT current_setting('transaction_isolation') WHERE $1::int >= 0`, i).
				Scan(&level))
		require.Equal(t, "read committed", level)
		require.NoError(t, tx.CommitWith(t.Context(), statement(insertSQL, i)))
		if i > 0 { // the first one prepares the statements
			require.Equal(t, 2, counter.take())
		}
		require.ErrorIs(t, tx.Rollback(t.Context()), pgx.ErrTxClosed, "the connection may be another transaction's")
	}
	require.Equal(t, 3, count(t, pool))
}

// Each kind of first statement begins the transaction, and each end gives the only connection back.
func TestEveryFirstStatementBegins(t *testing.T) {
	t.Parallel()
	pool, _ := onePool(t)
	first := map[string]func(ctx context.Context, tx *postgres.Tx) error{
		"exec": func(ctx context.Context, tx *postgres.Tx) error { _, err := tx.Exec(ctx, insertSQL, 1); return err },
		"several": func(ctx context.Context, tx *postgres.Tx) error {
			_, err := tx.Exec(ctx, `SELECT 1; INSERT INTO public.t VALUES (1)`)
			return err
		},
		"batch": func(ctx context.Context, tx *postgres.Tx) error {
			return tx.SendBatch(ctx, statement(insertSQL, 1)).Close()
		},
		"query": func(ctx context.Context, tx *postgres.Tx) error {
			return collect(tx.Query(ctx, insertSQL+` RETURNING id`, 1))
		},
		"row": func(ctx context.Context, tx *postgres.Tx) error {
			return tx.QueryRow(ctx, insertSQL+` RETURNING id`, 1).Scan(new(int))
		},
		"copy":      copyOne,
		"savepoint": func(ctx context.Context, tx *postgres.Tx) error { return pgx.BeginFunc(ctx, tx, insertOne) },
		"commit with": func(ctx context.Context, tx *postgres.Tx) error {
			return tx.CommitWith(ctx, statement(insertSQL, 1))
		},
	}
	for name, run := range first {
		for _, commit := range []bool{false, true} {
			tx, err := postgres.Begin(t.Context(), pool)
			require.NoError(t, err)
			require.NoError(t, run(t.Context(), tx), name)
			if commit || name == "commit with" {
				_ = tx.Commit(t.Context())
			}
			_ = tx.Rollback(t.Context())
			require.Equal(t, commit || name == "commit with", count(t, pool) == 1, name)
			_, err = pool.Exec(t.Context(), `DELETE FROM public.t`)
			require.NoError(t, err)
		}
	}
}

func collect(rows pgx.Rows, err error) error {
	if err != nil {
		return err
	}
	_, err = pgx.CollectRows(rows, pgx.RowTo[int])
	return err
}

func copyOne(ctx context.Context, tx *postgres.Tx) error {
	_, err := tx.CopyFrom(ctx, pgx.Identifier{"public", "t"}, []string{"id"}, pgx.CopyFromRows([][]any{{1}}))
	return err
}

func insertOne(tx pgx.Tx) error {
	_, err := tx.Exec(context.Background(), insertSQL, 1)
	return err
}

// When one of the last statements fails, nothing is committed, and the connection is usable.
func TestAFailedStatementSkipsTheCommit(t *testing.T) {
	t.Parallel()
	pool, _ := onePool(t)
	tx, err := postgres.Begin(t.Context(), pool)
	require.NoError(t, err)
	last := statement(insertSQL, 1)
	last.Queue(`SELECT 1 / $1::int`, 0)
	require.ErrorContains(t, tx.CommitWith(t.Context(), last), "division by zero")
	require.NoError(t, tx.Rollback(t.Context()))
	require.Zero(t, count(t, pool))
}

// The check of the opening statement comes before a commit, also when there is only one statement.
func TestAFailedOpeningCommitsNothing(t *testing.T) {
	t.Parallel()
	pool, _ := onePool(t)
	fenced := errors.New("fenced")
	for _, run := range []func(tx *postgres.Tx) error{
		func(tx *postgres.Tx) error { return tx.CommitWith(t.Context(), statement(insertSQL, 1)) },
		func(tx *postgres.Tx) error { return tx.SendBatch(t.Context(), statement(insertSQL, 1)).Close() },
		func(tx *postgres.Tx) error { return tx.Commit(t.Context()) },
	} {
		tx, err := postgres.Begin(t.Context(), pool)
		require.NoError(t, err)
		tx.Open(func(row pgx.Row) error {
			if err := row.Scan(new(int)); !errors.Is(err, pgx.ErrNoRows) {
				return err
			}
			return fenced
		}, `SELECT 1 WHERE $1`, false)
		require.ErrorIs(t, run(tx), fenced)
		require.NoError(t, tx.Rollback(t.Context()))
		require.Zero(t, count(t, pool))
	}
}
