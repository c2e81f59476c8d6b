package attach

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/catalogue"
	"github.com/db-controller/db-controller/internal/scan"
	"github.com/db-controller/db-controller/schema"
)

// Compared are the findings about the table of a kind.
type Compared struct {
	Kind     *schema.Kind
	Findings []Finding
}

// Compare compares the tables of a model's kinds with a database, which need not belong to a deployment yet.
// It reads the catalogue alone, in a read-only transaction, and needs no right on the tables.
func Compare(ctx context.Context, conn *pgx.Conn, model *schema.Model) (out []Compared, err error) {
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		db := &catalogue.Database{}
		if err := scan.ReadCatalogue(ctx, tx, db); err != nil {
			return fmt.Errorf("read the catalogue: %w", err)
		}
		for i := range model.Descriptor.Kinds {
			k := &model.Descriptor.Kinds[i]
			if k.Table == (schema.TableName{}) {
				continue
			}
			declared := names{table: k.Table}
			found := check(db, model, k, declared)
			if db.Table(k.Table) != nil {
				traits, err := checkTraits(ctx, tx, k, declared, false)
				if err != nil {
					return err
				}
				found = append(found, traits...)
			}
			out = append(out, Compared{k, found})
		}
		return nil
	})
	return out, err
}
