package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Query waits for a connection of the caller's lane, which it has until the rows are closed.
func (l *Lanes) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	leave, err := l.enter(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := l.Pool.Query(ctx, sql, args...)
	if err != nil {
		leave()
		return rows, err
	}
	return &laneRows{rows, leave}, nil
}

// QueryRow waits for a connection of the caller's lane, which it has until the row is scanned.
func (l *Lanes) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	leave, err := l.enter(ctx)
	if err != nil {
		return failedRow{err}
	}
	return laneRow{l.Pool.QueryRow(ctx, sql, args...), leave}
}

// Exec runs a statement over a connection of the caller's lane.
func (l *Lanes) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	leave, err := l.enter(ctx)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	defer leave()
	return l.Pool.Exec(ctx, sql, args...)
}

// Ping reaches the database over a connection of the caller's lane.
func (l *Lanes) Ping(ctx context.Context) error {
	leave, err := l.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	return l.Pool.Ping(ctx)
}

// Begin is BeginTx without options.
func (l *Lanes) Begin(ctx context.Context) (pgx.Tx, error) { return l.BeginTx(ctx, pgx.TxOptions{}) }

// BeginTx begins a transaction over a connection of the caller's lane, which it has until its commit or rollback.
func (l *Lanes) BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error) {
	leave, err := l.enter(ctx)
	if err != nil {
		return nil, err
	}
	tx, err := l.Pool.BeginTx(ctx, options)
	if err != nil {
		leave()
		return nil, err
	}
	return &laneTx{tx, leave}, nil
}

// SendBatch runs statements over a connection of the caller's lane, which it has until the results are closed.
func (l *Lanes) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	leave, err := l.enter(ctx)
	if err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	return &laneBatch{l.Pool.SendBatch(ctx, b), leave}
}

// laneRows gives its connection back when pgxpool's rows do: when they are closed, read to their end, or cannot be scanned.
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
	leave func()
}

func (r laneRow) Scan(dest ...any) error {
	defer r.leave()
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
	leave func()
}

func (b *laneBatch) Close() error {
	defer b.leave()
	return b.BatchResults.Close()
}
