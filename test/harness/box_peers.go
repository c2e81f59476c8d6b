package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
)

// boxPeers calls the stores of other deployments on behalf of one deployment.
type boxPeers struct {
	box  *Box
	self schema.DeploymentID
}

// reach returns the store of a deployment. Both sides check the identity of the other's database, as
// connections between deployments do.
func (p *boxPeers) reach(ctx context.Context, to schema.DeploymentID) (*shadow.Store, error) {
	store, err := p.box.reach(to)
	if err != nil || to == p.self {
		return store, err
	}
	selfEpoch := p.box.Stores[p.self]
	if err := store.Gate.CheckDatabase(ctx, p.self, selfEpoch.Gate.Database()); err != nil {
		return nil, err
	}
	return store, selfEpoch.Gate.CheckDatabase(ctx, to, store.Gate.Database())
}

// begin stores a position of another deployment before that one has anything of this one, as connections
// between deployments do.
func (p *boxPeers) begin(ctx context.Context, to schema.DeploymentID) error {
	self := p.box.Stores[p.self]
	if has, err := self.Follow.HasPosition(ctx, to); to == p.self || has || err != nil {
		return err
	}
	var position string
	err := p.box.Stores[to].Read.WatchDeletions(ctx, p.self, "", func(e schema.Event[schema.Deletion]) error {
		if position = e.Token; position == "" {
			return nil
		}
		return errEnd
	})
	if errors.Is(err, errEnd) {
		_, err = self.Follow.KeepPositions(ctx, []peer.Position{{Of: to, Token: position}})
	}
	return err
}

func (p *boxPeers) Establish(ctx context.Context, to schema.DeploymentID, attempt peer.AttemptID,
	refs []peer.EstablishReference,
) (*peer.Established, error) {
	if hook := p.box.OnEstablish; hook != nil {
		if err := hook(to, attempt, refs); err != nil {
			return nil, err
		}
	}
	store, err := p.reach(ctx, to)
	if p.box.Stores[to] == nil {
		return nil, fmt.Errorf("%w: %w", peer.ErrNotSent, err) // as for a deployment that is not in the environment
	}
	if err == nil {
		err = p.begin(ctx, to)
	}
	if err != nil {
		return nil, err
	}
	done, err := store.Targets.Establish(ctx, p.self, attempt, refs)
	if hook := p.box.AfterEstablish; hook != nil && err == nil {
		hook()
	}
	return done, err
}

func (p *boxPeers) Resolve(ctx context.Context, to schema.DeploymentID,
	questions []peer.Question,
) (*peer.Answers, error) {
	if hook := p.box.OnResolve; hook != nil {
		if err := hook(to); err != nil {
			return nil, err
		}
	}
	if hook := p.box.OnResolveIn; hook != nil {
		if err := hook(ctx, to); err != nil {
			return nil, err
		}
	}
	store, err := p.reach(ctx, to)
	if err != nil {
		return nil, err
	}
	return store.Attempts.Answer(ctx, p.self, questions)
}

func (p *boxPeers) Recall(ctx context.Context, to schema.DeploymentID, asked []peer.Recall) (*peer.Recalled, error) {
	if hook := p.box.OnResolve; hook != nil {
		if err := hook(to); err != nil {
			return nil, err
		}
	}
	store, err := p.reach(ctx, to)
	if err != nil {
		return nil, err
	}
	return store.Rights.Recall(ctx, p.self, asked)
}

func (p *boxPeers) WouldEstablish(ctx context.Context, to schema.DeploymentID, attempt peer.AttemptID,
	refs []peer.EstablishReference,
) (*peer.Established, error) {
	store, err := p.reach(ctx, to)
	if err != nil {
		return nil, err
	}
	return store.Targets.WouldEstablish(ctx, p.self, attempt, refs)
}

func (p *boxPeers) CheckOwners(ctx context.Context, at schema.DeploymentID,
	questions []peer.OwnerQuestion,
) (*peer.OwnerAnswers, error) {
	store, err := p.reach(ctx, at)
	if err == nil {
		err = p.begin(ctx, at)
	}
	if err != nil {
		return nil, err
	}
	answers, err := store.Owners.CheckOwners(ctx, p.self, questions)
	if hook := p.box.AfterCheckOwners; hook != nil && err == nil {
		hook()
	}
	return answers, err
}

func (p *boxPeers) WouldCheckOwners(ctx context.Context, at schema.DeploymentID,
	questions []peer.OwnerQuestion,
) (*peer.OwnerAnswers, error) {
	store, err := p.reach(ctx, at)
	if err != nil {
		return nil, err
	}
	return store.Owners.WouldCheckOwners(ctx, p.self, questions)
}

