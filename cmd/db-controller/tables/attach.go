// Package tables has the commands for users' own tables: scan, attach and detach.
package tables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/cmd/db-controller/operate"
	"github.com/db-controller/db-controller/internal/attach"
	"github.com/db-controller/db-controller/internal/scan/report"
	"github.com/db-controller/db-controller/schema"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	"github.com/db-controller/db-controller/schema/wire"
)

// attachFlags name tables in the database of a deployment.
type attachFlags struct {
	dsn            string
	plaintext      bool
	kinds          []string
	dryRun, status bool
	readAgain      bool
	createIndexes  bool
	version        string
	loopback       string
	printDetach    bool
	yes, allOrNone bool
}

func (f *attachFlags) add(cmd *cobra.Command) {
	cli.SecretFlag(cmd.Flags(), &f.dsn, "postgres", "DSN of the deployment's database, as the owner of the tables")
	cli.PlaintextFlag(cmd.Flags(), &f.plaintext)
	cmd.Flags().StringSliceVar(&f.kinds, "kind", nil, "only these kinds")
	cli.OutputFlag(cmd)
}

// connect opens the database. Statements have no names, which poolers do not know.
func (f *attachFlags) connect(cmd *cobra.Command) (*pgx.Conn, error) {
	if err := cli.RequireFlags(cmd, "postgres"); err != nil {
		return nil, err
	}
	if err := cli.CheckDSN(f.dsn, f.plaintext); err != nil {
		return nil, cli.Usage("%w", err)
	}
	cfg, err := pgx.ParseConfig(f.dsn)
	if err != nil {
		// the parser's error contains the password
		return nil, cli.Usage("--postgres: not a PostgreSQL connection string")
	}
	cfg.DefaultQueryExecMode = pgx.QueryExecModeExec
	conn, err := pgx.ConnectConfig(cmd.Context(), cfg)
	return conn, cli.OfDatabase(err)
}

func (f *attachFlags) wants(kind string) bool {
	return len(f.kinds) == 0 || slices.Contains(f.kinds, kind)
}

// NewAttach returns the command attach.
func NewAttach() *cobra.Command {
	var f attachFlags
	cmd := &cobra.Command{
		Use:   "attach [FILE...] --postgres DSN",
		Short: "Let the rows of a deployment's tables be resources",
		Long: `attach checks the tables that FILE declares for the service of the database, and gives each of them triggers. Afterwards the rows are
resources, and their columns references. It needs the role that owns the tables, waits for no lock longer than 200 ms, and does not change
existing objects.

For strict references it makes the extension dblink and a role that may do nothing but ask for rights, and says what it may not make.

--print-detach-sql is for a copy of the database, such as one for tests: without its processes, statements on strict tables fail there.

--status fails when the triggers differ from those that attach creates, or the declaration from that of the version that runs.`,
		Example: `  db-controller attach references.yaml --postgres service=shop --dry-run
  db-controller attach --status --postgres service=shop
  db-controller attach --print-detach-sql --postgres service=shop > detach.sql`,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case f.status && len(args) > 0:
				return cli.Usage("--status reads no file")
			case f.status:
				return f.list(cmd)
			case f.printDetach && len(args) > 0:
				return cli.Usage("--print-detach-sql reads no file")
			case f.printDetach:
				return f.printDetachSQL(cmd)
			case len(args) == 0:
				return cli.Usage("name the FILE with the declaration, or add --status; usage: %s", cmd.UseLine())
			}
			return f.attach(cmd, args)
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "print the findings and the statements, and change nothing")
	cmd.Flags().BoolVar(&f.status, "status", false, "list the attached tables, their progress and their problems")
	cmd.Flags().BoolVar(&f.printDetach, "print-detach-sql", false,
		"print the statements that detach the tables of a copy of this database, for psql; change nothing")
	cmd.Flags().BoolVar(&f.createIndexes, "create-indexes", false,
		"create the indexes that references need and that are missing (CREATE INDEX CONCURRENTLY)")
	cmd.Flags().BoolVar(&f.allOrNone, "all-or-none", false, "attach no table when one of them is refused")
	cmd.Flags().BoolVar(&f.yes, "yes", false,
		"let missing: unset and delete act upon any number of rows that are there before; without it upon ten, or one per cent of the table")
	cmd.Flags().BoolVar(&f.readAgain, "read-again", false,
		"look at all rows again, after statements that no trigger saw")
	cli.SecretFlag(cmd.Flags(), &f.loopback, "loopback-dsn",
		"DSN from the PostgreSQL server to this database, of a role with a password, by which strict statements ask for rights (default: 127.0.0.1 or the socket, by a role that attach makes)")
	cmd.Flags().StringVar(&f.version, "version", "", "version of the service (default: the last one in FILE)")
	return cmd
}

