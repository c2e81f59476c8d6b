package peers

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/wire"
)

// CheckOwners asks a deployment whether owners exist there.
func (p *Peers) CheckOwners(ctx context.Context, at schema.DeploymentID,
	questions []peer.OwnerQuestion,
) (*peer.OwnerAnswers, error) {
	return p.checkOwners(ctx, at, questions, false)
}

// WouldCheckOwners implements peer.Checker.
func (p *Peers) WouldCheckOwners(ctx context.Context, at schema.DeploymentID,
	questions []peer.OwnerQuestion,
) (*peer.OwnerAnswers, error) {
	return p.checkOwners(ctx, at, questions, true)
}

// Version returns the version that a deployment runs, and its generation: a check of no owner has them.
func (p *Peers) Version(ctx context.Context, of schema.DeploymentID) (version string, generation int64, err error) {
	answers, err := p.checkOwners(ctx, of, nil, true)
	if err != nil {
		return "", 0, err
	}
	return answers.Version, answers.Generation, nil
}

func (p *Peers) checkOwners(ctx context.Context, at schema.DeploymentID, questions []peer.OwnerQuestion,
	validateOnly bool,
) (*peer.OwnerAnswers, error) {
	client, err := p.Client(at)
	if err != nil {
		return nil, err
	}
	if len(questions) > wire.MaxMessages {
		return p.checkManyOwners(ctx, at, questions, validateOnly)
	}
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	answer, err := client.CheckOwners(ctx, ownerQuestionsProto(questions, validateOnly))
	if err != nil {
		return nil, err
	}
	return readOwnerAnswers(answer)
}

func ownerQuestionsProto(questions []peer.OwnerQuestion, validateOnly bool) *schemav1.CheckOwnersRequest {
	req := &schemav1.CheckOwnersRequest{ValidateOnly: validateOnly}
	for _, q := range questions {
		req.Questions = append(req.Questions, &schemav1.CheckOwnersRequest_Question{
			Owner:      &schemav1.ResourceRef{Kind: q.Kind, Name: q.Name, Uid: wire.OptionalBytes(q.UID)},
			RequiredBy: wire.OptionalBytes(q.RequiredBy),
		})
	}
	return req
}

func readOwnerAnswers(answer *schemav1.CheckOwnersResponse) (*peer.OwnerAnswers, error) {
	out := &peer.OwnerAnswers{Version: answer.GetVersion(), Generation: answer.GetGeneration()}
	if out.Version != "" { // it is stored with the ownees
		if err := schema.CheckVersion(out.Version); err != nil {
			return nil, err
		}
	}
	deletions := make([]schema.Deletion, len(answer.GetAnswers()))
	wire.SetCauses(deletions, answer.GetCauses(), answer.GetCauseOf())
	for i, a := range answer.GetAnswers() {
		o := peer.OwnerAnswer{Kind: a.GetKind(), Noted: a.GetNoted(), Cause: deletions[i].Cause}
		for verdict, p := range wire.OwnerVerdicts { // a verdict of a newer version stays OwnerUnknown
			if p == a.GetVerdict() {
				o.Verdict = verdict
			}
		}
		var err error
		if o.UID, err = wire.OptionalUID(a.GetUid()); err != nil {
			return nil, err
		}
		if o.Verdict == peer.OwnerExists && (o.UID == uuid.Nil || schema.CheckKind(o.Kind) != nil) {
			o.Verdict = peer.OwnerUnknown
		}
		out.Answers = append(out.Answers, o)
	}
	return out, nil
}

// checkManyOwners asks in several calls, whose answers have to be of one version of the other deployment.
func (p *Peers) checkManyOwners(ctx context.Context, at schema.DeploymentID, questions []peer.OwnerQuestion,
	validateOnly bool,
) (*peer.OwnerAnswers, error) {
	out, err := p.checkOwners(ctx, at, questions[:wire.MaxMessages], validateOnly)
	if err != nil {
		return nil, err
	}
	if len(out.Answers) != wire.MaxMessages { // the answers of the next part would belong to other questions
		return nil, fmt.Errorf("%s sent %d answers to %d questions", at, len(out.Answers), wire.MaxMessages)
	}
	rest, err := p.checkOwners(ctx, at, questions[wire.MaxMessages:], validateOnly)
	if err != nil {
		return nil, err
	}
	if rest.Generation != out.Generation {
		return nil, fmt.Errorf("%s switched its version between two parts of a request: try again", at)
	}
	out.Answers = append(out.Answers, rest.Answers...)
	return out, nil
}

// DropOwners notifies a deployment that owners of its resources were deleted here, or let go of its
// resources.
func (p *Peers) DropOwners(ctx context.Context, at schema.DeploymentID, epoch uuid.UUID, deleted []schema.Deletion,
	releases []peer.OwnerRelease,
) (failed []uuid.UUID, more bool, err error) {
	client, err := p.Client(at)
	if err != nil {
		return nil, false, err
	}
	req := &schemav1.DropOwnersRequest{Epoch: epoch[:]}
	for i := range deleted {
		req.DeletedUids = append(req.DeletedUids, deleted[i].UID[:])
	}
	req.Causes, req.CauseOf = wire.CausesProto(deleted)
	for i := range releases {
		req.LetGo = append(req.LetGo, &schemav1.DropOwnersRequest_LetGo{
			OwnerUid: releases[i].Owner[:],
			OwneeUid: releases[i].Ownee[:],
		})
	}
	ctx, cancel := context.WithTimeout(ctx, longPeerTimeout)
	defer cancel()
	began := time.Now()
	answer, err := client.DropOwners(ctx, req)
	if err == nil && answer.GetMore() {
		err = endPart(ctx, began)
	}
	if err != nil {
		return nil, false, err
	}
	failed, err = wire.UIDs(answer.GetFailedUids())
	return failed, answer.GetMore(), err
}

// UpgradeOwners sends a deployment the version that runs here, for its owner references to resources of this
// deployment.
func (p *Peers) UpgradeOwners(ctx context.Context, at schema.DeploymentID,
	u *peer.Upgrade,
) (remaining int64, err error) {
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
	began := time.Now()
	answer, err := client.UpgradeOwnerReferences(ctx, req)
	if err == nil && answer.GetRemaining() != 0 {
		err = endPart(ctx, began)
	}
	return answer.GetRemaining(), err
}
