package service

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/service/outcome"
	"github.com/db-controller/db-controller/schema/wire"
)

// blockadeStore confirms and releases blockades of a holder's deployment, and returns verdicts on blockades
// that a target's deployment has of holders here.
type blockadeStore interface {
	Confirm(ctx context.Context, holder schema.DeploymentID, c peer.Confirm) (*peer.Confirmed, error)
	Release(ctx context.Context, holder schema.DeploymentID, epoch uuid.UUID, keys []peer.BlockadeKey,
		attempts []peer.AttemptID) error
	AcknowledgeFor(ctx context.Context, holder schema.DeploymentID, epoch uuid.UUID, token string, except []uuid.UUID,
		patience time.Duration) (more bool, err error)
}

// rightRecaller answers recalls of rights of this deployment.
type rightRecaller interface {
	Recall(ctx context.Context, from schema.DeploymentID, asked []peer.Recall) (*peer.Recalled, error)
}

// attemptStore answers questions about attempts of this deployment. CheckReferences returns, in order, the
// stored state of references of a holder's deployment.
type attemptStore interface {
	Answer(ctx context.Context, target schema.DeploymentID, questions []peer.Question) (*peer.Answers, error)
	CheckReferences(ctx context.Context, holder schema.DeploymentID, refs []peer.CheckedReference) ([]peer.Known, error)
}

func (s *schemas) ConfirmBlockades(ctx context.Context,
	req *schemav1.ConfirmBlockadesRequest,
) (*schemav1.ConfirmBlockadesResponse, error) {
	out, err := s.confirm(ctx, req)
	return out, outcome.Status(s.log, err)
}

func (s *schemas) confirm(ctx context.Context,
	req *schemav1.ConfirmBlockadesRequest,
) (*schemav1.ConfirmBlockadesResponse, error) {
	holder, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	attempts, err := wire.UIDs(req.GetAttempts())
	if err == nil {
		err = bounded("attempts", len(attempts))
	}
	if err != nil {
		return nil, outcome.Invalid("attempts", err)
	}
	if n := len(req.GetReferences()); n > 0 && n != len(attempts) {
		return nil, outcome.Invalid("references", fmt.Errorf("%d numbers for %d attempts", n, len(attempts)))
	}
	epoch, err := messageEpoch(req.GetEpoch())
	if err != nil {
		return nil, err
	}
	scheduled, err := wire.Scheduled(req.GetScheduled())
	if err == nil {
		err = bounded("scheduled", len(scheduled))
	}
	if err != nil {
		return nil, outcome.Invalid("scheduled", err)
	}
	confirmed, err := s.blockades.Confirm(ctx, holder, peer.Confirm{
		Epoch: epoch, Attempts: attempts,
		References: req.GetReferences(), Scheduled: scheduled, Delegable: req.GetDelegable() && s.delegates(),
	})
	if err != nil {
		return nil, err
	}
	return &schemav1.ConfirmBlockadesResponse{
		UnknownAttempts: wire.Bytes(confirmed.Unknown), DelegatedUids: wire.Bytes(confirmed.Delegated),
		Epoch: confirmed.Epoch[:],
	}, nil
}

func (s *schemas) ResolveBlockades(ctx context.Context,
	req *schemav1.ResolveBlockadesRequest,
) (*schemav1.ResolveBlockadesResponse, error) {
	out, err := s.resolve(ctx, req)
	return out, outcome.Status(s.log, err)
}

func (s *schemas) resolve(ctx context.Context,
	req *schemav1.ResolveBlockadesRequest,
) (*schemav1.ResolveBlockadesResponse, error) {
	target, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := bounded("questions", len(req.GetQuestions())); err != nil {
		return nil, err
	}
	questions := make([]peer.Question, len(req.GetQuestions()))
	for i, q := range req.GetQuestions() {
		key, err := wire.BlockadeKey(q.GetKey())
		if err != nil {
			return nil, outcome.Invalid("questions", err)
		}
		questions[i] = peer.Question{Key: key, Expired: q.GetExpired()}
	}
	answers, err := s.attempts.Answer(ctx, target, questions)
	if err != nil {
		return nil, err
	}
	out := &schemav1.ResolveBlockadesResponse{
		Epoch:    answers.Epoch[:],
		Verdicts: make([]schemav1.ResolveBlockadesResponse_Verdict, len(answers.Verdicts)),
	}
	for i, v := range answers.Verdicts {
		out.Verdicts[i] = wire.Verdicts[v]
	}
	return out, nil
}

