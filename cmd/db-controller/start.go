package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/internal/postgres"
)

// patience is how long the start of a process may wait, and for what it does. While it waits it says so at once and then
// every few seconds; after the timeout it fails with what it waited for: whoever started the process can see it, and start it
// again.
type patience struct {
	timeout     time.Duration // --start-timeout
	began, told time.Time
	log         *zap.Logger
}

func newPatience(timeout time.Duration, log *zap.Logger) *patience {
	return &patience{timeout: timeout, began: time.Now(), log: log}
}

func startTimeoutFlag(f *pflag.FlagSet, to *time.Duration, what string) {
	f.DurationVar(to, "start-timeout", 2*time.Minute, "how long to wait "+what+"; then it ends and says why")
}

// more reports whether to wait once more, and waits; it fails when the time is over.
func (p *patience) more(ctx context.Context, pause time.Duration, waits ...string) (bool, error) {
	switch {
	case time.Since(p.began) > p.timeout:
		return false, fmt.Errorf("not ready after %s (--start-timeout): %s", p.timeout, strings.Join(waits, "; "))
	case time.Since(p.told) > 5*time.Second:
		p.told = time.Now()
		p.log.Info("waiting to be ready", zap.Strings("for", waits), zap.Duration("gives up in", (p.timeout-time.Since(p.began)).Round(time.Second)))
	}
	select {
	case <-ctx.Done():
		return false, nil
	case <-time.After(pause):
		return true, nil
	}
}

// database runs what a start does with the database, again while the database is away.
func (p *patience) database(ctx context.Context, dsn string, use func() error) error {
	for {
		err := reach(ctx, dsn)
		if err == nil {
			began := time.Now()
			err = use()
			p.began = p.began.Add(time.Since(began)) // a migration takes its time
		}
		if err == nil || !postgres.Unavailable(err) || refused(err) {
			return err
		}
		if more, gaveUp := p.more(ctx, 500*time.Millisecond, "postgres: "+err.Error()); !more {
			return gaveUp
		}
	}
}

// reach connects once.
func reach(ctx context.Context, dsn string) error {
	if _, err := pgx.ParseConfig(dsn); err != nil {
		return errors.New("--postgres: not a PostgreSQL connection string") // the error itself would show the password
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	return conn.Close(ctx)
}

// refused reports whether the server is there and does not let the user in, or lacks the database: waiting helps nobody.
func refused(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (strings.HasPrefix(pg.Code, "28") || pg.Code == "3D000")
}

// checks waits until the checks pass for the first time.
func (p *patience) checks(ctx context.Context, checks []check, problem func() string) error {
	p.told = time.Now() // a start that takes its usual time is told of by nobody
	for {
		var waits []string
		for _, c := range checks {
			if err := c.run(ctx); err != nil {
				waits = append(waits, c.name+": "+err.Error())
			}
		}
		if len(waits) == 0 || ctx.Err() != nil {
			return nil
		}
		if p := problem(); p != "" {
			waits = append(waits, p)
		}
		if more, gaveUp := p.more(ctx, 100*time.Millisecond, waits...); !more {
			return gaveUp
		}
	}
}

// takesWrites fails while the database does not.
func takesWrites(pool *pgxpool.Pool) func(context.Context) error {
	return func(ctx context.Context) error {
		var readOnly bool
		err := pool.QueryRow(ctx, `SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean`).Scan(&readOnly)
		if err == nil && readOnly {
			err = errors.New("the database takes no writes")
		}
		return err
	}
}
