// Package scan reads several databases and finds orphans, fan-outs, missing indexes and the effects of
// cascades of the references between them. It writes nothing, holds no lock beyond ACCESS SHARE, and keeps a
// batch of rows in memory.
package scan

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/catalogue"
)

// Database is a database to scan.
type Database struct {
	Label, Service, Region, DSN string
}

// Limits bound the load on the databases.
type Limits struct {
	// Rate is the number of rows that are read in a second from tables; 0 means no limit.
	Rate int
	// Statement bounds the time of each statement.
	Statement time.Duration
}

// lockTimeout bounds the wait for ACCESS SHARE, behind a migration for one.
const lockTimeout = 2 * time.Second

// database has two connections: one reads a table in one snapshot, one asks for single keys meanwhile.
type database struct {
	Database
	catalogue *catalogue.Database
	limits    Limits
	reader    *pgx.Conn
	asker     *pgx.Conn
	rows      int64
}

var errNotADSN = errors.New("not a PostgreSQL connection string")

func open(ctx context.Context, d Database, limits Limits) (*database, error) {
	cfg, err := pgx.ParseConfig(d.DSN)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.Label, errNotADSN) // the parser's error contains the password
	}
	// Poolers know no names of prepared statements, and refuse startup parameters: settings are set for a
	// transaction.
	cfg.DefaultQueryExecMode = pgx.QueryExecModeExec
	cfg.RuntimeParams["application_name"] = "db-controller scan"
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = 10 * time.Second
	}
	out := &database{Database: d, limits: limits}
	for _, to := range []**pgx.Conn{&out.reader, &out.asker} {
		if *to, err = pgx.ConnectConfig(ctx, cfg); err != nil {
			out.close()
			return nil, fmt.Errorf("connect to %s: %w", d.Label, err)
		}
	}
	return out, nil
}

func (d *database) close() {
	for _, c := range []*pgx.Conn{d.reader, d.asker} {
		if c == nil {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_ = c.Close(ctx)
		cancel()
	}
}

// settings hold for one transaction: timeouts, no search_path to be misled by, and one spelling for every
// value.
const settings = `
SELECT set_config('statement_timeout', $1, true), set_config('lock_timeout', $2, true),
  set_config('idle_in_transaction_session_timeout', '300000', true), set_config('search_path', 'pg_catalog', true),
  set_config('DateStyle', 'ISO, YMD', true), set_config('IntervalStyle', 'postgres', true), set_config('TimeZone', 'UTC', true),
  set_config('bytea_output', 'hex', true), set_config('extra_float_digits', '1', true), set_config('jit', 'off', true),
  set_config('max_parallel_workers_per_gather', '0', true), set_config('enable_seqscan', $3, true),
  set_config('enable_hashjoin', $3, true), set_config('enable_mergejoin', $3, true)`

// values are the arguments of settings.
func (d *database) values(keysOnly bool) []any {
	on := "on"
	if keysOnly {
		on = "off"
	}
	return []any{fmt.Sprint(d.limits.Statement.Milliseconds()), fmt.Sprint(lockTimeout.Milliseconds()), on}
}

// snapshot runs read in one snapshot of the database.
func (d *database) snapshot(ctx context.Context, read func(tx pgx.Tx) error) error {
	return d.transaction(ctx, d.reader, pgx.RepeatableRead, false, read)
}

// ask runs a short transaction. With keysOnly each row is found by an index, with any statistics: the asked
// keys are few beside the table.
func (d *database) ask(ctx context.Context, keysOnly bool, read func(tx pgx.Tx) error) error {
	return d.transaction(ctx, d.asker, pgx.ReadCommitted, keysOnly, read)
}

// askOnce runs a transaction of one query in one round trip.
func (d *database) askOnce(ctx context.Context, keysOnly bool, read func(pgx.Rows) error, query string,
	args ...any,
) error {
	var batch pgx.Batch
	batch.Queue("BEGIN READ ONLY")
	batch.Queue(settings, d.values(keysOnly)...)
	batch.Queue(query, args...).Query(read)
	batch.Queue("COMMIT")
	err := d.asker.SendBatch(ctx, &batch).Close()
	if err != nil && !d.asker.IsClosed() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_, _ = d.asker.Exec(ctx, "ROLLBACK") // statements after an error are not run
	}
	return err
}

func (d *database) transaction(ctx context.Context, conn *pgx.Conn, level pgx.TxIsoLevel, keysOnly bool,
	read func(tx pgx.Tx) error,
) error {
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: level, AccessMode: pgx.ReadOnly})
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = tx.Rollback(ctx) // nothing was written
	}()
	if _, err := tx.Exec(ctx, settings, d.values(keysOnly)...); err != nil {
		return err
	}
	return read(tx)
}

// pace waits until the rows that were read since a time fit the rate.
func (d *database) pace(ctx context.Context, began time.Time, rows int64) error {
	if d.limits.Rate <= 0 {
		return ctx.Err()
	}
	due := began.Add(time.Duration(float64(rows) / float64(d.limits.Rate) * float64(time.Second)))
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Until(due)):
		return nil
	}
}
