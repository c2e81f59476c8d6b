package gate

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/feed"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

const (
	// Sets the settings of the store's sessions for the transaction, and returns the caller's values. Of
	// time-outs the shorter one is kept.
	takeSettingsSQL = `
SELECT x.name, x.was, pg_catalog.set_config(x.name, CASE
    WHEN x.name LIKE '%\_timeout' AND x.was <> '0' AND x.was::interval < (x.value || ' ms')::interval THEN x.was ELSE x.value
END, true)
FROM (
    SELECT i.name, i.value, pg_catalog.current_setting(i.name) AS was
    FROM (SELECT pg_catalog.unnest($1::text[]) AS name, pg_catalog.unnest($2::text[]) AS value) AS i OFFSET 0
) AS x`

	giveSettingsBackSQL = `SELECT set_config(i.name, i.was, true) FROM unnest($1::text[], $2::text[]) AS i (name, was)`

	// Reads the properties of the transaction that a write relies on, and sets synchronous_commit on when it
	// is off, so that a committed write is durable.
	selectFitSQL = `
SELECT CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END,
    current_setting('client_encoding'), m.service, m.region, COALESCE(m.server, '') = ` + feed.ServerSQL + `
FROM dbcontroller.meta m`

	// The number of the transaction, and again the durability of its commit. Names are qualified: the
	// search_path is the caller's.
	numberSQL = `
SELECT COALESCE(pg_catalog.pg_current_xact_id_if_assigned()::text, ''),
    CASE pg_catalog.current_setting('synchronous_commit') WHEN 'off' THEN pg_catalog.set_config('synchronous_commit', 'on', true) END`
)

// givenBack are the settings that are restored after a write. Two others stay until the end of the
// transaction: synchronous_commit, for a durable commit, and idle_in_transaction_session_timeout, since the
// transaction holds the shared version lock, for which a switch of the version waits.
var givenBack = []string{
	"search_path", "enable_seqscan", "jit", "max_parallel_workers_per_gather", "row_security",
	"lock_timeout", "statement_timeout",
}

// withSettings runs fn in a transaction of another session, with the settings of the store's own sessions. It
// fails with peer.ErrTransaction when the transaction lacks a property that the store relies on.
func (s *Gate) withSettings(ctx context.Context, tx pgx.Tx, fn func(pgx.Tx) error) error {
	was, err := s.takeSettings(ctx, tx)
	if err != nil {
		return err
	}
	if err := s.fits(ctx, tx); err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, giveSettingsBackSQL, givenBack, was)
	return err
}

// takeSettings sets the settings of the store's own sessions for the transaction, and returns the previous
// values of givenBack, in its order.
func (s *Gate) takeSettings(ctx context.Context, tx pgx.Tx) ([]string, error) {
	var names, values []string
	for name, value := range postgres.Settings {
		names, values = append(names, name), append(values, value)
	}
	rows, err := tx.Query(ctx, takeSettingsSQL, names, values)
	if err != nil {
		return nil, err
	}
	had := map[string]string{}
	var name, was, is string
	if _, err := pgx.ForEachRow(rows, []any{&name, &was, &is}, func() error {
		had[name] = was
		return nil
	}); err != nil {
		return nil, fmt.Errorf("set the settings of a write: %w", err)
	}
	out := make([]string, len(givenBack))
	for i, name := range givenBack {
		out[i] = had[name]
	}
	return out, nil
}

// fits fails when a transaction lacks a property that a write relies on.
func (s *Gate) fits(ctx context.Context, tx pgx.Tx) error {
	var (
		encoding string
		durable  *string
		same     bool
		of       schema.DeploymentID
	)
	err := tx.QueryRow(ctx, selectFitSQL).Scan(&durable, &encoding, &of.Service, &of.Region, &same)
	switch {
	case db.HasCode(err, db.CodeUndefinedTable, db.CodeInvalidSchema), errors.Is(err, pgx.ErrNoRows):
		return unfit("its database is not that of a deployment: begin it in the database of %s", s.Self)
	case err != nil:
		return fmt.Errorf("check the application's transaction: %w", err)
	case of != s.Self:
		return unfit("it is in the database of %s: begin it in the database of %s", of, s.Self)
	case encoding != "UTF8":
		return unfit(
			"its client_encoding is %s, and names and bodies are sent in UTF-8: SET LOCAL client_encoding = 'UTF8'",
			encoding)
	case !same:
		s.SignalEpochChanged()
		return fmt.Errorf(
			"%w: the transaction runs on another server than the one on which the epoch of %s began, or on a copy of it: retry, and use the address of the primary server", peer.ErrAborted, s.Self)
	}
	return nil
}

func unfit(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{peer.ErrTransaction}, args...)...)
}

// UserTransaction is an application's part of a transaction that writes resources.
type UserTransaction struct {
	// Pool of the application, in the deployment's database. Its sessions keep their settings.
	Pool db.Beginner
	// Also runs after the store's statements, in the same transaction and with the settings of the session.
	// It may run again, in another transaction.
	Also func(pgx.Tx) error
}

// InUserTransaction runs fn as InTx does, and the application's statements after it, in one transaction of
// the application's pool. It is READ COMMITTED: with one snapshot for the whole transaction, the checks after
// the locks would not see commits from before the locks were granted.
func (s *Gate) InUserTransaction(ctx context.Context, w *UserTransaction, touches feed.Topics,
	fn func(pgx.Tx) error,
) error {
	err := s.InTxOf(ctx, w.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}, touches,
		func(tx pgx.Tx) error {
			if err := s.withSettings(ctx, tx, fn); err != nil {
				return err
			}
			return w.also(ctx, tx)
		})
	if db.HasCode(err, db.CodeNotSupported) { // PostgreSQL's word for a READ WRITE transaction on a standby
		return unfit("it is on a standby: connect to the primary server")
	}
	return err
}

// also runs the application's statements, and checks that they are in the transaction of the store's.
func (w *UserTransaction) also(ctx context.Context, tx pgx.Tx) error {
	var before, after string
	var durable *string
	if err := tx.QueryRow(ctx, numberSQL).Scan(&before, &durable); err != nil {
		return err
	}
	if err := w.Also(lent{tx}); err != nil {
		return err
	}
	err := tx.QueryRow(ctx, numberSQL).Scan(&after, &durable)
	switch {
	case db.HasCode(err, db.CodeInFailedTransaction):
		return unfit("a statement of the function has failed, and the function has returned no error")
	case err != nil:
		return err
	case after != before:
		return fmt.Errorf("%w: %w", peer.ErrUnknown, unfit("the function has ended the transaction by itself"))
	}
	return nil
}

// lent is a transaction that its user cannot end.
type lent struct{ pgx.Tx }

func (lent) Commit(context.Context) error {
	return unfit("it is committed after the function has returned nil")
}

func (lent) Rollback(context.Context) error {
	return unfit("it is rolled back after the function has returned an error")
}
