package peer

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/db-controller/db-controller/schema"
)

// Reason is the reason of a refused reference.
type Reason string

// refusalReasons has the meaning of each reason.
const (
	TargetMissing        Reason = "TARGET_MISSING"
	TargetDeleting       Reason = "TARGET_DELETING"
	TargetClosing        Reason = "TARGET_CLOSING"
	TargetDeleted        Reason = "TARGET_DELETED"
	TargetReplaced       Reason = "TARGET_REPLACED"
	UnknownKind          Reason = "UNKNOWN_KIND"
	NotImported          Reason = "NOT_IMPORTED"
	NotReferable         Reason = "NOT_REFERABLE"
	ReferDenied          Reason = "REFER_DENIED"
	RemovalDenied        Reason = "REMOVAL_DENIED"
	NotConstrained       Reason = "CONSTRAINTS_DISABLED"
	QuotaExceeded        Reason = "QUOTA_EXCEEDED"
	AttemptTooOld        Reason = "ATTEMPT_TOO_OLD"
	AttemptClosed        Reason = "ATTEMPT_CLOSED"
	AttemptOfFuture      Reason = "ATTEMPT_OF_FUTURE"
	TargetDecommissioned Reason = "DECOMMISSIONED"
	TargetUnreadable     Reason = "UNAVAILABLE"
	TargetSlow           Reason = "NO_ANSWER_IN_TIME"
)

// Standing is the time for which a refusal is valid.
type Standing int

// In the order of precedence: the lowest standing decides about a write with several refusals.
const (
	// Later: the same write may be accepted after a change elsewhere: of the version or the environment at
	// the target's deployment, of its availability, or of the quota used.
	Later Standing = iota
	// Again: the same write may be accepted at once. Save repeats it until its deadline.
	Again
	// Final: the write is refused permanently, and the refusal is recorded with its request id.
	Final
)

// refusalReasons are all reasons with their standing and a predicate about the target. Only a target that is
// missing or in DELETING, decommissioning, and missing rights of the writer are Final: the version and the
// environment at the target's deployment may lag behind the holder's deployment.
var refusalReasons = map[Reason]struct {
	standing Standing
	says     string
}{
	TargetMissing:  {Final, "does not exist"},
	TargetDeleting: {Final, "is being deleted"},
	TargetClosing:  {Again, "is about to be deleted, try again"},
	TargetDeleted:  {Final, "is deleted, and hidden until its purge time: undelete it first"},
	TargetReplaced: {Again, "is another resource of the same name now, try again"},
	UnknownKind: {
		Later,
		"is of a kind that the version run by its deployment does not have, or whose table is not attached there",
	},
	NotImported: {
		Later,
		"belongs to a service that the holder's service does not import, according to the target's deployment: add the import to the descriptor, or wait until that deployment has received it",
	},
	NotReferable: {
		Later,
		"is of a kind that only listed services may refer to: ask its owner to list yours in referable_by",
	},
	ReferDenied: {
		Final,
		"cannot be referred to: the writer has no right to refer to it, so ask an operator for a grant",
	},
	RemovalDenied: {
		Final,
		"would take the holder along when it is deleted: the writer has no right to delete the holder, so ask an operator for a grant",
	},
	NotConstrained: {
		Later,
		"is of a kind whose constraints are disabled in the version run by its deployment: nothing can refer to it",
	},
	QuotaExceeded: {
		Later,
		"cannot be referred to: the holder's deployment has reached its quota of references there",
	},
	AttemptTooOld:        {Again, "was requested by an attempt that is too old, try again"},
	AttemptClosed:        {Again, "was requested by an attempt that has ended, try again"},
	AttemptOfFuture:      {Later, "was requested by a deployment whose clock is hours ahead: correct that clock"},
	TargetDecommissioned: {Final, "cannot be referred to: an operator has decommissioned one of the two deployments"},
	TargetUnreadable:     {Later, "could not be checked: its deployment is unavailable"},
	TargetSlow: {
		Later,
		"belongs to a deployment that did not answer in time and may be overloaded: try again",
	},
}

// Reasons returns all reasons, sorted.
func Reasons() []Reason { return slices.Sorted(maps.Keys(refusalReasons)) }

// Standing returns the time for which a refusal for the reason is valid; Later for a reason of a newer
// version, which is unknown here.
func (r Reason) Standing() Standing { return refusalReasons[r].standing }

// Says returns the predicate of an English sentence whose subject is the reference's target; empty for an
// unknown reason.
func (r Reason) Says() string { return refusalReasons[r].says }

// Refusal is one refused reference.
type Refusal struct {
	Holder string // relative name
	Path   string
	Target schema.FullName
	Reason Reason
	Detail string
}

