// Package auditlog writes a record of calls: the caller and its proof, the resources, and whether the call
// was allowed. Each event is a line of JSON with a number and the hash of the line before: a line that is
// changed, removed or inserted later is found by Verify. A cut at the end is found by comparing the last hash
// with a copy elsewhere, such as a second sink.
package auditlog

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Class is the kind of an event.
type Class string

// The classes. Denials are events of the class of their call.
const (
	Reads      Class = "reads"
	Writes     Class = "writes"
	References Class = "references" // rights to refer, and references that other deployments establish
	Deletes    Class = "deletes"
	Operate    Class = "operate"
	Registry   Class = "registry" // changes of regions, services, deployments and rights
)

// Classes are all classes.
var Classes = []Class{Reads, Writes, References, Deletes, Operate, Registry}

// ParseClasses checks the names of classes.
func ParseClasses(names []string) ([]Class, error) {
	var out []Class
	for _, name := range names {
		if !slices.Contains(Classes, Class(name)) {
			return nil, fmt.Errorf("class %q: want some of %s", name, joined(Classes))
		}
		out = append(out, Class(name))
	}
	return out, nil
}

func joined(classes []Class) string {
	names := make([]string, len(classes))
	for i, c := range classes {
		names[i] = string(c)
	}
	return strings.Join(names, ", ")
}

// Outcome is the result of a call, as far as it is known at the time of the event.
type Outcome string

// The outcomes. Allowed is written before the call is carried out; Failed follows when it returned an error.
// An allowed call without a later event took effect, or its process ended meanwhile. A change of the registry
// is Asked for, and then Changed, after its commit, Denied or Failed.
const (
	Asked   Outcome = "asked"
	Allowed Outcome = "allowed"
	Denied  Outcome = "denied"
	Failed  Outcome = "failed"
	Changed Outcome = "changed"
	// Began is the first event of a process.
	Began Outcome = "began"
	// LeftOut has the number of denials of an identity that have no line of their own.
	LeftOut Outcome = "left out"
)

const (
	// MaxNames is the number of names in an event.
	MaxNames = 20
	// maxText bounds the texts of an event, so that each sink takes its line: a packet of syslog has 64 KiB.
	maxText = 16 << 10
)

// Event is one record of the audit log. Empty fields are left out.
type Event struct {
	Class     Class    `json:"class,omitempty"`
	Outcome   Outcome  `json:"outcome"`
	Identity  string   `json:"identity,omitempty"`
	Proof     string   `json:"proof,omitempty"`
	Person    string   `json:"person,omitempty"` // for whom a deployment establishes references, by its word
	Method    string   `json:"method,omitempty"`
	RequestID string   `json:"request_id,omitempty"`
	Verb      string   `json:"verb,omitempty"`
	Names     []string `json:"names,omitempty"` // the first 20
	// of the names or changes that are not listed, or of the calls that are left out
	Count    int      `json:"count,omitempty"`
	Code     string   `json:"code,omitempty"` // of a failure
	Reason   string   `json:"reason,omitempty"`
	Revision int64    `json:"revision,omitempty"` // of the registry
	Changes  []string `json:"changes,omitempty"`
}

// entry is an Event as a line.
type entry struct {
	Seq    uint64    `json:"seq"`
	Time   time.Time `json:"time"`
	Source string    `json:"source"`
	Event
	Previous string `json:"previous"` // hash of the line before; empty in the first line of all
}

// hashField begins the last field of a line: the hash of all before it.
const hashField = `,"hash":"`

// line returns the line of an entry and its hash.
func (e *entry) line() (line []byte, hash string, err error) {
	if more := len(e.Names) - MaxNames; more > 0 {
		e.Names, e.Count = e.Names[:MaxNames], more
	}
	e.bound()
	raw, err := json.Marshal(e)
	if err != nil {
		return nil, "", fmt.Errorf("encode an event of the audit log: %w", err)
	}
	raw = raw[:len(raw)-1] // without the brace
	hash = hashOf(raw)
	return append(raw, hashField+hash+"\"}\n"...), hash, nil
}

// bound shortens fields that are too long for a line.
func (e *entry) bound() {
	left := maxText
	fits := func(texts []string) []string {
		for i, text := range texts {
			if left -= len(text); left < 0 {
				e.Count += len(texts) - i
				return texts[:i]
			}
		}
		return texts
	}
	for _, text := range []*string{&e.Identity, &e.Proof, &e.Method, &e.RequestID, &e.Verb, &e.Code, &e.Reason} {
		*text = (*text)[:min(len(*text), 2<<10)]
	}
	e.Names, e.Changes = fits(e.Names), fits(e.Changes)
}
