package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
)

// Severities of findings: a fault, and a state or a setting that a careful operator changes.
const (
	severe = "ERROR"
	minor  = "WARNING"
)

// finding is a problem with its remedy.
type finding struct {
	Severity string `json:"severity"`
	// Where is a deployment, or "registry", or "environment".
	Where   string `json:"where"`
	Problem string `json:"problem"`
	Remedy  string `json:"remedy"`
}

// NewDoctor returns the command doctor.
func NewDoctor() *cobra.Command {
	var within time.Duration
	var errorsOnly bool
	cmd := cli.NewDeploymentCommand("doctor [DEPLOYMENT]...", "Look for problems of the registry and of deployments, of all by default: each with its remedy", `  db-controller doctor
  db-controller doctor iam.example.com/us-west2 -o json`, nil,
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			d := &doctor{now: time.Now(), within: within}
			asked, err := d.look(cmd.Context(), c, args)
			if err != nil {
				return err
			}
			if errorsOnly {
				d.found = slices.DeleteFunc(d.found, func(f finding) bool { return f.Severity != severe })
			}
			return d.report(cli.PrinterOf(cmd), asked)
		})
	cmd.Args = func(_ *cobra.Command, args []string) error {
		for _, arg := range args {
			if _, err := schema.ParseDeploymentID(arg); err != nil {
				return err
			}
		}
		if within <= 0 {
			return cli.Usage("--certificates-within %s: want more than 0s", within)
		}
		return nil
	}
	cmd.Long = `Look for problems of the registry and of deployments, of all by default: each with its remedy.

It looks at the processes and their certificates and clocks, pauses, recoveries, failures, old work, watches that are behind, references without targets, attached rows, single processes,
versions, the default of the rights, and, as far as the role of the process may see them, at PostgreSQL's settings, connections, standbys, the archive of the log, and old
transactions. It sees neither disks nor whether a backup can be restored. With a finding the exit code is 3.`
	cmd.Flags().DurationVar(&within, "certificates-within", 14*24*time.Hour,
		"report certificates that end within this time")
	cmd.Flags().BoolVar(&errorsOnly, "errors-only", false, "leave warnings out, also of the exit code")
	cmd.ValidArgsFunction = cli.CompleteDeployments(cli.Many)
	return cmd
}

// doctor collects findings.
type doctor struct {
	now    time.Time
	within time.Duration
	found  []finding
}

func (d *doctor) add(severity, where, remedy, problem string, args ...any) {
	d.found = append(d.found, finding{severity, where, fmt.Sprintf(problem, args...), remedy})
}

// examined is the answer of a deployment.
type examined struct {
	status *adminv1.StatusResponse
	ends   time.Time // of its certificates; zero without one
	at     time.Time // the arrival of the answer
	err    error
}

// look asks the registry and the deployments, and returns how many were asked.
func (d *doctor) look(ctx context.Context, c *client.Client, only []string) (asked int, err error) {
	var at peer.Peer
	asking, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	answer, err := c.Registry().GetEnvironment(asking, &registryv1.GetEnvironmentRequest{}, grpc.Peer(&at))
	if err == nil && len(answer.GetUnheard()) > 0 { // after a start they follow within a few seconds
		select {
		case <-asking.Done():
		case <-time.After(3 * time.Second):
		}
		answer, err = c.Registry().GetEnvironment(asking, &registryv1.GetEnvironmentRequest{}, grpc.Peer(&at))
	}
	switch {
	case errors.Is(err, client.ErrNoRegistry):
	case refusesCaller(err):
		return 0, cli.Plain(err)
	case err != nil:
		d.add(severe, "registry",
			"start the registry, or look at its log; deployments go on with the environment that they know",
			"it does not answer: %s", cli.Plain(err))
	default:
		d.certificate("registry", endOf(at))
		switch unheard := answer.GetUnheard(); {
		case len(unheard) > 0:
			d.add(severe, "registry", "start these deployments, or disable those that stay down",
				"its database is on another server than before, and these deployments have not followed it since: %s: nothing is deleted where a deployment that it lacks may refer to", strings.Join(unheard, ", "))
		case answer.GetIncomplete():
			d.add(severe, "registry", "apply the files that describe all deployments again",
				"it was restored or failed over: deployments may be missing in it, and nothing is deleted where they may refer to")
		}
	}
	env, err := c.Environment(ctx)
	if err != nil && len(d.found) > 0 {
		return 0, nil // the finding about the registry has the reason
	}
	if err != nil {
		return 0, cli.Plain(err)
	}
	var of []schema.Deployment
	for _, name := range only {
		i := slices.IndexFunc(env.Deployments, func(one schema.Deployment) bool { return one.String() == name })
		if i < 0 {
			known := make([]string, len(env.Deployments))
			for n := range env.Deployments {
				known[n] = env.Deployments[n].String()
			}
			return 0, cli.WithCode(cli.Refused, fmt.Errorf("unknown deployment %s%s", name,
				cli.DidYouMean(name, known)))
		}
		of = append(of, env.Deployments[i])
	}
	if len(only) == 0 {
		of = env.Deployments
		d.environment(env)
	}
	all := make([]examined, len(of))
	var g errgroup.Group
	g.SetLimit(statusesAtOnce)
	for i, one := range of {
		if !one.NeverRan() && !one.Disabled {
			g.Go(func() error { all[i] = examine(ctx, c, one.DeploymentID); return nil })
		}
	}
	_ = g.Wait() // the errors are in all
	for i, one := range of {
		if refusesCaller(all[i].err) {
			return 0, cli.PlainOf(schema.FullName{Deployment: one.DeploymentID}, all[i].err)
		}
		d.deployment(one, all[i])
	}
	return len(of), nil
}

