package write

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
	// Sets the settings of the store's sessions for the transaction, and returns the caller's values. Of time-outs the shorter one
	// is kept.
	takeSettingsSQL = `
SELECT x.name, x.was, pg_catalog.set_config(x.name, CASE
    WHEN x.name LIKE '%\_timeout' AND x.was <> '0' AND x.was::interval < (x.value || ' ms')::interval THEN x.was ELSE x.value
END, true)
FROM (
    SELECT i.name, i.value, pg_catalog.current_setting(i.name) AS was
    FROM (SELECT pg_catalog.unnest($1::text[]) AS name, pg_catalog.unnest($2::text[]) AS value) AS i OFFSET 0
) AS x`

	giveSettingsBackSQL = `SELECT set_config(i.name, i.was, true) FROM unnest($1::text[], $2::text[]) AS i (name, was)`

	// Reads the properties of the transaction that a write relies on, and sets synchronous_commit on when it is off, so that a
	// committed write is durable.
	selectFitSQL = `
SELECT current_setting('transaction_isolation'), current_setting('transaction_read_only') = 'on',
    CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END,
    current_setting('client_encoding'), m.service, m.region, COALESCE(m.server, '') = ` + feed.ServerSQL + `
FROM dbcontroller.meta m`
)

// givenBack are the settings that are restored after a write. Two others stay until the end of the transaction: synchronous_commit,
// for a durable commit, and idle_in_transaction_session_timeout, since the transaction holds the shared version lock, for which a
// switch of the version waits.
var givenBack = []string{"search_path", "enable_seqscan", "jit", "lock_timeout", "statement_timeout"}

// SaveTx writes resources inside the caller's own transaction, which has to be READ COMMITTED and READ WRITE, in the deployment's
// database. New references can only be to resources of this deployment, and acting ones to resources that are delegated to it, since
// no RPC is made while a transaction is open. It fails
// with the errors of Save, with ErrForeignReference, or with ErrTransaction when the transaction is not as described. It runs in a
// savepoint: after an error the transaction can go on. It sets synchronous_commit on when it was off, and
// idle_in_transaction_session_timeout to at most 30 s, both until the end of the transaction. Call Wake after the commit.
func (s *Writer) SaveTx(ctx context.Context, tx pgx.Tx, writes []peer.Write) (saved []peer.Resource, err error) {
	ctx = context.WithValue(ctx, db.SeparateConnection{}, true)
	// A savepoint: a failed write leaves the caller's transaction usable and its settings unchanged.
	err = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
		was, err := s.takeSettings(ctx, tx)
		if err != nil {
			return err
		}
		if err := s.fits(ctx, tx); err != nil {
			return err
		}
		sv, err := s.prepare(ctx, tx, writes, false)
		if err != nil {
			return err
		}
		if err := s.delegate(ctx, tx, sv); err != nil {
			return err
		}
		if len(sv.foreign) > 0 {
			return peer.ErrForeignReference
		}
		if saved, err = s.write(ctx, tx, sv); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, giveSettingsBackSQL, givenBack, was)
		return err
	})
	switch {
	case errors.Is(err, db.ErrStale):
		return nil, peer.ErrAborted
	case errors.Is(err, pgx.ErrTxClosed):
		return nil, fmt.Errorf("%w: it has ended: begin another one", peer.ErrTransaction)
	case db.HasCode(err, db.CodeInFailedTransaction):
		return nil, fmt.Errorf("%w: an earlier statement in it has failed: roll it back, or roll back to a savepoint before that statement", peer.ErrTransaction)
	case err != nil:
		return nil, err
	}
	return saved, nil
}

// takeSettings sets the settings of the store's own sessions for the transaction, and returns the previous values of givenBack, in
// its order.
func (s *Writer) takeSettings(ctx context.Context, tx pgx.Tx) ([]string, error) {
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
		return nil, fmt.Errorf("set the settings of a write: %w", err)
	}
	out := make([]string, len(givenBack))
	for i, name := range givenBack {
		out[i] = had[name]
	}
	return out, nil
}

// fits fails when the caller's transaction lacks a property that a write relies on. (Isolation: with one snapshot for the whole
// transaction, the checks after the locks would not see commits from before the locks were granted.)
func (s *Writer) fits(ctx context.Context, tx pgx.Tx) error {
	var (
		isolation, encoding string
		durable             *string
		readOnly, same      bool
		of                  schema.DeploymentID
	)
	err := tx.QueryRow(ctx, selectFitSQL).Scan(&isolation, &readOnly, &durable, &encoding, &of.Service, &of.Region, &same)
	because := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{peer.ErrTransaction}, args...)...)
	}
	switch {
	case db.HasCode(err, db.CodeUndefinedTable, db.CodeInvalidSchema), errors.Is(err, pgx.ErrNoRows):
		return because("its database is not that of a deployment: begin it in the database of %s", s.Self)
	case err != nil:
		return fmt.Errorf("check the caller's transaction: %w", err)
	case of != s.Self:
		return because("it is in the database of %s: begin it in the database of %s", of, s.Self)
	case isolation != "read committed" && isolation != "read uncommitted":
		return because("its isolation level is %s, which does not see commits from before its locks were granted: begin it READ COMMITTED", isolation)
	case readOnly:
		return because("it is read-only: begin it READ WRITE, on the primary server")
	case encoding != "UTF8":
		return because("its client_encoding is %s, and names and bodies are sent in UTF-8: SET LOCAL client_encoding = 'UTF8'", encoding)
	case !same:
		s.gate.SignalEpochChanged()
		return fmt.Errorf("%w: the transaction runs on another server than the one on which the epoch of %s began, or on a copy of it: retry, and use the address of the primary server", peer.ErrAborted, s.Self)
	}
	return nil
}
