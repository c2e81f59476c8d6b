package rows

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

const (
	changeSQL       = `SELECT dbcontroller.change_rows($1, $2, $3)`
	fireDeferredSQL = `SELECT dbcontroller.fire_deferred()`
)

// Delete deletes rows. The triggers and native keys of the table act as for any DELETE.
func (s *Rows) Delete(ctx context.Context, tx pgx.Tx, keys []Key) error {
	return s.each(keys, func(t *Table, names []string) error {
		keys, at := t.keyColumns(names)
		if len(at) == 0 {
			return nil
		}
		deleted, err := change(ctx, tx, t.deleteSQL, keys, nil)
		if err != nil {
			return fmt.Errorf("delete rows of %s: %w", t.Definition.Table, t.kept(err))
		}
		if len(deleted) == len(at) {
			return nil
		}
		return t.gone(ctx, tx, names) // a native key may have deleted some before
	})
}

// kept returns an error of a statement on the rows, as *peer.KeptError when the application refuses it.
func (t *Table) kept(err error) error {
	if db.HasCode(err, db.CodeNotSupported) { // a statement cannot return the rows of a table with rules
		return &peer.KeptError{
			Table: t.Definition.Table.String(),
			Text:  "the table has rules, which attach refuses: drop them",
		}
	}
	return cmp.Or(db.Kept(t.Definition.Table.String(), err), err)
}

// gone fails with *peer.KeptError when one of some rows still exists: the row would stay and refer to a
// resource that is gone. A deletion is delayed instead, and the row reported.
func (t *Table) gone(ctx context.Context, tx pgx.Tx, names []string) error {
	there, err := t.present(ctx, tx, t.lockSQL, names)
	if err == nil && len(there) > 0 {
		err = &peer.KeptError{Table: t.Definition.Table.String(), Text: slices.Min(there) +
			" is there after the statement"}
	}
	return err
}

// change runs a statement that deletes or changes rows, and returns the keys of these rows. Triggers run the
// code of the application and of others: in transactions of the store with the rights of a role that only has
// rights on attached tables, in a user's transaction with the user's rights. The statement has the keys as
// $1, an array for each column, and the values as $2.
func change(ctx context.Context, tx pgx.Tx, sql string, keys [][]string, values []string) ([][]string, error) {
	if _, err := tx.Exec(ctx, lockTimeoutSQL); err != nil {
		return nil, err
	}
	args := []any{keys, values}
	if db.BeforeCommit(tx, fireDeferred) {
		sql, args = changeSQL, []any{sql, keys, values}
	}
	found, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(found, pgx.RowTo[[]string])
}

// fireDeferred runs deferred triggers of the changed tables: at the commit, they would run with the rights of
// the store.
func fireDeferred(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, fireDeferredSQL); err != nil {
		if kept := db.Kept("", err); kept != nil {
			return kept
		}
		return fmt.Errorf("run the deferred triggers of attached tables: %w", err)
	}
	return nil
}
