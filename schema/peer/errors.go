package peer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
)

// Outcomes that a caller may want to tell apart.
var (
	ErrNotFound = errors.New("not found")
	ErrExists   = errors.New("already exists")
	// ErrConflict reports that the resource does not have the uid or the revision that the write requires.
	ErrConflict = errors.New("uid or revision does not match")
	// ErrDeleting reports that the resource is in DELETING, and takes no writes.
	ErrDeleting = errors.New("is being deleted")
	// ErrDeleted reports that the resource belongs to a scheduled deletion.
	ErrDeleted = errors.New("is deleted, and hidden until its purge time: undelete it, or delete it with now")
	// ErrNotDeleting reports that the resource is not in DELETING.
	ErrNotDeleting = errors.New("is not being deleted")
	// ErrTooManyRemovals reports that a delete removes more resources than its limit.
	ErrTooManyRemovals = errors.New("look at them with plan, and name a greater max_removals, or -1 for any number")
	// ErrNotAtomic reports that a deletion cannot be atomic. Nothing was deleted.
	ErrNotAtomic = errors.New(
		"an atomic deletion reaches at most 10,000 resources, and none that is a row of an attached table: delete without atomic")
	// ErrQuota reports that another deployment has sent too many unknown attempts; try again later.
	ErrQuota = errors.New(
		"too many unknown attempts: the quota of tentative references bounds their number in an hour, try again later")
	// ErrAborted reports that the attempt was aborted, by a target's resolver, a version switch or a new
	// epoch; try again.
	ErrAborted = errors.New("the write was aborted, try again")
	// ErrTransaction reports that the caller's transaction cannot contain the write. Nothing was written; the
	// message names the remedy.
	ErrTransaction = errors.New("the transaction cannot take the write")
	// ErrRequestReused reports that a request id was used before with another content.
	ErrRequestReused = errors.New("the request id was used for another request")
	// ErrNotSent reports that a call to another deployment was certainly not sent.
	ErrNotSent = errors.New("not sent")
	// ErrLeftOut reports that an attempt has to be established by itself, and was not established together
	// with others.
	ErrLeftOut = errors.New("left out, without effect")
	// ErrUnknown reports that the result of a commit is unknown.
	ErrUnknown = errors.New("the outcome is not known")
	// ErrDecommissioned is the error of a deployment that an operator here has decommissioned.
	ErrDecommissioned = errors.New("an operator has decommissioned this deployment")
	// ErrAuditLog reports that a call was not carried out because its line in the audit log could not be
	// written.
	ErrAuditLog = errors.New(
		"the audit log cannot be written, and calls need it here: an operator has to free its disk, or restore its receiver")
	// ErrDenied reports that the caller has no right to do this with a resource, whether or not it exists.
	ErrDenied = errors.New("ask an operator for a grant")
	// ErrAuthorizer reports that the authorization service did not decide: the call is denied for now.
	ErrAuthorizer = errors.New("the authorization service does not answer: try again")
	// ErrPosition reports that this database did not issue an acknowledged position to the caller.
	ErrPosition = errors.New("not a position of this database for this caller")
)

// InvalidError reports invalid input: the resource or field, and the fault.
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

// BlockedError refuses a delete. Holders are the first MaxNamedHolders blocking references, by name; Total
// counts all.
type BlockedError struct {
	// Name, in Deployment, is the resource to be deleted. The target of a holder may be another member of the
	// deletion.
	Name string
	// Several: Name has the names of several resources to be deleted together.
	Several    bool
	Deployment schema.DeploymentID
	Holders    []Holder
	Total      int
	// AtLeast reports that there may be more than Total.
	AtLeast bool
	// Undecided reports that the attempts of the references are undecided.
	Undecided bool
	// Unanswered are holders' deployments that did not answer whether the references still exist; until they
	// do, these block.
	Unanswered []schema.DeploymentID
}

// MaxNamedHolders is the number of holders in a BlockedError.
const MaxNamedHolders = 100

// maxToldHolders is the number of holders in its text.
const maxToldHolders = 5

// Add adds a holder. The caller adds them in the order of their names.
func (e *BlockedError) Add(h Holder) {
	if e.Total++; len(e.Holders) < MaxNamedHolders {
		e.Holders = append(e.Holders, h)
	}
}

