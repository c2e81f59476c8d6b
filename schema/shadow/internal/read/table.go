package read

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema/grant"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/rows"
)

// tableSQL is the table x of listedSQL for rows of an attached table, whose names and references are arrays
// ($2, $3), with the resources of the rows that have one. The other rows have no uid, revision and times.
var tableSQL = db.Codes(`
FROM (
    SELECT COALESCE(s.uid, '00000000-0000-0000-0000-000000000000') AS uid, k.id AS kind_id, k.kind, i.n, i.name, COALESCE(s.state, {active}) AS state,
        COALESCE(s.revision, 0) AS revision, COALESCE(s.generation, 0) AS generation, COALESCE(s.created_at, '0001-01-01 00:00:00+00') AS created_at,
        COALESCE(s.updated_at, '0001-01-01 00:00:00+00') AS updated_at, s.labels, COALESCE(s.body, '{}') || i.refers::jsonb AS body, s.owners,
        COALESCE(s.block_deletion, false) AS block_deletion, s.finalizers, s.status, COALESCE(s.status_generation, 0) AS status_generation,
        NULL::timestamptz[] AS scheduled
    FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS i (name, refers, n) JOIN dbcontroller.kind k ON k.id = $1
    LEFT JOIN LATERAL (
        SELECT s.*, r.labels, r.body, r.owners, r.status, r.status_generation FROM dbcontroller.shadow s LEFT JOIN dbcontroller.resource r ON r.id = s.id
        WHERE s.kind_id = $1 AND s.name = i.name AND NOT s.hidden OFFSET 0
    ) AS s ON true
) AS x
`)

// tablePage reads the resources of rows that match a condition, whose parameters begin with $5.
func (s *Reader) tablePage(ctx context.Context, t *rows.Table, names []string, values [][]*string, where *condition,
	limit int,
) (pgx.Rows, error) {
	refers := make([]string, len(names))
	for i := range names {
		raw, err := json.Marshal(t.Targets(s.Self, values[i]))
		if err != nil {
			return nil, err
		}
		refers[i] = string(raw)
	}
	sql := listColumns + tableSQL + `WHERE ` + where.sql.String() + ` ORDER BY x.n LIMIT $4`
	return s.Pool.Query(ctx, sql, append([]any{t.KindID, names, refers, limit}, where.args...)...)
}

// row reads the resource of one row of an attached table. It fails with ErrNotFound.
func (s *Reader) row(ctx context.Context, t *rows.Table, name string) (*peer.Resource, error) {
	there, err := t.Read(ctx, s.Pool, []string{name})
	if err != nil {
		return nil, err
	}
	values, ok := there[name]
	if !ok { // its deletion may be under way
		return LookUp(ctx, s.DB, s.Pool, t.KindID, name)
	}
	always, err := s.compile("", 5)
	if err != nil {
		return nil, err
	}
	found, err := s.tablePage(ctx, t, []string{name}, [][]*string{values}, always, 1)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	r, err := pgx.CollectExactlyOneRow(found, scanResource)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	kind, err := s.Names.KindOf(ctx, s.Pool, t.KindID)
	r.Kind = kind.Kind
	return &r.Resource, err
}

// rowsPage is the number of rows that a list reads of a table at a time.
const rowsPage = 500

// byKey lists the rows of an attached table, in the order of its key, after a name.
func (l *listing) byKey(ctx context.Context, t *rows.Table, kind, after string) error {
	s := l.store
	where, err := s.compile(l.req.Filter, 5)
	if err != nil {
		return err
	}
	var key []string
	if after != "" {
		var ok bool
		if key, ok = t.Definition.RowKey(after); !ok {
			return &peer.InvalidError{
				Resource: "page_token",
				Err:      errors.New("want the next_page_token of an earlier answer"),
			}
		}
	}
	within := l.req.Within.Of(kind)
	for {
		page, err := t.Page(ctx, s.Pool, key, rowsPage)
		if err != nil {
			return fmt.Errorf("list: %w", err)
		}
		var names []string
		var values [][]*string
		for _, r := range page {
			key = r.Key
			name, err := t.Definition.RowName(r.Key)
			if err == nil && slices.ContainsFunc(within, func(n grant.NameRange) bool { return n.Has(name) }) {
				names, values = append(names, name), append(values, r.Values)
			}
		}
		found, err := s.tablePage(ctx, t, names, values, where, l.req.Limit-len(l.found))
		if err != nil {
			return malformed(err)
		}
		if err := l.collect(found, scanResource); err != nil {
			return malformed(err)
		}
		if l.cut || len(l.found) == l.req.Limit || len(page) < rowsPage {
			return nil
		}
	}
}

// unlisted is the error about a question that an attached table does not answer.
func unlisted(field, kind, why string) error {
	return &peer.InvalidError{
		Resource: field,
		Err:      fmt.Errorf("the rows of %s are in an attached table, of which nothing is stored: %s", kind, why),
	}
}
