package dev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// The scenario about tables that applications already have, and its services.
const (
	adopt         = "adopt"
	adoptServices = "examples/adopt-services.yaml"
)

// sqlStep runs SQL in the database of a deployment, as an application does.
type sqlStep struct {
	At      string   `yaml:"at"`
	Run     string   `yaml:"run"`
	Refused string   `yaml:"refused"` // a part of the expected error
	Rows    []string `yaml:"rows"`    // of a query, which is repeated until it has them
}

// commandStep runs a command of this program. ${service/region} stands for the connection string of a
// deployment's database, and ${services} for the file with the services.
type commandStep struct {
	Args  []string `yaml:"args"`
	Shows []string `yaml:"shows"` // parts of lines of the output, which are shown
}

func (s *scenario) sql(ctx context.Context, st *sqlStep) error {
	d, err := s.deployment(st.At)
	if err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, d.DSN)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if st.Rows != nil {
		return s.rows(ctx, conn, st)
	}
	s.print("  sql     %s: %s", st.At, strings.TrimSpace(strings.ReplaceAll(st.Run, "\n", "\n          ")))
	_, err = conn.Exec(ctx, st.Run)
	var pg *pgconn.PgError
	switch {
	case err == nil && st.Refused == "":
		return nil
	case err == nil:
		return fmt.Errorf("accepted, although the scenario expects a refusal (%s)", st.Refused)
	case errors.As(err, &pg) && st.Refused != "" && strings.Contains(pg.Detail, st.Refused):
		text := fmt.Sprintf("  refused ERROR %s: %s\n          DETAIL: %s", pg.Code, pg.Message, pg.Detail)
		if pg.Hint != "" {
			text += "\n          HINT: " + pg.Hint
		}
		s.print("%s", text)
		return nil
	}
	return err
}

// rows repeats a query until it returns the expected rows.
func (s *scenario) rows(ctx context.Context, conn *pgx.Conn, st *sqlStep) error {
	for began := time.Now(); ; {
		found, err := conn.Query(ctx, st.Run)
		if err != nil {
			return err
		}
		rows, err := pgx.CollectRows(found, func(row pgx.CollectableRow) (string, error) {
			values, err := row.Values()
			return strings.TrimSpace(fmt.Sprintln(values...)), err
		})
		if err != nil {
			return err
		}
		if slices.Equal(rows, st.Rows) {
			s.print("  query   %s: %s: %s   after %s", st.At, st.Run, strings.Join(rows, ", "), since(began))
			return nil
		}
		if time.Since(began) > 30*time.Second {
			return fmt.Errorf("%s: %s: %q, and the scenario expects %q", st.At, st.Run, rows, st.Rows)
		}
		<-time.After(20 * time.Millisecond)
	}
}

func (s *scenario) command(ctx context.Context, st *commandStep) error {
	dir, done, err := temporary()
	if err != nil {
		return err
	}
	defer done()
	args, err := s.arguments(dir, st.Args)
	if err != nil {
		return err
	}
	s.print("  $ db-controller %s", strings.Join(st.Args, " "))
	program, err := os.Executable()
	if err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, program, append(args, "--postgres-plaintext")...).CombinedOutput() //nolint:gosec // this program
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	shown := 0
	for line := range strings.Lines(string(out)) {
		if slices.ContainsFunc(st.Shows, func(part string) bool { return strings.Contains(line, part) }) {
			s.print("          %s", strings.TrimRight(line, "\n"))
			shown++
		}
	}
	if shown == 0 {
		return fmt.Errorf("the output contains none of %q: %s", st.Shows, out)
	}
	return nil
}

// arguments replaces the placeholders of connection strings and files.
func (s *scenario) arguments(dir string, args []string) ([]string, error) {
	raw, err := examples.ReadFile(adoptServices)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "services.yaml")
	values := []string{"${services}", file}
	for id, d := range s.p.Deployments {
		values = append(values, "${"+id.String()+"}", d.DSN)
	}
	out := slices.Clone(args)
	for i := range out {
		out[i] = strings.NewReplacer(values...).Replace(out[i])
	}
	return out, os.WriteFile(file, raw, 0o600)
}
