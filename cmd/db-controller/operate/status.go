package operate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
)

// statusesAtOnce bounds the deployments that are asked at the same time.
const statusesAtOnce = 16

// NewStatus returns the command status.
func NewStatus() *cobra.Command {
	var all bool
	cmd := cli.NewDeploymentCommand("status DEPLOYMENT | status --all", "Show the version, the processes and the outstanding work of deployments", `  db-controller status iam.example.com/us-west2
  db-controller status --all`, nil,
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			if all {
				return statusOfAll(cmd, c)
			}
			id, err := schema.ParseDeploymentID(args[0])
			if err != nil {
				return err
			}
			s, err := statusOf(cmd.Context(), c, id)
			if err != nil {
				return cli.Plain(err)
			}
			out := cli.PrinterOf(cmd)
			printStatus(out, s)
			return errors.Join(out.Names(s.GetDeployment()), out.Document(s))
		})
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if all {
			return cobra.NoArgs(cmd, args)
		}
		return cli.OfDeployment(cmd, args)
	}
	cli.NamesToo(cmd)
	cmd.Flags().BoolVar(&all, "all", false, "a line for each deployment of the environment")
	cmd.ValidArgsFunction = cli.CompleteDeployments(1)
	return cmd
}

func statusOf(ctx context.Context, c *client.Client, id schema.DeploymentID) (*adminv1.StatusResponse, error) {
	admin, err := c.Admin(ctx, id)
	if err != nil {
		return nil, err
	}
	return admin.Status(ctx, &adminv1.StatusRequest{})
}

// deploymentStatus is the answer of a deployment, or the reason why there is none.
type deploymentStatus struct {
	Deployment string          `json:"deployment"`
	Status     json.RawMessage `json:"status,omitempty" message:"dbcontroller.admin.v1.StatusResponse"`
	Error      string          `json:"error,omitempty"`
	// NeverRan: the deployment is described and was never started.
	NeverRan bool `json:"neverRan,omitempty"`

	answer *adminv1.StatusResponse
}

// statusOfAll asks every deployment of the environment that has run. It fails when one of them does not
// answer.
func statusOfAll(cmd *cobra.Command, c *client.Client) error {
	env, err := c.Environment(cmd.Context())
	if err != nil {
		return err
	}
	return printStatuses(cli.PrinterOf(cmd), statusesOf(cmd.Context(), c, env))
}

func statusesOf(ctx context.Context, c *client.Client, env *schema.Environment) []deploymentStatus {
	found := make([]deploymentStatus, len(env.Deployments))
	var g errgroup.Group
	g.SetLimit(statusesAtOnce)
	for i, d := range env.Deployments {
		if found[i].Deployment, found[i].NeverRan = d.String(), d.NeverRan(); d.NeverRan() {
			continue
		}
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
			defer cancel()
			s, err := statusOf(ctx, c, d.DeploymentID)
			if err != nil {
				found[i].Error = cli.Plain(err).Error()
				return nil
			}
			found[i].answer, found[i].Status = s, cli.Message(s)
			return nil
		})
	}
	_ = g.Wait() // the errors are in found
	return found
}

// noDeployments is said instead of an empty table.
const noDeployments = "The environment has no deployments: describe some, and apply the files (db-controller apply)."

func printStatuses(out cli.Printer, found []deploymentStatus) error {
	var rows [][]any
	silent := 0
	for _, f := range found {
		switch {
		case f.NeverRan:
			rows = append(rows, []any{f.Deployment, "", "", "", "", "has never run"})
			continue
		case f.answer == nil:
			silent++
			rows = append(rows, []any{f.Deployment, "", "", "", "", f.Error})
			continue
		}
		count, oldest := int64(0), ""
		var since time.Time
		for _, o := range f.answer.GetOutstanding() {
			count += o.GetCount()
			if t := o.GetOldestTime().AsTime(); since.IsZero() || t.Before(since) {
				since, oldest = t, cli.Ago(t)
			}
		}
		rows = append(rows, []any{
			f.Deployment, f.answer.GetVersion(), len(f.answer.GetProcesses()), count, oldest,
			strings.Join(notes(f.answer), "; "),
		})
	}
	if len(found) == 0 {
		out.Line("%s", noDeployments)
	} else {
		out.Table("DEPLOYMENT VERSION PROCESSES OUTSTANDING OLDEST NOTES", rows)
	}
	names := make([]string, len(found))
	for i, f := range found {
		names[i] = f.Deployment
	}
	err := errors.Join(out.Names(names...), out.Document(found))
	if err == nil && silent > 0 {
		err = cli.WithCode(cli.Unavailable, fmt.Errorf("%d of %s did not answer", silent,
			cli.Plural(len(found), "deployment")))
	}
	return err
}

// notes are the facts that need an operator's attention.
func notes(s *adminv1.StatusResponse) []string {
	lines := append(readyLines(s), epochLines(s)...)
	for _, p := range s.GetProcesses() {
		if _, expired := leaseOf(p); expired {
			lines = append(lines, processLine(p))
		}
	}
	for _, f := range s.GetFailures() {
		lines = append(lines, fmt.Sprintf("%s for %s fails: %s", f.GetHandler(), f.GetDeployment(), f.GetError()))
	}
	return lines
}

