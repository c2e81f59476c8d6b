package shadow

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/feed"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/schema"
)

const (
	// What the statements of a write need of a session, with what the caller has: of time-outs the shorter one counts.
	takeSettingsSQL = `
SELECT x.name, x.was, pg_catalog.set_config(x.name, CASE
    WHEN x.name LIKE '%\_timeout' AND x.was <> '0' AND x.was::interval < (x.value || ' ms')::interval THEN x.was ELSE x.value
END, true)
FROM (
    SELECT i.name, i.value, pg_catalog.current_setting(i.name) AS was
    FROM (SELECT pg_catalog.unnest($1::text[]) AS name, pg_catalog.unnest($2::text[]) AS value) AS i OFFSET 0
) AS x`

	giveSettingsBackSQL = `SELECT set_config(i.name, i.was, true) FROM unnest($1::text[], $2::text[]) AS i (name, was)`

	// With what is answered as committed being on disk.
	selectFitSQL = `
SELECT current_setting('transaction_isolation'), current_setting('transaction_read_only') = 'on',
    CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END,
    current_setting('client_encoding'), m.service, m.region, COALESCE(m.server, '') = ` + feed.ServerSQL + `
FROM dbcontroller.meta m`
)

// givenBack are the settings that the caller's transaction has again after a write. Two are of its end: the commit is
// durable, and a pause has a time-out, since the transaction holds the lock of the version, for which a switch waits.
var givenBack = []string{"search_path", "enable_seqscan", "jit", "lock_timeout", "statement_timeout"}

// SaveTx writes resources inside the caller's own transaction. New references can only be to resources of this
// deployment, since no other one is asked while a transaction is open; else it fails with ErrForeignReference. The
// transaction must be READ COMMITTED and READ WRITE, in the deployment's database; else it fails with ErrTransaction.
// Whatever it fails with, the transaction can go on. A write sets synchronous_commit on where it was off, and lets
// PostgreSQL end a transaction that then pauses for longer than 30 s. Call Wake after the commit.
func (s *Store) SaveTx(ctx context.Context, tx pgx.Tx, writes []Write) (saved []Resource, err error) {
	ctx = context.WithValue(ctx, besideTx{}, true)
	// A savepoint, so that a refused write leaves the caller's transaction usable, and its settings as they were.
	err = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
		was, err := s.takeSettings(ctx, tx)
		if err != nil {
			return err
		}
		if err := s.fits(ctx, tx); err != nil {
			return err
		}
		sv, err := s.prepare(ctx, tx, writes)
		if err != nil {
			return err
		}
		if len(sv.foreign) > 0 {
			return ErrForeignReference
		}
		if saved, err = s.write(ctx, tx, sv); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, giveSettingsBackSQL, givenBack, was)
		return err
	})
	switch {
	case errors.Is(err, errStale):
		return nil, ErrAborted
	case errors.Is(err, pgx.ErrTxClosed):
		return nil, fmt.Errorf("%w: it is over: begin another one", ErrTransaction)
	case hasCode(err, codeInFailedTransaction):
		return nil, fmt.Errorf("%w: a statement in it has failed: roll it back, or to a savepoint of before", ErrTransaction)
	case err != nil:
		return nil, err
	}
	return saved, nil
}

// takeSettings gives the transaction the settings of the store's own sessions, and answers those that are given back.
func (s *Store) takeSettings(ctx context.Context, tx pgx.Tx) ([]string, error) {
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
	if _, err := pgx.ForEachRow(rows, []any{&name, &was, &is}, func() error { had[name] = was; return nil }); err != nil {
		return nil, fmt.Errorf("set what a write needs: %w", err)
	}
	out := make([]string, len(givenBack))
	for i, name := range givenBack {
		out[i] = had[name]
	}
	return out, nil
}

// fits fails when something that a write relies on does not hold in the caller's transaction. With a snapshot of its own
// the transaction would check, after the locks, what was before them.
func (s *Store) fits(ctx context.Context, tx pgx.Tx) error {
	var (
		isolation, encoding string
		durable             *string
		readOnly, same      bool
		of                  schema.DeploymentID
	)
	err := tx.QueryRow(ctx, selectFitSQL).Scan(&isolation, &readOnly, &durable, &encoding, &of.Service, &of.Region, &same)
	because := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{ErrTransaction}, args...)...)
	}
	switch {
	case hasCode(err, codeUndefinedTable, codeInvalidSchema), errors.Is(err, pgx.ErrNoRows):
		return because("its database has no resources: begin it in that of %s", s.self)
	case err != nil:
		return fmt.Errorf("check the caller's transaction: %w", err)
	case of != s.self:
		return because("it is in the database of %s: begin it in that of %s", of, s.self)
	case isolation != "read committed" && isolation != "read uncommitted":
		return because("it is %s, and would not see what was committed before its locks: begin it READ COMMITTED", isolation)
	case readOnly:
		return because("it is read-only: begin it READ WRITE, at the primary server")
	case encoding != "UTF8":
		return because("names and bodies are sent in UTF-8 and would be read as %s: SET LOCAL client_encoding = 'UTF8'", encoding)
	case !same:
		s.epochMoved()
		return fmt.Errorf("%w: the transaction is at another server, or in a copy, than the database of %s was when it was last looked at", ErrAborted, s.self)
	}
	return nil
}
