package shadow

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/feed"
)

// Outcomes that a caller may want to tell apart.
var (
	ErrNotFound = errors.New("not found")
	ErrExists   = errors.New("already exists")
	// ErrMoved says that the resource is not at the revision, or has not the uid, that the write asked for.
	ErrMoved = errors.New("has changed meanwhile")
	// ErrDeleting says that the resource is on its way out and takes no writes.
	ErrDeleting = errors.New("is being deleted")
	// ErrAborted says that the attempt was decided ABORTED, by a target's resolver or a version switch; try again.
	ErrAborted = errors.New("the write was aborted, try again")
	// ErrForeignReference says that a write in the caller's own transaction would need another deployment.
	ErrForeignReference = errors.New("a new reference to another deployment cannot be written inside a transaction of your own: use Save")
	// ErrRequestReused says that a request id came before with another content.
	ErrRequestReused = errors.New("the request id was used for another request")
	// ErrNotSent says that a call to another deployment was certainly not sent.
	ErrNotSent = errors.New("not sent")
	// ErrUnknown says that the database did not tell whether it committed.
	ErrUnknown = errors.New("the outcome is not known")
	// ErrReset says that a resume token cannot be resumed: start with a new snapshot.
	ErrReset = feed.ErrReset
	// ErrSlow says that the reader of a watch took too long to take what was delivered: open it again.
	ErrSlow = feed.ErrSlow
	// ErrBarred says that an operator has declared the asking deployment gone for ever.
	ErrBarred = errors.New("an operator has decommissioned this deployment")
	// ErrPosition says that an acknowledged position is not one that this database gave to the caller.
	ErrPosition = errors.New("not a position of this database for this caller")
)

// InvalidError is bad input: which field, and what is wrong with it.
type InvalidError struct {
	Resource string
	Err      error
}

func (e *InvalidError) Error() string {
	if e.Resource == "" {
		return e.Err.Error()
	}
	return e.Resource + ": " + e.Err.Error()
}

func (e *InvalidError) Unwrap() error { return e.Err }

// Reason is why a reference was refused.
type Reason string

// Closing, Unavailable and QuotaExceeded pass, and an unknown kind when the target's deployment switches its version; the others do
// not by themselves.
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
)

// passes tells whether the same write may be accepted later, without anybody changing anything on purpose.
func (r Reason) passes() bool {
	switch r {
	case TargetUnreadable, TargetClosing, AttemptClosed, UnknownKind, QuotaExceeded:
		return true
	default:
		return false
	}
}

// Refusal is one reference that cannot be.
type Refusal struct {
	Holder string // relative name
	Path   string
	Target schema.FullName
	Reason Reason
	Detail string
}

func (r Refusal) String() string {
	what := map[Reason]string{
		TargetMissing:    "does not exist",
		TargetDeleting:   "is being deleted",
		TargetClosing:    "is about to be deleted, try again",
		TargetReplaced:   "is another resource of the same name now",
		UnknownKind:      "is of a kind that the version which its deployment runs does not have",
		NotImported:      "is of a service that does not let this one refer to it: import it in the descriptor",
		NotReferable:     "is of a kind that lets only some services refer to it: ask for yours to be listed in its referable_by",
		NotConstrained:   "is of a kind whose constraints the version that its deployment runs has disabled: nothing can refer to it",
		QuotaExceeded:    "cannot be referred to: the holder's deployment has as many references there as it may",
		AttemptTooOld:    "was asked for too late, try again",
		AttemptOfFuture:  "was asked for by a deployment whose clock is ahead by hours: set it",
		AttemptClosed:    "was asked for by an attempt that is over, try again",
		DeploymentGone:   "cannot be referred to: an operator has decommissioned one of the two deployments",
		TargetUnreadable: "could not be asked for",
	}[r.Reason]
	s := fmt.Sprintf("%s: %s: %s %s", r.Holder, r.Path, r.Target, what)
	if r.Detail != "" {
		s += ": " + r.Detail
	}
	return s
}

// RefusedError names every reference that made a write fail. Nothing was written.
type RefusedError struct {
	Refusals []Refusal
}

