package scan

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/db-controller/db-controller/internal/catalogue"
	"github.com/db-controller/db-controller/internal/scan/report"
	"github.com/db-controller/db-controller/schema"
)

// Config is a scan to be run.
type Config struct {
	Databases []Database
	// Declared is the declaration; without one, the references are guessed.
	Declared []*schema.Descriptor
	Limits   Limits
	// Progress is called with a line for people, often.
	Progress func(Progress)
}

// Progress is the state of the table that is read at present.
type Progress struct {
	Database, Table string
	Rows, Estimate  int64 // Estimate is 0 when there is none
	Orphans         int64
	Done            bool
}

// Result is the report, with the declaration that was guessed.
type Result struct {
	*report.Report
	// Declaration is nil when there was one.
	Declaration []byte
}

type scanner struct {
	cfg       Config
	databases []*database
	refs      []*reference
	guess     *catalogue.Guess // nil: there is a declaration
}

// Run scans. A context that ends is no error: the report says that it is partial. The error is
// schema.Problems for a declaration that does not fit the databases.
func Run(ctx context.Context, cfg Config) (*Result, error) {
	s := &scanner{cfg: cfg}
	defer func() {
		for _, d := range s.databases {
			d.close()
		}
	}()
	out := &Result{Report: &report.Report{
		Started: time.Now().UTC(), Guessed: cfg.Declared == nil, Notes: []string{},
		Cascades: []report.Cascade{},
	}}
	for _, d := range cfg.Databases {
		db, err := open(ctx, d, cfg.Limits)
		if err != nil {
			return nil, err
		}
		s.databases = append(s.databases, db)
		if err := db.readCatalogue(ctx); err != nil {
			return nil, err
		}
	}
	if err := s.bind(out); err != nil {
		return nil, err
	}
	s.passes(ctx)
	if s.guess != nil {
		var err error
		if out.Declaration, err = declaration(s.guess, s.disproved()); err != nil {
			return nil, err
		}
	}
	out.Cascades = s.cascades(ctx)
	if ctx.Err() != nil {
		out.Partial = "the scan was interrupted"
	}
	s.finish(out.Report)
	return out, nil
}

func (s *scanner) of(c *catalogue.Database) *database {
	return s.databases[slices.IndexFunc(s.databases, func(d *database) bool { return d.catalogue == c })]
}

// bind finds the tables of the declaration, or of a guess.
func (s *scanner) bind(out *Result) (err error) {
	var catalogues []*catalogue.Database
	for _, d := range s.databases {
		catalogues = append(catalogues, d.catalogue)
	}
	declared, why := s.cfg.Declared, map[catalogue.FieldID]string{}
	if declared == nil {
		s.guess = catalogue.GuessReferences(catalogues)
		declared, why, out.Notes = s.guess.Descriptors, s.guess.Why, append(out.Notes, s.guess.Notes...)
	}
	bound, err := catalogue.Bind(declared, catalogues)
	if err != nil {
		return err
	}
	for _, b := range bound {
		b.Why = why[catalogue.FieldID{
			Service: b.Kind.Service, Kind: b.Kind.Kind,
			Field: (&schema.Reference{Columns: b.Columns}).Field(),
		}]
		r := &reference{Reference: b, out: &report.Reference{
			Holder: place(b.Database, b.Table, b.Columns), Kind: b.Kind.String(), Behaviour: b.Behaviour.String(),
			Guess: b.Why, Within: b.Within(),
			State: report.Unscanned, Reason: b.Unscanned, Targets: []report.Place{},
			Orphans: report.Orphans{Samples: []report.Sample{}},
		}}
		for _, t := range b.Targets {
			r.targets = append(r.targets, s.of(t.Database))
			r.out.Targets = append(r.out.Targets, place(t.Database, t.Table, t.Key))
		}
		s.refs = append(s.refs, r)
	}
	return nil
}

// disproved are the guesses most of whose values are no keys of the target.
func (s *scanner) disproved() map[catalogue.FieldID]bool {
	out := map[catalogue.FieldID]bool{}
	for _, r := range s.refs {
		if r.unlikely() {
			out[catalogue.FieldID{Service: r.Kind.Service, Kind: r.Kind.Kind, Field: (&schema.Reference{Columns: r.Columns}).Field()}] = true
		}
	}
	return out
}

// unlikely reports whether a reference is a guess, and most of its values are no keys of the target.
func (r *reference) unlikely() bool { return r.Why != "" && r.out.Orphans.Rows*2 > r.out.Rows }

