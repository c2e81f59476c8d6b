package attach

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
)

// Missing are the rows of a table whose target does not exist, by one reference.
type Missing struct {
	Path   string         `json:"path"`
	Effect schema.Missing `json:"effect"` // on the rows
	Values int64          `json:"values"`
	Rows   int64          `json:"rows"`
	// Waits: the rows that were there before the table was attached are too many to be unset or deleted
	// without the word of a person: more than ten, and than one per cent of the table.
	Waits bool `json:"waits"`
}

// String describes the effect on the rows.
func (m Missing) String() string {
	text := fmt.Sprintf("%s: %d rows name %d targets that do not exist", m.Path, m.Rows, m.Values)
	verb := map[schema.Missing]string{schema.MissingUnset: "unset", schema.MissingDelete: "deleted"}[m.Effect]
	switch {
	case verb == "":
		return text
	case m.Waits:
		return text + ": nothing is done until attach --yes lets them be " + verb
	}
	return text + ": they are " + verb + " after serve --missing-grace, unless their targets come"
}

// missingSQL has the conditions of the process that acts on missing targets.
const missingSQL = `
SELECT l.path, count(*), sum(l.rows)::bigint,
    NOT a.confirmed AND COALESCE(sum(l.rows) FILTER (WHERE l.before AND NOT l.lost), 0) > greatest(10, (SELECT c.reltuples / 100 FROM pg_catalog.pg_class c WHERE c.oid = dbcontroller.attached_relation($1)))
FROM dbcontroller.lacking l JOIN dbcontroller.attachment a USING (kind_id)
WHERE l.kind_id = $1 AND l.missing GROUP BY l.path, a.confirmed ORDER BY l.path`

func missingOf(ctx context.Context, tx pgx.Tx, kindID int32, d *schema.Definition) ([]Missing, error) {
	effects := map[string]schema.Missing{}
	for _, r := range d.References {
		effects[r.Path] = r.Missing
	}
	rows, err := tx.Query(ctx, missingSQL, kindID)
	if err != nil {
		return nil, fmt.Errorf("read the missing targets of %s: %w", d.Table, err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (m Missing, err error) {
		err = row.Scan(&m.Path, &m.Values, &m.Rows, &m.Waits)
		m.Effect = effects[m.Path]
		m.Waits = m.Waits && m.acts()
		return m, err
	})
	if err != nil {
		return nil, fmt.Errorf("read the missing targets of %s: %w", d.Table, err)
	}
	return out, nil
}

func (m Missing) acts() bool {
	return m.Effect == schema.MissingUnset || m.Effect == schema.MissingDelete
}

// Acts reports whether a reference of the table unsets or deletes rows whose target does not exist.
func (p *Plan) Acts() bool {
	for _, r := range p.Definition.References {
		if (Missing{Effect: r.Missing}).acts() {
			return true
		}
	}
	return false
}

const askedSQL = `
SELECT a.walked AND NOT EXISTS (SELECT FROM dbcontroller.lacking l WHERE l.kind_id = a.kind_id AND l.tries = 0) FROM dbcontroller.attachment a WHERE a.kind_id = $1`

// FindMissing waits until a process of the deployment has asked for the targets of all rows of an attached
// table, and returns the rows whose target does not exist. asked is false when patience ends before.
func FindMissing(ctx context.Context, conn *pgx.Conn, p *Plan,
	patience time.Duration,
) (found []Missing, asked bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		if err := conn.QueryRow(ctx, askedSQL, p.kindID).Scan(&asked); err != nil {
			return nil, false, fmt.Errorf("read the attachment of %s: %w", p.Table, err)
		}
		if asked {
			break
		}
		select {
		case <-ctx.Done():
			return nil, false, nil
		case <-time.After(100 * time.Millisecond):
		}
	}
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		found, err = missingOf(ctx, tx, p.kindID, &p.Definition)
		return err
	})
	return found, true, err
}

// Confirm lets the rows of an attached table be unset or deleted whose targets do not exist, any number of
// them.
func Confirm(ctx context.Context, conn *pgx.Conn, p *Plan) error {
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `UPDATE dbcontroller.attachment SET confirmed = true WHERE kind_id = $1`,
			p.kindID); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `UPDATE dbcontroller.lacking SET due = now() WHERE kind_id = $1 AND missing`, p.kindID)
		return err
	})
	if err != nil {
		return fmt.Errorf("confirm the missing targets of %s: %w", p.Table, err)
	}
	return nil
}
