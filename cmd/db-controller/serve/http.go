package serve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/db-controller/db-controller/migrations"
)

// check is one line of /readyz?verbose.
type check struct {
	name string
	run  func(context.Context) error
	// note is added to the line of a check that passes; may be nil.
	note func() string
}

func (c check) passed() string {
	if c.note != nil {
		if note := c.note(); note != "" {
			return "[+]" + c.name + " ok: " + note + "\n"
		}
	}
	return "[+]" + c.name + " ok\n"
}

// in returns the check with its context changed.
func (c check) in(change func(context.Context) context.Context) check {
	run := c.run
	c.run = func(ctx context.Context) error { return run(change(ctx)) }
	return c
}

const (
	// checkAge bounds the age of a result of the checks: they read the database at most once in that time, however often anybody asks.
	checkAge = 100 * time.Millisecond
	// checkTimeout bounds a run of the checks.
	checkTimeout = 2 * time.Second
)

// checkup runs checks for all requests, each of which gets a result of at most checkAge.
type checkup struct {
	mu     sync.Mutex
	checks []check   // guarded by mu
	at     time.Time // guarded by mu; the end of the last run
	failed bool      // guarded by mu
	text   string    // guarded by mu; a line for each check
}

// replace replaces the checks.
func (c *checkup) replace(checks []check) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.checks, c.at = checks, time.Time{}
}

// result returns whether a check has failed, and a line for each check.
func (c *checkup) result() (failed bool, text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at.IsZero() || time.Since(c.at) > checkAge {
		c.run()
	}
	return c.failed, c.text
}

// run is called with mu. It does not end with the request that asks first.
func (c *checkup) run() {
	ctx, cancel := context.WithTimeout(context.Background(), checkTimeout)
	defer cancel()
	c.failed, c.text = false, ""
	for _, check := range c.checks {
		line := check.passed()
		if err := check.run(ctx); err != nil {
			c.failed, line = true, "[-]"+check.name+" failed\n"
			if check.name == "version" || errors.Is(err, migrations.ErrNotReady) || errors.As(err, &startError{}) {
				line = "[-]" + check.name + ": " + err.Error() + "\n" // messages of this program; other errors may contain host names
			}
		}
		c.text += line
	}
	c.at = time.Now()
}

// healthHandler responds with ok or the failed checks; with ?verbose, with a line for each check.
func healthHandler(name string, checks *checkup) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		failed, text := checks.result() //nolint:contextcheck // for all who ask
		status, word := http.StatusOK, "passed"
		if failed {
			status, word = http.StatusServiceUnavailable, "failed"
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.WriteHeader(status)
		switch {
		case r.URL.Query().Has("verbose") || failed:
			_, _ = fmt.Fprintf(w, "%s%s check %s\n", text, name, word)
		default:
			_, _ = fmt.Fprintln(w, "ok")
		}
	}
}
