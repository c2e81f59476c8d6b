// Package lint finds declarations whose deletions can get stuck, remove more than expected, or have no
// effect.
package lint

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/db-controller/db-controller/schema"
)

// Level is the severity of a finding of Lint.
type Level string

// A Warning is about deletions that can get stuck or remove more than expected, and about declarations
// without effect; a Note explains a consequence that is easily overlooked.
const (
	Warning Level = "warning"
	Note    Level = "note"
)

// The IDs of findings, which never change. The ID, the version and the path identify a finding, also in later
// versions of a file.
const (
	BlockedCascade       = "blocked-cascade"
	CascadeCycle         = "cascade-cycle"
	BlockCycle           = "block-cycle"
	BlockWithinKind      = "block-within-kind"
	PatternWithoutParent = "pattern-without-parent"
	UnusedImport         = "unused-import"
	ImportCycle          = "import-cycle"
	NoDeploymentInRegion = "no-deployment-in-region"
	UnknownRegion        = "unknown-region"
	UnknownVersion       = "unknown-version"
	ImportNotRun         = "import-not-run"
	NothingAcknowledged  = "nothing-acknowledged"
	CascadeWithinKind    = "cascade-within-kind"
	ActsLater            = "acts-later"
	ReferencesIgnored    = "references-ignored"
)

// Finding is a valid declaration that may not be intended.
type Finding struct {
	Level Level
	ID    string
	Of    schema.ServiceVersion
	schema.Problem
	// Acknowledged is the reason in the file for which the finding is intended.
	Acknowledged string
}

func (f Finding) String() string {
	where, rest := f.Pos.String(), f.Problem
	rest.Pos = schema.Pos{}
	level := string(f.Level)
	if f.Acknowledged != "" {
		level, rest.Remedy = "acknowledged", f.Acknowledged
	}
	return strings.TrimSpace(where + " " + level + ": " + rest.String())
}

// Services returns the findings in descriptors that pass Check: cascades that a reference from outside can
// block, cycles of cascades and of blockers, names that lie below a resource that is not their parent,
// imports without references, imports that form a cycle of services, imports of services that have no
// deployment in a region, or run a version without the target's kind there (for given deployments), and
// references that act later than their behaviour says, because holder and target are in different databases.
func Services(descriptors []*schema.Descriptor, deployments ...schema.Deployment) []Finding {
	g := newKindGraph(descriptors)
	findings := slices.Concat(
		g.stuck(), g.cycles(), g.blockCycles(), g.later(descriptors), ignored(descriptors),
		withoutParent(descriptors), unusedImports(descriptors), importCycles(descriptors),
		withoutDeployment(descriptors, deployments), parentsWithoutDeployment(descriptors, deployments),
		importsNotRun(descriptors, deployments),
	)
	for _, d := range descriptors {
		findings = append(findings, acknowledge(d, findings)...)
	}
	slices.SortStableFunc(findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(b.Level, a.Level), cmp.Compare(a.Pos.File, b.Pos.File),
			cmp.Compare(a.Pos.Line, b.Pos.Line))
	})
	return findings
}

// acknowledge marks acknowledged findings, and returns a finding for each acknowledgement without one.
func acknowledge(d *schema.Descriptor, findings []Finding) (stale []Finding) {
	for _, a := range d.Acknowledged {
		found := false
		for i := range findings {
			f := &findings[i]
			if f.Of == d.ServiceVersion && f.ID == a.Finding && f.Pos.Path == a.At {
				f.Acknowledged, found = a.Reason, true
			}
		}
		if !found {
			stale = append(stale, Finding{
				Level: Warning, ID: NothingAcknowledged, Of: d.ServiceVersion,
				Problem: schema.Problem{
					Pos: a.Pos, Message: fmt.Sprintf("there is no %s at %s", a.Finding, a.At),
					Remedy: "remove the acknowledgement, or correct its warning and its path",
				},
			})
		}
	}
	return stale
}
