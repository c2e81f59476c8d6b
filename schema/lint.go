package schema

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Level is how much a finding of Lint matters.
type Level string

// A Warning is something that can get stuck, or take more along than one may think, or holds nothing; a Note is good to
// know.
const (
	Warning Level = "warning"
	Note    Level = "note"
)

// What is found has a name, which does not change: with the version and the path that a finding is about it tells it from
// all others, now and in later versions of a file.
const (
	BlockedCascade       = "blocked-cascade"
	CascadeCycle         = "cascade-cycle"
	BlockCycle           = "block-cycle"
	BlockWithinKind      = "block-within-kind"
	PatternWithoutParent = "pattern-without-parent"
	UnusedImport         = "unused-import"
	ImportCycle          = "import-cycle"
	NoDeploymentInRegion = "no-deployment-in-region"
	NothingAcknowledged  = "nothing-acknowledged"
	CascadeWithinKind    = "cascade-within-kind"
	ActsLater            = "acts-later"
	ReferencesIgnored    = "references-ignored"
)

// Finding is something that can be so, and may not be what was meant.
type Finding struct {
	Level Level
	ID    string
	Of    ServiceVersion
	Problem
	// Acknowledged is the reason that the file gives for leaving it so.
	Acknowledged string
}

func (f Finding) String() string {
	where, rest := f.Pos.String(), f.Problem
	rest.Pos = Pos{}
	level := string(f.Level)
	if f.Acknowledged != "" {
		level, rest.Remedy = "acknowledged", f.Acknowledged
	}
	return strings.TrimSpace(where + " " + level + ": " + rest.String())
}

// Lint names what descriptors that pass Check may not have meant: deletions that somebody from outside can keep from
// ending, rings of cascades and of blockers, names that lie below a resource and do not go with it, imports that are for
// nothing, form a cycle of services, or (with deployments) lead to a region where the imported service is not; and
// references that act later than they say, since holder and target are in different databases.
func Lint(descriptors []*Descriptor, deployments ...Deployment) []Finding {
	g := newKindGraph(descriptors)
	findings := slices.Concat(
		g.stuck(), g.cycles(), g.blockCycles(), g.later(descriptors), ignored(descriptors),
		withoutParent(descriptors), unusedImports(descriptors), importCycles(descriptors), withoutDeployment(descriptors, deployments),
	)
	for _, d := range descriptors {
		findings = append(findings, d.acknowledge(findings)...)
	}
	slices.SortStableFunc(findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(b.Level, a.Level), cmp.Compare(a.Pos.File, b.Pos.File), cmp.Compare(a.Pos.Line, b.Pos.Line))
	})
	return findings
}

// acknowledge marks what a descriptor's author has seen, and finds acknowledgements of what is not there.
func (d *Descriptor) acknowledge(findings []Finding) (stale []Finding) {
	for _, a := range d.Acknowledged {
		found := false
		for i := range findings {
			f := &findings[i]
			if f.Of == d.ServiceVersion && f.ID == a.Finding && f.Pos.Path == a.At {
				f.Acknowledged, found = a.Reason, true
			}
		}
		if !found {
			stale = append(stale, Finding{Level: Warning, ID: NothingAcknowledged, Of: d.ServiceVersion, Problem: Problem{
				Pos: a.Pos, Message: fmt.Sprintf("there is no %s at %s", a.Finding, a.At), Remedy: "remove it, or mend what it is about",
			}})
		}
	}
	return stale
}