func (r Refusal) String() string {
	what := cmp.Or(r.Reason.Says(), string(r.Reason))
	s := fmt.Sprintf("%s %s", r.Target, what)
	if r.Holder != "" && r.Path != RightPath { // else it is about a right that is asked for without a reference
		s = fmt.Sprintf("%s: %s: %s", r.Holder, r.Path, s)
	}
	if r.Detail != "" {
		s += ": " + r.Detail
	}
	return s
}

// RefusedError lists the references that made a write fail. Nothing was written.
type RefusedError struct {
	Refusals []Refusal
	// More is the number of refusals that are not listed.
	More int
}

// Total returns the number of refused references.
func (e *RefusedError) Total() int { return len(e.Refusals) + e.More }

func (e *RefusedError) Error() string {
	lines := make([]string, min(len(e.Refusals), maxNamedInText))
	for i := range lines {
		lines[i] = e.Refusals[i].String()
	}
	if more := e.Total() - len(lines); more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(lines, "\n")
}

// Deciding returns the first refusal with the lowest standing, which decides the status of the write. It
// panics without refusals.
func (e *RefusedError) Deciding() Refusal {
	return slices.MinFunc(e.Refusals, func(a, b Refusal) int {
		return cmp.Compare(a.Reason.Standing(), b.Reason.Standing())
	})
}

// Only reports whether there are refusals, and all have the reason.
func (e *RefusedError) Only(reason Reason) bool {
	return e.All(func(r Reason) bool { return r == reason })
}

// All reports whether the reasons of all listed refusals have a property; false when none is listed.
func (e *RefusedError) All(is func(Reason) bool) bool {
	return len(e.Refusals) > 0 && !slices.ContainsFunc(e.Refusals, func(r Refusal) bool { return !is(r.Reason) })
}

// Stands returns a condition for All: the reason stands as this.
func Stands(as Standing) func(Reason) bool {
	return func(r Reason) bool { return r.Standing() == as }
}

// Definite reports whether an error refuses a request permanently: it never takes effect, and the refusal is
// recorded with its request id. After any other error, a repeated request may have another result.
func Definite(err error) bool {
	var refused *RefusedError
	var blocked *BlockedError
	switch {
	case errors.As(err, &refused):
		return refused.All(Stands(Final))
	case errors.As(err, &blocked):
		return !blocked.Undecided
	case errors.As(err, new(*UnavailableError)), errors.Is(err, ErrUnknown):
		return false
	case errors.As(err, new(*InvalidError)), errors.As(err, new(*ProtectedError)), errors.As(err, new(*KeptError)):
		return true
	}
	return slices.ContainsFunc(definite, func(is error) bool { return errors.Is(err, is) })
}

var definite = []error{
	ErrNotFound, ErrExists, ErrConflict, ErrDeleting, ErrDeleted, ErrNotDeleting, ErrTooManyRemovals,
	ErrNotAtomic, ErrRequestReused, ErrDenied, ErrDecommissioned, ErrPosition, ErrReset,
}

// Add appends the refusals of another deployment.
func (e *RefusedError) Add(by *RefusedError) {
	if by != nil {
		e.Refusals, e.More = append(e.Refusals, by.Refusals...), e.More+by.More
	}
}

// Sorted sorts the refusals into the order in which they are paged.
func (e *RefusedError) Sorted() error {
	slices.SortFunc(e.Refusals, func(a, b Refusal) int { return slices.Compare(a.Key(), b.Key()) })
	return e
}

// Key identifies the refusal within a request.
func (r Refusal) Key() []string { return []string{r.Holder, r.Path, r.Target.String()} }

// TokenAfter returns the page token for the refusals after r.
func TokenAfter(r Refusal) string {
	text, _ := json.Marshal(r.Key()) // a []string: cannot fail
	return base64.RawURLEncoding.EncodeToString(text)
}

// Follows parses a page token and returns a function that reports whether a refusal is on the token's page or
// a later one. All are for an empty token. It fails with *InvalidError.
func Follows(token string) (func(Refusal) bool, error) {
	var key []string
	if token == "" {
		return func(Refusal) bool { return true }, nil
	}
	text, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || json.Unmarshal(text, &key) != nil {
		return nil, &InvalidError{Resource: "page_token", Err: errors.New("not a page token of an earlier response")}
	}
	return func(r Refusal) bool { return slices.Compare(r.Key(), key) > 0 }, nil
}

// After returns the error with only the refusals after a page token; all of them when none is left after the
// token.
func (e *RefusedError) After(token string) (*RefusedError, error) {
	follows, err := Follows(token)
	if err != nil {
		return nil, err
	}
	rest := slices.DeleteFunc(slices.Clone(e.Refusals), func(r Refusal) bool { return !follows(r) })
	if len(rest) == 0 {
		return e, nil
	}
	return &RefusedError{Refusals: rest, More: e.More}, nil
}