// generationsOfEpoch: a new epoch of the database skips multiples of it, so that no generation is used twice;
// the rest counts the versions, of which the first one was no switch.
const generationsOfEpoch = 1_000_000

func versionLine(s *adminv1.StatusResponse) string {
	line := s.GetDeployment() + " runs " + s.GetVersion()
	if switches := s.GetGeneration()%generationsOfEpoch - 1; switches > 0 {
		line += ", switched " + cli.Plural(switches, "time")
	}
	return line
}

func printStatus(out cli.Printer, s *adminv1.StatusResponse) {
	out.Line("%s", versionLine(s))
	for _, line := range readyLines(s) {
		out.Line("%s", line)
	}
	for _, line := range clockLines(s) {
		out.Line("%s", line)
	}
	for _, p := range s.GetProcesses() {
		out.Line("%s", processLine(p))
	}
	printWatches(out, s)
	printDecisions(out, s)
	for _, line := range epochLines(s) {
		out.Line("%s", line)
	}
	for _, d := range s.GetDelegations() {
		out.Line("delegations: without asking, may refer to %s of %s by acting references, and block %d",
			cli.Plural(d.GetActingHeld(), "resource"), d.GetDeployment(), d.GetBlockHeld())
	}
	if rows := s.GetAttachedRows(); rows != nil {
		out.Line("attached tables: %s for a right or a deletion, %s without a target (attach --status)",
			wait(rows.GetWaiting()), cli.Plural(rows.GetIncomplete(), "value"))
	}
	for _, k := range s.GetKept() {
		out.Line("kept: %s of kind %s, such as %s, which the version does not describe: they can be read and deleted",
			cli.Plural(k.GetResources(), "resource"), k.GetKind(), k.GetSample())
	}
	for _, d := range s.GetDeletions() {
		so := cli.ProgressOf(d)
		out.Line("deletion of %s, for %s: here %s%s", d.GetRoot(), cli.Ago(d.GetStartTime().AsTime()), so,
			so.Estimate())
	}
	for _, d := range s.GetScheduled() {
		by := ""
		if d.GetActor() != "" {
			by = " by " + d.GetActor()
		}
		out.Line("deleted%s: %s, which hides %s here, and is removed at %s unless it is undeleted", by, d.GetRoot(),
			cli.Plural(d.GetResources(), "resource"), d.GetPurgeTime().AsTime().Format(time.RFC3339))
		if d.GetReason() != "" {
			out.Line("  it could not be removed: %s", d.GetReason())
		}
	}
	if more := s.GetScheduledTotal() - int64(len(s.GetScheduled())); more > 0 && len(s.GetScheduled()) > 0 {
		out.Line("deleted: %s more until their purge times", cli.Plural(more, "deletion"))
	}
	for _, d := range s.GetDerivations() {
		out.Line("deriving references of %s again: %d of %d done, %d set aside", d.GetKind(), d.GetDone(), d.GetTotal(),
			d.GetSetAside())
	}
	var rows [][]any
	for _, o := range s.GetOutstanding() {
		rows = append(rows, []any{
			o.GetGroup(), o.GetDeployment(), o.GetCount(),
			cli.Since(o.GetOldestTime().AsTime()).Round(time.Second),
		})
	}
	if len(rows) == 0 {
		out.Line("Nothing is outstanding.")
	} else {
		out.Table("OUTSTANDING FOR COUNT OLDEST", rows)
	}
	for _, f := range s.GetFailures() {
		if f.GetHandler() != databaseFailure { // those are above
			out.Line("last failure of %s for %s, %s ago: %s%s", f.GetHandler(), f.GetDeployment(),
				cli.Since(f.GetTime().AsTime()).Round(time.Second), f.GetError(), cli.NextTry(f.GetNextTime()))
		}
	}
}

func wait(rows int64) string {
	if rows == 1 {
		return "1 row waits"
	}
	return cli.Plural(rows, "row") + " wait"
}

// databaseFailure is the handler of the failures about the databases of others.
const databaseFailure = "database"

// silentAfter bounds the silence of a watch, which sends a message every 5 s.
const silentAfter = 15 * time.Second

// printWatches shows the deployments that this one is interested in, and watches that are behind.
func printWatches(out cli.Printer, s *adminv1.StatusResponse) {
	var from []string
	for _, w := range s.GetWatches() {
		if w.GetName() == "deletions" {
			from = append(from, w.GetDeployment())
		}
		switch heard := w.GetHeardTime().AsTime(); {
		case !w.GetPrimed():
			out.Line("the watch %s of %s has no snapshot yet, lost %s", w.GetName(), w.GetDeployment(),
				cli.Plural(w.GetLost(), "time"))
		case time.Since(heard) > silentAfter:
			out.Line("the watch %s of %s has been silent for %s", w.GetName(), w.GetDeployment(), cli.Ago(heard))
		}
	}
	if len(from) > 0 {
		out.Line("follows deletions of %s", strings.Join(from, ", "))
	}
}