func (e *RefusedError) Error() string {
	lines := make([]string, len(e.Refusals))
	for i, r := range e.Refusals {
		lines[i] = r.String()
	}
	return strings.Join(lines, "\n")
}

// Only tells whether every refusal has the reason.
func (e *RefusedError) Only(reason Reason) bool {
	for _, r := range e.Refusals {
		if r.Reason != reason {
			return false
		}
	}
	return len(e.Refusals) > 0
}

// BlockedError refuses a delete. Holders are the first MaxNamedHolders, Total is how many there are.
type BlockedError struct {
	Name    string
	Holders []Holder
	Total   int
	// Undecided says that the holders may only be about to refer.
	Undecided bool
}

// MaxNamedHolders is how many holders an error names.
const MaxNamedHolders = 100

func (e *BlockedError) sort() {
	slices.SortFunc(e.Holders, func(a, b Holder) int {
		return slices.Compare([]string{a.Name.String(), a.Path}, []string{b.Name.String(), b.Path})
	})
}

func (e *BlockedError) Error() string {
	verb := "is referred to by"
	if e.Undecided {
		verb = "may be referred to, which is not decided yet, by"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s cannot be deleted: it %s", e.Name, verb)
	for i, h := range e.Holders {
		if i == 5 {
			break
		}
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, " %s (%s)", h.Name, h.Path)
	}
	if e.Total > 5 {
		fmt.Fprintf(&b, " and %d more", e.Total-5)
	}
	return b.String()
}

// ProtectedError refuses a delete that would take resources which are not to be deleted (block_deletion).
type ProtectedError struct {
	Name string
	By   []schema.FullName
}

func (e *ProtectedError) Error() string {
	names := make([]string, 0, len(e.By))
	for _, n := range e.By[:min(len(e.By), 5)] {
		names = append(names, n.String())
	}
	s := fmt.Sprintf("%s cannot be deleted: block_deletion is set on %s", e.Name, strings.Join(names, ", "))
	if more := len(e.By) - len(names); more > 0 {
		s += fmt.Sprintf(" and %d more", more)
	}
	return s
}

// UnavailableError names deployments that had to be asked and did not answer.
type UnavailableError struct {
	Deployments []schema.DeploymentID
	Err         error
}

func (e *UnavailableError) Error() string {
	names := make([]string, len(e.Deployments))
	for i, d := range e.Deployments {
		names[i] = d.String()
	}
	if errors.Is(e.Err, errRecovering) { // they are waited for, whether or not they can be reached
		return fmt.Sprintf("%v: %s", e.Err, strings.Join(names, ", "))
	}
	return fmt.Sprintf("%s cannot be reached: %v", strings.Join(names, ", "), e.Err)
}

func (e *UnavailableError) Unwrap() error { return e.Err }

const (
	codeUniqueViolation      = "23505"
	codeSerializationFailure = "40001"
	codeDeadlockDetected     = "40P01"
	codeLockNotAvailable     = "55P03"
	codeReadOnly             = "25006"
	classConnection          = "08"
	classShutdown            = "57P"
	classResources           = "53" // connections, memory, disk
)

func hasCode(err error, codes ...string) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return false
	}
	for _, code := range codes {
		if pg.Code == code {
			return true
		}
	}
	return false
}

// DatabaseAway tells whether an error says that the database cannot be reached, or takes no writes, for now: everything can be
// tried again.
func DatabaseAway(err error) bool {
	var (
		pg      *pgconn.PgError
		connect *pgconn.ConnectError
		network net.Error
	)
	switch {
	case errors.As(err, &pg):
		return strings.HasPrefix(pg.Code, classConnection) || strings.HasPrefix(pg.Code, classShutdown) ||
			strings.HasPrefix(pg.Code, classResources) || pg.Code == codeReadOnly
	case errors.As(err, &connect), errors.As(err, &network), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed):
		return true
	}
	return pgconn.SafeToRetry(err) // nothing was sent
}

// again tells whether the transaction did nothing and can simply be run again.
func again(err error) bool {
	return hasCode(err, codeSerializationFailure, codeDeadlockDetected)
}

func violates(err error, constraint string) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == codeUniqueViolation && pg.ConstraintName == constraint
}
