package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Query waits for a connection of the caller's lane, which it has until the rows are closed.
func (l *Lanes) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	l = l.over(ctx)
	leave, err := l.enter(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := l.pool(ctx).Query(ctx, sql, args...)
	if err != nil {
		leave()
		return rows, err
	}
	return &laneRows{rows, leave}, nil
}

// QueryRow waits for a connection of the caller's lane, which it has until the row is scanned.
func (l *Lanes) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	l = l.over(ctx)
	leave, err := l.enter(ctx)
	if err != nil {
		return failedRow{err}
	}
	return laneRow{l.pool(ctx).QueryRow(ctx, sql, args...), func(err error) { l.heard(err); leave() }}
}

// Exec runs a statement over a connection of the caller's lane.
func (l *Lanes) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	l = l.over(ctx)
	leave, err := l.enter(ctx)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	defer leave()
	return l.pool(ctx).Exec(ctx, sql, args...)
}

// answerValid is how long an answer of the database is as good as a ping.
const answerValid = time.Second

// heard notes how a row or a batch was answered.
func (l *Lanes) heard(err error) {
	switch {
	case err == nil:
		l.answered.Store(time.Now().UnixNano())
	case !errors.Is(err, pgx.ErrNoRows):
		l.answered.Store(0)
	}
}

// Answers is Ping for health checks of an idle process: it asks nothing when the last read of a row or a
// batch, in any lane, was answered within a second.
func (l *Lanes) Answers(ctx context.Context) error {
	if since := time.Since(time.Unix(0, l.answered.Load())); since >= 0 && since < answerValid {
		return nil
	}
	return l.Ping(ctx)
}

// Ping reaches the database over a connection of the caller's lane.
func (l *Lanes) Ping(ctx context.Context) error {
	leave, err := l.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	return l.pool(ctx).Ping(ctx)
}

// Begin is BeginTx without options.
func (l *Lanes) Begin(ctx context.Context) (pgx.Tx, error) { return l.BeginTx(ctx, pgx.TxOptions{}) }

// BeginTx begins a transaction over a connection of the caller's lane, which it has until its commit or
// rollback.
func (l *Lanes) BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error) {
	l = l.over(ctx)
	leave, err := l.enter(ctx)
	if err != nil {
		return nil, err
	}
	tx, err := l.pool(ctx).BeginTx(ctx, options)
	if err != nil {
		leave()
		return nil, err
	}
	return &laneTx{tx, leave}, nil
}

// SendBatch runs statements over a connection of the caller's lane, which it has until the results are
// closed.
func (l *Lanes) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	l = l.over(ctx)
	leave, err := l.enter(ctx)
	if err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	return &laneBatch{l.pool(ctx).SendBatch(ctx, b), func(err error) { l.heard(err); leave() }}
}

// laneRows gives its connection back when pgxpool's rows do: when they are closed, read to their end, or
// cannot be scanned.
type laneRows struct {
	pgx.Rows
	leave func()
}

func (r *laneRows) Close() {
	r.Rows.Close()
	r.leave()
}

func (r *laneRows) Next() bool {
	more := r.Rows.Next()
	if !more {
		r.Close()
	}
	return more
}

func (r *laneRows) Scan(dest ...any) error {
	err := r.Rows.Scan(dest...)
	if err != nil {
		r.Close()
	}
	return err
}

func (r *laneRows) Values() ([]any, error) {
	values, err := r.Rows.Values()
	if err != nil {
		r.Close()
	}
	return values, err
}

type laneRow struct {
	pgx.Row
	leave func(error)
}

func (r laneRow) Scan(dest ...any) (err error) {
	defer func() { r.leave(err) }()
	return r.Row.Scan(dest...)
}

type failedRow struct{ err error }

func (r failedRow) Scan(...any) error { return r.err }

type laneTx struct {
	pgx.Tx
	leave func()
}

func (tx *laneTx) Commit(ctx context.Context) error {
	defer tx.leave()
	return tx.Tx.Commit(ctx)
}

func (tx *laneTx) Rollback(ctx context.Context) error {
	defer tx.leave()
	return tx.Tx.Rollback(ctx)
}

type laneBatch struct {
	pgx.BatchResults
	leave func(error)
}

func (b *laneBatch) Close() (err error) {
	defer func() { b.leave(err) }()
	return b.BatchResults.Close()
}
