package capture

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/rows"
)

const (
	// The first reading goes on while few notes wait, so that they stay few. Notes that nobody has tried are due since ever.
	selectManySQL = `SELECT EXISTS (SELECT FROM dbcontroller.captured WHERE due = '-infinity' AND problem IS NULL OFFSET $1)`

	insertReadSQL = `INSERT INTO dbcontroller.captured (kind_id, name) SELECT $1, n FROM unnest($2::text[]) AS n`

	// Another process may have read the page as well: the first one counts.
	updateFilledSQL = `
UPDATE dbcontroller.attachment SET filled = $2, complete = $3 WHERE kind_id = $1 AND walked AND NOT complete AND filled IS NOT DISTINCT FROM $4`

	// What is stored by former references stays until each value has its right by the present ones.
	selectBehindSQL = `
SELECT NOT walked OR former <> '[]' AND EXISTS (SELECT FROM dbcontroller.lacking l WHERE l.kind_id = a.kind_id AND NOT l.missing)
FROM dbcontroller.attachment a WHERE a.kind_id = $1`

	// And the former strict references count until no row waits to be stored by the present ones.
	endFormerSQL = `
UPDATE dbcontroller.attachment a SET former = '[]' WHERE kind_id = $1 AND complete AND former <> '[]'
    AND NOT EXISTS (SELECT FROM dbcontroller.lacking l WHERE l.kind_id = a.kind_id AND NOT l.missing)
    AND NOT EXISTS (SELECT FROM dbcontroller.captured c WHERE c.kind_id = a.kind_id AND (c.soon OR NOT c.missing))
    AND NOT EXISTS (SELECT FROM dbcontroller.captured_batch b WHERE b.kind_id = a.kind_id)`
)

// kindOf returns the kind of an attached table, or an error when the version declares another table or none.
func (s *Capturer) kindOf(t *rows.Table) (*schema.KindModel, error) {
	v, err := s.Current()
	if err != nil {
		return nil, err
	}
	if kind := t.Declared(v.Model); kind != nil {
		return kind, nil
	}
	return nil, fmt.Errorf("the version that runs does not declare table %s as it is attached: attach it again", t.Definition.Table)
}

// fill reads the next page of each table that is read for the first time, and captures its rows that refer to something by async references. It reports
// whether it read any. The rights of strict references come first.
func (s *Capturer) fill(ctx context.Context) (filled bool, err error) {
	for _, t := range s.rows.Tables() {
		if t.Complete {
			if t.Former {
				if _, err := s.Pool.Exec(ctx, endFormerSQL, t.KindID); err != nil {
					return filled, fmt.Errorf("end the former references of %s: %w", t.Definition.Table, err)
				}
			}
			continue
		}
		if _, err := s.kindOf(t); err != nil {
			continue
		}
		var behind bool
		if err := s.Pool.QueryRow(ctx, selectBehindSQL, t.KindID).Scan(&behind); err != nil {
			return filled, fmt.Errorf("read the attachment of %s: %w", t.Definition.Table, err)
		}
		if behind {
			continue
		}
		var many bool
		if err := s.Pool.QueryRow(ctx, selectManySQL, 5*batch).Scan(&many); err != nil || many {
			return filled, err
		}
		if err := s.fillPage(ctx, t); err != nil {
			return filled, err
		}
		filled = true
	}
	if filled {
		err = s.rows.Load(ctx)
	}
	return filled, err
}

func (s *Capturer) fillPage(ctx context.Context, t *rows.Table) error {
	var page []rows.Row
	if len(t.Definition.References) > len(t.References()) { // else the rows get a shadow when something refers to them
		var err error
		if page, err = t.Page(ctx, s.Pool, t.Filled, 2*batch); err != nil {
			return err
		}
	}
	var names []string
	last := t.Filled
	for _, r := range page {
		last = r.Key
		if name, _ := t.Definition.RowName(r.Key); t.Refers(r.Values) { // a key that is no name is a problem of its note
			names = append(names, name)
		}
	}
	return s.InTx(ctx, db.NoFeed, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, updateFilledSQL, t.KindID, last, len(page) < 2*batch, t.Filled)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		if _, err = tx.Exec(ctx, insertReadSQL, t.KindID, names); err != nil || len(page) == 2*batch {
			return err
		}
		// Resources whose rows were deleted while no trigger saw it.
		_, err = tx.Exec(ctx, `INSERT INTO dbcontroller.captured (kind_id) VALUES ($1)`, t.KindID)
		return err
	})
}
