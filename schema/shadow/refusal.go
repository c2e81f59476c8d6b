package shadow

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

// Reason is why a reference was refused.
type Reason string

// What each means is in the table of reasons.
const (
	TargetMissing    Reason = "TARGET_MISSING"
	TargetDeleting   Reason = "TARGET_DELETING"
	TargetClosing    Reason = "TARGET_CLOSING"
	TargetReplaced   Reason = "TARGET_REPLACED"
	UnknownKind      Reason = "UNKNOWN_KIND"
	NotImported      Reason = "NOT_IMPORTED"
	NotReferable     Reason = "NOT_REFERABLE"
	NotConstrained   Reason = "CONSTRAINTS_DISABLED"
	QuotaExceeded    Reason = "QUOTA_EXCEEDED"
	AttemptTooOld    Reason = "ATTEMPT_TOO_OLD"
	AttemptClosed    Reason = "ATTEMPT_CLOSED"
	AttemptOfFuture  Reason = "ATTEMPT_OF_FUTURE"
	DeploymentGone   Reason = "DECOMMISSIONED"
	TargetUnreadable Reason = "UNAVAILABLE"
	TargetSlow       Reason = "NO_ANSWER_IN_TIME"
)

// Standing says how long a refusal stands.
type Standing int

// In the order in which they decide about a write with several refusals.
const (
	// Later: the same write may be accepted when something else has changed: what the target's deployment runs or has heard
	// of the registry, who can be reached, how much the holder's deployment has.
	Later Standing = iota
	// Again: the same write may be accepted at once. Save tries it again by itself until its deadline.
	Again
	// Final: the write is refused for good, and its request id keeps that.
	Final
)

// refusalReasons are all reasons why a reference is refused: what they say of its target, and how long they stand. Final is only what
// the target itself says. What its deployment runs, or has heard, can be behind what the holder's deployment runs, and catches up.
var refusalReasons = map[Reason]struct {
	standing Standing
	says     string
}{
	TargetMissing:    {Final, "does not exist"},
	TargetDeleting:   {Final, "is being deleted"},
	TargetClosing:    {Again, "is about to be deleted, try again"},
	TargetReplaced:   {Again, "is another resource of the same name now, try again"},
	UnknownKind:      {Later, "is of a kind that the version which its deployment runs does not have"},
	NotImported:      {Later, "is of a service that, as far as its deployment has heard, does not let this one refer to it: import it in the descriptor"},
	NotReferable:     {Later, "is of a kind that lets only some services refer to it: ask for yours to be listed in its referable_by"},
	NotConstrained:   {Later, "is of a kind whose constraints the version that its deployment runs has disabled: nothing can refer to it"},
	QuotaExceeded:    {Later, "cannot be referred to: the holder's deployment has as many references there as it may"},
	AttemptTooOld:    {Again, "was asked for too late, try again"},
	AttemptClosed:    {Again, "was asked for by an attempt that is over, try again"},
	AttemptOfFuture:  {Later, "was asked for by a deployment whose clock is ahead by hours: set it"},
	DeploymentGone:   {Final, "cannot be referred to: an operator has decommissioned one of the two deployments"},
	TargetUnreadable: {Later, "could not be asked for"},
	TargetSlow:       {Later, "belongs to a deployment that did not answer in time, which may only be busy: try again"},
}

// Reasons are all of them, sorted.
func Reasons() []Reason { return slices.Sorted(maps.Keys(refusalReasons)) }

// Standing is how long a refusal for the reason stands. A reason that only a newer version knows decides nothing.
func (r Reason) Standing() Standing { return refusalReasons[r].standing }

// Says is what the reason says of a reference's target.
func (r Reason) Says() string { return refusalReasons[r].says }

// Refusal is one reference that cannot be.
type Refusal struct {
	Holder string // relative name
	Path   string
	Target schema.FullName
	Reason Reason
	Detail string
}

func (r Refusal) String() string {
	what := cmp.Or(r.Reason.Says(), string(r.Reason))
	s := fmt.Sprintf("%s: %s: %s %s", r.Holder, r.Path, r.Target, what)
	if r.Detail != "" {
		s += ": " + r.Detail
	}
	return s
}

// RefusedError names every reference that made a write fail. Nothing was written.
type RefusedError struct {
	Refusals []Refusal
	// More are refused as well, which another deployment did not name.
	More int
}

// Total is how many references are refused.
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

// maxNamedInText is how many of a list the text of an error names.
const maxNamedInText = 5

// Deciding is the refusal that decides what becomes of the write: the first of those that stand the shortest. There is at least one.
func (e *RefusedError) Deciding() Refusal {
	return slices.MinFunc(e.Refusals, func(a, b Refusal) int { return cmp.Compare(a.Reason.Standing(), b.Reason.Standing()) })
}

// Only tells whether every refusal has the reason.
func (e *RefusedError) Only(reason Reason) bool {
	return e.all(func(r Reason) bool { return r == reason })
}

func (e *RefusedError) all(is func(Reason) bool) bool {
	return len(e.Refusals) > 0 && !slices.ContainsFunc(e.Refusals, func(r Refusal) bool { return !is(r.Reason) })
}

func stands(as Standing) func(Reason) bool {
	return func(r Reason) bool { return r.Standing() == as }
}

// Definite reports whether an error refuses a request for good: the request never takes effect, and its id keeps the refusal.
// Everything else may come out differently when the request is repeated.
func Definite(err error) bool {
	var refused *RefusedError
	var blocked *BlockedError
	switch {
	case errors.As(err, &refused):
		return refused.all(stands(Final))
	case errors.As(err, &blocked):
		return !blocked.Undecided
	case errors.As(err, new(*UnavailableError)), errors.Is(err, ErrUnknown):
		return false
	case errors.As(err, new(*InvalidError)), errors.As(err, new(*ProtectedError)):
		return true
	}
	return slices.ContainsFunc(definite, func(is error) bool { return errors.Is(err, is) })
}

var definite = []error{ErrNotFound, ErrExists, ErrMoved, ErrDeleting, ErrRequestReused, ErrBarred, ErrPosition, ErrReset}

// add takes what one of several deployments refused.
func (e *RefusedError) add(by *RefusedError) {
	if by != nil {
		e.Refusals, e.More = append(e.Refusals, by.Refusals...), e.More+by.More
	}
}

// sorted is the error with its references in their order, in which they are paged.
func (e *RefusedError) sorted() error {
	slices.SortFunc(e.Refusals, func(a, b Refusal) int { return slices.Compare(a.key(), b.key()) })
	return e
}

func (r Refusal) key() []string { return []string{r.Holder, r.Path, r.Target.String()} }

// TokenAfter is a page token for the refusals that come after one.
func TokenAfter(r Refusal) string {
	text, _ := json.Marshal(r.key()) // of strings
	return base64.RawURLEncoding.EncodeToString(text)
}

// Follows reads a page token: it reports whether a refusal comes after the one of the token. All come after none.
func Follows(token string) (func(Refusal) bool, error) {
	var key []string
	if token == "" {
		return func(Refusal) bool { return true }, nil
	}
	text, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || json.Unmarshal(text, &key) != nil {
		return nil, &InvalidError{Resource: "page_token", Err: errors.New("want the page token of an earlier answer")}
	}
	return func(r Refusal) bool { return slices.Compare(r.key(), key) > 0 }, nil
}

// after leaves those that come after the one of a token. Where none does any more, it begins anew.
func (e *RefusedError) after(token string) (*RefusedError, error) {
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
