package resources

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
)

const (
	progressInterval = time.Second
	// Processes of deployments keep their last counts to themselves for half a second: counts that have not
	// changed for progressSettled are the last ones. The command does not wait for them longer than
	// progressSettles.
	progressSettled = 600 * time.Millisecond
	progressSettles = 3 * time.Second
	// progressTimeout bounds one question to a deployment.
	progressTimeout = 2 * time.Second
	// progressCalls bounds the deployments that are asked at the same time.
	progressCalls = 16
)

// totals are the counts of a deletion in all deployments that have answered.
type totals struct {
	Found       int64 `json:"found"`
	Removed     int64 `json:"removed"`
	Unset       int64 `json:"unset"`
	Deployments int   `json:"deployments"` // that the deletion has reached
	so          cli.Progress
}

func (t totals) String() string {
	return t.so.String() + " in " + cli.Plural(t.Deployments, "deployment")
}

// counter reads the counts of a deletion again and again. A deployment that does not answer keeps its last
// counts: a sum without them would jump.
type counter struct {
	client   *client.Client
	deletion string

	mu   sync.Mutex
	last map[schema.DeploymentID][]*adminv1.Deletion // guarded by mu
}

func newCounter(c *client.Client, deletion string) *counter {
	return &counter{client: c, deletion: deletion, last: map[schema.DeploymentID][]*adminv1.Deletion{}}
}

// read asks all deployments of the environment, since a deletion can reach any of them.
func (r *counter) read(ctx context.Context) (sum totals) {
	r.ask(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, answer := range r.last {
		for _, d := range answer {
			sum.add(d)
		}
	}
	return sum
}

func (r *counter) ask(ctx context.Context) {
	env, err := r.client.Environment(ctx)
	if err != nil {
		return
	}
	var g errgroup.Group
	g.SetLimit(progressCalls)
	for _, d := range env.Deployments {
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, progressTimeout)
			defer cancel()
			admin, err := r.client.Admin(ctx, d.DeploymentID)
			if err != nil {
				return nil
			}
			answer, err := admin.ListDeletions(ctx, &adminv1.ListDeletionsRequest{Deletion: r.deletion})
			if err != nil {
				return nil
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			r.last[d.DeploymentID] = grown(r.last[d.DeploymentID], answer.GetDeletions())
			return nil
		})
	}
	_ = g.Wait() // no errors
}

// grown returns the newer counts of a deployment, of which none is smaller than before: an answer may be of a
// process that has not heard of the newest ones.
func grown(before, now []*adminv1.Deletion) []*adminv1.Deletion {
	if len(now) == 0 {
		return before
	}
	if len(before) > 0 {
		old, d := before[0], now[0]
		d.Found, d.Removed, d.Unset = max(old.GetFound(), d.GetFound()), max(old.GetRemoved(), d.GetRemoved()),
			max(old.GetUnset(), d.GetUnset())
	}
	return now
}

func (t *totals) add(p *adminv1.Deletion) {
	t.Found, t.Removed, t.Unset, t.Deployments = t.Found+p.GetFound(), t.Removed+p.GetRemoved(), t.Unset+p.GetUnset(),
		t.Deployments+1
	t.so = t.so.Plus(cli.ProgressOf(p))
}

// settledTotals are the counts at the end of a deletion.
func settledTotals(ctx context.Context, c *client.Client, deletion string) (sum totals) {
	began, counts := time.Now(), newCounter(c, deletion)
	for changed := began; ; <-time.After(progressSettled / 3) {
		read := counts.read(ctx)
		if read != sum {
			sum, changed = read, time.Now()
		}
		if complete := sum.Found == sum.Removed; complete && time.Since(changed) > progressSettled ||
			time.Since(began) > progressSettles || ctx.Err() != nil {
			return sum
		}
	}
}

// progressLines shows the progress of deletions on the standard error: one line that is written again, or
// lines.
type progressLines struct {
	to       io.Writer
	rewrites bool
	shown    string
}

var progressModes = []string{"auto", "plain", "none"}

func progressFlag(cmd *cobra.Command, to *string) {
	cmd.Flags().StringVar(to, "progress", "auto",
		"with --wait: auto (a line that changes, on a terminal), plain (lines) or none (no counts either)")
	// the flag exists
	_ = cmd.RegisterFlagCompletionFunc("progress", cobra.FixedCompletions(progressModes,
		cobra.ShellCompDirectiveNoFileComp))
}

// newProgressLines returns nil when nothing is to be shown.
func newProgressLines(cmd *cobra.Command, mode string) *progressLines {
	terminal := cli.OnTerminal(cmd.ErrOrStderr())
	if mode == "none" || mode == "auto" && !terminal {
		return nil
	}
	return &progressLines{to: cmd.ErrOrStderr(), rewrites: mode == "auto"}
}

func (p *progressLines) show(t totals) {
	text := t.String() + t.so.Estimate()
	if text == p.shown || t.Deployments == 0 {
		return
	}
	p.shown = text
	if p.rewrites {
		_, _ = fmt.Fprintf(p.to, "\r\x1b[K%s", text)
		return
	}
	_, _ = fmt.Fprintln(p.to, text)
}

// end leaves the terminal to the lines that follow.
func (p *progressLines) end() {
	if p != nil && p.rewrites && p.shown != "" {
		_, _ = fmt.Fprint(p.to, "\r\x1b[K")
	}
}

// watch shows the progress until ctx ends.
func (p *progressLines) watch(ctx context.Context, c *client.Client, deletion string) {
	for counts := newCounter(c, deletion); p != nil && deletion != "" && ctx.Err() == nil; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(progressInterval):
			if t := counts.read(ctx); ctx.Err() == nil {
				p.show(t)
			}
		}
	}
}