func (p *boxPeers) CheckReferences(ctx context.Context, at schema.DeploymentID,
	refs []peer.CheckedReference,
) ([]peer.Known, error) {
	store, err := p.reach(ctx, at)
	if err != nil {
		return nil, err
	}
	known, err := store.Attempts.CheckReferences(ctx, p.self, refs)
	if hook := p.box.AfterCheckReferences; hook != nil && err == nil {
		hook(known)
	}
	return known, err
}

func (p *boxPeers) AnnounceEpoch(ctx context.Context, at schema.DeploymentID,
	epoch uuid.UUID,
) (known uuid.UUID, kinds peer.TargetKinds, err error) {
	store, err := p.reach(ctx, at)
	if err != nil {
		return known, kinds, err
	}
	if known, err = store.Gate.PeerEpoch(ctx, p.self); err != nil {
		return known, kinds, err
	}
	var refersTo peer.TargetKinds
	if bytes.Compare(epoch[:], known[:]) > 0 { // it calls back
		said, kinds, err := p.box.Stores[p.self].Gate.ReferredKinds(ctx, at)
		if err != nil {
			return known, kinds, err
		}
		if said != epoch {
			return known, kinds, &peer.UnavailableError{
				Deployments: []schema.DeploymentID{p.self},
				Err:         peer.ErrRecovering,
			}
		}
		refersTo = kinds
	}
	if known, err = store.Gate.RecordPeerEpoch(ctx, p.self, epoch, refersTo); err == nil && known == epoch {
		kinds, _ = store.Gate.ReferredKindsIn(ctx, p.self, epoch)
	}
	return known, kinds, err
}

func (p *boxPeers) ConfirmEpoch(ctx context.Context, at schema.DeploymentID, epoch, selfEpoch uuid.UUID) error {
	store, err := p.reach(ctx, at)
	if err != nil {
		return err
	}
	return store.Gate.MarkReferencesConfirmed(ctx, p.self, epoch, selfEpoch)
}

func (p *boxPeers) DropOwners(ctx context.Context, at schema.DeploymentID, epoch uuid.UUID, deleted []schema.Deletion,
	releases []peer.OwnerRelease,
) ([]uuid.UUID, bool, error) {
	store, err := p.reach(ctx, at)
	if err != nil {
		return nil, false, err
	}
	return store.Owners.DropOwners(ctx, p.self, epoch, deleted, releases)
}

func (p *boxPeers) UpgradeOwners(ctx context.Context, at schema.DeploymentID, u *peer.Upgrade) (int64, error) {
	store, err := p.reach(ctx, at)
	if err != nil {
		return 0, err
	}
	return store.Owners.UpgradeOwners(ctx, p.self, u.Version, u.Generation, u.Renamed)
}

func (p *boxPeers) Plan(ctx context.Context, at schema.DeploymentID, q peer.PlanQuestion) (*peer.Plan, error) {
	if hook := p.box.OnPlan; hook != nil {
		if err := hook(ctx, at); err != nil {
			return nil, err
		}
	}
	store, err := p.reach(ctx, at)
	if err != nil {
		return nil, err
	}
	plan, err := store.Deletions.Plan(ctx, q)
	if hook := p.box.AfterPlan; hook != nil {
		hook()
	}
	return plan, err
}

func (p *boxPeers) Trace(ctx context.Context, at schema.DeploymentID,
	uids []uuid.UUID,
) (map[uuid.UUID]peer.Trace, error) {
	store, err := p.reach(ctx, at)
	if err != nil {
		return nil, err
	}
	return store.Deletions.Trace(ctx, uids)
}

func (p *boxPeers) Confirm(ctx context.Context, to schema.DeploymentID, c peer.Confirm) (*peer.Confirmed, error) {
	store, err := p.reach(ctx, to)
	if err != nil {
		return nil, err
	}
	return store.Targets.Confirm(ctx, p.self, c)
}

func (p *boxPeers) Release(ctx context.Context, to schema.DeploymentID, epoch uuid.UUID, keys []peer.BlockadeKey,
	attempts []peer.AttemptID,
) error {
	store, err := p.reach(ctx, to)
	if err != nil {
		return err
	}
	return store.Targets.Release(ctx, p.self, epoch, keys, attempts)
}

func (p *boxPeers) Acknowledge(ctx context.Context, to schema.DeploymentID, epoch uuid.UUID, position string,
	except []uuid.UUID,
) error {
	store, err := p.reach(ctx, to)
	if err != nil {
		return err
	}
	return store.Targets.Acknowledge(ctx, p.self, epoch, position, except)
}