// answerTimeout is how long a process may take for its answer.
const answerTimeout = 10 * time.Second

// refusesCaller reports whether an answer is about the caller, and not about the process.
func refusesCaller(err error) bool {
	return slices.Contains([]codes.Code{codes.Unauthenticated, codes.PermissionDenied, codes.ResourceExhausted},
		status.Code(err))
}

// reasonOf returns the reason in google.rpc.ErrorInfo of an answer; empty without one.
func reasonOf(err error) string {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	return ""
}

func examine(ctx context.Context, c *client.Client, id schema.DeploymentID) (e examined) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	admin, err := c.Admin(ctx, id)
	if err != nil {
		return examined{err: err}
	}
	var at peer.Peer
	e.status, e.err = admin.Status(ctx, &adminv1.StatusRequest{}, grpc.Peer(&at))
	e.ends, e.at = endOf(at), time.Now()
	return e
}

// endOf returns the first end of the certificates that a server has shown; zero without any.
func endOf(at peer.Peer) (ends time.Time) {
	info, _ := at.AuthInfo.(credentials.TLSInfo)
	for _, cert := range info.State.PeerCertificates {
		if ends.IsZero() || cert.NotAfter.Before(ends) {
			ends = cert.NotAfter
		}
	}
	return ends
}

func (d *doctor) certificate(where string, ends time.Time) {
	if left := ends.Sub(d.now); !ends.IsZero() && left < d.within {
		d.add(minor, where, "issue a new certificate and replace the files; the process reads them again by itself",
			"its certificate ends on %s, in %s", cli.At(ends), inDays(left))
	}
}

func inDays(left time.Duration) string {
	if left < 48*time.Hour {
		return left.Round(time.Minute).String()
	}
	return fmt.Sprintf("%d days", int(left.Hours()/24))
}

func (d *doctor) environment(env *schema.Environment) {
	if len(env.Deployments) == 0 {
		d.add(minor, "environment", "describe deployments, and apply the files", "it has no deployments")
	}
	if env.Rights != nil && env.Rights.Allow && !env.Rights.Deny {
		d.add(minor, "environment",
			"declare grants instead of default: allow (docs/access.md), and preview them with apply --dry-run",
			"everybody with a certificate may read, write and delete everything: the rights say default: allow")
	}
}

func (d *doctor) deployment(of schema.Deployment, e examined) {
	where, s := of.String(), e.status
	switch {
	case of.Disabled:
		d.add(minor, where, "enable it by apply, or decommission it; deletions that it may refer to wait",
			"it is disabled")
		return
	case of.NeverRan():
		d.add(minor, where, "start its process (serve), or remove it (db-controller remove)",
			"it is described and has never run")
		return
	case e.err != nil && slices.Contains([]string{"DATABASE_UNAVAILABLE", "DATABASE_FULL", "DATABASE_BUSY"},
		reasonOf(e.err)):
		d.add(severe, where, "look at its PostgreSQL server; its process waits for it, and goes on by itself",
			"its process runs, without its database: %s", cli.Plain(e.err))
		return
	case e.err != nil:
		d.add(severe, where,
			"start its process, or look at its log; deletions that it may refer to wait. For one that does not come back: db-controller decommission", "it does not answer: %s", cli.Plain(e.err))
		return
	}
	d.certificate(where, e.ends)
	for _, n := range s.GetNotReady() {
		d.add(severe, where, "see the reason, and docs/runbooks.md", "not ready: %s: %s", n.GetCheck(), n.GetReason())
	}
	if s.GetVersion() != of.Version {
		d.add(severe, where, "wait for the switch, or look at its log", "it runs %s, and %s is set", s.GetVersion(),
			of.Version)
	}
	d.processes(where, s, e.at)
	if s.GetPostgresql() != nil {
		d.server(where, s.GetPostgresql())
	}
	d.deletions(where, s)
	d.work(where, s)
}

