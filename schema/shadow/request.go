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

// requestRetention is how long a request id gives the same answer.
const requestRetention = 24 * time.Hour

// request is a write's id and what it asks for.
type request struct {
	id   uuid.UUID
	hash []byte
}

// outcome is what came of a request, as it is stored: resources, or a definite refusal.
type outcome struct {
	Saved    []Resource `json:"saved,omitempty"`
	Refused  string     `json:"refused,omitempty"` // a key of recordable, "invalid", or "references"
	Message  string     `json:"message,omitempty"`
	Refusals []Refusal  `json:"refusals,omitempty"`
}

// recordable are the definite refusals; everything else may come out differently when it is tried again.
var recordable = map[string]error{"not found": ErrNotFound, "exists": ErrExists, "moved": ErrMoved, "deleting": ErrDeleting}

// replayed is a recorded refusal: it reads and compares like the first one.
type replayed struct {
	message string
	is      error
}

func (e *replayed) Error() string { return e.message }
func (e *replayed) Unwrap() error { return e.is }

const (
	selectRequestSQL = `SELECT hash, outcome FROM dbcontroller.request WHERE id = $1`

	insertRequestSQL = `INSERT INTO dbcontroller.request (id, hash, outcome) VALUES ($1, $2, $3)`

	refuseRequestSQL = `INSERT INTO dbcontroller.request (id, hash, outcome) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`
)

// SaveRequested is Save for a request that may be repeated, because its answer was lost: the same id and writes get the
// same answer, whatever happened meanwhile, and take effect at most once. With other writes it fails with
// ErrRequestReused. A definite refusal is recorded before it is answered, in the place that a commit of the same
// request needs; what may pass (a deployment that does not answer) is not, and can be repeated until it is definite.
func (s *Store) SaveRequested(ctx context.Context, id uuid.UUID, writes []Write) ([]Resource, error) {
	content, err := json.Marshal(writes)
	if err != nil {
		return nil, &InvalidError{Err: err}
	}
	hash := sha256.Sum256(content)
	req := &request{id: id, hash: hash[:]}
	if saved, known, err := s.recorded(ctx, req); known || err != nil {
		return saved, err
	}
	saved, err := s.save(ctx, req, writes)
	switch {
	case err == nil:
		return saved, nil
	case violates(err, "request_pkey"): // the same request, at the same time
	default:
		o, definite := refusalOutcome(err)
		if !definite {
			return nil, err
		}
		if _, rerr := s.pool.Exec(ctx, refuseRequestSQL, req.id, req.hash, o); rerr != nil {
			return nil, fmt.Errorf("%w: record a refusal: %w", ErrUnknown, rerr)
		}
	}
	saved, known, err := s.recorded(ctx, req)
	if !known && err == nil {
		err = ErrUnknown
	}
	return saved, err
}

// recorded gives what came of a request, if that is known.
func (s *Store) recorded(ctx context.Context, req *request) (saved []Resource, known bool, err error) {
	var hash []byte
	var o outcome
	err = s.pool.QueryRow(ctx, selectRequestSQL, req.id).Scan(&hash, &o)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, false, nil
	case err != nil:
		return nil, false, fmt.Errorf("read what came of the request: %w", err)
	case string(hash) != string(req.hash):
		return nil, true, ErrRequestReused
	}
	return o.Saved, true, o.err()
}

func refusalOutcome(err error) (outcome, bool) {
	var invalid *InvalidError
	var refused *RefusedError
	o := outcome{Message: err.Error()}
	switch {
	case errors.As(err, &invalid):
		o.Refused = "invalid"
		return o, true
	case errors.As(err, &refused):
		for _, r := range refused.Refusals {
			if r.Reason.passes() {
				return o, false
			}
		}
		o.Refused, o.Refusals = "references", refused.Refusals
		return o, true
	}
	for key, known := range recordable {
		if errors.Is(err, known) {
			o.Refused = key
			return o, true
		}
	}
	return o, false
}

func (o outcome) err() error {
	switch o.Refused {
	case "":
		return nil
	case "invalid":
		return &InvalidError{Err: errors.New(o.Message)}
	case "references":
		return &RefusedError{Refusals: o.Refusals}
	}
	return &replayed{message: o.Message, is: recordable[o.Refused]}
}
