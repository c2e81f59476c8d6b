package tables

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/internal/attach"
	"github.com/db-controller/db-controller/internal/scan"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/lint"
)

// Declared compares declared tables with the tables of databases, for validate.
type Declared struct{ scanFlags }

// Add adds --dsn.
func (d *Declared) Add(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&d.dsns, "dsn", nil,
		"`NAME=DSN` of a database to compare the declared tables with, as in scan; once for each")
	cli.PlaintextFlag(cmd.Flags(), &d.plaintext)
}

// Compare compares the last version of each service that --dsn names.
func (d *Declared) Compare(ctx context.Context, files *schema.File) (problems schema.Problems, advice []lint.Finding,
	err error,
) {
	databases, err := d.databases(files.Services)
	for _, db := range databases {
		if err == nil {
			err = compare(ctx, files.Services, db, &problems, &advice)
		}
	}
	return problems, advice, err
}

func compare(ctx context.Context, services []*schema.Descriptor, db scan.Database, problems *schema.Problems,
	advice *[]lint.Finding,
) error {
	var last schema.ServiceVersion
	for _, s := range services {
		if s.Service == db.Service {
			last = s.ServiceVersion
		}
	}
	model, err := schema.NewModel(last, services)
	if err != nil {
		return err
	}
	cfg, err := pgx.ParseConfig(db.DSN)
	if err != nil {
		// the parser's error contains the password
		return cli.Usage("--dsn %s: not a PostgreSQL connection string", db.Label)
	}
	cfg.DefaultQueryExecMode = pgx.QueryExecModeExec // poolers know no names of statements
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return fmt.Errorf("--dsn %s: %w", db.Label, err)
	}
	found, err := attach.Compare(ctx, conn, model)
	for _, c := range found {
		for _, f := range c.Findings {
			p := schema.Problem{
				Pos: c.Kind.Pos, Message: fmt.Sprintf("database %s: %s", db.Label, f.Text),
				Remedy: f.SQL,
			}
			if f.Refuses {
				*problems = append(*problems, p)
			} else {
				*advice = append(*advice, lint.Finding{Level: lint.Note, ID: "table", Of: last, Problem: p})
			}
		}
	}
	if err != nil {
		err = fmt.Errorf("--dsn %s: %w", db.Label, err)
	}
	return errors.Join(err, conn.Close(context.WithoutCancel(ctx)))
}