// declaration returns the guess as a file, without the references that the values have disproved.
func declaration(guess *catalogue.Guess, disproved map[catalogue.FieldID]bool) ([]byte, error) {
	for _, d := range guess.Descriptors {
		for i := range d.Kinds {
			k := &d.Kinds[i]
			k.References = slices.DeleteFunc(slices.Clone(k.References), func(r schema.Reference) bool {
				return disproved[catalogue.FieldID{Service: d.Service, Kind: k.Name, Field: r.Field()}]
			})
		}
	}

	const head = `A first declaration, guessed by "db-controller scan" from names, types and native keys: read it before you use it.
behaviour is the effect on the row when its target is deleted: BLOCK, UNSET, CASCADE_DELETE, ASYNC_UNSET, ASYNC_CASCADE_DELETE or ALLOW_DANGLING.`
	return catalogue.YAML(head, catalogue.Between(guess.Descriptors), func(f catalogue.FieldID) string {
		return "guessed: " + guess.Why[f]
	})
}

// passes reads each table with references once.
func (s *scanner) passes(ctx context.Context) {
	var order []*catalogue.Table
	by := map[*catalogue.Table][]*reference{}
	for _, r := range s.refs {
		if r.Unscanned == "" && s.prepared(ctx, r) {
			if by[r.Table] == nil {
				order = append(order, r.Table)
			}
			by[r.Table] = append(by[r.Table], r)
		}
	}
	for _, t := range order {
		if ctx.Err() != nil {
			return
		}
		s.pass(ctx, t, by[t])
	}
}

// prepared reports whether the targets of a reference can be asked for keys.
func (s *scanner) prepared(ctx context.Context, r *reference) bool {
	for i := range r.Targets {
		reason, err := r.targets[i].readable(ctx, &r.Targets[i])
		if err != nil {
			reason = err.Error()
		}
		if reason != "" {
			r.out.Reason = reason
			return false
		}
	}
	return true
}

func (s *scanner) pass(ctx context.Context, t *catalogue.Table, refs []*reference) {
	db := s.of(refs[0].Database)
	told := func(rows int64, done bool) {
		p := Progress{Database: db.Label, Table: t.Name.String(), Rows: rows, Estimate: max(0, t.Rows), Done: done}
		for _, r := range refs {
			p.Orphans += r.out.Orphans.Rows
		}
		if s.cfg.Progress != nil {
			s.cfg.Progress(p)
		}
	}
	var read int64
	p := newPass(db, t, refs, func(rows int64) { read = rows; told(rows, false) })
	err := p.run(ctx)
	told(read, true)
	for _, r := range refs {
		switch {
		case err == nil && !r.failed:
			r.out.State, r.out.Reason = report.Complete, ""
		case ctx.Err() != nil:
			r.out.State, r.out.Reason = report.Partial, "the scan was interrupted"
		case !r.failed:
			r.out.State, r.out.Reason = report.Partial, fmt.Sprintf("read %s: %v", t.Name, err)
		}
		r.settle(counts / len(s.refs))
	}
}

// settle writes the counts of a pass into the report, and keeps the n largest for the cascades: memory does
// not grow with the number of references.
func (r *reference) settle(n int) {
	r.out.FanOut = r.fan.result(func(v string) []string { return decode(v, len(r.Columns)) })
	r.out.Orphans.Targets = r.missing.distinct()
	r.fan.keep(n)
	r.missing = nil
	r.out.Unread = r.long + r.nowhere
	add := func(n int64, finding bool, text string) {
		if n > 0 {
			r.Advice = append(r.Advice, catalogue.Advice{Text: fmt.Sprintf(text, n), Finding: finding})
		}
	}
	add(r.partly, false, "%d rows have NULL in some of the columns, and refer to nothing (MATCH SIMPLE)")
	add(r.long, true, "%d rows have a value of more than 8 KiB, which was not looked up")
	add(r.nowhere, true, "%d rows name a region without a --dsn, or none, and were not looked up")
	if r.unlikely() {
		r.Advice = append(r.Advice,
			catalogue.Advice{
				Finding: true,
				Text: fmt.Sprintf(
					"%d of %d rows refer to nothing: the guess is wrong, and is left out of the declaration, unless these rows are", r.out.Orphans.Rows, r.out.Rows),
			})
	}
	if !r.confirm && r.out.Orphans.Rows > 0 {
		r.Advice = append(r.Advice,
			catalogue.Advice{
				Text: "no index finds the rows by their key: orphans were counted without a second look, and may include rows that were removed together with their targets meanwhile",
			})
	}
}

func (s *scanner) finish(out *report.Report) {
	out.Ended = time.Now().UTC()
	for _, d := range s.databases {
		out.Databases = append(out.Databases, report.Database{
			Label: d.Label, Service: d.Service, Region: d.Region,
			Tables: len(d.catalogue.Tables), Rows: d.rows,
		})
	}
	out.References = []report.Reference{}
	for _, within := range []bool{false, true} {
		for _, r := range s.refs {
			if r.out.Within != within {
				continue
			}
			if r.out.State == report.Unscanned && r.out.Reason == "" {
				r.out.Reason = "the scan was interrupted"
			}
			r.out.Advice = []report.Advice{}
			for _, a := range r.Advice {
				r.out.Advice = append(r.out.Advice, report.Advice(a))
			}
			out.References = append(out.References, *r.out)
		}
	}
}
