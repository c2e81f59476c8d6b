package scan

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/catalogue"
	"github.com/db-controller/db-controller/internal/scan/report"
	"github.com/db-controller/db-controller/schema"
)

const (
	batchRows = 2000
	// longest is the length in bytes of the longest value that is looked up; indexes hold none that is much
	// longer.
	longest = 8192
	samples = 5
	// counts bounds the values that are counted one by one over all references of a table, and the values
	// that are kept over all references of the tables read before.
	counts = 1 << 17
)

// reference is a reference that is being scanned.
type reference struct {
	*catalogue.Reference
	out     *report.Reference
	fan     *fanOut
	missing *fanOut
	targets []*database // of the targets, in their order
	partly  int64       // rows with NULL in some of the columns
	long    int64       // rows with a value that is too long
	nowhere int64       // rows whose region has no database here
	failed  bool
	confirm bool // orphans can be looked at again by their keys
}

// pass reads one table once, for all of its references.
type pass struct {
	db       *database
	table    *catalogue.Table
	refs     []*reference
	columns  []string
	progress func(rows int64)
}

// column returns the place of a column among the columns of the pass.
func (p *pass) column(name string) int { return slices.Index(p.columns, name) }

func newPass(db *database, table *catalogue.Table, refs []*reference, progress func(int64)) *pass {
	p := &pass{db: db, table: table, refs: refs, progress: progress}
	for _, r := range refs {
		names := slices.Concat(r.Key, r.Columns)
		if r.Region != "" {
			names = append(names, r.Region)
		}
		if r.When.Column != "" {
			names = append(names, r.When.Column)
		}
		for _, name := range names {
			if p.column(name) < 0 {
				p.columns = append(p.columns, name)
			}
		}
		limit := max(1<<12, counts/len(refs))
		r.fan, r.missing = newFanOut(limit), newFanOut(limit/8)
		r.confirm = keyMatches(table, r.Key) != nil
	}
	return p
}

func (p *pass) query() string {
	selected := make([]string, len(p.columns))
	for i, name := range p.columns {
		selected[i] = fmt.Sprintf("left(%s::text, %d)", schema.QuoteIdentifier(name), longest+1)
	}
	wanted := make([]string, len(p.refs))
	for i, r := range p.refs {
		wanted[i] = schema.QuoteIdentifier(r.Columns[0]) + " IS NOT NULL"
		for _, name := range r.Columns[1:] {
			wanted[i] += " OR " + schema.QuoteIdentifier(name) + " IS NOT NULL"
		}
	}
	return "DECLARE scanned NO SCROLL CURSOR FOR SELECT " + strings.Join(selected, ", ") + " FROM " +
		p.table.Name.SQL() + " WHERE " + strings.Join(wanted, " OR ")
}

// run reads the table in one snapshot. A statement that a lock or a standby interrupts is tried again as long
// as nothing was read.
func (p *pass) run(ctx context.Context) (err error) {
	begun := false
	retryable := patiently(ctx, func() error {
		if err = p.db.snapshot(ctx, func(tx pgx.Tx) error { return p.read(ctx, tx, &begun) }); begun {
			return nil
		}
		return err
	})
	if begun {
		return err
	}
	return retryable
}

// read reads the table a batch at a time.
func (p *pass) read(ctx context.Context, tx pgx.Tx, begun *bool) error {
	if _, err := tx.Exec(ctx, p.query()); err != nil {
		return err
	}
	started, rows := time.Now(), int64(0)
	for {
		batch, err := p.fetch(ctx, tx)
		if err != nil || len(batch) == 0 {
			return err
		}
		*begun = true
		rows += int64(len(batch))
		p.db.rows += int64(len(batch))
		if err := p.batch(ctx, batch); err != nil {
			return err
		}
		p.progress(rows)
		if err := p.db.pace(ctx, started, rows); err != nil {
			return err
		}
	}
}

func (p *pass) fetch(ctx context.Context, tx pgx.Tx) ([][]*string, error) {
	rows, err := tx.Query(ctx, fmt.Sprintf("FETCH %d FROM scanned", batchRows))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) ([]*string, error) {
		values := make([]*string, len(p.columns))
		into := make([]any, len(values))
		for i := range values {
			into[i] = &values[i]
		}
		return values, row.Scan(into...)
	})
}

