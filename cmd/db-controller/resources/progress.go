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
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
)

const (
	progressInterval = time.Second
	// Processes of deployments keep their last counts to themselves for half a second: counts that have not changed for
	// progressSettled are the last ones. The command does not wait for them longer than progressSettles.
	progressSettled = 600 * time.Millisecond
	progressSettles = 3 * time.Second
	// progressTimeout bounds one question to a deployment.
	progressTimeout = 2 * time.Second
	// progressCalls bounds the deployments that are asked at the same time.
	progressCalls = 16
)

// totals are the counts of a deletion in all deployments that answered.
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

// readTotals asks all deployments of the environment, since a deletion can reach any of them. Deployments that do not answer are left out.
func readTotals(ctx context.Context, c *client.Client, deletion string) (sum totals) {
	env, err := c.Environment(ctx)
	if err != nil {
		return sum
	}
	var mu sync.Mutex // of sum
	var g errgroup.Group
	g.SetLimit(progressCalls)
	for _, d := range env.Deployments {
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, progressTimeout)
			defer cancel()
			admin, err := c.Admin(ctx, d.DeploymentID)
			if err != nil {
				return nil
			}
			answer, err := admin.ListDeletions(ctx, &adminv1.ListDeletionsRequest{Deletion: deletion})
			if err != nil {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			for _, p := range answer.GetDeletions() {
				sum.add(p)
			}
			return nil
		})
	}
	_ = g.Wait() // no errors: deployments that do not answer are left out
	return sum
}

func (t *totals) add(p *adminv1.Deletion) {
	t.Found, t.Removed, t.Unset, t.Deployments = t.Found+p.GetFound(), t.Removed+p.GetRemoved(), t.Unset+p.GetUnset(), t.Deployments+1
	t.so = t.so.Plus(cli.ProgressOf(p))
}

// settledTotals are the counts at the end of a deletion.
func settledTotals(ctx context.Context, c *client.Client, deletion string) (sum totals) {
	began := time.Now()
	for changed := began; ; time.Sleep(progressSettled / 3) {
		read := readTotals(ctx, c, deletion)
		if read != sum {
			sum, changed = read, time.Now()
		}
		if complete := sum.Found == sum.Removed; complete && time.Since(changed) > progressSettled || time.Since(began) > progressSettles || ctx.Err() != nil {
			return sum
		}
	}
}

// progressLines shows the progress of deletions on the standard error: one line that is written again, or lines.
type progressLines struct {
	to       io.Writer
	rewrites bool
	shown    string
}

var progressModes = []string{"auto", "plain", "none"}

func progressFlag(cmd *cobra.Command, to *string) {
	cmd.Flags().StringVar(to, "progress", "auto", "with --wait: auto (a line that changes, on a terminal), plain (lines) or none (no counts either)")
	_ = cmd.RegisterFlagCompletionFunc("progress", cobra.FixedCompletions(progressModes, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
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
	for p != nil && deletion != "" && ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-time.After(progressInterval):
			if t := readTotals(ctx, c, deletion); ctx.Err() == nil {
				p.show(t)
			}
		}
	}
}