func (d *doctor) processes(where string, s *adminv1.StatusResponse, at time.Time) {
	alive := 0
	for _, p := range s.GetProcesses() {
		if _, expired := leaseOf(p); expired {
			d.add(severe, where, "start the process again, or look at its log; another process takes its shards over",
				"%s", processLine(p))
		} else {
			alive++
		}
	}
	if alive == 1 {
		d.add(minor, where, "run a second process of the deployment: it takes over within the lease",
			"it has one process")
	}
	database, process := s.GetDatabaseTime().AsTime(), s.GetProcessTime().AsTime()
	if off := database.Sub(at); s.GetDatabaseTime() != nil && off.Abs() > clocksDiffer {
		d.add(minor, where, "run a time service on all machines",
			"the clock of its database is %s that of this machine", aheadOrBehind(off))
	}
	if off := database.Sub(process); s.GetProcessTime() != nil && off.Abs() > clocksDiffer {
		d.add(minor, where, "run a time service on all machines", "the clock of its database is %s that of its process",
			aheadOrBehind(off))
	}
	for _, w := range s.GetWatches() {
		switch heard := w.GetHeardTime().AsTime(); {
		case !w.GetPrimed() && w.GetLost() > 0:
			d.add(severe, where, "look at "+w.GetDeployment()+", and at the network between both deployments",
				"the watch %s of %s is lost, and has no snapshot yet", w.GetName(), w.GetDeployment())
		case w.GetPrimed() && at.Sub(heard) > silentAfter:
			d.add(severe, where, "look at the network between both deployments",
				"the watch %s of %s has been silent for %s", w.GetName(), w.GetDeployment(), cli.Ago(heard))
		}
	}
}

const (
	// longTransaction is the age from which on a transaction keeps VACUUM, and rights that end, waiting for
	// long.
	longTransaction = time.Hour
	// longPrepared is the age of a prepared transaction that its coordinator has probably forgotten.
	longPrepared = 10 * time.Minute
	// longUnarchived is the time without an archived file of the log after which archiving has probably
	// stopped: archive_timeout is minutes.
	longUnarchived = 24 * time.Hour
)

// server looks at the PostgreSQL server of a deployment's database.
func (d *doctor) server(where string, s *adminv1.StatusResponse_PostgreSQL) {
	if !s.GetFsync() {
		d.add(severe, where, "set fsync = on: the controller's promises rest on it",
			"PostgreSQL runs with fsync = off: a crash of its machine can destroy the database")
	}
	if !s.GetFullPageWrites() {
		d.add(severe, where, "set full_page_writes = on",
			"PostgreSQL runs with full_page_writes = off: a crash of its machine can destroy the database")
	}
	if used, most := s.GetConnections(), s.GetMaxConnections(); 10*used >= 9*most {
		d.add(severe, where, "raise max_connections, or lower --connections and the pools of applications",
			"%d of %d connections of its PostgreSQL server are in use", used, most)
	}
	switch archived := s.GetArchivedTime(); {
	case s.GetArchivingFails():
		d.add(severe, where,
			"look at the log of PostgreSQL, and at the disk of the archive: the log is kept until it is archived, and fills the server's disk", "archiving of its PostgreSQL log fails")
	case s.GetArchives() && archived != nil && d.now.Sub(archived.AsTime()) > longUnarchived:
		d.add(minor, where, "look at archive_timeout, and at the backups",
			"the last file of its PostgreSQL log was archived %s ago", cli.Ago(archived.AsTime()))
	case !s.GetArchives() && s.GetStandbys() == 0:
		d.add(minor, where,
			"set up a standby, or an archive of the log (pgBackRest, Barman): a restore loses what is younger than the last backup", "its PostgreSQL server has no connected standby and no archive of its log")
	}
	if at := s.GetOldestTransactionTime(); at != nil && d.now.Sub(at.AsTime()) > longTransaction {
		d.add(minor, where,
			"end it, or set idle_in_transaction_session_timeout: VACUUM, and rights that end, wait for it",
			"a transaction of its database is open for %s", cli.Ago(at.AsTime()))
	}
	if at := s.GetOldestPreparedTime(); at != nil && d.now.Sub(at.AsTime()) > longPrepared {
		d.add(minor, where,
			"COMMIT PREPARED or ROLLBACK PREPARED it, as its coordinator would (pg_prepared_xacts): VACUUM, and rights that end, wait for it", "a transaction of its database is prepared for %s", cli.Ago(at.AsTime()))
	}
}

