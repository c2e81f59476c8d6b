package write

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/prepare"
	"github.com/db-controller/db-controller/schema/violation"
)

// refuseDecommissioned refuses new references to, and owners in, decommissioned deployments. The caller holds
// the version lock shared.
func (s *Writer) refuseDecommissioned(ctx context.Context, sv *prepare.Saving, decommissioned []int32) error {
	if len(decommissioned) == 0 {
		return nil
	}
	var refused []peer.Refusal
	for _, wr := range sv.Writes {
		for _, o := range wr.AddOwners {
			if slices.Contains(decommissioned, o.DeploymentID) {
				return &peer.InvalidError{Resource: wr.Name, Err: violation.In("owner_references",
					fmt.Errorf("owner %s: %w", o.Name, errOwnerDecommissioned))}
			}
		}
		for _, ref := range wr.Add {
			if ref.Target.Deployment == s.Self {
				continue
			}
			id, err := s.Names.Deployment(ctx, ref.Target.Deployment)
			if err != nil {
				return err
			}
			if slices.Contains(decommissioned, id) {
				refused = append(refused, peer.Refusal{
					Holder: wr.Name, Path: ref.Path, Target: ref.Target,
					Reason: peer.TargetDecommissioned,
				})
			}
		}
	}
	if len(refused) > 0 {
		return &peer.RefusedError{Refusals: refused}
	}
	return nil
}

var errOwnerDecommissioned = errors.New("an operator has decommissioned its deployment")
