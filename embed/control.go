package embed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/jsonbody"
)

// Finalizer is a finalizer of one incarnation of a resource in DELETING.
type Finalizer struct {
	Name      string // of the resource, relative or full
	UID       uuid.UUID
	Finalizer string
}

// RemoveFinalizerIn reports that the application has cleaned up after a resource in DELETING, and runs fn in
// the same transaction: the changes of fn are committed with the removal of the finalizer, once. The kind
// names application/SERVICE/NAME as its holder. That the resource is gone is ErrNotFound, and that it has no
// such finalizer any more is no error; fn runs then as well.
//
// It fails with the error of fn, ErrNotFound, ErrNotDeleting, ErrDenied when the running version names
// another holder, ErrAborted, ErrUnknown, ErrTransaction or ErrClosed.
func (a *Application) RemoveFinalizerIn(ctx context.Context, f Finalizer, fn func(tx pgx.Tx) error) (Resource, error) {
	name, err := a.relative(f.Name)
	if err != nil {
		return Resource{}, err
	}
	r, err := a.store.Write.RemoveFinalizerIn(ctx, a.within(fn), a.credentials.Identity.String(), name, f.UID,
		f.Finalizer)
	return resourceOf(r), a.errorOf(err)
}

// Status is the state of the world that an application reports on a resource.
type Status struct {
	Name string // of the resource, relative or full
	// UID of the incarnation; zero for any.
	UID uuid.UUID
	// Status is converted to a JSON object by encoding/json; nil removes the stored one.
	Status any
	// Generation of the stored status, 0 before the first one; nil for any.
	Generation *int64
}

// UpdateStatusIn replaces the status of a resource, beside its body, and runs fn in the same transaction. A
// status that is equal to the stored one changes nothing. It fails with the error of fn, *InvalidError,
// ErrNotFound, ErrConflict, ErrAborted, ErrUnknown, ErrTransaction or ErrClosed.
func (a *Application) UpdateStatusIn(ctx context.Context, s Status, fn func(tx pgx.Tx) error) (Resource, error) {
	name, err := a.relative(s.Name)
	if err != nil {
		return Resource{}, err
	}
	text, err := statusText(s.Status)
	if err != nil {
		return Resource{}, &InvalidError{Name: s.Name, err: fmt.Errorf("the status: %w", err)}
	}
	r, err := a.store.Write.UpdateStatusIn(ctx, a.within(fn), name, s.UID, text, s.Generation)
	if err == nil {
		a.wrote(ctx, resourceOf(r))
	}
	return resourceOf(r), a.errorOf(err)
}

// statusText converts a status to a JSON object; nil for none.
func statusText(status any) ([]byte, error) {
	if status == nil {
		return nil, nil
	}
	fields, err := jsonbody.Of(status)
	if err == nil && fields == nil {
		err = errors.New("null is no JSON object")
	}
	if err != nil {
		return nil, err
	}
	return json.Marshal(fields)
}