func (e *BlockedError) Error() string {
	verb := "is referred to by"
	if e.Undecided {
		verb = "may be referred to, if undecided writes commit, by"
	}
	root := schema.FullName{Deployment: e.Deployment, Name: e.Name}
	told := slices.Clone(e.Holders[:min(len(e.Holders), maxToldHolders)])
	slices.SortStableFunc(told, func(a, b Holder) int {
		if isRoot := a.Target == root; isRoot != (b.Target == root) {
			return map[bool]int{true: -1, false: 1}[isRoot]
		}
		return strings.Compare(a.Target.String(), b.Target.String())
	})
	var b strings.Builder
	fmt.Fprintf(&b, "%s cannot be deleted:", e.Name)
	for i, h := range told {
		switch {
		case i > 0 && h.Target == told[i-1].Target:
			b.WriteByte(',')
		case h.Target == root:
			fmt.Fprintf(&b, " it %s", verb)
		case e.Several:
			if i > 0 {
				b.WriteByte(';')
			}
			fmt.Fprintf(&b, " %s %s", h.Target, verb)
		default:
			if i > 0 {
				b.WriteByte(';')
			}
			fmt.Fprintf(&b, " %s, which would be deleted with it, %s", h.Target, verb)
		}
		fmt.Fprintf(&b, " %s (%s)", h.Name, h.Path)
	}
	if more := e.Total - len(told); more > 0 {
		fmt.Fprintf(&b, " and %d more", more)
	}
	if e.AtLeast {
		b.WriteString(", and perhaps more: the look-ahead was incomplete")
	}
	if len(e.Unanswered) > 0 {
		fmt.Fprintf(&b, "; could not be asked whether their holders still refer: %s", joined(e.Unanswered))
	}
	return b.String()
}

func joined(deployments []schema.DeploymentID) string {
	names := make([]string, len(deployments))
	for i, d := range deployments {
		names[i] = d.String()
	}
	return strings.Join(names, ", ")
}

// KeptError refuses a delete because a constraint or a trigger of the application keeps a row of an attached
// table. Nothing was changed.
type KeptError struct {
	// Table is the attached table, as SQL; empty when the constraint was checked at the commit.
	Table string
	// Constraint is the name of the constraint; empty for a trigger.
	Constraint string
	// Text is the message of PostgreSQL or of the trigger, which names the tables.
	Text string
}

func (e *KeptError) Error() string {
	of, by := "a row", "a trigger or a rule of the application"
	if e.Table != "" {
		of = "a row of " + e.Table
	}
	if e.Constraint != "" {
		by = "the constraint " + e.Constraint
	}
	return fmt.Sprintf("%s cannot be deleted or changed: %s keeps it: %s", of, by, e.Text)
}

// ProtectedError refuses a delete with members that have block_deletion set.
type ProtectedError struct {
	Name string
	By   []schema.FullName
}

func (e *ProtectedError) Error() string {
	names := make([]string, 0, len(e.By))
	for _, n := range e.By[:min(len(e.By), maxNamedInText)] {
		names = append(names, n.String())
	}
	s := fmt.Sprintf("%s cannot be deleted: block_deletion is set on %s", e.Name, strings.Join(names, ", "))
	if more := len(e.By) - len(names); more > 0 {
		s += fmt.Sprintf(" and %d more", more)
	}
	return s
}

// UnavailableError names deployments that did not answer, or for which recovery waits.
type UnavailableError struct {
	Deployments []schema.DeploymentID
	Err         error
	// Unasked has the reason for each deployment, where it is known.
	Unasked []Unasked
}

func (e *UnavailableError) Error() string {
	if len(e.Unasked) > 0 {
		return describeUnasked(e.Unasked)
	}
	if list := (*ListError)(nil); errors.As(e.Err, &list) {
		return list.Error()
	}
	if errors.Is(e.Err, ErrRecovering) { // recovery waits for them, reachable or not
		return fmt.Sprintf("%v: %s", e.Err, joined(e.Deployments))
	}
	if errors.Is(e.Err, ErrUndescribed) {
		return e.Err.Error()
	}
	if errors.Is(e.Err, ErrPaused) || errors.Is(e.Err, ErrHandlerPaused) {
		return fmt.Sprintf("%v: %s", e.Err, joined(e.Deployments))
	}
	return fmt.Sprintf("%s cannot be reached: %v", joined(e.Deployments), e.Err)
}

func (e *UnavailableError) Unwrap() error { return e.Err }

// ErrStranger is the reason why a deployment is refused that nothing here knows.
var ErrStranger = errors.New(
	"is not in the environment that this deployment last received from the registry, and has nothing here")

// StrangerError is ErrStranger about a deployment.
func StrangerError(who schema.DeploymentID) error { return fmt.Errorf("%s %w", who, ErrStranger) }

// ErrUndescribed is the reason why a name is refused that no described version of its service allows. The
// registry may know a newer one.
var ErrUndescribed = errors.New(
	"in the environment that this deployment last received from the registry: correct it, or apply the description of the version")