// printDetachSQL prints the statements for the attached tables.
func (f *attachFlags) printDetachSQL(cmd *cobra.Command) error {
	conn, err := f.connect(cmd)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.Background()) }()
	all, err := attach.All(cmd.Context(), conn)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(a *attach.Attached) bool { return !f.wants(a.Kind) })
	statements, out := attach.DetachSQL(all), cli.PrinterOf(cmd)
	out.Line("%s;", strings.Join(statements, ";\n"))
	return out.Document(statements)
}

func (f *attachFlags) attach(cmd *cobra.Command, files []string) error {
	read, err := operate.Valid(files)
	if err != nil {
		return err
	}
	conn, err := f.connect(cmd)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.Background()) }()
	deployment, err := attach.Deployment(cmd.Context(), conn)
	if err != nil {
		return err
	}
	model, err := f.model(read.Services, deployment)
	if err != nil {
		return err
	}
	plans, err := f.prepare(cmd, conn, model, f.dryRun)
	if err != nil {
		return err
	}
	if f.createIndexes && !f.dryRun {
		created, err := attach.CreateIndexes(cmd.Context(), conn, plans, func(sql string) { cmd.PrintErrln(sql) })
		if err != nil {
			return err
		}
		if created {
			if plans, err = f.prepare(cmd, conn, model, false); err != nil {
				return err
			}
		}
	}
	if len(plans) == 0 {
		return fmt.Errorf("%s declares no such table for %s", model.Descriptor.ServiceVersion, deployment)
	}
	return f.carryOut(cmd, conn, plans)
}

// prepare plans the attachment of the wanted kinds.
func (f *attachFlags) prepare(cmd *cobra.Command, conn *pgx.Conn, model *schema.Model,
	dry bool,
) ([]*attach.Plan, error) {
	plans, err := attach.Prepare(cmd.Context(), conn, model, dry)
	return slices.DeleteFunc(plans, func(p *attach.Plan) bool { return !f.wants(p.Kind.Kind) }), err
}

// model compiles the version of the deployment's service to attach.
func (f *attachFlags) model(services []*schema.Descriptor, deployment schema.DeploymentID) (*schema.Model, error) {
	var last *schema.Descriptor
	for _, d := range services {
		if d.Service == deployment.Service && (f.version == "" || d.Version == f.version) {
			last = d
		}
	}
	if last == nil {
		return nil, cli.Usage("the file does not describe %s %s, to which the database belongs",
			deployment.Service, f.version)
	}
	return schema.NewModel(last.ServiceVersion, services)
}

// attachment is the result for one kind, for programs.
type attachment struct {
	Kind       string           `json:"kind"`
	Table      string           `json:"table"`
	State      string           `json:"state"`
	Findings   []attach.Finding `json:"findings,omitempty"`
	Statements []string         `json:"statements,omitempty"`
	Missing    []attach.Missing `json:"missing,omitempty"`
}

// foundIn is how long attach waits for the number of rows whose target does not exist.
const foundIn = 10 * time.Second

