package tables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/cmd/db-controller/operate"
	"github.com/db-controller/db-controller/internal/atomicfile"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/internal/scan"
	"github.com/db-controller/db-controller/internal/scan/report"
	"github.com/db-controller/db-controller/schema"
)

// memoryLimit is the Go runtime's soft limit in bytes: near it garbage is collected at any price.
const memoryLimit = 48 << 20

// guessedDomain completes the name of a database to the name of a service.
const guessedDomain = ".example.com"

type scanFlags struct {
	dsns             []string
	html, write      string
	rate             int
	statementTimeout time.Duration
	strict           bool
	plaintext        bool
}

// NewScan returns the command scan.
func NewScan() *cobra.Command {
	var f scanFlags
	cmd := &cobra.Command{
		Use:   "scan [FILE...] --dsn NAME=DSN [--dsn NAME=DSN]...",
		Short: "Find orphans, fan-outs and missing indexes of the references between the databases that you have",
		Long: `Find orphans, fan-outs and missing indexes of the references between the databases that you have, and the reach of a cascade.

FILE declares the tables and their references. Without one, references are guessed from names, types and native keys.

NAME is a service, or service/region for one of several databases of a service; a name without a dot stands for
NAME.example.com, or for the service of FILE whose first label it is. The list of processes shows a password in DSN, and not one in ~/.pgpass
(or PGPASSFILE).

A scan needs SELECT only. It has two connections to each database, reads one table at a time, in one snapshot, and locks nothing beyond
ACCESS SHARE. Interrupted, it prints the part that it has.

The exit code is 1 when the scan failed or was interrupted.`,
		Example: `  db-controller scan --dsn shop=postgres://reader@db1/shop --dsn crm=postgres://reader@db2/crm --write references.yaml
  db-controller scan references.yaml --dsn shop=service=shop --dsn crm=service=crm --html report.html`,
		RunE: func(cmd *cobra.Command, args []string) error { return runScan(cmd, args, &f) },
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&f.dsns, "dsn", nil, "`NAME=DSN` of a database; once for each")
	cli.OutputFlag(cmd)
	flags.StringVar(&f.html, "html", "", "write the report to `FILE` as a page that needs nothing else")
	flags.StringVar(&f.write, "write", "", "write the guessed declaration to `FILE`, which must not exist")
	flags.IntVar(&f.rate, "rate", 50_000, "read at most this many rows a second; 0 for no limit")
	flags.DurationVar(&f.statementTimeout, "statement-timeout", 30*time.Second, "give up a statement after this time")
	flags.BoolVar(&f.strict, "strict", false, "fail with exit code 3 when something should be done")
	cli.PlaintextFlag(flags, &f.plaintext)
	return cmd
}

func runScan(cmd *cobra.Command, files []string, f *scanFlags) error {
	// Batches leave garbage behind: collected early, it keeps the process below 100 MB at any size of the
	// databases.
	defer debug.SetGCPercent(debug.SetGCPercent(25))
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(memoryLimit))
	cfg := scan.Config{
		Limits:   scan.Limits{Rate: f.rate, Statement: f.statementTimeout},
		Progress: newProgress(cmd.ErrOrStderr()),
	}
	if err := f.check(files); err != nil {
		return err
	}
	if len(files) > 0 {
		read, err := operate.Valid(files)
		if err != nil {
			return err
		}
		if cfg.Declared = read.Services; len(cfg.Declared) == 0 {
			return cli.Usage("%s: there is no service in it", strings.Join(files, ", "))
		}
	}
	var err error
	if cfg.Databases, err = f.databases(cfg.Declared); err != nil {
		return err
	}
	result, err := scan.Run(cmd.Context(), cfg)
	if err != nil {
		return err
	}
	if err := f.outputs(cmd, result); err != nil {
		return err
	}
	return f.verdict(cmd.Context(), result.Report)
}

func (f *scanFlags) check(files []string) error {
	switch {
	case len(f.dsns) == 0:
		return cli.Usage("missing: --dsn NAME=DSN, once for each database")
	case f.rate < 0:
		return cli.Usage("--rate %d: want 0 or more", f.rate)
	case f.statementTimeout < 100*time.Millisecond:
		return cli.Usage("--statement-timeout %s: want at least 100ms", f.statementTimeout)
	case f.write != "" && len(files) > 0:
		return cli.Usage("--write writes a guess, and %s declares the references already", strings.Join(files, ", "))
	}
	if f.write != "" {
		if _, err := os.Stat(f.write); err == nil {
			return cli.Usage("--write %s: the file exists, and is not overwritten", f.write)
		}
	}
	return nil
}

