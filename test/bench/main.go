package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/cmd/db-controller/dev"
	"github.com/db-controller/db-controller/cmd/db-controller/operate"
	"github.com/db-controller/db-controller/internal/postgres/launcher"
	"github.com/db-controller/db-controller/migrations"
	"github.com/db-controller/db-controller/schema"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := newBench().ExecuteContext(ctx); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(cli.ExitCode(err)) //nolint:gocritic // nothing is left to do
	}
}

func newBench() *cobra.Command {
	var cfg Config
	var asJSON bool
	var at server
	var plans string
	cmd := &cobra.Command{
		Use:           "bench",
		Short:         "Measure this machine, and compare with native foreign keys in the same run",
		SilenceUsage:  true,
		SilenceErrors: true,
		Long: `bench starts PostgreSQL with its default durability, two services in --deployments, and runs cases at least three
times. Compare the ratios within a run; machines differ.

  idle     nothing is asked of the deployments for 60 s: transactions and written rows a second in a database, and the part of a processor
           that a controller takes, and PostgreSQL for it.
  fan-out  a target in one deployment, n holders in another that cascade: from the Delete call until the target is gone.
           Two baselines in one database: "bare" native keys, and "equal" ones with the same bookkeeping as ours
           (resource row, shadow, reference rows by ON DELETE CASCADE, change rows by a statement trigger).
  unset    a target in one deployment, n holders in another that lose the reference and stay, beside a native key with SET NULL
           and the same bookkeeping.
  chain    100 resources that refer to one another, each in another of four deployments than the one above: the time of a level.
  cost     what one call of each operation takes, with all that follows from it in all deployments: writing transactions, statements, written
           rows and entries of indexes, bytes of the log, and the processor time of the client, the controllers and PostgreSQL. Statements,
           rows and entries are counted on a server that bench has started, by pg_stat_statements and pg_walinspect.
  single   one target, one holder elsewhere: from the Delete call until the holder is gone.
  write    create resources through gRPC: without references, with one in the same database (a parent), and with a second
           one to another deployment; 1 to 240 clients (one identity has 250 calls). Beside inserting the same rows with pgx, one transaction each. Also
           the processor time of a write in all processes, which says more than a rate on a machine that does other things.
           write-none, write-local, write-foreign (one hot target) and write-foreign-1000 (a thousand) are its parts.
  watch    eight writers at full speed, with no watch, with one, and with a hundred on connections of their own: what
           the writers lose, events a second, and from a write's answer to its event; and one writer of transactions of
           a thousand.
  prime    a controller is started beside 100,000 pieces of outstanding work, with 10,000 and with 1,000,000 resources
           that have none: until its nodes know it all, and the memory that they need.
  fairness small deletions while one with 1,000,000 holders of the same deployments is under way, beside the same without.
  far      a delete that reaches 18 deployments, three levels deep, with round trips of 0, 80 and 230 ms between them: from
           the call until the answer, beside five round trips. The deployments are stores of one process, so that
           the round trips count and not the machine. It fails when a deployment was not asked.
  delegated
           create a resource with one acting reference to one of 1,000 resources of another deployment: by asking that deployment, and then by
           processes with --delegations, under a right; so with a parent and a blocking reference, and both again with the target's
           deployment stopped. Beside all, inserting the same rows with pgx, and resources without references.
  attached what the triggers of attached tables, async and strict, cost plain SQL: inserts, updates and deletes of single rows, 100 and
           50,000, beside the same statements on equal tables with a native key, in processor time of the server. And a row with n rows
           in another database that go with it: from the DELETE until they are gone, beside "equal" ones, and "bare" native keys of the same tables.
  growth   the operations of cost while both deployments have 10,000, 100,000 and 1,000,000 resources: the processor time of a call beside
           that with the fewest, and how many rows of large tables a call reads. --plans FILE receives the ten statements
           that take the most time with 1,000,000, and their plans. It runs last.
  soak     for --minutes, only when it is named: resources come and go at full speed, and memory, goroutines, connections and dead rows of the
           last third are compared with those of the third before.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, c := range cfg.Cases {
				if known := slices.Concat(Cases, Parts, Long); !slices.Contains(known, c) {
					return cli.Usage("--cases %s: known are %s", c, strings.Join(known, ", "))
				}
			}
			if n := at.deployments; n < 2 || n > 100 || n%2 != 0 {
				return cli.Usage("--deployments %d: an even number from 2 to 100", n)
			}
			if at.deployments == 2 && slices.Contains(cfg.Cases, "chain") {
				return cli.Usage("--deployments 2: the case chain needs 4, name other --cases")
			}
			if plans != "" && !slices.Contains(cfg.Cases, "growth") {
				return cli.Usage("--plans: they are those of growth, add it to --cases")
			}
			return runBench(cmd, at, plans, cfg, asJSON)
		},
	}
	cli.OutputFlag(cmd)
	f := cmd.Flags()
	f.StringSliceVar(&cfg.Cases, "cases", Cases, "which cases")
	f.IntSliceVar(&cfg.N, "n", []int{200, 300, 1_000, 3_000, 10_000, 100_000}, "holders of the fan-out")
	f.IntVar(&cfg.Runs, "runs", 3, "runs of each case; the median counts")
	f.IntSliceVar(&cfg.Clients, "clients", nil,
		"numbers of clients of write and delegated (default: those of each case)")
	f.IntVar(&cfg.Minutes, "minutes", 20, "how long soak runs")
	f.BoolVar(&asJSON, "json", false, "a line of JSON for each result instead of one document (-o json)")
	f.IntVar(&at.deployments, "deployments", 4, "in how many deployments the two services run")
	f.StringVar(&plans, "plans", "", "a `FILE` to write the plans of growth to")
	f.StringVar(&at.program, "program", "bin/db-controller", "the `FILE` of db-controller")
	f.StringVar(&at.dsn, "postgres", "", "DSN of a server to use (default: start one)")
	return cmd
}

// server says where the deployments have their databases.
type server struct {
	program     string
	dsn         string // empty: a server is started
	deployments int
}

// start starts a server, or takes a running one. counts says that it can count statements; a server without
// the module for it does not start, so it is tried without.
func (s server) start(ctx context.Context, cases []string) (pg *launcher.Server, counts bool, err error) {
	settings := dev.OwnServer(s.deployments)
	if s.dsn == "" && Counts(cases) {
		counting := maps.Clone(settings)
		maps.Copy(counting, CountingSettings)
		if pg, err := launcher.Start(ctx, launcher.Config{Settings: counting}); err == nil {
			return pg, true, nil
		}
	}
	pg, err = launcher.Start(ctx, launcher.Config{DSN: s.dsn, Settings: settings})
	return pg, false, err
}

// deploymentsOf returns n deployments of the services: the deployments that the cases use come first.
func deploymentsOf(services []schema.Deployment, n int) (regions []string, deployments []schema.Deployment) {
	byService := map[string]schema.Deployment{}
	for _, d := range services {
		byService[d.Service] = d
	}
	for i := range max(2, n/2) {
		region := fmt.Sprintf("region%d", i+1)
		if i < len(Regions) {
			region = Regions[i]
		}
		regions = append(regions, region)
		for _, service := range slices.Sorted(maps.Keys(byService)) {
			d := byService[service]
			d.Region = region
			if n > 2 || Uses(d.DeploymentID) {
				deployments = append(deployments, d)
			}
		}
	}
	return regions, deployments
}

func runBench(cmd *cobra.Command, at server, plans string, cfg Config, asJSON bool) error {
	dir, err := os.MkdirTemp("", "db-controller-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	pg, counts, err := at.start(cmd.Context(), cfg.Cases)
	if err != nil {
		return err
	}
	defer func() { _ = pg.Stop() }()
	cmd.PrintErrln("database:", pg.Source())
	files, err := dev.Services()
	if err != nil {
		return err
	}
	files.Regions, files.Deployments = deploymentsOf(files.Deployments, at.deployments)
	WithChains(files.Services)
	WithTables(files.Services)
	p, c, err := dev.Start(cmd.Context(), pg, at.program, dir, files, operate.Local, "--delegations=false")
	if p != nil {
		defer func() { _ = p.Stop() }()
	}
	if err != nil {
		return err
	}
	defer c.Close()
	cfg.Playground, cfg.Client, cfg.Services, cfg.CountsStatements = p, c, files.Services, counts
	if plans != "" {
		file, err := os.Create(plans)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		cfg.Plans = file
	}
	cfg.Progress = func(format string, args ...any) { cmd.PrintErrf(format+"\n", args...) }
	cfg.BaselineDSN = func(ctx context.Context) (string, error) {
		if err := pg.DropDatabase(ctx, "dbc_baseline"); err != nil {
			return "", err
		}
		return pg.DSN("dbc_baseline"), pg.CreateDatabase(ctx, "dbc_baseline")
	}
	cfg.Databases = func(ctx context.Context, n int) ([]string, error) {
		dsns := make([]string, n)
		for i := range dsns {
			name := fmt.Sprintf("dbc_far_%d", i)
			if err := errors.Join(pg.DropDatabase(ctx, name), pg.CreateDatabase(ctx, name)); err != nil {
				return nil, err
			}
			dsns[i] = pg.DSN(name)
			if _, err := migrations.Up(ctx, dsns[i], migrations.Deployment); err != nil {
				return nil, err
			}
		}
		return dsns, nil
	}
	results, err := Run(cmd.Context(), cfg)
	if err != nil {
		return err
	}
	if printer := cli.PrinterOf(cmd); !printer.People() && !asJSON {
		return printer.Document(results)
	}
	return Print(cmd.OutOrStdout(), results, asJSON)
}
