package service

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/schema/wire"
)

var ownerVerdicts = map[shadow.OwnerVerdict]schemav1.CheckOwnersResponse_Verdict{
	shadow.OwnerExists: schemav1.CheckOwnersResponse_VERDICT_EXISTS, shadow.OwnerAbsent: schemav1.CheckOwnersResponse_VERDICT_ABSENT,
	shadow.OwnerNotReferring: schemav1.CheckOwnersResponse_VERDICT_NOT_REFERRING, shadow.OwnerCannotOwn: schemav1.CheckOwnersResponse_VERDICT_CANNOT_OWN,
}

func (s *schemas) CheckOwners(ctx context.Context, req *schemav1.CheckOwnersRequest) (*schemav1.CheckOwnersResponse, error) {
	ownee, err := caller(ctx)
	if err != nil {
		return nil, toStatus(s.log, err)
	}
	if err := bounded("questions", len(req.GetQuestions())); err != nil {
		return nil, toStatus(s.log, err)
	}
	questions := make([]shadow.OwnerQuestion, len(req.GetQuestions()))
	for i, p := range req.GetQuestions() {
		q := shadow.OwnerQuestion{Kind: p.GetOwner().GetKind(), Name: p.GetOwner().GetName()}
		err := schema.CheckName(q.Name)
		if err == nil {
			err = schema.CheckKind(q.Kind)
		}
		if err == nil {
			q.UID, err = wire.OptionalUID(p.GetOwner().GetUid())
		}
		if err == nil {
			q.RequiredBy, err = wire.OptionalUID(p.GetRequiredBy())
		}
		if err != nil {
			return nil, toStatus(s.log, invalid(fmt.Sprintf("questions[%d]", i), err))
		}
		questions[i] = q
	}
	check := s.store.CheckOwners
	if req.GetValidateOnly() {
		check = s.store.WouldCheckOwners
	}
	answers, err := check(ctx, ownee, questions)
	if err != nil {
		return nil, toStatus(s.log, err)
	}
	out := &schemav1.CheckOwnersResponse{Version: answers.Version, Generation: answers.Generation}
	deletions := make([]schema.Deletion, len(answers.Answers))
	for i, a := range answers.Answers {
		deletions[i].Cause = a.Cause
		p := &schemav1.CheckOwnersResponse_Answer{Verdict: ownerVerdicts[a.Verdict], Kind: a.Kind, Noted: a.Noted}
		if a.UID != uuid.Nil {
			p.Uid = a.UID[:]
		}
		out.Answers = append(out.Answers, p)
	}
	out.Causes, out.CauseOf = wire.CausesProto(deletions)
	return out, nil
}

func (s *schemas) DropOwners(ctx context.Context, req *schemav1.DropOwnersRequest) (*schemav1.DropOwnersResponse, error) {
	owner, err := caller(ctx)
	if err != nil {
		return nil, toStatus(s.log, err)
	}
	if err := bounded("owners", len(req.GetDeletedUids())+len(req.GetLetGo())); err != nil {
		return nil, toStatus(s.log, err)
	}
	deleted, err := wire.UIDs(req.GetDeletedUids())
	if err != nil {
		return nil, toStatus(s.log, invalid("deleted_uids", err))
	}
	letGo := make([]shadow.LetGo, len(req.GetLetGo()))
	for i, p := range req.GetLetGo() {
		if letGo[i].Owner, err = wire.UID(p.GetOwnerUid()); err == nil {
			letGo[i].Ownee, err = wire.UID(p.GetOwneeUid())
		}
		if err != nil {
			return nil, toStatus(s.log, invalid(fmt.Sprintf("let_go[%d]", i), err))
		}
	}
	owners := make([]schema.Deletion, len(deleted))
	for i, uid := range deleted {
		owners[i].UID = uid
	}
	wire.SetCauses(owners, req.GetCauses(), req.GetCauseOf())
	epoch, err := wire.OptionalUID(req.GetEpoch())
	if err != nil {
		return nil, toStatus(s.log, invalid("epoch", err))
	}
	failed, more, err := s.store.DropOwners(ctx, owner, epoch, owners, letGo)
	if err != nil {
		return nil, toStatus(s.log, err)
	}
	return &schemav1.DropOwnersResponse{More: more, FailedUids: wire.Bytes(failed)}, nil
}

func (s *schemas) UpgradeOwnerReferences(ctx context.Context, req *schemav1.UpgradeOwnerReferencesRequest) (*schemav1.UpgradeOwnerReferencesResponse, error) {
	owner, err := caller(ctx)
	if err != nil {
		return nil, toStatus(s.log, err)
	}
	if err := schema.CheckVersion(req.GetVersion()); err != nil {
		return nil, toStatus(s.log, invalid("version", err))
	}
	renamed := map[string]string{}
	for _, r := range req.GetRenamed() {
		for _, kind := range []string{r.GetFrom(), r.GetTo()} {
			if err := schema.CheckKind(kind); err != nil {
				return nil, toStatus(s.log, invalid("renamed", err))
			}
		}
		renamed[r.GetFrom()] = r.GetTo()
	}
	remaining, err := s.store.UpgradeOwners(ctx, owner, req.GetVersion(), req.GetGeneration(), renamed)
	if err != nil {
		return nil, toStatus(s.log, err)
	}
	return &schemav1.UpgradeOwnerReferencesResponse{Remaining: remaining}, nil
}