// ErrRecovering is the reason why nothing is deleted during a recovery of this deployment.
var ErrRecovering = errors.New("the database was restored or failed over, and may have lost blockades: " +
	"deletions wait until these deployments have confirmed their references")

// ErrKindsRecovering is the reason why resources of some kinds are not deleted: deployments whose resources
// refer to these kinds have not compared, since this database or theirs began a new epoch. It is an
// ErrRecovering.
var ErrKindsRecovering error = kindsRecoveringError{}

type kindsRecoveringError struct{}

func (kindsRecoveringError) Error() string {
	return "this database, or that of these deployments, was restored or failed over: resources of the kinds that they refer to are not deleted here until they have compared their references"
}

func (kindsRecoveringError) Is(target error) bool { return target == ErrRecovering }

// HaltsAll reports whether the error stops every deletion of a deployment at the moment, not only deletions
// of some resources.
func HaltsAll(err error) bool {
	return (errors.Is(err, ErrRecovering) || errors.Is(err, ErrPaused)) && !errors.Is(err, ErrKindsRecovering)
}

// ErrStarted is the reason why nothing is deleted for some seconds after a start of the database's server. It
// is an ErrRecovering.
var ErrStarted error = startedError{}

type startedError struct{}

func (startedError) Error() string {
	return "the database's server has started again, and may be an older copy: nothing is deleted here until these deployments have shown how far they have seen it, or for 15 seconds"
}

func (startedError) Is(target error) bool { return target == ErrRecovering }

// ListError is the reason why nothing is deleted before a recovery knows the deployments that may refer to
// resources here. It is an ErrRecovering.
type ListError struct{ Err error }

func (e *ListError) Error() string {
	return "the database was restored or failed over, and may have lost blockades: nothing is deleted here before the deployments that may refer to resources here are known: " + e.Err.Error()
}

// Is makes it an ErrRecovering.
func (e *ListError) Is(target error) bool { return target == ErrRecovering }

func (e *ListError) Unwrap() error { return e.Err }

// ErrPaused is the reason why nothing is deleted while an operator has paused deletions.
var ErrPaused = errors.New("an operator has paused deletions until db-controller resume")

// ErrHandlerPaused is the reason why work waits while an operator has paused its handler.
var ErrHandlerPaused = errors.New("an operator has paused the handler until db-controller resume --handler")

// maxNamedInText is the number of list items in the text of an error.
const maxNamedInText = 5

// A database has an identity: a UUID that is created with it. Failovers and restored backups keep it; an
// empty database, or another deployment's, has another one. A deployment stores the identity of another's
// database as soon as the two are related: references or owner references exist, or existed, between them.
// The answer of a different database is treated as unknown, never as "gone" (I15).

// DatabaseError reports that a deployment calls or answers from another database (Spoken) than the stored one
// (Known).
type DatabaseError struct {
	Deployment    schema.DeploymentID
	Known, Spoken uuid.UUID
}

func (e *DatabaseError) Error() string {
	return fmt.Sprintf(
		"%s runs over database %s instead of its recorded database %s: start it over the recorded one, or restore a backup of that; "+
			"if that one is lost for good, decommission it: db-controller decommission %s --former-database",
		e.Deployment,
		e.Spoken, e.Known, e.Deployment)
}

// CallerDatabase is the key of WithCallerDatabase.
type CallerDatabase struct{}

// WithCallerDatabase stores in ctx the database from which a call is made, for transactions that relate the
// two deployments: another database may have been accepted since the call was admitted.
func WithCallerDatabase(ctx context.Context, database uuid.UUID) context.Context {
	return context.WithValue(ctx, CallerDatabase{}, database)
}

// A database begins a new epoch when it may have lost commits: a standby was promoted, or a backup restored.
// Its rows may then contradict messages that were exchanged with other deployments. From the new epoch on
//   - attempts of the old epoch cannot commit, and deployments that know the new epoch refuse messages of the
//     old one;
//   - nothing is removed or marked until every deployment that may refer to resources here has compared its
//     references with the blockades and entries here, and has established lost ones again;
//   - references from here to other deployments, and blockades here, are compared as well.

// ErrStaleEpoch refuses a message that was sent before its sender's database began a new epoch.
var ErrStaleEpoch = errors.New("stale epoch: sent before the sender's database failed over or was restored; " +
	"if neither happened, that database was rolled back unnoticed: restart its deployment with --restored")

// Outcomes of watches.
var (
	// ErrReset reports that a resume token cannot be resumed: start with a new snapshot.
	ErrReset = schema.ErrReset
)

// ErrPassGone reports that a comparison has ended, or was replaced by another one.
var ErrPassGone = errors.New("the comparison has ended or was replaced by a newer one")
