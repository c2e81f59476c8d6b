package serve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/migrations"
)

// check is one line of /readyz?verbose.
type check struct {
	name string
	run  func(context.Context) error
	// note is added to the line of a check that passes; may be nil.
	note func() string
}

// verdict is the result of a check.
type verdict struct {
	name string
	err  error  // nil: it has passed
	note string // of a check that has passed
}

func (c check) verdict(ctx context.Context) verdict {
	v := verdict{name: c.name, err: c.run(ctx)}
	if v.err == nil && c.note != nil {
		v.note = c.note()
	}
	return v
}

// line returns the line of a check in /readyz, which strangers may read: it contains messages of this program
// only, because errors of the driver may contain host names.
func (v verdict) line() string {
	switch {
	case v.err == nil && v.note != "":
		return "[+]" + v.name + " ok: " + v.note + "\n"
	case v.err == nil:
		return "[+]" + v.name + " ok\n"
	case v.own():
		return "[-]" + v.name + ": " + v.err.Error() + "\n"
	}
	return "[-]" + v.name + " failed\n"
}

func (v verdict) own() bool {
	return v.name == "version" || errors.Is(v.err, migrations.ErrNotReady) || errors.Is(v.err, postgres.ErrDiskFull) ||
		errors.Is(v.err, postgres.ErrReadOnly) ||
		errors.As(v.err, &startError{}) || errors.As(v.err, &expiredError{})
}

func failed(of []verdict) bool {
	return slices.ContainsFunc(of, func(v verdict) bool { return v.err != nil })
}

// in returns the check with its context changed.
func (c check) in(change func(context.Context) context.Context) check {
	run := c.run
	c.run = func(ctx context.Context) error { return run(change(ctx)) }
	return c
}

const (
	// checkAge bounds the age of a result of the checks: they read the database at most once in that time,
	// with any number of requests.
	checkAge = 100 * time.Millisecond
	// checkTimeout bounds a run of the checks.
	checkTimeout = 2 * time.Second
)

// checkup runs checks for all who ask whether the process is ready (/readyz, gRPC health, metrics, status),
// each of whom gets verdicts of at most checkAge.
type checkup struct {
	mu       sync.Mutex
	checks   []check   // guarded by mu
	at       time.Time // guarded by mu; the end of the last run
	verdicts []verdict // guarded by mu; not changed
}

// replace replaces the checks.
func (c *checkup) replace(checks []check) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.checks, c.at = checks, time.Time{}
}

// result returns a verdict for each check.
func (c *checkup) result() []verdict {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at.IsZero() || time.Since(c.at) > checkAge {
		c.run()
	}
	return c.verdicts
}

// run is called with mu. It does not end with the request that asks first.
func (c *checkup) run() {
	ctx, cancel := context.WithTimeout(context.Background(), checkTimeout)
	defer cancel()
	c.verdicts = nil
	for _, check := range c.checks {
		c.verdicts = append(c.verdicts, check.verdict(ctx))
	}
	c.at = time.Now()
}

// healthHandler responds with ok or the failed checks; with ?verbose, with a line for each check.
func healthHandler(name string, checks *checkup) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		verdicts := checks.result() //nolint:contextcheck // for all who ask
		status, word := http.StatusOK, "passed"
		if failed(verdicts) {
			status, word = http.StatusServiceUnavailable, "failed"
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.WriteHeader(status)
		switch {
		case r.URL.Query().Has("verbose") || status != http.StatusOK:
			text := ""
			for _, v := range verdicts {
				text += v.line()
			}
			_, _ = fmt.Fprintf(w, "%s%s check %s\n", text, name, word)
		default:
			_, _ = fmt.Fprintln(w, "ok")
		}
	}
}
