package service

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/service/outcome"
	"github.com/db-controller/db-controller/schema/wire"
)

// ownerStore returns verdicts, in order, on owners that resources of another deployment name, and drops
// owners of resources here. WouldCheckOwners stores nothing.
type ownerStore interface {
	CheckOwners(ctx context.Context, ownee schema.DeploymentID,
		questions []peer.OwnerQuestion) (*peer.OwnerAnswers, error)
	WouldCheckOwners(ctx context.Context, ownee schema.DeploymentID,
		questions []peer.OwnerQuestion) (*peer.OwnerAnswers, error)
	DropOwners(ctx context.Context, from schema.DeploymentID, epoch uuid.UUID, owners []schema.Deletion,
		releases []peer.OwnerRelease) (failed []uuid.UUID, more bool, err error)
}

// ownerUpgrader stores the version of an owners' deployment in the owner references to its resources.
type ownerUpgrader interface {
	UpgradeOwners(ctx context.Context, from schema.DeploymentID, version string, generation int64,
		renamed map[string]string) (remaining int64, err error)
}

// versionAsker asks a deployment, by its registered address, for the version that it runs, and for its
// generation.
type versionAsker func(ctx context.Context, of schema.DeploymentID) (version string, generation int64, err error)

func (s *schemas) CheckOwners(ctx context.Context,
	req *schemav1.CheckOwnersRequest,
) (*schemav1.CheckOwnersResponse, error) {
	out, err := s.checkOwners(ctx, req)
	return out, outcome.Status(s.log, err)
}

func (s *schemas) checkOwners(ctx context.Context,
	req *schemav1.CheckOwnersRequest,
) (*schemav1.CheckOwnersResponse, error) {
	ownee, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := bounded("questions", len(req.GetQuestions())); err != nil {
		return nil, err
	}
	questions := make([]peer.OwnerQuestion, len(req.GetQuestions()))
	for i, p := range req.GetQuestions() {
		if questions[i], err = ownerQuestion(p); err != nil {
			return nil, outcome.Invalid(fmt.Sprintf("questions[%d]", i), err)
		}
	}
	check := s.owners.CheckOwners
	if req.GetValidateOnly() {
		check = s.owners.WouldCheckOwners
	}
	answers, err := check(ctx, ownee, questions)
	if err != nil {
		return nil, err
	}
	return ownerAnswersProto(answers), nil
}

func ownerQuestion(p *schemav1.CheckOwnersRequest_Question) (q peer.OwnerQuestion, err error) {
	q.Kind, q.Name = p.GetOwner().GetKind(), p.GetOwner().GetName()
	if err = schema.CheckName(q.Name); err != nil {
		return q, err
	}
	if err = schema.CheckKind(q.Kind); err != nil {
		return q, err
	}
	if q.UID, err = wire.OptionalUID(p.GetOwner().GetUid()); err != nil {
		return q, err
	}
	q.RequiredBy, err = wire.OptionalUID(p.GetRequiredBy())
	return q, err
}

func ownerAnswersProto(answers *peer.OwnerAnswers) *schemav1.CheckOwnersResponse {
	out := &schemav1.CheckOwnersResponse{Version: answers.Version, Generation: answers.Generation}
	deletions := make([]schema.Deletion, len(answers.Answers))
	for i, a := range answers.Answers {
		deletions[i].Cause = a.Cause
		out.Answers = append(out.Answers, &schemav1.CheckOwnersResponse_Answer{
			Verdict: wire.OwnerVerdicts[a.Verdict], Kind: a.Kind, Noted: a.Noted, Uid: wire.OptionalBytes(a.UID),
		})
	}
	out.Causes, out.CauseOf = wire.CausesProto(deletions)
	return out
}

func (s *schemas) DropOwners(ctx context.Context,
	req *schemav1.DropOwnersRequest,
) (*schemav1.DropOwnersResponse, error) {
	out, err := s.dropOwners(ctx, req)
	return out, outcome.Status(s.log, err)
}

func (s *schemas) dropOwners(ctx context.Context,
	req *schemav1.DropOwnersRequest,
) (*schemav1.DropOwnersResponse, error) {
	owner, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := bounded("owners", len(req.GetDeletedUids())+len(req.GetLetGo())); err != nil {
		return nil, err
	}
	deleted, err := wire.UIDs(req.GetDeletedUids())
	if err != nil {
		return nil, outcome.Invalid("deleted_uids", err)
	}
	releases, err := readOwnerReleases(req.GetLetGo())
	if err != nil {
		return nil, err
	}
	owners := make([]schema.Deletion, len(deleted))
	for i, uid := range deleted {
		owners[i].UID = uid
	}
	wire.SetCauses(owners, req.GetCauses(), req.GetCauseOf())
	epoch, err := messageEpoch(req.GetEpoch())
	if err != nil {
		return nil, err
	}
	failed, more, err := s.owners.DropOwners(ctx, owner, epoch, owners, releases)
	if err != nil {
		return nil, err
	}
	return &schemav1.DropOwnersResponse{More: more, FailedUids: wire.Bytes(failed)}, nil
}

func readOwnerReleases(in []*schemav1.DropOwnersRequest_LetGo) ([]peer.OwnerRelease, error) {
	out := make([]peer.OwnerRelease, len(in))
	for i, p := range in {
		var err error
		if out[i].Owner, err = wire.UID(p.GetOwnerUid()); err == nil {
			out[i].Ownee, err = wire.UID(p.GetOwneeUid())
		}
		if err != nil {
			return nil, outcome.Invalid(fmt.Sprintf("let_go[%d]", i), err)
		}
	}
	return out, nil
}

func (s *schemas) UpgradeOwnerReferences(ctx context.Context,
	req *schemav1.UpgradeOwnerReferencesRequest,
) (*schemav1.UpgradeOwnerReferencesResponse, error) {
	out, err := s.upgradeOwners(ctx, req)
	return out, outcome.Status(s.log, err)
}

func (s *schemas) upgradeOwners(ctx context.Context,
	req *schemav1.UpgradeOwnerReferencesRequest,
) (*schemav1.UpgradeOwnerReferencesResponse, error) {
	owner, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := schema.CheckVersion(req.GetVersion()); err != nil {
		return nil, outcome.Invalid("version", err)
	}
	renamed := map[string]string{}
	for _, r := range req.GetRenamed() {
		for _, kind := range []string{r.GetFrom(), r.GetTo()} {
			if err := schema.CheckKind(kind); err != nil {
				return nil, outcome.Invalid("renamed", err)
			}
		}
		renamed[r.GetFrom()] = r.GetTo()
	}
	// The certificate of a caller is not enough: owner references with a made-up generation would take no
	// later version.
	version, generation, err := s.versionOf(ctx, owner)
	switch {
	case err != nil:
		return nil, &peer.UnavailableError{
			Deployments: []schema.DeploymentID{owner},
			Err:         fmt.Errorf("its version counts when it says the same at its registered address: %w", err),
		}
	case version != req.GetVersion() || generation != req.GetGeneration():
		return nil, &peer.UnavailableError{
			Deployments: []schema.DeploymentID{owner},
			Err:         fmt.Errorf("it says at its registered address that it runs %s, of generation %d", version, generation),
		}
	}
	remaining, err := s.upgrades.UpgradeOwners(ctx, owner, req.GetVersion(), req.GetGeneration(), renamed)
	if err != nil {
		return nil, err
	}
	return &schemav1.UpgradeOwnerReferencesResponse{Remaining: remaining}, nil
}
