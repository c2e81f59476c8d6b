package peers

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/service/outcome"
	"github.com/db-controller/db-controller/schema/wire"
)

const (
	// peerTimeout bounds one call to another deployment; an earlier deadline of the caller counts.
	peerTimeout = 5 * time.Second
	// longPeerTimeout bounds a call whose server works for some seconds before it answers, often that there
	// is more.
	longPeerTimeout = 15 * time.Second
)

// CheckReferences implements peer.Checker.
func (p *Peers) CheckReferences(ctx context.Context, at schema.DeploymentID,
	refs []peer.CheckedReference,
) ([]peer.Known, error) {
	client, err := p.Client(at)
	if err != nil {
		return nil, err
	}
	req := &schemav1.CheckReferencesRequest{References: make([]*schemav1.CheckReferencesRequest_Reference, len(refs))}
	for i, r := range refs {
		req.References[i] = &schemav1.CheckReferencesRequest_Reference{
			Key:       wire.BlockadeKeyProto(r.Key),
			Behaviour: schemav1.Behaviour(r.Behaviour),
		}
	}
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	answer, err := client.CheckReferences(ctx, req)
	if err != nil {
		return nil, outcome.FromStatus(err)
	}
	known := make([]peer.Known, len(answer.GetVerdicts()))
	for i, verdict := range answer.GetVerdicts() {
		for k, p := range wire.KnownVerdicts {
			if p == verdict {
				known[i] = k
			}
		}
	}
	return known, nil
}

// AnnounceEpoch notifies a deployment that the database of this one began a new epoch, and returns the
// greatest epoch that is known there, with the kinds of this deployment that it refers to.
func (p *Peers) AnnounceEpoch(ctx context.Context, at schema.DeploymentID,
	epoch uuid.UUID,
) (known uuid.UUID, refersTo peer.TargetKinds, err error) {
	client, err := p.Client(at)
	if err != nil {
		return known, refersTo, err
	}
	ctx, cancel := context.WithTimeout(ctx, longPeerTimeout) // the server waits for writes in progress
	defer cancel()
	answer, err := client.AnnounceEpoch(ctx, &schemav1.AnnounceEpochRequest{Epoch: epoch[:]})
	if err != nil {
		return known, refersTo, err
	}
	known, err = wire.UID(answer.GetEpoch())
	return known, wire.KnownTargetKinds(answer.GetRefersTo()), err
}

// Epoch returns the epoch of a deployment's database, and the kinds of this deployment that it refers to.
func (p *Peers) Epoch(ctx context.Context, of schema.DeploymentID) (epoch uuid.UUID, refersTo peer.TargetKinds,
	err error,
) {
	client, err := p.Client(of)
	if err != nil {
		return epoch, refersTo, err
	}
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	answer, err := client.GetEpoch(ctx, &schemav1.GetEpochRequest{})
	if err != nil {
		return epoch, refersTo, outcome.FromStatus(err)
	}
	epoch, err = wire.UID(answer.GetEpoch())
	return epoch, wire.KnownTargetKinds(answer.GetRefersTo()), err
}

// ConfirmEpoch notifies a deployment that all references to it have been compared: in the epoch that it has
// announced, and in the epoch of this deployment (selfEpoch).
func (p *Peers) ConfirmEpoch(ctx context.Context, at schema.DeploymentID, epoch, selfEpoch uuid.UUID) error {
	client, err := p.Client(at)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	_, err = client.ConfirmEpoch(ctx, &schemav1.ConfirmEpochRequest{Epoch: epoch[:], OwnEpoch: selfEpoch[:]})
	return err
}

// Resolve implements peer.Checker.
func (p *Peers) Resolve(ctx context.Context, holder schema.DeploymentID,
	questions []peer.Question,
) (*peer.Answers, error) {
	client, err := p.Client(holder)
	if err != nil {
		return nil, err
	}
	req := &schemav1.ResolveBlockadesRequest{Questions: make([]*schemav1.ResolveBlockadesRequest_Question,
		len(questions))}
	for i, q := range questions {
		req.Questions[i] = &schemav1.ResolveBlockadesRequest_Question{
			Key:     wire.BlockadeKeyProto(q.Key),
			Expired: q.Expired,
		}
	}
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	answer, err := client.ResolveBlockades(ctx, req)
	if err != nil {
		return nil, outcome.TextOf(err)
	}
	out := &peer.Answers{Verdicts: make([]peer.Verdict, len(answer.GetVerdicts()))}
	for i, v := range answer.GetVerdicts() {
		out.Verdicts[i] = wire.Verdict(v)
	}
	out.Epoch, err = wire.OptionalUID(answer.GetEpoch())
	return out, err
}

