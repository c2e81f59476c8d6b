package serve

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/internal/postgres"
)

// errInterrupted says that the context ended while a process waited to become ready.
var errInterrupted = errors.New("interrupted during the start")

// startWait bounds the waiting at the start of a process. It logs the names of the reasons when they change;
// after the timeout the start fails with the reasons, so that a supervisor can see them and start the process
// again.
type startWait struct {
	timeout time.Duration // --start-timeout
	began   time.Time
	quiet   time.Time // no log line before: a start may take its usual time
	logged  string    // the names of the reasons in the last log line
	log     *zap.Logger
	present atomic.Value // a string: the server or the registration that the start waits for now, for /readyz
}

// usual is the time that a start takes whose database and registry answer.
const usual = 5 * time.Second

func newStartWait(timeout time.Duration, log *zap.Logger) *startWait {
	return &startWait{timeout: timeout, began: time.Now(), log: log}
}

func startTimeoutFlag(f *pflag.FlagSet, to *time.Duration, until string) {
	f.DurationVar(to, "start-timeout", 2*time.Minute, "how long to wait until "+until+
		"; after it the process exits with the reason")
}

// waits sets the name of the server or registration that the start waits for; empty: none.
func (w *startWait) waits(what string) { w.present.Store(what) }

func (w *startWait) waitsFor() string {
	what, _ := w.present.Load().(string)
	return what
}

// pause waits before another attempt. It returns errInterrupted when ctx ends, and an error with the reasons
// after the timeout.
func (w *startWait) pause(ctx context.Context, pause time.Duration, reasons ...string) error {
	w.waits(about(reasons))
	switch {
	case time.Since(w.began) > w.timeout:
		return fmt.Errorf("not ready after %s (--start-timeout): %s", w.timeout, strings.Join(reasons, "; "))
	case w.logged != about(reasons) && !time.Now().Before(w.quiet):
		w.logged = about(reasons)
		w.log.Info("waiting to be ready", zap.Strings("for", reasons), zap.Duration("gives_up_in_seconds",
			(w.timeout-time.Since(w.began)).Round(time.Second)))
	}
	select {
	case <-ctx.Done():
		return errInterrupted
	case <-time.After(pause):
		return nil
	}
}

// about returns the names of the reasons: their texts differ at each try, by ports and request ids.
func about(reasons []string) string {
	var names []string
	for _, r := range reasons {
		name, _, _ := strings.Cut(r, ":")
		names = append(names, name)
	}
	return strings.Join(names, ", ")
}

// database calls use, which works with the database, and repeats it while the database is unavailable.
func (w *startWait) database(ctx context.Context, use func() error) error {
	for w.waits("postgres"); ; {
		err := use()
		if err == nil || !postgres.Unavailable(err) || postgres.Refused(err) {
			w.waits("")
			return err
		}
		if stop := w.pause(ctx, 500*time.Millisecond, "postgres: "+err.Error()); stop != nil {
			return stop
		}
	}
}

// checks waits until all checks pass for the first time, and calls passed then. problem returns a further
// reason, or nothing.
func (w *startWait) checks(ctx context.Context, checks []check, problem func() string, passed func()) error {
	w.quiet = time.Now().Add(usual)
	for {
		var reasons []string
		for _, c := range checks {
			if err := c.run(ctx); err != nil {
				reasons = append(reasons, c.name+": "+err.Error())
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		if len(reasons) == 0 {
			passed()
			return nil
		}
		if p := problem(); p != "" {
			reasons = append(reasons, p)
		}
		if err := w.pause(ctx, 100*time.Millisecond, reasons...); err != nil {
			if errors.Is(err, errInterrupted) {
				return nil
			}
			return err
		}
	}
}

// growSQL makes a table of 1 MiB that ends with its transaction: a full disk refuses that.
const growSQL = `CREATE TEMPORARY TABLE dbcontroller_probe ON COMMIT DROP AS SELECT repeat('x', 1000) FROM generate_series(1, 1000)`

// takesWrites returns an error while the database is read-only, and while its disk is full, if that is why it
// refused writes.
func takesWrites(pool postgres.Pool) func(ctx context.Context, refused error) error {
	return func(ctx context.Context, refused error) error {
		var readOnly bool
		err := pool.QueryRow(ctx, `SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean`).
			Scan(&readOnly)
		switch {
		case err != nil:
			return err
		case readOnly:
			return postgres.ErrReadOnly
		case !errors.Is(refused, postgres.ErrDiskFull):
			return nil
		}
		if _, err = pool.Exec(ctx, growSQL); postgres.Denied(err) { // the next write will tell
			return nil
		}
		return err
	}
}