// printDecisions shows the decisions of operators about other deployments.
func printDecisions(out cli.Printer, s *adminv1.StatusResponse) {
	for _, d := range s.GetDecommissioned() {
		still := ""
		if d.GetWorking() {
			still = "; work on its references and resources is outstanding"
		}
		out.Line("%s is decommissioned, by %s on %s: %s%s", d.GetDeployment(), d.GetSaidBy(),
			cli.At(d.GetSaidTime().AsTime()), d.GetReason(), still)
	}
	for _, w := range s.GetWords() {
		out.Line("%s of %s, by %s on %s: %s", w.GetWhat(), w.GetDeployment(), w.GetSaidBy(),
			cli.At(w.GetSaidTime().AsTime()), w.GetReason())
	}
	for _, f := range s.GetFailures() {
		if f.GetHandler() == databaseFailure {
			out.Line("MESSAGES OF %s ARE IGNORED: %s", f.GetDeployment(), f.GetError())
		}
	}
}

// readyLines name the checks of readiness that fail, as /readyz does.
func readyLines(s *adminv1.StatusResponse) (lines []string) {
	for _, n := range s.GetNotReady() {
		lines = append(lines, "NOT READY: "+n.GetCheck()+": "+n.GetReason())
	}
	return lines
}

// clocksDiffer is the least difference of two clocks that matters: times of one machine are shown as ages by
// the clock of another one.
const clocksDiffer = 2 * time.Second

// clockLines names the clocks that differ: the database's from this machine's, by which ages are counted, and
// the database's from its process's.
func clockLines(s *adminv1.StatusResponse) (lines []string) {
	if s.GetDatabaseTime() == nil || s.GetProcessTime() == nil {
		return nil
	}
	database, process := s.GetDatabaseTime().AsTime(), s.GetProcessTime().AsTime()
	if d := time.Since(database); d.Abs() > clocksDiffer {
		lines = append(lines, "clocks: that of the database is "+aheadOrBehind(-d)+
			" that of this machine: the ages below are wrong by that")
	}
	if d := database.Sub(process); d.Abs() > clocksDiffer {
		lines = append(lines, "clocks: that of the database is "+aheadOrBehind(d)+
			" that of its process: run a time service on both")
	}
	return lines
}

func aheadOrBehind(d time.Duration) string {
	if d < 0 {
		return d.Abs().Round(time.Second).String() + " behind"
	}
	return d.Round(time.Second).String() + " ahead of"
}

// epochLines describe pauses, and the epoch of the database while it restricts deletes or references have
// lost their targets.
func epochLines(s *adminv1.StatusResponse) []string {
	var lines []string
	for _, of := range s.GetPaused() {
		if of == s.GetDeployment() {
			lines = append(lines, "NOTHING IS DELETED: an operator has paused deletions (db-controller resume)")
		} else {
			lines = append(lines, "deletions of "+of+" are paused here (db-controller resume --of)")
		}
	}
	for _, p := range s.GetPauses() {
		if p.GetHandler() != "" {
			lines = append(lines, fmt.Sprintf("%s is paused (db-controller resume --handler)",
				pauseText(s.GetDeployment(), p)))
		}
	}
	e := s.GetEpoch()
	if e.GetOrdinal() > 1 {
		lines = append(lines, fmt.Sprintf("the database was failed over or restored %s, last noticed %s ago",
			cli.Plural(e.GetOrdinal()-1, "time"), cli.Since(e.GetSince().AsTime()).Round(time.Second)))
	}
	if e.GetAwaitingRegistry() {
		lines = append(lines,
			"NOTHING IS DELETED until the registry returns the deployments that may refer to resources here: if its database was restored or failed over as well, apply the files that describe all deployments again")
	}
	if len(e.GetUnconfirmed()) > 0 {
		lines = append(lines, "DELETIONS WAIT until these deployments have confirmed their references: "+
			strings.Join(e.GetUnconfirmed(), ", ")+
			" (for one that stays down: db-controller force-release --comparison-of, or decommission)")
	}
	if n := s.GetDanglingReferences(); n > 0 {
		lines = append(lines,
			fmt.Sprintf(
				"%s without a target: db-controller verify lists them, a person decides about each, or about all (--repair --dangling=act)", cli.Plural(n, "reference")))
	}
	return lines
}

func processLine(p *adminv1.StatusResponse_Process) string {
	if late, expired := leaseOf(p); expired {
		return fmt.Sprintf("THE LEASE OF PROCESS %s EXPIRED %s ago: nobody works on its %s of %d", p.GetName(),
			late.Round(time.Second), cli.Plural(len(p.GetShards()), "shard"), schema.RingSize)
	}
	return fmt.Sprintf("process %s has %d of %d shards, since %s", p.GetName(), len(p.GetShards()), schema.RingSize,
		cli.Since(p.GetJoinTime().AsTime()).Round(time.Second))
}

// leaseOf returns for how long the lease of a process has been expired. Clocks differ a little.
func leaseOf(p *adminv1.StatusResponse_Process) (late time.Duration, expired bool) {
	late = time.Since(p.GetExpireTime().AsTime())
	return late, late > time.Second
}
