// Package report has the result of a scan as values, and writes it as text, JSON and an HTML page.
package report

import (
	"encoding/json"
	"io"
	"time"
)

// Report is the result of a scan.
type Report struct {
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended"`
	// Partial is the reason for which the scan ended early, "" for a complete one.
	Partial string `json:"partial,omitempty"`
	// Guessed: there was no declaration.
	Guessed    bool        `json:"guessed"`
	Databases  []Database  `json:"databases"`
	References []Reference `json:"references"`
	Cascades   []Cascade   `json:"cascades"`
	// Notes are about columns and tables outside of all references.
	Notes []string `json:"notes"`
}

// Database is a database that was read.
type Database struct {
	Label   string `json:"label"`
	Service string `json:"service"`
	Region  string `json:"region,omitempty"`
	Tables  int    `json:"tables"`
	// Rows that the scan read, of the tables with references.
	Rows int64 `json:"rows"`
}

// Place names columns of a table.
type Place struct {
	Database string   `json:"database"`
	Table    string   `json:"table"`
	Columns  []string `json:"columns"`
}

// State is the extent to which a reference was scanned.
type State string

// The states.
const (
	Complete  State = "complete"
	Partial   State = "partial"
	Unscanned State = "unscanned"
)

// Reference is the result for one reference of one database.
type Reference struct {
	Holder Place `json:"holder"`
	// Kind is service/Kind of the holder.
	Kind      string  `json:"kind"`
	Targets   []Place `json:"targets"`
	Behaviour string  `json:"behaviour,omitempty"`
	Guess     string  `json:"guess,omitempty"`
	// Within: holder and target are in one database.
	Within  bool     `json:"within_one_database"`
	State   State    `json:"state"`
	Reason  string   `json:"reason,omitempty"` // of a state that is not complete
	Rows    int64    `json:"rows"`             // that have a value in the reference
	Unread  int64    `json:"rows_not_checked,omitempty"`
	Orphans Orphans  `json:"orphans"`
	FanOut  FanOut   `json:"fan_out"`
	Advice  []Advice `json:"advice"`
}

// Orphans are rows that refer to a target that does not exist.
type Orphans struct {
	Rows    int64    `json:"rows"`
	Targets Number   `json:"missing_targets"`
	Samples []Sample `json:"samples"`
}

// Sample is one of the orphans.
type Sample struct {
	Key   []string `json:"key"`
	Value []string `json:"value"`
}

// Number is exact, or an estimate.
type Number struct {
	N     int64 `json:"n"`
	About bool  `json:"about,omitempty"`
}

// FanOut is the distribution of holders over the targets that exist and have any.
type FanOut struct {
	Targets Number    `json:"targets"`
	Median  int64     `json:"p50"`
	P90     int64     `json:"p90"`
	P99     int64     `json:"p99"`
	Largest []Holders `json:"largest"`
}

// Holders is the number of holders of one target.
type Holders struct {
	Target []string `json:"target"`
	Rows   Number   `json:"rows"`
}

// Advice is an observation, with a statement that helps.
type Advice struct {
	Text    string `json:"text"`
	SQL     string `json:"sql,omitempty"`
	Finding bool   `json:"finding"`
}

// Cascade is the effect of a delete of one target, if every reference between databases cascaded.
type Cascade struct {
	Target Place    `json:"target"`
	Key    []string `json:"key"`
	Steps  []Step   `json:"steps"`
}

// Effect is the effect of a delete on rows.
type Effect string

// The effects.
const (
	Deleted Effect = "deleted"
	Changed Effect = "changed"
	Refuses Effect = "refuses"
	Unknown Effect = "unknown"
	// Left rows refer to nothing afterwards: no key holds their reference.
	Left Effect = "left as orphans"
)

// Step is the effect on the rows of one table by one reference.
type Step struct {
	Level  int    `json:"level"` // 1 for the holders of the target
	Place  Place  `json:"place"`
	Rows   int64  `json:"rows"`
	More   bool   `json:"more,omitempty"` // there are more rows than were counted
	Effect Effect `json:"effect"`
	Reason string `json:"reason"` // the reference, or why the effect is unknown
}

// Read returns the number of rows that were read.
func (r *Report) Read() (n int64) {
	for _, d := range r.Databases {
		n += d.Rows
	}
	return n
}

// Orphaned returns the number of orphans of all references.
func (r *Report) Orphaned() (n int64) {
	for _, ref := range r.References {
		n += ref.Orphans.Rows
	}
	return n
}

// Findings returns the number of references that ask for action: by orphans, by advice, by rows that were not
// read.
func (r *Report) Findings() (n int) {
	for _, ref := range r.References {
		if ref.Finding() {
			n++
		}
	}
	return n
}

// Finding reports whether the reference asks for action.
func (r *Reference) Finding() bool {
	for _, a := range r.Advice {
		if a.Finding {
			return true
		}
	}
	return r.Orphans.Rows > 0 || r.Unread > 0 || r.State != Complete
}

// JSON writes the report for programs.
func (r *Report) JSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(r)
}