func (d *doctor) deletions(where string, s *adminv1.StatusResponse) {
	e := s.GetEpoch()
	if e.GetAwaitingRegistry() {
		d.add(severe, where,
			"make the registry answer; if it was restored too, apply the files that describe all deployments",
			"nothing is deleted until the registry returns the deployments that may refer to resources here")
	}
	if waiting := e.GetUnconfirmed(); len(waiting) > 0 {
		d.add(severe, where,
			"start these deployments; for one that stays down: db-controller force-release --comparison-of, or decommission", "deletions wait until these deployments have compared their references: %s", strings.Join(waiting, ", "))
	}
	for _, p := range s.GetPauses() {
		command := "db-controller resume " + where
		if p.GetHandler() != "" {
			command += " --handler " + schema.Handler(p.GetHandler()).Text()
		}
		if p.GetOf() != where {
			command += " --of " + p.GetOf()
		}
		d.add(minor, where, command+" --reason TEXT", "paused: %s", pauseText(where, p))
	}
	if n := s.GetDanglingReferences(); n > 0 {
		d.add(severe, where, "db-controller verify "+where+" lists them; verify --repair --dangling=act lets them act",
			"%s lost the target with commits of another database", cli.Plural(n, "reference"))
	}
	if rows := s.GetAttachedRows(); rows.GetIncomplete() > 0 {
		d.add(minor, where, "db-controller attach --status lists them",
			"%s of attached tables name targets that do not exist", cli.Plural(rows.GetIncomplete(), "value"))
	}
}

// oldWork is the age from which outstanding work is a finding. Each piece of work is tried again within
// seconds.
const oldWork = 5 * time.Minute

func (d *doctor) work(where string, s *adminv1.StatusResponse) {
	for _, f := range s.GetFailures() {
		d.add(severe, where, "mend the cause; it is tried again by itself, or at once by db-controller retry",
			"%s for %s fails: %s", f.GetHandler(), f.GetDeployment(), f.GetError())
	}
	for _, o := range s.GetOutstanding() {
		if o.GetGroup() == "purge" && o.GetProblem() != "" {
			d.add(severe, where, "mend the cause, and it is tried again by itself; db-controller status "+where+
				" lists them, and undelete brings back what they hide",
				"%s with a retention, whose purge time has passed, cannot be carried out: %s",
				cli.Plural(o.GetCount(), "deletion"), o.GetProblem())
			continue
		}
		if o.GetProblem() != "" {
			d.add(severe, where, "mend the cause; a right that was denied takes a grant of refer for deployment/"+where+
				" (docs/access.md). db-controller attach --status lists the values",
				"%s of attached tables may not refer to resources of %s, so that nothing keeps these: %s",
				cli.Plural(o.GetCount(), "value"), o.GetDeployment(), o.GetProblem())
			continue
		}
		if age := d.now.Sub(o.GetOldestTime().AsTime()); age > oldWork {
			d.add(minor, where, "db-controller stuck shows the reasons", "%s of %s for %s: the oldest waits for %s",
				cli.Plural(o.GetCount(), "piece"), o.GetGroup(), cmp.Or(o.GetDeployment(), where),
				cli.Ago(o.GetOldestTime().AsTime()))
		}
	}
	for _, k := range s.GetKept() {
		d.add(minor, where, "delete them, or describe the kind and its patterns in the next version",
			"%s of kind %s, such as %s, fit no kind of the version", cli.Plural(k.GetResources(), "resource"),
			k.GetKind(), k.GetSample())
	}
}

func (d *doctor) report(out cli.Printer, asked int) error {
	slices.SortStableFunc(d.found, func(a, b finding) int { return cmp.Compare(a.Severity, b.Severity) })
	for _, f := range d.found {
		out.Line("%-7s  %s: %s\n         %s", f.Severity, f.Where, f.Problem, f.Remedy)
	}
	summary := fmt.Sprintf("%s in %s and the registry", cli.Plural(len(d.found), "finding"),
		cli.Plural(asked, "deployment"))
	if err := out.Document(append([]finding{}, d.found...)); err != nil {
		return err
	}
	if len(d.found) > 0 {
		return cli.WithCode(cli.Findings, errors.New(summary))
	}
	out.Line("no %s", strings.TrimPrefix(summary, "0 "))
	return nil
}