func (s *schemas) RecallDelegations(ctx context.Context,
	req *schemav1.RecallDelegationsRequest,
) (*schemav1.RecallDelegationsResponse, error) {
	out, err := s.recall(ctx, req)
	return out, outcome.Status(s.log, err)
}

func (s *schemas) recall(ctx context.Context,
	req *schemav1.RecallDelegationsRequest,
) (*schemav1.RecallDelegationsResponse, error) {
	target, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := bounded("questions", len(req.GetQuestions())); err != nil {
		return nil, err
	}
	asked := make([]peer.Recall, len(req.GetQuestions()))
	for i, q := range req.GetQuestions() {
		key, err := wire.BlockadeKey(q.GetKey())
		if err != nil {
			return nil, outcome.Invalid("questions", err)
		}
		asked[i] = peer.Recall{
			Question: peer.Question{Key: key, Expired: q.GetExpired()},
			Mode:     wire.RecallMode(q.GetMode()),
		}
	}
	recalled, err := s.rights.Recall(ctx, target, asked)
	if err != nil {
		return nil, err
	}
	out := &schemav1.RecallDelegationsResponse{
		Epoch:   recalled.Epoch[:],
		Answers: make([]*schemav1.RecallDelegationsResponse_Answer, len(recalled.Answers)),
	}
	for i, a := range recalled.Answers {
		out.Answers[i] = wire.RecallAnswerProto(a)
	}
	return out, nil
}

func (s *schemas) ReleaseBlockades(ctx context.Context,
	req *schemav1.ReleaseBlockadesRequest,
) (*schemav1.ReleaseBlockadesResponse, error) {
	if err := s.release(ctx, req); err != nil {
		return nil, outcome.Status(s.log, err)
	}
	return &schemav1.ReleaseBlockadesResponse{}, nil
}

func (s *schemas) release(ctx context.Context, req *schemav1.ReleaseBlockadesRequest) error {
	holder, err := caller(ctx)
	if err != nil {
		return err
	}
	if err := bounded("keys", len(req.GetKeys())+len(req.GetAttempts())); err != nil {
		return err
	}
	keys := make([]peer.BlockadeKey, len(req.GetKeys()))
	for i, k := range req.GetKeys() {
		if keys[i], err = wire.BlockadeKey(k); err != nil {
			return outcome.Invalid("keys", err)
		}
	}
	attempts, err := wire.UIDs(req.GetAttempts())
	if err != nil {
		return outcome.Invalid("attempts", err)
	}
	epoch, err := messageEpoch(req.GetEpoch())
	if err != nil {
		return err
	}
	return s.blockades.Release(ctx, holder, epoch, keys, attempts)
}

func (s *schemas) CheckReferences(ctx context.Context,
	req *schemav1.CheckReferencesRequest,
) (*schemav1.CheckReferencesResponse, error) {
	out, err := s.checkReferences(ctx, req)
	return out, outcome.Status(s.log, err)
}

func (s *schemas) checkReferences(ctx context.Context,
	req *schemav1.CheckReferencesRequest,
) (*schemav1.CheckReferencesResponse, error) {
	holder, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := bounded("references", len(req.GetReferences())); err != nil {
		return nil, err
	}
	refs := make([]peer.CheckedReference, len(req.GetReferences()))
	for i, r := range req.GetReferences() {
		if refs[i].Key, err = wire.BlockadeKey(r.GetKey()); err == nil {
			refs[i].Behaviour, err = wire.Behaviour(r.GetBehaviour())
		}
		if err != nil {
			return nil, outcome.Invalid("references", err)
		}
	}
	known, err := s.attempts.CheckReferences(ctx, holder, refs)
	if err != nil {
		return nil, err
	}
	out := &schemav1.CheckReferencesResponse{Verdicts: make([]schemav1.CheckReferencesResponse_Verdict, len(known))}
	for i, k := range known {
		out.Verdicts[i] = wire.KnownVerdicts[k]
	}
	return out, nil
}
