package embed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Finalizer is a finalizer of one incarnation of a resource in DELETING.
type Finalizer struct {
	Name      string // of the resource, relative
	UID       uuid.UUID
	Finalizer string
}

// RemoveFinalizerIn reports that the application has cleaned up after a resource in DELETING, and runs fn in the same transaction: what fn
// removes is removed with the finalizer, once. The kind names application/SERVICE/NAME as its holder. That the resource is gone is
// ErrNotFound, and that it has no such finalizer any more is no error; fn runs then as well.
//
// It fails with the error of fn, ErrNotFound, ErrNotDeleting, ErrDenied when the running version names another holder, ErrAborted,
// ErrUnknown or ErrTransaction.
func (a *Application) RemoveFinalizerIn(ctx context.Context, f Finalizer, fn func(tx pgx.Tx) error) (Resource, error) {
	r, err := a.store.RemoveFinalizerWithin(ctx, a.within(fn), a.credentials.Identity.String(), f.Name, f.UID, f.Finalizer)
	return orZero(r), err
}

// Status is the state of the world that an application reports on a resource.
type Status struct {
	Name string // of the resource, relative
	// UID of the incarnation; zero for any.
	UID uuid.UUID
	// Status is converted to a JSON object by encoding/json; nil removes the stored one.
	Status any
	// Generation of the stored status, 0 before the first one; nil for any.
	Generation *int64
}

// UpdateStatusIn replaces the status of a resource, beside its body, and runs fn in the same transaction. A status that is equal to the
// stored one changes nothing. It fails with the error of fn, *InvalidError, ErrNotFound, ErrConflict, ErrAborted, ErrUnknown or
// ErrTransaction.
func (a *Application) UpdateStatusIn(ctx context.Context, s Status, fn func(tx pgx.Tx) error) (Resource, error) {
	var text []byte
	if s.Status != nil {
		var object map[string]any
		var err error
		if text, err = json.Marshal(s.Status); err == nil {
			err = json.Unmarshal(text, &object)
		}
		if err == nil && object == nil {
			err = errors.New("null")
		}
		if err != nil {
			return Resource{}, &InvalidError{Resource: s.Name, Err: fmt.Errorf("its status is no JSON object: %w", err)}
		}
	}
	r, err := a.store.UpdateStatusWithin(ctx, a.within(fn), s.Name, s.UID, text, s.Generation)
	return orZero(r), err
}

func orZero(r *Resource) Resource {
	if r == nil {
		return Resource{}
	}
	return *r
}
