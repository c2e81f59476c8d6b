package prepare

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/violation"
)

// Request identifies a write or a delete, whose outcome is recorded so that a repeated request takes effect
// once. A nil request has no id, and its outcome is not recorded.
type Request struct {
	id   uuid.UUID
	hash []byte // of the content
}

// Outcome is the stored result of a request: resources, the result of a delete, or a definite refusal.
type Outcome struct {
	Saved   []peer.Resource    `json:"saved,omitempty"`
	Deleted *peer.DeleteResult `json:"deleted,omitempty"`
	// DeletedAll are the results of a delete of several resources.
	DeletedAll []peer.DeleteResult `json:"deleted_all,omitempty"`

	// a key of recordable, or "invalid", "references", "blocked", "protected" or "kept"
	Refused   string               `json:"refused,omitempty"`
	Message   string               `json:"message,omitempty"`
	Resource  string               `json:"resource,omitempty"` // of an *InvalidError
	Fields    []violation.Field    `json:"fields,omitempty"`   // of an *InvalidError
	Refusals  []peer.Refusal       `json:"refusals,omitempty"`
	More      int                  `json:"more,omitempty"`
	Blocked   *peer.BlockedError   `json:"blocked,omitempty"`
	Protected *peer.ProtectedError `json:"protected,omitempty"`
	Kept      *peer.KeptError      `json:"kept,omitempty"`
}

// recordable are the sentinels of definite refusals without further fields. The keys are stored.
var recordable = map[string]error{
	"not found": peer.ErrNotFound, "exists": peer.ErrExists, "moved": peer.ErrConflict,
	"deleting": peer.ErrDeleting, "deleted": peer.ErrDeleted, "too many removals": peer.ErrTooManyRemovals,
	"not atomic": peer.ErrNotAtomic,
}

// replayed is a recorded refusal, with the message and the sentinel of the first one.
type replayed struct {
	message string
	is      error
}

func (e *replayed) Error() string { return e.message }

func (e *replayed) Unwrap() error { return e.is }

const (
	selectRequestSQL = `SELECT hash, outcome FROM dbcontroller.request WHERE id = $1`

	insertRequestSQL = `INSERT INTO dbcontroller.request (id, hash, outcome) VALUES ($1, $2, $3)`

	// A refusal is recorded only while the version that decided it is the current one.
	refuseRequestSQL = `
INSERT INTO dbcontroller.request (id, hash, outcome)
SELECT $1, $2, $3 FROM dbcontroller.meta WHERE version = $4 AND digest = $5
ON CONFLICT DO NOTHING`
)

// Once returns the recorded outcome of a request, or runs it. run records its outcome in the transaction that
// commits its effects.
func Once(ctx context.Context, d *db.DB, id uuid.UUID, content any,
	run func(*Request) (Outcome, error),
) (Outcome, error) {
	text, err := json.Marshal(content)
	if err != nil {
		return Outcome{}, &peer.InvalidError{Err: err}
	}
	hash := sha256.Sum256(text)
	req := &Request{id: id, hash: hash[:]}
	if o, known, err := recorded(ctx, d, req); known || err != nil {
		return o, err
	}
	v, err := d.Current()
	if err != nil {
		return Outcome{}, err
	}
	o, err := run(req)
	switch {
	case err == nil:
		return o, nil
	case peer.Definite(err):
		refusal, known := refusalOutcome(err)
		if !known {
			return Outcome{}, err
		}
		if _, rerr := d.Pool.Exec(ctx, refuseRequestSQL, req.id, req.hash, refusal, v.Model.Descriptor.Version,
			v.Model.Digest); rerr != nil {
			return Outcome{}, fmt.Errorf("%w: record a refusal: %w", peer.ErrUnknown, rerr)
		}
	case !db.Violates(err, "request_pkey"): // otherwise the same request was committed concurrently
		return Outcome{}, err
	}
	o, known, err := recorded(ctx, d, req)
	if !known && err == nil {
		err = fmt.Errorf("%w: the deployment switched its version", peer.ErrAborted)
	}
	return o, err
}

// record stores the outcome of a request in the transaction of its effects.
func (r *Request) record(ctx context.Context, tx pgx.Tx, o Outcome) error {
	if r == nil {
		return nil
	}
	_, err := tx.Exec(ctx, insertRequestSQL, r.id, r.hash, o)
	return err
}

// Queue is Record in a batch of statements.
func (r *Request) Queue(b *pgx.Batch, o Outcome) {
	if r != nil {
		b.Queue(insertRequestSQL, r.id, r.hash, o)
	}
}

// recorded returns the recorded outcome of a request; known is false when there is none.
func recorded(ctx context.Context, d *db.DB, req *Request) (o Outcome, known bool, err error) {
	var hash []byte
	err = d.Pool.QueryRow(ctx, selectRequestSQL, req.id).Scan(&hash, &o)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return Outcome{}, false, nil
	case err != nil:
		return Outcome{}, false, fmt.Errorf("read the outcome of the request: %w", err)
	case string(hash) != string(req.hash):
		return Outcome{}, true, peer.ErrRequestReused
	}
	return o, true, o.err()
}

// refusalOutcome converts a definite refusal for storage. known is false for a refusal that no write or
// delete has: stored without its reason, it would be read as a success.
func refusalOutcome(err error) (o Outcome, known bool) {
	var invalid *peer.InvalidError
	var refused *peer.RefusedError
	switch {
	case errors.As(err, &invalid):
		return Outcome{
			Refused: "invalid", Resource: invalid.Resource, Message: invalid.Err.Error(),
			Fields: violation.Of(err),
		}, true
	case errors.As(err, &refused):
		kept := min(len(refused.Refusals), peer.MaxNamedHolders)
		return Outcome{Refused: "references", Refusals: refused.Refusals[:kept], More: refused.Total() - kept}, true
	case errors.As(err, &o.Blocked):
		o.Refused = "blocked"
		return o, true
	case errors.As(err, &o.Protected):
		o.Refused = "protected"
		return o, true
	case errors.As(err, &o.Kept):
		o.Refused = "kept"
		return o, true
	}
	for key, is := range recordable {
		if errors.Is(err, is) {
			return Outcome{Refused: key, Message: err.Error()}, true
		}
	}
	return Outcome{}, false
}

func (o Outcome) err() error {
	switch o.Refused {
	case "":
		return nil
	case "invalid":
		return &peer.InvalidError{Resource: o.Resource, Err: violation.InFields(errors.New(o.Message), o.Fields...)}
	case "references":
		return &peer.RefusedError{Refusals: o.Refusals, More: o.More}
	case "blocked":
		return o.Blocked
	case "protected":
		return o.Protected
	case "kept":
		return o.Kept
	}
	return &replayed{message: o.Message, is: recordable[o.Refused]}
}