// carryOut attaches the tables that are not refused.
func (f *attachFlags) carryOut(cmd *cobra.Command, conn *pgx.Conn, plans []*attach.Plan) error {
	out := cli.PrinterOf(cmd)
	results, refused, nothing := []*attachment{}, 0, ""
	for _, p := range plans {
		a := &attachment{
			Kind: p.Kind.Kind, Table: p.Table.String(), State: "planned", Findings: p.Findings,
			Statements: p.Statements,
		}
		if p.Refused() {
			a.State = "refused"
			refused++
		}
		printFindings(out, p)
		results = append(results, a)
	}
	if refused == len(plans) || refused > 0 && (f.allOrNone || f.dryRun) {
		nothing = "; nothing is changed"
	}
	some := cli.WithCode(cli.Refused, fmt.Errorf("%s cannot be attached%s", report.Several(int64(refused), "table"),
		nothing))
	if nothing != "" && !f.dryRun {
		return errors.Join(out.Document(results), some)
	}
	for i, p := range plans {
		var err error
		if p.Refused() {
			continue
		}
		if results[i].State, err = f.apply(cmd, conn, out, p); err != nil {
			return errors.Join(out.Document(results), fmt.Errorf("attach %s: %w", p.Kind, err))
		}
		if err = f.confirm(cmd, conn, out, p, results[i]); err != nil {
			return errors.Join(out.Document(results), err)
		}
	}
	var unwaited error
	if waits, err := f.letWait(cmd, conn, out, plans, results); err != nil {
		return errors.Join(out.Document(results), err)
	} else if !waits {
		unwaited = cli.WithCode(cli.Findings,
			errors.New(
				"the tables are attached; statements on strict ones do not wait for rights, and fail with RD001 while one is lacking"))
	}
	if refused > 0 {
		return errors.Join(out.Document(results), some)
	}
	return errors.Join(out.Document(results), unwaited)
}

// confirm says how many rows would be unset or deleted because their targets do not exist, and lets that be
// with --yes.
func (f *attachFlags) confirm(cmd *cobra.Command, conn *pgx.Conn, out cli.Printer, p *attach.Plan,
	result *attachment,
) (err error) {
	if f.dryRun || !p.Acts() {
		return nil
	}
	if f.yes {
		if err := attach.Confirm(cmd.Context(), conn, p); err != nil {
			return err
		}
	}
	var asked bool
	if result.Missing, asked, err = attach.FindMissing(cmd.Context(), conn, p, foundIn); err != nil {
		return err
	}
	if !asked {
		out.Line(
			"  %s: no process of the deployment has asked for the targets of its rows yet: attach --status shows later which do not exist", p.Kind.Kind)
	}
	for _, m := range result.Missing {
		mark := " "
		if m.Waits {
			mark = "!"
		}
		out.Line("%s %s: %s", mark, p.Kind.Kind, m)
	}
	return nil
}

// letWait lets statements of strict tables wait for rights, and reports whether they do.
func (f *attachFlags) letWait(cmd *cobra.Command, conn *pgx.Conn, out cli.Printer, plans []*attach.Plan,
	results []*attachment,
) (waits bool, err error) {
	strict := slices.IndexFunc(plans, func(p *attach.Plan) bool { return !p.Refused() && p.Definition.Strict() })
	if strict < 0 || f.dryRun {
		return true, nil
	}
	lacking, err := attach.Waiting(cmd.Context(), conn, f.loopback)
	if err != nil {
		return false, fmt.Errorf("let statements wait for rights: %w", err)
	}
	if lacking == nil {
		out.Line("statements on strict tables wait for the rights that they need")
		return true, nil
	}
	results[strict].Findings = append(results[strict].Findings, lacking...)
	for _, finding := range lacking {
		printFinding(out, plans[strict].Kind.Kind, finding)
	}
	return false, nil
}

func printFindings(out cli.Printer, p *attach.Plan) {
	for _, finding := range p.Findings {
		printFinding(out, p.Kind.Kind, finding)
	}
}

func printFinding(out cli.Printer, kind string, finding attach.Finding) {
	mark := " "
	if finding.Refuses {
		mark = "!"
	}
	out.Line("%s %s: %s", mark, kind, finding.Text)
	if finding.SQL != "" {
		out.Line("      %s", finding.SQL)
	}
}

