package embed

import (
	"errors"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/violation"
)

// Errors of the methods that write, for errors.Is.
var (
	// ErrNotFound: there is no resource of this name, or it has another uid.
	ErrNotFound = errors.New("not found")
	// ErrExists: a resource of this name exists already.
	ErrExists = errors.New("already exists")
	// ErrConflict: the resource has another revision, uid or generation of its status than the write.
	ErrConflict = errors.New("conflict")
	// ErrDeleting: the resource is being deleted.
	ErrDeleting = errors.New("deleting")
	// ErrNotDeleting: the resource is not deleted, so its clean-up would not be the last one.
	ErrNotDeleting = errors.New("not deleting")
	// ErrDenied: the running version names another holder of the finalizer.
	ErrDenied = errors.New("denied")
	// ErrUnavailable: nothing is stored, because a deployment does not answer, or nothing is deleted for now.
	ErrUnavailable = errors.New("unavailable")
	// ErrAborted: nothing is stored; the same write may succeed.
	ErrAborted = errors.New("aborted")
	// ErrUnknown: the answer to the commit was lost. Either all is stored, or nothing.
	ErrUnknown = errors.New("outcome unknown")
	// ErrTransaction: the transaction cannot contain the write. The message has the reason.
	ErrTransaction = errors.New("unsuitable transaction")
	// ErrClosed: Close was called.
	ErrClosed = errors.New("the application is closed")
)

var classes = []struct{ of, is error }{
	{ErrNotFound, peer.ErrNotFound},
	{ErrExists, peer.ErrExists},
	{ErrConflict, peer.ErrConflict},
	{ErrDeleting, peer.ErrDeleting},
	{ErrNotDeleting, peer.ErrNotDeleting},
	{ErrDenied, peer.ErrDenied},
	{ErrUnavailable, peer.ErrQuota},
	{ErrAborted, peer.ErrAborted},
	{ErrUnknown, peer.ErrUnknown},
	{ErrTransaction, peer.ErrTransaction},
}

// RefusedError has the references that were refused. Nothing is stored.
type RefusedError struct {
	Refusals []Refusal // the first ones
	Total    int       // the number of all

	err error
}

// Refusal is a reference that was refused.
type Refusal struct {
	Holder string // relative name
	Path   string // of the field
	Target schema.FullName
	Reason string // such as TARGET_MISSING; UNAVAILABLE if its deployment did not answer
}

// BlockedError has the resources because of which a delete was refused. Nothing is deleted.
type BlockedError struct {
	Holders []Holder // the first holders that refer to a resource which would be deleted
	Total   int      // the number of all that were found
	// Protected are resources that would be deleted, and are protected by block_deletion.
	Protected []schema.FullName
	// Unanswered are deployments of holders that could not be asked whether they still refer.
	Unanswered []schema.DeploymentID

	err error
}

// Holder is a reference that blocks a delete.
type Holder struct {
	Name   schema.FullName
	Path   string // of the field
	Target schema.FullName
}

// InvalidError has the fault of a write.
type InvalidError struct {
	Name   string  // of the resource
	Fields []Field // the invalid fields; none when the whole write is invalid

	err error
}

// Field is a field of a resource that is invalid, such as body.spec.account, body.members[2], labels or name.
type Field struct {
	Path, Problem string
}

func (e *RefusedError) Error() string { return e.err.Error() }
func (e *BlockedError) Error() string { return e.err.Error() }
func (e *InvalidError) Error() string {
	return (&peer.InvalidError{Resource: e.Name, Err: e.err}).Error()
}

// Unwrap returns the cause.
func (e *RefusedError) Unwrap() error { return e.err }

// Unwrap returns the cause.
func (e *BlockedError) Unwrap() error { return e.err }

// Unwrap returns the cause.
func (e *InvalidError) Unwrap() error { return e.err }

// classified is an error with its classes.
type classified struct {
	error
	classes []error
}

func (c *classified) Unwrap() []error { return append([]error{c.error}, c.classes...) }

// errorOf converts an error of the store. It leaves nil and other errors, such as an error of the caller's
// function, as they are.
func errorOf(err error) error {
	var (
		refused     *peer.RefusedError
		blocked     *peer.BlockedError
		protected   *peer.ProtectedError
		kept        *peer.KeptError
		invalid     *peer.InvalidError
		unavailable *peer.UnavailableError
	)
	switch {
	case errors.As(err, &refused):
		made := &RefusedError{Total: refused.Total(), err: err}
		for _, r := range refused.Refusals {
			made.Refusals = append(made.Refusals, Refusal{
				Holder: r.Holder, Path: r.Path, Target: r.Target,
				Reason: string(r.Reason),
			})
		}
		return made
	case errors.As(err, &blocked):
		made := &BlockedError{Total: blocked.Total, Unanswered: blocked.Unanswered, err: err}
		for _, h := range blocked.Holders {
			made.Holders = append(made.Holders, Holder(h))
		}
		return made
	case errors.As(err, &protected):
		return &BlockedError{Total: len(protected.By), Protected: protected.By, err: err}
	case errors.As(err, &kept):
		return &BlockedError{Total: 1, err: err}
	case errors.As(err, &invalid):
		made := &InvalidError{Name: invalid.Resource, err: invalid.Err}
		for _, v := range violation.Of(err) {
			made.Fields = append(made.Fields, Field(v))
		}
		return made
	}
	made := &classified{error: err}
	if errors.As(err, &unavailable) {
		made.classes = append(made.classes, ErrUnavailable)
	}
	for _, c := range classes {
		if errors.Is(err, c.is) {
			made.classes = append(made.classes, c.of)
		}
	}
	if len(made.classes) == 0 {
		return err
	}
	return made
}
