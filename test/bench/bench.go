// Command bench compares db-controller with native foreign keys in one PostgreSQL database, in the same run
// on the same server.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/playground"
	"github.com/db-controller/db-controller/schema"
)

// Cases lists all cases.
var Cases = []string{
	"idle", "fan-out", "unset", "chain", "cost", "single", "write", "watch", "prime", "fairness",
	"far", "delegated", "attached", "growth",
}

// Parts are the cases of the case write, which can be named instead of it.
var Parts = []string{"write-none", "write-local", "write-foreign", "write-foreign-1000"}

// Long are cases that run only when they are named.
var Long = []string{"soak"}

// Config of a run. The playground runs the example services.
type Config struct {
	Cases []string
	N     []int
	Runs  int // at least 3
	// Clients of the cases write and delegated; none: each case has its own.
	Clients []int
	// Minutes is how long soak runs.
	Minutes int
	Server
	// Plans receives the plans of the statements that take the most time in growth. Nil: none are written.
	Plans    io.Writer
	Progress func(format string, args ...any)
}

// Server is the PostgreSQL that is measured, and the deployments on it.
type Server struct {
	// Playground runs, and Client is a client of it.
	Playground *playground.Playground
	Client     *client.Client
	// Services are the services of the playground.
	Services []*schema.Descriptor
	// BaselineDSN creates an empty database on the same server.
	BaselineDSN func(ctx context.Context) (string, error)
	// Databases creates migrated databases of deployments on the same server.
	Databases func(ctx context.Context, n int) ([]string, error)
	// CountsStatements says that the server was started with CountingSettings.
	CountsStatements bool
}

// Result is one line. Value and Baseline are medians in Unit; Ratio is how many times the baseline's time it
// took, or which part of the baseline's rate was reached.
type Result struct {
	Case     string  `json:"case"`
	N        int     `json:"n"`
	Value    float64 `json:"value"`
	Unit     string  `json:"unit"`
	Baseline float64 `json:"baseline,omitempty"`
	Ratio    float64 `json:"ratio,omitempty"`
	// Bare is the second baseline of fan-out: native keys and nothing else.
	Bare float64 `json:"bare,omitempty"`
	// Spread is the difference between the largest and the smallest value of the runs, as a part of Value.
	Spread float64 `json:"spread,omitempty"`
}

// wideSpread is the Spread from which on a value says little.
const wideSpread = 0.5

// of returns the result with the median of the values of all runs, and their spread.
func (r Result) of(values []float64) Result {
	r.Value = median(values)
	if r.Value > 0 {
		r.Spread = (slices.Max(values) - slices.Min(values)) / r.Value
	}
	return r
}

// The deployments of targets and holders.
var (
	targets = schema.DeploymentID{Service: "iam.example.com", Region: "us-west2"}
	holders = schema.DeploymentID{Service: "devices.example.com", Region: "eastus2"}
)

// Regions are the regions of the deployments that the cases use.
var Regions = []string{targets.Region, holders.Region}

// Uses says whether the cases need a deployment.
func Uses(id schema.DeploymentID) bool { return id == targets || id == holders }

type run struct {
	Config
	baseline *pgxpool.Pool
	server   int // the first process of PostgreSQL; 0 when it runs on another machine
	results  []Result
	watchers []string // folders of certificates
}

// Run runs the cases one after the other.
func Run(ctx context.Context, cfg Config) ([]Result, error) {
	cfg.Runs, cfg.Minutes = max(cfg.Runs, 3), max(cfg.Minutes, 1)
	dsn, err := cfg.BaselineDSN(ctx)
	if err != nil {
		return nil, fmt.Errorf("make the baseline's database: %w", err)
	}
	pool, err := pgxpool.New(ctx, dsn+"&pool_max_conns=64")
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	r := &run{Config: cfg, baseline: pool}
	if err := r.createBaseline(ctx); err != nil {
		return nil, err
	}
	if err := pool.QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&r.server); err != nil {
		return nil, err
	}
	r.server = parentOf(r.server)
	if r.CountsStatements {
		if err := r.count(ctx, "none", "off"); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Concat(Cases, Long) {
		part := func(c string) bool { return c == name || name == "write" && slices.Contains(Parts, c) }
		if !slices.ContainsFunc(cfg.Cases, part) {
			continue
		}
		measure := map[string]func(context.Context) error{
			"idle": r.idle, "fan-out": r.fanOut, "unset": r.unset,
			"chain": r.chain, "cost": r.costs, "single": r.single, "write": r.write, "watch": r.watch, "prime": r.prime,
			"fairness": r.fairness, "far": r.far, "delegated": r.delegated, "attached": r.attached, "growth": r.growth,
			"soak": r.soak,
		}[name]
		if err := measure(ctx); err != nil {
			return nil, fmt.Errorf("case %s: %w", name, err)
		}
	}
	return r.results, nil
}

func (r *run) add(result Result) {
	if result.Baseline > 0 {
		result.Ratio = result.Value / result.Baseline
	}
	r.results = append(r.results, result)
	r.Progress("%s", line(result))
	if result.Spread > wideSpread {
		r.Progress(
			"warning: %s %d: the runs differ by %.0f %% of their median; the machine does other things, or --runs is too small", result.Case, result.N, 100*result.Spread)
	}
}

func line(r Result) string {
	raw, _ := json.Marshal(r)
	return string(raw)
}

// Print writes JSON lines, or a table.
func Print(out io.Writer, results []Result, asJSON bool) error {
	if asJSON {
		for _, r := range results {
			if _, err := fmt.Fprintln(out, line(r)); err != nil {
				return err
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(w, "case\tn\tvalue\tunit\tspread\tbaseline\tratio\tbare\t")
	for _, r := range results {
		_, _ = fmt.Fprintf(w, "%s\t%d\t%.1f\t%s\t%s\t%s\t%s\t%s\t\n", r.Case, r.N, r.Value, r.Unit,
			number(r.Spread, "%.2f"), number(r.Baseline, "%.1f"), number(r.Ratio, "%.2f"), number(r.Bare, "%.1f"))
	}
	return w.Flush()
}

func number(v float64, format string) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf(format, v)
}

func median(values []float64) float64 { return percentile(values, 0.5) }

func percentile(values []float64, p float64) float64 {
	sorted := slices.Clone(values)
	slices.Sort(sorted)
	return sorted[min(len(sorted)-1, int(p*float64(len(sorted))))]
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
