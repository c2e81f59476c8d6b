package service

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/internal/requestid"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/service/access"
	"github.com/db-controller/db-controller/schema/service/outcome"
	"github.com/db-controller/db-controller/schema/wire"
)

// EstablishReferences fails as a whole only when the call itself is wrong: the attempts have outcomes of
// their own.
func (s *schemas) EstablishReferences(ctx context.Context,
	req *schemav1.EstablishReferencesRequest,
) (*schemav1.EstablishReferencesResponse, error) {
	holder, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	attempts := req.GetAttempts()
	switch n := len(attempts); {
	case n == 0:
		return nil, outcome.Status(s.log,
			outcome.Invalid("attempts", errors.New("the list is empty: give at least one attempt")))
	case n > wire.MaxAttempts:
		return nil, outcome.Status(s.log,
			outcome.Invalid("attempts", fmt.Errorf("%d in one call, at most %d are allowed", n, wire.MaxAttempts)))
	}
	out := &schemav1.EstablishReferencesResponse{Outcomes: make([]*schemav1.EstablishReferencesResponse_Outcome,
		len(attempts))}
	for i, o := range s.establish(ctx, holder, attempts) {
		if o.Err != nil && !errors.Is(o.Err, peer.ErrLeftOut) {
			id, _ := uuid.Parse(attempts[i].GetRequestId()) // zero: it had none
			o.Err = requestid.Told(requestid.WithID(ctx, id), s.log, outcome.Status(s.log, o.Err))
		}
		out.Outcomes[i] = wire.EstablishOutcomeProto(o)
	}
	return out, nil
}

// establish returns the outcome of each attempt. Attempts that are refused at once are not established with
// the others.
func (s *schemas) establish(ctx context.Context, holder schema.DeploymentID,
	asked []*schemav1.EstablishReferencesRequest_Attempt,
) []peer.EstablishOutcome {
	arrived := time.Now()
	out := make([]peer.EstablishOutcome, len(asked))
	var attempts []peer.EstablishAttempt
	var of []int
	for i, a := range asked {
		if out[i].Err = access.Refused(ctx, i); out[i].Err != nil {
			continue
		}
		attempt, err := s.attempt(holder, a)
		if err == nil && a.GetValidateOnly() && len(asked) > 1 {
			err = peer.ErrLeftOut
		}
		if err == nil {
			err = s.counted(holder, a)
		}
		if out[i].Err = err; err != nil {
			continue
		}
		if a.GetTimeout() != nil {
			attempt.Until = arrived.Add(a.GetTimeout().AsDuration())
		}
		attempts, of = append(attempts, attempt), append(of, i)
	}
	if len(asked) == 1 && len(attempts) == 1 {
		out[0].Established, out[0].Err = s.establishAlone(ctx, holder, attempts[0], asked[0].GetValidateOnly())
		return out
	}
	for n, o := range s.establisher.EstablishTogether(ctx, holder, attempts) {
		out[of[n]] = o
	}
	return out
}

// counted counts the references of an attempt among the writes of its person by way of the holder's
// deployment.
func (s *schemas) counted(holder schema.DeploymentID, a *schemav1.EstablishReferencesRequest_Attempt) error {
	if a.GetValidateOnly() {
		return nil
	}
	return s.written.References(identity.Deployment(holder), a.GetPerson().GetIdentity(), len(a.GetReferences()))
}

// establishAlone waits for locks, which no attempt of several does.
func (s *schemas) establishAlone(ctx context.Context, holder schema.DeploymentID, a peer.EstablishAttempt,
	validateOnly bool,
) (*peer.Established, error) {
	if !a.Until.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, a.Until)
		defer cancel()
	}
	if validateOnly {
		return s.establisher.WouldEstablish(ctx, holder, a.Attempt, a.Refs)
	}
	return s.establisher.Establish(ctx, holder, a.Attempt, a.Refs)
}
