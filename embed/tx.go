package embed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/db-controller/db-controller/internal/retry"
)

const (
	// lacksRights is the SQLSTATE of a statement on an attached table that refers to a target without the
	// right to do so; the lines of DETAIL name the rights.
	lacksRights = "RD001"
	// acquireAtMost is the number of rights that one call of dbcontroller.acquire takes.
	acquireAtMost = 1000
	// acquirePatience is how long they are waited for without a deadline.
	acquirePatience = 10 * time.Second
)

// repeated are the SQLSTATEs of transactions that may succeed when they are repeated.
var repeated = []string{"40001", "40P01", lacksRights}

// Tx runs fn in a transaction of an application that writes attached tables, and commits it. When the
// transaction fails by a conflict or a deadlock, it runs fn again in another transaction, after a pause; when
// references in it are strict and their rights are lacking, it acquires these first, as long as the deadline
// of ctx allows (10 s without one). It ends with the deadline of ctx, with the error of fn, or with a
// *pgconn.PgError: 23503 when a target does not exist, RD002 when its deployment could not be asked. It needs
// no Application: plain SQL is all that it uses.
func Tx(ctx context.Context, pool *pgxpool.Pool, options pgx.TxOptions, fn func(tx pgx.Tx) error) error {
	for pauses := (retry.Backoff{First: 5 * time.Millisecond, Max: 200 * time.Millisecond}); ; {
		err := pgx.BeginTxFunc(ctx, pool, options, fn)
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || !slices.Contains(repeated, pg.Code) {
			return err
		}
		if pg.Code == lacksRights {
			if err := acquire(ctx, pool, strings.Split(pg.Detail, "\n")); err != nil {
				return err
			}
			continue
		}
		if pauses.Wait(ctx) != nil {
			return err
		}
	}
}

// acquire acquires rights in two transactions of their own: the first asks, the second waits.
func acquire(ctx context.Context, pool *pgxpool.Pool, rights []string) error {
	for part := range slices.Chunk(rights, acquireAtMost) {
		patience := acquirePatience
		if deadline, ok := ctx.Deadline(); ok {
			patience = time.Until(deadline)
		}
		for _, step := range []struct {
			sql  string
			args []any
		}{{`SELECT dbcontroller.acquire($1)`, []any{part}}, {
			`SELECT dbcontroller.acquired($1, $2)`,
			[]any{part, patience},
		}} {
			err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, step.sql, step.args...)
				return err
			})
			if err != nil {
				return fmt.Errorf("acquire rights to refer: %w", err)
			}
		}
	}
	return nil
}
