package cli

import (
	"fmt"
	"time"

	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
)

// Progress is how far a deletion has come, for people.
type Progress struct {
	Removed, Expected, Unset, ExpectedUnset int64
	Left                                    time.Duration // until the end; 0: no estimate
}

// ProgressOf returns the progress in one deployment. A deployment of an earlier release sends no expected
// counts: those found stand for them, without an estimate.
func ProgressOf(d *adminv1.Deletion) Progress {
	return Progress{
		Removed: d.GetRemoved(), Expected: max(d.GetFound(), d.GetExpected()), Unset: d.GetUnset(),
		ExpectedUnset: max(d.GetUnset(), d.GetExpectedUnset()),
		Left:          d.GetLeft().AsDuration(),
	}
}

// Plus adds the progress of another deployment at the same time.
func (p Progress) Plus(o Progress) Progress {
	return Progress{
		Removed: p.Removed + o.Removed, Expected: p.Expected + o.Expected, Unset: p.Unset + o.Unset,
		ExpectedUnset: p.ExpectedUnset + o.ExpectedUnset,
		Left:          max(p.Left, o.Left),
	}
}

func (p Progress) String() string {
	text := Plural(p.Removed, "resource") + " removed"
	if p.Removed < p.Expected {
		text = fmt.Sprintf("%d of %s removed", p.Removed, Plural(p.Expected, "resource"))
	}
	switch {
	case p.Unset < p.ExpectedUnset:
		text += fmt.Sprintf(", %d of %s unset", p.Unset, Plural(p.ExpectedUnset, "reference"))
	case p.Unset > 0:
		text += ", " + Plural(p.Unset, "reference") + " unset"
	}
	return text
}

// Estimate is the end of a line, or empty without an estimate. It counts the resources found so far: those
// deleted along with them are not known before. Less than a second says nothing.
func (p Progress) Estimate() string {
	left := p.Left.Round(time.Second)
	if left == 0 {
		return ""
	}
	return ", about " + left.String() + " left at this rate"
}