// databases parses --dsn. Errors never contain the connection string.
func (f *scanFlags) databases(declared []*schema.Descriptor) ([]scan.Database, error) {
	var out []scan.Database
	for i, text := range f.dsns {
		name, dsn, ok := strings.Cut(text, "=")
		if !ok || dsn == "" || strings.Contains(name, "://") {
			return nil, cli.Usage("--dsn, number %d: want NAME=DSN, such as shop=postgres://reader@localhost/shop", i+1)
		}
		if err := postgres.CheckTLS(dsn); err != nil && !f.plaintext {
			if errors.Is(err, postgres.ErrNoService) {
				return nil, cli.Usage("--dsn %s: %w", name, err)
			}
			return nil, cli.Usage("--dsn %s: %w; on a trusted network, add --postgres-plaintext", name, err)
		}
		d := scan.Database{Label: name, DSN: dsn}
		service, region, hasRegion := strings.Cut(name, "/")
		if !strings.Contains(service, ".") {
			service = strings.ReplaceAll(strings.ToLower(service), "_", "-") + guessedDomain
		}
		d.Service, d.Region = declaredService(declared, service, name), region
		err := schema.CheckService(d.Service)
		if err == nil && hasRegion {
			err = schema.CheckRegion(region)
		}
		if err != nil {
			return nil, cli.Usage("--dsn %s: %w", name, err)
		}
		if err := unlike(out, d); err != nil {
			return nil, err
		}
		if len(declared) > 0 && !slices.ContainsFunc(declared, func(s *schema.Descriptor) bool {
			return s.Service == d.Service
		}) {
			return nil, cli.Usage("--dsn %s: the file does not describe %s", name, d.Service)
		}
		out = append(out, d)
	}
	return out, nil
}

// declaredService finds the service whose first label is the name, when no other has it; a full name stands
// for itself.
func declaredService(declared []*schema.Descriptor, service, name string) string {
	first, _, _ := strings.Cut(service, ".")
	found := map[string]bool{}
	for _, d := range declared {
		if d.Service == service {
			return service
		}
		if label, _, _ := strings.Cut(d.Service, "."); label == first {
			found[d.Service] = true
		}
	}
	if len(found) == 1 && !strings.Contains(name, ".") {
		for only := range found {
			return only
		}
	}
	return service
}

// unlike refuses a second database for one service and region, and a database without a region beside
// databases with one.
func unlike(have []scan.Database, d scan.Database) error {
	for _, other := range have {
		if other.Service == d.Service && (other.Region == d.Region || other.Region == "" || d.Region == "") {
			return cli.Usage("--dsn %s and --dsn %s are both %s: name their regions, as %s/REGION", other.Label,
				d.Label, d.Service, strings.Split(d.Label, "/")[0])
		}
	}
	return nil
}

func (f *scanFlags) outputs(cmd *cobra.Command, result *scan.Result) error {
	if f.write != "" {
		if err := create(f.write, result.Declaration); err != nil {
			return err
		}
	}
	if f.html != "" {
		var page bytes.Buffer
		if err := result.HTML(&page); err != nil {
			return err
		}
		if err := atomicfile.Write(f.html, page.Bytes()); err != nil {
			return err
		}
	}
	switch out := cli.PrinterOf(cmd); out.Format {
	case "json":
		return result.JSON(out.Out)
	case "yaml":
		var raw bytes.Buffer
		if err := result.JSON(&raw); err != nil {
			return err
		}
		return cli.WriteYAML(out.Out, raw.Bytes())
	default:
		return result.Text(out.Out)
	}
}

// create writes a file that only its owner may read, when it is new: it has values of rows.
func create(path string, content []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	return errors.Join(err, file.Close())
}

func (f *scanFlags) verdict(ctx context.Context, r *report.Report) error {
	failed := 0
	for _, ref := range r.References {
		if ref.State == report.Partial {
			failed++
		}
	}
	switch n := r.Findings(); {
	case ctx.Err() != nil:
		return errors.New("interrupted: the report is partial")
	case failed > 0:
		return fmt.Errorf("%s not scanned to the end", cli.Plural(failed, "reference"))
	case f.strict && n > 0:
		return cli.WithCode(cli.Findings, fmt.Errorf("%s with something to do", cli.Plural(n, "reference")))
	}
	return nil
}

// newProgress returns a function that reports the progress of a table: at its end, and every few seconds
// while it is read.
func newProgress(w io.Writer) func(scan.Progress) {
	last := time.Now()
	return func(p scan.Progress) {
		if !p.Done && time.Since(last) < 5*time.Second {
			return
		}
		last = time.Now()
		of, orphans := "", ""
		if p.Estimate > p.Rows && !p.Done {
			of = " of about " + report.Count(p.Estimate)
		}
		if p.Orphans > 0 {
			orphans = ", " + report.Several(p.Orphans, "orphan")
		}
		rows := report.Several(p.Rows, "row")
		if of != "" {
			rows = report.Count(p.Rows) + of + " rows"
		}
		_, _ = fmt.Fprintf(w, "%s %s: %s read%s\n", p.Database, report.Plain(p.Table), rows, orphans)
	}
}
