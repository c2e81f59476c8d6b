package shadow

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// requestRetention is how long the outcome of a request is kept: repeating the request within this time returns the same answer.
const requestRetention = 24 * time.Hour

// request identifies a write or a delete. A nil request has no id, and its outcome is not recorded.
type request struct {
	id   uuid.UUID
	hash []byte // of the content
}

// outcome is the stored result of a request: resources, the result of a delete, or a definite refusal.
type outcome struct {
	Saved   []Resource    `json:"saved,omitempty"`
	Deleted *DeleteResult `json:"deleted,omitempty"`

	Refused   string          `json:"refused,omitempty"` // a key of recordable, or "invalid", "references", "blocked" or "protected"
	Message   string          `json:"message,omitempty"`
	Resource  string          `json:"resource,omitempty"` // of an *InvalidError
	Refusals  []Refusal       `json:"refusals,omitempty"`
	More      int             `json:"more,omitempty"`
	Blocked   *BlockedError   `json:"blocked,omitempty"`
	Protected *ProtectedError `json:"protected,omitempty"`
}

// recordable are the sentinels of definite refusals without further fields. The keys are stored.
var recordable = map[string]error{"not found": ErrNotFound, "exists": ErrExists, "moved": ErrConflict, "deleting": ErrDeleting}

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
SELECT $1, $2, $3 FROM dbcontroller.meta WHERE version = $4 AND (digest = $5 OR NOT starts_with(digest, version || ' '))
ON CONFLICT DO NOTHING`
)

// SaveRequested is Save with a request id, for a client that repeats the request when it has lost the answer: for 24 h, the same
// id and writes return the same answer and take effect at most once. With other writes it fails with ErrRequestReused. A definite
// refusal is recorded, under the primary key that a commit of the same request inserts too, before it is returned. Other errors
// are not recorded, and the request can be repeated.
func (s *Store) SaveRequested(ctx context.Context, id uuid.UUID, writes []Write) ([]Resource, error) {
	o, err := s.requested(ctx, id, writes, func(req *request) (outcome, error) {
		saved, err := s.save(ctx, req, writes)
		return outcome{Saved: saved}, err
	})
	return o.Saved, err
}

// requested returns the recorded outcome of a request, or runs it. run records its outcome in the transaction that commits its
// effects.
func (s *Store) requested(ctx context.Context, id uuid.UUID, content any, run func(*request) (outcome, error)) (outcome, error) {
	text, err := json.Marshal(content)
	if err != nil {
		return outcome{}, &InvalidError{Err: err}
	}
	hash := sha256.Sum256(text)
	req := &request{id: id, hash: hash[:]}
	if o, known, err := s.recorded(ctx, req); known || err != nil {
		return o, err
	}
	v, err := s.current()
	if err != nil {
		return outcome{}, err
	}
	o, err := run(req)
	switch {
	case err == nil:
		return o, nil
	case violates(err, "request_pkey"): // the same request was committed concurrently
	case !Definite(err):
		return outcome{}, err
	default:
		if _, rerr := s.pool.Exec(ctx, refuseRequestSQL, req.id, req.hash, refusalOutcome(err), v.model.Descriptor.Version, v.model.Digest); rerr != nil {
			return outcome{}, fmt.Errorf("%w: record a refusal: %w", ErrUnknown, rerr)
		}
	}
	o, known, err := s.recorded(ctx, req)
	if !known && err == nil {
		err = fmt.Errorf("%w: the deployment switched its version", ErrAborted)
	}
	return o, err
}

// record stores the outcome of a request in the transaction of its effects.
func (r *request) record(ctx context.Context, tx pgx.Tx, o outcome) error {
	if r == nil {
		return nil
	}
	_, err := tx.Exec(ctx, insertRequestSQL, r.id, r.hash, o)
	return err
}

// recorded returns the recorded outcome of a request; known is false when there is none.
func (s *Store) recorded(ctx context.Context, req *request) (o outcome, known bool, err error) {
	var hash []byte
	err = s.pool.QueryRow(ctx, selectRequestSQL, req.id).Scan(&hash, &o)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return outcome{}, false, nil
	case err != nil:
		return outcome{}, false, fmt.Errorf("read the outcome of the request: %w", err)
	case string(hash) != string(req.hash):
		return outcome{}, true, ErrRequestReused
	}
	return o, true, o.err()
}

// refusalOutcome converts a definite refusal for storage.
func refusalOutcome(err error) outcome {
	var invalid *InvalidError
	var refused *RefusedError
	var o outcome
	switch {
	case errors.As(err, &invalid):
		return outcome{Refused: "invalid", Resource: invalid.Resource, Message: invalid.Err.Error()}
	case errors.As(err, &refused):
		kept := min(len(refused.Refusals), MaxNamedHolders)
		return outcome{Refused: "references", Refusals: refused.Refusals[:kept], More: refused.Total() - kept}
	case errors.As(err, &o.Blocked):
		o.Refused = "blocked"
		return o
	case errors.As(err, &o.Protected):
		o.Refused = "protected"
		return o
	}
	o.Message = err.Error()
	for key, known := range recordable {
		if errors.Is(err, known) {
			o.Refused = key
		}
	}
	return o
}

func (o outcome) err() error {
	switch o.Refused {
	case "":
		return nil
	case "invalid":
		return &InvalidError{Resource: o.Resource, Err: errors.New(o.Message)}
	case "references":
		return &RefusedError{Refusals: o.Refusals, More: o.More}
	case "blocked":
		return o.Blocked
	case "protected":
		return o.Protected
	}
	return &replayed{message: o.Message, is: recordable[o.Refused]}
}
