package attempt

import (
	"cmp"
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

var checkReferencesSQL = db.Codes(`
SELECT i.n - 1, s.state, EXISTS (
    SELECT FROM dbcontroller.blockade b WHERE b.target_id = s.id AND b.holder_uid = i.holder_uid AND b.field_id = i.field_id
        AND b.attempt IS NOT DISTINCT FROM i.attempt AND b.deployment_id = @deployment
) OR i.behaviour <> {block} AND EXISTS (
    SELECT FROM dbcontroller.holder_entry e WHERE e.target_id = s.id AND e.deployment_id = @deployment
)
FROM unnest(@attempts::uuid[], @holders::uuid[], @fields::int[], @targets::uuid[], @behaviours::smallint[]) WITH ORDINALITY
    AS i (attempt, holder_uid, field_id, target_uid, behaviour, n)
JOIN dbcontroller.shadow s ON s.uid = i.target_uid`)

// CheckReferences returns the state of references of another deployment, in the order of refs. A reference is
// held by its blockade; when it does not block, also by the holder entry of its deployment, which replaces
// the blockade when the reference is confirmed.
func (a *Attempts) CheckReferences(ctx context.Context, holder schema.DeploymentID,
	refs []peer.CheckedReference,
) ([]peer.Known, error) {
	selfEpoch := a.gate.PresentEpoch()
	deployment, err := a.Names.Deployment(ctx, holder)
	if err != nil {
		return nil, err
	}
	keys, behaviours := make([]peer.BlockadeKey, len(refs)), make([]int16, len(refs))
	for i, r := range refs {
		keys[i], behaviours[i] = r.Key, int16(r.Behaviour)
	}
	k, err := a.KeyColumns(ctx, keys)
	if err != nil {
		return nil, err
	}
	out := make([]peer.Known, len(refs))
	for i := range out {
		out[i] = peer.KnownAbsent
	}
	err = a.InTx(ctx, db.NoFeed, func(tx pgx.Tx) error {
		// commits may be lost: a missing row decides nothing
		if epoch, err := a.gate.EpochOf(ctx, tx); err != nil || epoch != selfEpoch {
			return cmp.Or(err, a.gate.RecoveringSelf())
		}
		rows, err := tx.Query(ctx, checkReferencesSQL, db.Named{
			"deployment": deployment, "attempts": k.Attempts, "holders": k.Holders, "fields": k.Fields,
			"targets": k.Targets, "behaviours": behaviours,
		})
		if err != nil {
			return err
		}
		var n int
		var state peer.State
		var held bool
		_, err = pgx.ForEachRow(rows, []any{&n, &state, &held}, func() error {
			switch {
			case held:
				out[n] = peer.KnownHeld
			case state == peer.Deleting:
				out[n] = peer.KnownDeleting
			default:
				out[n] = peer.KnownMissing
			}
			return nil
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("check references: %w", err)
	}
	return out, nil
}