// CheckOwners asks a deployment whether owners exist there.
func (p *Peers) CheckOwners(ctx context.Context, at schema.DeploymentID, questions []shadow.OwnerQuestion) (*shadow.OwnerAnswers, error) {
	return p.checkOwners(ctx, at, questions, false)
}

// WouldCheckOwners is shadow.Peers.
func (p *Peers) WouldCheckOwners(ctx context.Context, at schema.DeploymentID, questions []shadow.OwnerQuestion) (*shadow.OwnerAnswers, error) {
	return p.checkOwners(ctx, at, questions, true)
}

func (p *Peers) checkOwners(ctx context.Context, at schema.DeploymentID, questions []shadow.OwnerQuestion, validateOnly bool) (*shadow.OwnerAnswers, error) {
	client, err := p.Client(at)
	if err != nil {
		return nil, err
	}
	// One answer for all: of one version.
	if len(questions) > maxMessages {
		return p.checkMany(ctx, at, questions, validateOnly)
	}
	req := &schemav1.CheckOwnersRequest{ValidateOnly: validateOnly}
	for i := range questions {
		q := &questions[i]
		ref := &schemav1.ResourceRef{Kind: q.Kind, Name: q.Name}
		if q.UID != uuid.Nil {
			ref.Uid = q.UID[:]
		}
		question := &schemav1.CheckOwnersRequest_Question{Owner: ref}
		if q.RequiredBy != uuid.Nil {
			question.RequiredBy = q.RequiredBy[:]
		}
		req.Questions = append(req.Questions, question)
	}
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	answer, err := client.CheckOwners(ctx, req)
	if err != nil {
		return nil, err
	}
	out := &shadow.OwnerAnswers{Version: answer.GetVersion(), Generation: answer.GetGeneration()}
	deletions := make([]schema.Deletion, len(answer.GetAnswers()))
	wire.SetCauses(deletions, answer.GetCauses(), answer.GetCauseOf())
	for i, a := range answer.GetAnswers() {
		o := shadow.OwnerAnswer{Kind: a.GetKind(), Noted: a.GetNoted(), Cause: deletions[i].Cause}
		for verdict, p := range ownerVerdicts { // what a newer version may say besides stays unknown
			if p == a.GetVerdict() {
				o.Verdict = verdict
			}
		}
		if o.UID, err = wire.OptionalUID(a.GetUid()); err != nil {
			return nil, err
		}
		if o.Verdict == shadow.OwnerExists && (o.UID == uuid.Nil || schema.CheckKind(o.Kind) != nil) {
			o.Verdict = shadow.OwnerUnknown
		}
		out.Answers = append(out.Answers, o)
	}
	return out, nil
}

func (p *Peers) checkMany(ctx context.Context, at schema.DeploymentID, questions []shadow.OwnerQuestion, validateOnly bool) (*shadow.OwnerAnswers, error) {
	out, err := p.checkOwners(ctx, at, questions[:maxMessages], validateOnly)
	if err != nil {
		return nil, err
	}
	rest, err := p.checkOwners(ctx, at, questions[maxMessages:], validateOnly)
	if err != nil {
		return nil, err
	}
	if rest.Generation != out.Generation {
		return nil, fmt.Errorf("%s switched its version in between", at)
	}
	out.Answers = append(out.Answers, rest.Answers...)
	return out, nil
}

// DropOwners tells a deployment which owners of its resources are deleted here, or let go of them.
func (p *Peers) DropOwners(ctx context.Context, at schema.DeploymentID, epoch uuid.UUID, deleted []schema.Deletion, letGo []shadow.LetGo) (failed []uuid.UUID, more bool, err error) {
	client, err := p.Client(at)
	if err != nil {
		return nil, false, err
	}
	req := &schemav1.DropOwnersRequest{Epoch: epoch[:]}
	for i := range deleted {
		req.DeletedUids = append(req.DeletedUids, deleted[i].UID[:])
	}
	req.Causes, req.CauseOf = wire.CausesProto(deleted)
	for i := range letGo {
		req.LetGo = append(req.LetGo, &schemav1.DropOwnersRequest_LetGo{OwnerUid: letGo[i].Owner[:], OwneeUid: letGo[i].Ownee[:]})
	}
	ctx, cancel := context.WithTimeout(ctx, longPeerTimeout)
	defer cancel()
	answer, err := client.DropOwners(ctx, req)
	if err != nil {
		return nil, false, err
	}
	failed, err = wire.UIDs(answer.GetFailedUids())
	return failed, answer.GetMore(), err
}

// UpgradeOwners tells a deployment the version that runs here.
func (p *Peers) UpgradeOwners(ctx context.Context, at schema.DeploymentID, u *shadow.Upgrade) (remaining int64, err error) {
	client, err := p.Client(at)
	if err != nil {
		return 0, err
	}
	req := &schemav1.UpgradeOwnerReferencesRequest{Version: u.Version, Generation: u.Generation}
	for from, to := range u.Renamed {
		req.Renamed = append(req.Renamed, &schemav1.UpgradeOwnerReferencesRequest_Renamed{From: from, To: to})
	}
	ctx, cancel := context.WithTimeout(ctx, longPeerTimeout)
	defer cancel()
	answer, err := client.UpgradeOwnerReferences(ctx, req)
	return answer.GetRemaining(), err
}
