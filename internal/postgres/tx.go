package postgres

import (
	"context"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Tx is a transaction, by default at READ COMMITTED, whose BEGIN travels with its first statements, and whose
// COMMIT can travel with its last ones: a round trip costs more than most statements.
type Tx struct {
	pgx.Tx  // nil until the first statement
	conn    *pgxpool.Conn
	release func()
	options pgx.TxOptions
	opening *opening // nil: none
}

// opening is a statement that runs after BEGIN, before all others.
type opening struct {
	sql   string
	args  []any
	check func(pgx.Row) error
}

// Begin takes a connection for a transaction, and sends nothing.
func Begin(ctx context.Context, p Pool) (*Tx, error) {
	// Set explicitly: the default of the database, the role or a pooler can be another level.
	return BeginTx(ctx, p, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
}

// BeginTx is Begin with options.
func BeginTx(ctx context.Context, p Pool, options pgx.TxOptions) (*Tx, error) {
	conn, release, err := acquire(ctx, p)
	if err != nil {
		return nil, err
	}
	return &Tx{conn: conn, release: release, options: options}, nil
}

func acquire(ctx context.Context, p Pool) (*pgxpool.Conn, func(), error) {
	leave := func() {}
	pool, ok := p.(*pgxpool.Pool)
	if !ok {
		l := p.(*Lanes)
		var err error
		if leave, err = l.enter(ctx); err != nil {
			return nil, nil, err
		}
		pool = l.pool(ctx)
	}
	conn, err := pool.Acquire(ctx)
	if err != nil {
		leave()
		return nil, nil, err
	}
	return conn, sync.OnceFunc(func() {
		conn.Release()
		leave()
	}), nil
}

// Open sets the statement that runs first, and the check of its row. A failed check is the error of the first
// statement of the caller.
func (t *Tx) Open(check func(pgx.Row) error, sql string, args ...any) {
	t.opening = &opening{sql, args, check}
}

// SendBatch sends statements, the first time after BEGIN.
func (t *Tx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if t.Tx != nil {
		return t.Tx.SendBatch(ctx, b)
	}
	whole := &pgx.Batch{}
	whole.BeginTx(t.options)
	if t.opening != nil {
		whole.Queue(t.opening.sql, t.opening.args...)
	}
	whole.QueuedQueries = slices.Concat(whole.QueuedQueries, b.QueuedQueries)
	results := t.conn.SendBatch(ctx, whole)
	t.Tx = results.Tx()
	_, err := results.Exec()
	if err == nil && t.opening != nil {
		err = t.opening.check(results.QueryRow())
	}
	if err != nil {
		_ = results.Close()
		return pgx.FailedBatchResults(b, err)
	}
	return results
}

// begun sends BEGIN by itself.
func (t *Tx) begun(ctx context.Context) error {
	if t.Tx != nil {
		return nil
	}
	return t.SendBatch(ctx, &pgx.Batch{}).Close()
}

// Begin begins a savepoint.
func (t *Tx) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := t.begun(ctx); err != nil {
		return nil, err
	}
	return t.Tx.Begin(ctx)
}

// CopyFrom writes rows.
func (t *Tx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string,
	rows pgx.CopyFromSource,
) (int64, error) {
	if err := t.begun(ctx); err != nil {
		return 0, err
	}
	return t.Tx.CopyFrom(ctx, table, columns, rows)
}

// Prepare prepares a statement.
func (t *Tx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := t.begun(ctx); err != nil {
		return nil, err
	}
	return t.Tx.Prepare(ctx, name, sql)
}

// Conn returns the connection.
func (t *Tx) Conn() *pgx.Conn { return t.conn.Conn() }

// Exec runs a statement.
func (t *Tx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if len(args) == 0 { // pgx sends it by another protocol: it may be several statements
		if err := t.begun(ctx); err != nil {
			return pgconn.CommandTag{}, err
		}
	}
	if t.Tx != nil {
		return t.Tx.Exec(ctx, sql, args...)
	}
	results := t.sendOne(ctx, sql, args)
	tag, err := results.Exec()
	if closed := results.Close(); err == nil {
		err = closed
	}
	return tag, err
}

func (t *Tx) sendOne(ctx context.Context, sql string, args []any) pgx.BatchResults {
	b := &pgx.Batch{}
	b.Queue(sql, args...)
	return t.SendBatch(ctx, b)
}

// Query runs a statement.
func (t *Tx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if t.Tx != nil {
		return t.Tx.Query(ctx, sql, args...)
	}
	results := t.sendOne(ctx, sql, args)
	rows, err := results.Query()
	if err != nil {
		_ = results.Close()
		return rows, err
	}
	return &laneRows{rows, func() { _ = results.Close() }}, nil
}

// QueryRow runs a statement.
func (t *Tx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if t.Tx != nil {
		return t.Tx.QueryRow(ctx, sql, args...)
	}
	results := t.sendOne(ctx, sql, args)
	return laneRow{results.QueryRow(), func(error) { _ = results.Close() }}
}

// Commit ends the transaction, unless the check of the opening statement fails: then Rollback does.
func (t *Tx) Commit(ctx context.Context) error {
	if t.opening != nil {
		if err := t.begun(ctx); err != nil {
			return err
		}
	}
	defer t.release()
	if t.Tx == nil {
		return nil
	}
	return t.Tx.Commit(ctx)
}

// Rollback ends the transaction, unless it has ended.
func (t *Tx) Rollback(ctx context.Context) error {
	defer t.release()
	if t.Tx == nil {
		return nil
	}
	return t.Tx.Rollback(ctx)
}

// CommitWith sends the last statements, and COMMIT, which PostgreSQL skips when one of them fails. An error
// of PostgreSQL says that nothing was committed; after any other one the outcome is unknown.
func (t *Tx) CommitWith(ctx context.Context, b *pgx.Batch) error {
	if t.opening != nil { // its check comes before the commit
		if err := t.begun(ctx); err != nil {
			return err
		}
	}
	b.Queue("commit").Exec(func(tag pgconn.CommandTag) error {
		if tag.String() == "ROLLBACK" {
			return pgx.ErrTxCommitRollback
		}
		return nil
	})
	err := t.SendBatch(ctx, b).Close()
	if err == nil || t.conn.Conn().IsClosed() {
		t.Tx = ended{t.Tx}
		t.release()
	}
	return err
}

// ended is a transaction that was committed with its last statements, or lost with its connection.
type ended struct{ pgx.Tx }

func (ended) Commit(context.Context) error   { return pgx.ErrTxClosed }
func (ended) Rollback(context.Context) error { return pgx.ErrTxClosed }
