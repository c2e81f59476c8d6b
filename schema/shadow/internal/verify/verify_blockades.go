package verify

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"

	"github.com/db-controller/db-controller/schema/shadow/internal/operate"
)

// blockades compares the confirmed blockades here with their holders' references. Tentative ones are left
// out: their holders are asked when they expire.
func (v *verifying) blockades(ctx context.Context, cursor string, save func(string) error) error {
	var of schema.DeploymentID
	if len(v.how.With) == 1 {
		of = v.how.With[0]
	}
	for {
		page, next, err := v.store.operate.ListBlockades(ctx, of, cursor, pageRows)
		if err != nil {
			return err
		}
		by := map[schema.DeploymentID][]operate.BlockadeView{}
		for _, b := range page {
			if b.ExpiresAt.IsZero() && v.concerns(b.Holder.Deployment) {
				by[b.Holder.Deployment] = append(by[b.Holder.Deployment], b)
			}
		}
		for holder, blockades := range by {
			v.out.Blockades += int64(len(blockades))
			if err := v.compareBlockades(ctx, holder, blockades); err != nil {
				return err
			}
		}
		if cursor = next; cursor == "" {
			return nil
		}
		if err := save(cursor); err != nil {
			return err
		}
		if err := v.how.Progress(ctx, v.out); err != nil {
			return err
		}
	}
}

func (v *verifying) compareBlockades(ctx context.Context, holder schema.DeploymentID,
	blockades []operate.BlockadeView,
) error {
	ofNothing, err := v.ofNothing(ctx, holder, blockades)
	if err == nil && len(ofNothing) > 0 { // a release may be under way
		if err = v.wait(ctx); err == nil {
			ofNothing, err = v.ofNothing(ctx, holder, ofNothing)
		}
	}
	if err != nil {
		return v.unreachable(ctx, holder, err)
	}
	if len(ofNothing) == 0 {
		return nil
	}
	if v.how.Repair {
		// Expired makes the holder's deployment abort an undecided attempt: only then may the blockade be
		// removed (I5).
		questions := make([]peer.Question, len(ofNothing))
		for i, b := range ofNothing {
			questions[i] = peer.Question{Key: b.Key, Expired: true}
		}
		answers, err := v.store.Peers.Resolve(ctx, holder, questions)
		if err != nil {
			return v.unreachable(ctx, holder, err)
		}
		if err := v.store.target.Settle(ctx, holder, questions, answers); err != nil {
			return err
		}
	}
	for _, b := range ofNothing {
		d := Difference{
			Kind: BlockadeOfNone, Holder: b.Holder, Target: v.store.FullName(b.Name), Path: b.Key.Path,
			Behaviour: b.Behaviour, Repaired: v.how.Repair,
		}
		if err := v.found(d); err != nil {
			return err
		}
	}
	return nil
}

const stillBlockingSQL = `
SELECT i.n - 1
FROM unnest($1::uuid[], $2::uuid[], $3::int[], $4::uuid[]) WITH ORDINALITY AS i (attempt, holder_uid, field_id, target_uid, n)
JOIN dbcontroller.shadow s ON s.uid = i.target_uid
JOIN dbcontroller.blockade b ON b.target_id = s.id AND b.holder_uid = i.holder_uid AND b.field_id = i.field_id AND b.attempt IS NOT DISTINCT FROM i.attempt`

// ofNothing returns the blockades whose references do not exist, and which are still stored after the answer.
func (v *verifying) ofNothing(ctx context.Context, holder schema.DeploymentID,
	blockades []operate.BlockadeView,
) ([]operate.BlockadeView, error) {
	questions := make([]peer.Question, len(blockades))
	for i, b := range blockades {
		questions[i] = peer.Question{Key: b.Key}
	}
	answers, err := v.store.Peers.Resolve(ctx, holder, questions)
	if err != nil {
		return nil, err
	}
	if len(answers.Verdicts) != len(questions) {
		return nil, fmt.Errorf("%d answers to %d questions", len(answers.Verdicts), len(questions))
	}
	var suspicious []operate.BlockadeView
	var keys []peer.BlockadeKey
	for i, b := range blockades {
		// its attempt had committed: undecided means that the decision was lost or forgotten
		if v := answers.Verdicts[i]; v != peer.Held && v != peer.Leaving {
			suspicious, keys = append(suspicious, b), append(keys, b.Key)
		}
	}
	if len(suspicious) == 0 {
		return nil, nil
	}
	k, err := v.store.KeyColumns(ctx, keys)
	if err != nil {
		return nil, err
	}
	rows, err := v.store.Pool.Query(ctx, stillBlockingSQL, k.Attempts, k.Holders, k.Fields, k.Targets)
	if err != nil {
		return nil, err
	}
	there, err := pgx.CollectRows(rows, pgx.RowTo[int])
	out := make([]operate.BlockadeView, len(there))
	for i, n := range there {
		out[i] = suspicious[n]
	}
	return out, err
}