func (f *attachFlags) apply(cmd *cobra.Command, conn *pgx.Conn, out cli.Printer,
	p *attach.Plan,
) (state string, err error) {
	switch {
	case len(p.Statements) == 0 && f.readAgain && !f.dryRun:
		out.Line("%s is attached to %s already: the controller looks at its rows again", p.Kind.Kind, p.Table)
		return "attached", attach.ReadAgain(cmd.Context(), conn, p)
	case len(p.Statements) == 0:
		out.Line("%s is attached to %s already", p.Kind.Kind, p.Table)
		return "attached", nil
	case p.Deletes > 0 && !f.yes && !f.dryRun:
		return "refused",
			cli.WithCode(cli.Refused,
				fmt.Errorf(
					"the rows of %d resources are deleted by the column %s, which was not declared before: attach --yes deletes these resources, with cascades", p.Deletes, p.Definition.Gone.Name))
	case f.dryRun:
		if p.Deletes > 0 {
			out.Line(
				"! %s: the rows of %d resources are deleted by the column %s, which was not declared before: attach --yes deletes these resources, with cascades", p.Kind.Kind, p.Deletes, p.Definition.Gone.Name)
		}
		out.Line("-- %s, table %s\n%s;", p.Kind.Kind, p.Table, strings.Join(p.Statements, ";\n"))
		return "planned", nil
	}
	if err := attach.Apply(cmd.Context(), conn, p, waits(cmd)); err != nil {
		return "failed", err
	}
	out.Line("attached %s to %s: the controller acquires the rights of its rows now", p.Kind.Kind, p.Table)
	return "attached", nil
}

// waits reports that a lock is taken.
func waits(cmd *cobra.Command) func(error) {
	return func(err error) { cmd.PrintErrf("%v; trying again\n", err) }
}

