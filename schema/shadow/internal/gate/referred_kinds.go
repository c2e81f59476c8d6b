package gate

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// Of the deployment $1/$2: the kinds of the targets of references and rights, of owners, and of the columns
// of attached tables, whose rows refer to targets without a right as well. The epoch is null when the server
// is not the one on which it began.
const referredKindsSQL = `
SELECT ` + EpochNowSQL + `, ARRAY(
    SELECT k.kind FROM dbcontroller.kind k JOIN (
        SELECT kind_id FROM dbcontroller.foreign_target WHERE deployment_id = (SELECT id FROM dbcontroller.deployment WHERE service = $1 AND region = $2)
        UNION
        SELECT kind_id FROM dbcontroller.owner_reference WHERE deployment_id = (SELECT id FROM dbcontroller.deployment WHERE service = $1 AND region = $2)
    ) AS referred ON referred.kind_id = k.id WHERE k.service = $1
    UNION
    SELECT r -> 'target' -> 'kind' ->> 'Kind'
    FROM dbcontroller.attachment a, jsonb_array_elements(COALESCE(a.definition -> 'references', '[]') || a.former) AS r
    WHERE r -> 'target' -> 'kind' ->> 'Service' = $1
)
FROM dbcontroller.meta m`

// referredIn is the key of Gate.referred: an epoch of this database, a deployment, and the epoch of its
// database that was recorded before; zero: any.
type referredIn struct {
	epoch uuid.UUID
	of    schema.DeploymentID
	there uuid.UUID
}

func (r referredIn) String() string { return r.epoch.String() + r.of.String() + r.there.String() }

// ReferredKinds returns the kinds of another deployment that the database refers to in its present epoch,
// with that epoch. It fails with *UnavailableError as EpochToAnnounce does. They are read once an epoch for a
// deployment: later references are established there.
func (s *Gate) ReferredKinds(ctx context.Context, of schema.DeploymentID) (uuid.UUID, peer.TargetKinds, error) {
	epoch, err := s.EpochToAnnounce(ctx)
	if err != nil {
		return uuid.Nil, peer.TargetKinds{}, err
	}
	kinds, err := s.referredKinds(ctx, referredIn{epoch: epoch, of: of})
	return epoch, kinds, err
}

// ReferredKindsIn returns the kinds of another deployment that the database refers to after it has recorded
// an epoch of that one (RecordPeerEpoch): no write commits any more that relies on what an earlier epoch has
// told, and later references are established in this one.
func (s *Gate) ReferredKindsIn(ctx context.Context, of schema.DeploymentID, there uuid.UUID) (peer.TargetKinds, error) {
	epoch, err := s.EpochToAnnounce(ctx)
	if err != nil {
		return peer.TargetKinds{}, err
	}
	return s.referredKinds(ctx, referredIn{epoch, of, there})
}

func (s *Gate) referredKinds(ctx context.Context, in referredIn) (peer.TargetKinds, error) {
	if kinds, ok := s.referred.Load(in); ok {
		return kinds.(peer.TargetKinds), nil
	}
	// All rows are read, which may take longer than a caller waits: it goes on, once for all callers, and the
	// next one finds the answer.
	read := s.reading.DoChan(in.String(), func() (any, error) {
		return s.readReferredKinds(context.WithoutCancel(ctx), in)
	})
	select {
	case <-ctx.Done():
		return peer.TargetKinds{}, ctx.Err()
	case done := <-read:
		kinds, _ := done.Val.(peer.TargetKinds)
		return kinds, done.Err
	}
}

func (s *Gate) readReferredKinds(ctx context.Context, in referredIn) (peer.TargetKinds, error) {
	kinds := peer.TargetKinds{Known: true}
	var present *uuid.UUID
	if err := s.Pool.QueryRow(ctx, referredKindsSQL, in.of.Service, in.of.Region).
		Scan(&present, &kinds.Names); err != nil {
		return peer.TargetKinds{}, fmt.Errorf("read the kinds of %s that resources here refer to: %w", in.of, err)
	}
	if present == nil || *present != in.epoch {
		return peer.TargetKinds{}, s.RecoveringSelf()
	}
	s.referred.Store(in, kinds)
	return kinds, nil
}

// waitingKinds returns the ids of the kinds whose deletions wait for a deployment that refers to some kinds
// in a new epoch; nil: all wait. A name that is not of a kind of the version that runs, by any of its names,
// may be of any kind.
func (s *Gate) waitingKinds(ctx context.Context, referred peer.TargetKinds) ([]int32, error) {
	v := s.Version.Load()
	if !referred.Known || v == nil {
		return nil, nil
	}
	roots := map[schema.KindID]bool{}
	for _, name := range v.Model.KindNames() {
		roots[v.Model.Root(schema.KindID{Service: s.Self.Service, Kind: name})] = true
	}
	waiting := []int32{}
	for _, name := range referred.Names {
		root := v.Model.Root(schema.KindID{Service: s.Self.Service, Kind: name})
		if !roots[root] {
			return nil, nil
		}
		id, err := s.Names.Kind(ctx, root)
		if err != nil {
			return nil, err
		}
		waiting = append(waiting, id)
	}
	slices.Sort(waiting)
	return slices.Compact(waiting), nil
}