// batch looks up the targets of a batch, one reference after another. A reference whose look-up fails is
// given up.
func (p *pass) batch(ctx context.Context, rows [][]*string) error {
	for _, r := range p.refs {
		if r.failed {
			continue
		}
		if err := p.look(ctx, r, rows); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			r.failed, r.out.State, r.out.Reason = true, report.Partial, err.Error()
		}
	}
	return nil
}

// group is a value of a reference with the rows that have it.
type group struct {
	region string
	values []string
	rows   []int
	found  bool
	placed bool // some target has its region
}

func (p *pass) look(ctx context.Context, r *reference, rows [][]*string) error {
	groups := p.groups(r, rows)
	for i := range r.Targets {
		t := &r.Targets[i]
		var asked []*group
		var values [][]string
		for _, g := range groups {
			if t.Region != "" && t.Region != g.region {
				continue
			}
			if g.placed = true; !g.found {
				asked, values = append(asked, g), append(values, g.values)
			}
		}
		if len(asked) == 0 {
			continue
		}
		found, err := r.targets[i].existing(ctx, t, values)
		if err != nil {
			return fmt.Errorf("ask %s for keys: %w", t.Database.Label, err)
		}
		for n := range found {
			asked[n].found = true
		}
	}
	var missing []*group
	for _, g := range groups {
		n := int64(len(g.rows))
		switch {
		case !g.placed:
			r.nowhere += n
			continue
		case g.found:
			r.fan.add(encode(g.values), uint32(n))
		default:
			missing = append(missing, g)
		}
		r.out.Rows += n
	}
	return p.orphans(ctx, r, missing, rows)
}

// groups collects the rows of a batch by the values that refer.
func (p *pass) groups(r *reference, rows [][]*string) []*group {
	at := map[string]*group{}
	var out []*group
	for i, row := range rows {
		if r.When.Column != "" {
			if v := row[p.column(r.When.Column)]; v == nil || *v != r.When.Value {
				continue
			}
		}
		values, nulls, long := make([]string, len(r.Columns)), 0, false
		for j, name := range r.Columns {
			v := row[p.column(name)]
			if v == nil {
				nulls++
				continue
			}
			values[j], long = *v, long || len(*v) > longest
		}
		switch {
		case nulls > 0 && nulls < len(values):
			r.partly++
			continue
		case nulls > 0, len(r.None) > 0 && slices.Contains(r.None, values[0]):
			continue
		case long:
			r.long++
			continue
		}
		region := ""
		if r.Region != "" {
			if v := row[p.column(r.Region)]; v != nil {
				region = *v
			}
		}
		key := encode([]string{region, encode(values)})
		g := at[key]
		if g == nil {
			g = &group{region: region, values: values}
			at[key] = g
			out = append(out, g)
		}
		g.rows = append(g.rows, i)
	}
	return out
}

// orphans counts the rows of missing targets that are still there with these values: a row of the snapshot
// may have been removed together with its target since.
func (p *pass) orphans(ctx context.Context, r *reference, missing []*group, rows [][]*string) error {
	var candidates [][]string
	var of []*group
	for _, g := range missing {
		for _, i := range g.rows {
			key := make([]string, len(r.Key))
			for j, name := range r.Key {
				if v := rows[i][p.column(name)]; v != nil {
					key[j] = *v
				}
			}
			candidates, of = append(candidates, slices.Concat(key, g.values)), append(of, g)
		}
	}
	if len(candidates) == 0 {
		return nil
	}
	still := map[int]bool{}
	if r.confirm {
		var err error
		if still, err = p.db.unchanged(ctx, r.Reference, candidates); err != nil {
			return fmt.Errorf("look at orphans again: %w", err)
		}
	}
	left := map[*group]uint32{}
	for i, row := range candidates {
		if r.confirm && !still[i] {
			r.out.Rows--
			continue
		}
		r.out.Orphans.Rows++
		if left[of[i]]++; left[of[i]] == 1 {
			r.sample(row)
		}
	}
	for g, n := range left {
		r.missing.add(encode(g.values), n)
	}
	return nil
}

// sample keeps the first orphans with different values.
func (r *reference) sample(row []string) {
	key, value := row[:len(r.Key)], row[len(r.Key):]
	if len(r.out.Orphans.Samples) >= samples || slices.ContainsFunc(r.out.Orphans.Samples, func(s report.Sample) bool {
		return slices.Equal(s.Value, value)
	}) {
		return
	}
	r.out.Orphans.Samples = append(r.out.Orphans.Samples, report.Sample{Key: key, Value: value})
}