// NewDetach returns the command detach.
func NewDetach() *cobra.Command {
	var f attachFlags
	cmd := &cobra.Command{
		Use:   "detach --postgres DSN",
		Short: "Take the triggers of attached tables away",
		Long: `detach drops the triggers and functions that attach created, and nothing else: the schema is the same as before. The controller then
returns the rights of the rows. References to the rows are no longer enforced.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.detach(cmd) },
	}
	f.add(cmd)
	return cmd
}

func (f *attachFlags) detach(cmd *cobra.Command) error {
	conn, err := f.connect(cmd)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.Background()) }()
	all, err := attach.All(cmd.Context(), conn)
	if err != nil {
		return err
	}
	known := make([]string, len(all))
	for i, a := range all {
		known[i] = a.Kind
	}
	running, err := runningModel(cmd.Context(), conn)
	if err != nil {
		return err
	}
	if running != nil { // a kind that is detached already is no mistake
		for _, k := range running.Descriptor.Kinds {
			known = append(known, k.Name)
		}
	}
	for _, kind := range f.kinds {
		if running != nil && !slices.Contains(known, kind) {
			return cli.WithCode(cli.Refused, fmt.Errorf("no table of kind %s is attached%s", kind,
				cli.DidYouMean(kind, known)))
		}
	}
	out, results := cli.PrinterOf(cmd), []attachment{}
	for _, a := range all {
		if !a.Ready || !f.wants(a.Kind) {
			continue
		}
		if err := attach.Detach(cmd.Context(), conn, a, waits(cmd)); err != nil {
			return errors.Join(out.Document(results), fmt.Errorf("detach %s: %w", a.Kind, err))
		}
		out.Line("detached %s from %s", a.Kind, a.Definition.Table)
		results = append(results, attachment{Kind: a.Kind, Table: a.Definition.Table.String(), State: "detached"})
	}
	if len(results) == 0 {
		out.Line("nothing to do: no such table is attached")
	}
	if err := attach.StopWaiting(cmd.Context(), conn); err != nil {
		return errors.Join(out.Document(results), err)
	}
	return out.Document(results)
}

func (f *attachFlags) list(cmd *cobra.Command) error {
	conn, err := f.connect(cmd)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.Background()) }()
	all, err := attach.All(cmd.Context(), conn)
	if err != nil {
		return err
	}
	running, err := runningModel(cmd.Context(), conn)
	if err != nil {
		return err
	}
	var without []string
	if running != nil {
		attach.Declared(all, running)
		without = slices.DeleteFunc(withoutTable(all, running), func(kind string) bool { return !f.wants(kind) })
	}
	all = slices.DeleteFunc(all, func(a *attach.Attached) bool { return !f.wants(a.Kind) })
	out, drifted, lacking := cli.PrinterOf(cmd), 0, 0
	for _, a := range all {
		out.Line("%s  %s  %s; %s, %d of them after a try; %s without a target", a.Kind, a.Definition.Table, a.State(),
			waiting(a.Waiting), a.Failed, cli.Plural(a.Missing, "value"))
		for _, why := range []*string{a.Failure, a.Problem} {
			if why != nil {
				out.Line("      %s", *why)
			}
		}
		for _, m := range a.MissingRows {
			out.Line("      %s", m)
		}
		for _, r := range a.Renamed {
			out.Line("      %s", r)
		}
		for _, d := range a.Drift {
			drifted++
			out.Line("    ! %s", d)
		}
		for _, g := range a.Grants {
			lacking++
			out.Line("    ! %s\n      %s", g.Text, g.SQL)
		}
	}
	if len(all) == 0 && len(without) == 0 {
		out.Line("no such table is attached")
	}
	for _, kind := range without {
		out.Line(
			"%s  the version that runs declares its table, which is not attached: its rows refer to nothing; attach it",
			kind)
	}
	why := attach.WhyNotWaiting(cmd.Context(), conn)
	if why != nil {
		why = cli.WithCode(cli.Findings,
			fmt.Errorf(
				"statements on strict tables do not wait for rights, and fail with RD001 while one is lacking: %w",
				why))
	}
	if len(without) > 0 {
		why = errors.Join(cli.WithCode(cli.Findings, fmt.Errorf("not attached: %s", strings.Join(without, ", "))), why)
	}
	if err := out.Document(all); err != nil || drifted+lacking == 0 {
		return errors.Join(err, why)
	}
	if drifted == 0 {
		return fmt.Errorf("rights are lacking on %s: grant them", report.Several(int64(lacking), "table"))
	}
	return fmt.Errorf("%s from the attachments that the version that runs needs: attach again",
		report.Several(int64(drifted), "difference"))
}

// withoutTable returns the kinds of a model whose tables are not attached, or are detached.
func withoutTable(all []*attach.Attached, running *schema.Model) (kinds []string) {
	for _, name := range running.KindNames() {
		kind, err := running.Kind(name)
		if err == nil && kind.Table != nil && !slices.ContainsFunc(all, func(a *attach.Attached) bool {
			return a.Kind == name && a.Ready
		}) {
			kinds = append(kinds, name)
		}
	}
	return kinds
}

func waiting(n int64) string {
	if n == 1 {
		return "1 deleted row or value waits"
	}
	return fmt.Sprintf("%d deleted rows and values wait", n)
}

// runningModel compiles the version that the deployment runs, from the environment that its processes keep;
// nil: they have kept none yet.
func runningModel(ctx context.Context, conn *pgx.Conn) (*schema.Model, error) {
	var running schema.ServiceVersion
	var raw []byte
	if err := conn.QueryRow(ctx, `SELECT service, version, environment FROM dbcontroller.meta`).Scan(&running.Service,
		&running.Version, &raw); err != nil {
		if errors.Is(err, pgx.ErrNoRows) {
			return nil, nil
		}
		return nil, fmt.Errorf("read the version of the deployment: %w", err)
	}
	env := &registryv1.Environment{}
	if err := proto.Unmarshal(raw, env); err != nil {
		return nil, fmt.Errorf("read the environment of the deployment: %w", err)
	}
	services := wire.Environment(env).Services
	if !slices.ContainsFunc(services, func(d *schema.Descriptor) bool { return d.ServiceVersion == running }) {
		return nil, nil
	}
	return schema.NewModel(running, services)
}