// Recall implements peer.Recaller.
func (p *Peers) Recall(ctx context.Context, holder schema.DeploymentID, asked []peer.Recall) (*peer.Recalled, error) {
	client, err := p.Client(holder)
	if err != nil {
		return nil, err
	}
	req := &schemav1.RecallDelegationsRequest{Questions: make([]*schemav1.RecallDelegationsRequest_Question,
		len(asked))}
	for i, q := range asked {
		req.Questions[i] = &schemav1.RecallDelegationsRequest_Question{
			Key:     wire.BlockadeKeyProto(q.Key),
			Expired: q.Expired, Mode: wire.RecallModes[q.Mode],
		}
	}
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	answer, err := client.RecallDelegations(ctx, req)
	if err != nil {
		return nil, outcome.TextOf(err)
	}
	out := &peer.Recalled{Answers: make([]peer.RecallAnswer, len(answer.GetAnswers()))}
	for i, a := range answer.GetAnswers() {
		if out.Answers[i], err = wire.RecallAnswer(a); err != nil {
			return nil, err
		}
	}
	out.Epoch, err = wire.OptionalUID(answer.GetEpoch())
	return out, err
}

// Confirm notifies a deployment of committed attempts.
func (p *Peers) Confirm(ctx context.Context, target schema.DeploymentID, c peer.Confirm) (*peer.Confirmed, error) {
	client, err := p.Client(target)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	answer, err := client.ConfirmBlockades(ctx, &schemav1.ConfirmBlockadesRequest{
		Attempts: wire.Bytes(c.Attempts), Epoch: c.Epoch[:], Delegable: c.Delegable, References: c.References,
		Scheduled: wire.ScheduledProto(c.Scheduled),
	})
	if err != nil {
		return nil, err
	}
	out := &peer.Confirmed{}
	if out.Unknown, err = wire.UIDs(answer.GetUnknownAttempts()); err != nil {
		return nil, err
	}
	if !c.Delegable || len(answer.GetDelegatedUids()) == 0 {
		return out, nil
	}
	if out.Delegated, err = wire.UIDs(answer.GetDelegatedUids()); err == nil {
		out.Epoch, err = uuid.FromBytes(answer.GetEpoch())
	}
	return out, err
}

// Release notifies a deployment of dropped references and aborted attempts.
func (p *Peers) Release(ctx context.Context, target schema.DeploymentID, epoch uuid.UUID, keys []peer.BlockadeKey,
	attempts []peer.AttemptID,
) error {
	client, err := p.Client(target)
	if err != nil {
		return err
	}
	req := &schemav1.ReleaseBlockadesRequest{
		Keys:     make([]*schemav1.BlockadeKey, len(keys)),
		Attempts: wire.Bytes(attempts), Epoch: epoch[:],
	}
	for i, k := range keys {
		req.Keys[i] = wire.BlockadeKeyProto(k)
	}
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	_, err = client.ReleaseBlockades(ctx, req)
	return err
}

// Acknowledge notifies a deployment that this one has acted upon all its deletions up to a position, with
// exceptions.
func (p *Peers) Acknowledge(ctx context.Context, target schema.DeploymentID, epoch uuid.UUID, position string,
	except []uuid.UUID,
) error {
	req := &schemav1.AcknowledgeDeletionsRequest{
		Position: position, ExceptUids: wire.Bytes(except), Epoch: epoch[:],
		InParts: true,
	}
	for {
		if more, err := p.acknowledge(ctx, target, req); err != nil || !more {
			return err
		}
	}
}

// leastPart is the least time of a call that has to be repeated because it is done in parts. A deployment
// works at a part for about two seconds; one that answers at once is not called without a pause, for ever.
const leastPart = time.Second

// endPart returns a second after a part has begun.
func endPart(ctx context.Context, began time.Time) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Until(began.Add(leastPart))):
		return nil
	}
}

func (p *Peers) acknowledge(ctx context.Context, target schema.DeploymentID,
	req *schemav1.AcknowledgeDeletionsRequest,
) (more bool, err error) {
	client, err := p.Client(target)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, longPeerTimeout)
	defer cancel()
	began := time.Now()
	answer, err := client.AcknowledgeDeletions(ctx, req)
	if err != nil || !answer.GetMore() {
		return false, err
	}
	return true, endPart(ctx, began)
}
