package service

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/internal/requestid"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/service/access"
	"github.com/db-controller/db-controller/schema/service/outcome"
	"github.com/db-controller/db-controller/schema/wire"
)

// EstablishAttempts fails as a whole only when the call itself is wrong: the attempts have outcomes of their own.
func (s *schemas) EstablishAttempts(ctx context.Context, req *schemav1.EstablishAttemptsRequest) (*schemav1.EstablishAttemptsResponse, error) {
	holder, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if n := len(req.GetAttempts()); n > wire.MaxAttempts {
		return nil, outcome.Status(s.log, outcome.Invalid("attempts", fmt.Errorf("%d in one call, at most %d are allowed", n, wire.MaxAttempts)))
	}
	outcomes := s.establishTogether(ctx, holder, req.GetAttempts())
	out := &schemav1.EstablishAttemptsResponse{Outcomes: make([]*schemav1.EstablishAttemptsResponse_Outcome, len(outcomes))}
	for i, o := range outcomes {
		if o.Err != nil {
			id, _ := uuid.Parse(req.GetAttempts()[i].GetRequestId()) // zero: it had none
			if !errors.Is(o.Err, peer.ErrLeftOut) {
				o.Err = requestid.Told(requestid.WithID(ctx, id), s.log, outcome.Status(s.log, o.Err))
			}
		}
		out.Outcomes[i] = wire.EstablishOutcomeProto(o)
	}
	return out, nil
}

// establishTogether returns the outcome of each attempt. Those that are refused at once are not established with the others.
func (s *schemas) establishTogether(ctx context.Context, holder schema.DeploymentID, asked []*schemav1.EstablishAttemptsRequest_Attempt) []peer.EstablishOutcome {
	arrived := time.Now()
	out := make([]peer.EstablishOutcome, len(asked))
	var attempts []peer.EstablishAttempt
	var of []int
	for i, a := range asked {
		if out[i].Err = access.Refused(ctx, i); out[i].Err != nil {
			continue
		}
		attempt, err := s.attempt(holder, a.GetRequest())
		if err == nil && a.GetRequest().GetValidateOnly() {
			err = peer.ErrLeftOut
		}
		if out[i].Err = err; err != nil {
			continue
		}
		if a.GetTimeout() != nil {
			attempt.Until = arrived.Add(a.GetTimeout().AsDuration())
		}
		attempts, of = append(attempts, attempt), append(of, i)
	}
	for n, o := range s.establisher.EstablishTogether(ctx, holder, attempts) {
		out[of[n]] = o
	}
	return out
}
