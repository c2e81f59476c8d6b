package write

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

const (
	selectStillHeldSQL = `
SELECT i.n - 1
FROM unnest($1::uuid[], $2::uuid[], $3::int[], $4::uuid[]) WITH ORDINALITY AS i (attempt, holder_uid, field_id, target_uid, n)
JOIN dbcontroller.shadow s ON s.uid = i.holder_uid
JOIN dbcontroller.foreign_target f ON f.uid = i.target_uid AND f.deployment_id = $5
JOIN dbcontroller.reference r ON r.holder_id = s.id AND r.field_id = i.field_id AND r.target_id = f.id AND r.attempt = i.attempt`
)

// Answer returns a verdict on each blockade that the deployment of its target asks about: held while the committed
// reference exists, gone when the attempt is decided and the reference does not exist, undecided otherwise. An undecided
// attempt whose blockade has expired by the target's clock is first decided ABORTED.
func (s *Writer) Answer(ctx context.Context, target schema.DeploymentID, questions []peer.Question) (*peer.Answers, error) {
	selfEpoch := s.gate.PresentEpoch()
	deployment, err := s.Names.Deployment(ctx, target)
	if err != nil {
		return nil, err
	}
	// The caller has blockades of this deployment, so that this deployment has to watch its deletions.
	if err := s.gate.NoteInterest(ctx, deployment); err != nil {
		return nil, err
	}
	keys := make([]peer.BlockadeKey, len(questions))
	for i, q := range questions {
		keys[i] = q.Key
	}
	k, err := s.KeyColumns(ctx, keys)
	if err != nil {
		return nil, err
	}
	verdicts, epoch := make([]peer.Verdict, len(questions)), uuid.Nil
	held := func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, selectStillHeldSQL, k.Attempts, k.Holders, k.Fields, k.Targets, deployment)
		if err != nil {
			return err
		}
		var n int
		_, err = pgx.ForEachRow(rows, []any{&n}, func() error { verdicts[n] = peer.Held; return nil })
		return err
	}
	err = s.InTx(ctx, db.NoFeed, func(tx pgx.Tx) error {
		clear(verdicts)
		epoch, err = s.gate.EpochOf(ctx, tx)
		if err == nil && epoch != selfEpoch { // the looked-up ids may mean other rows: "not found" would not mean gone
			err = s.gate.RecoveringSelf()
		}
		if err != nil {
			return err
		}
		if err := held(tx); err != nil {
			return err
		}
		var expired []peer.AttemptID
		for i, q := range questions {
			if verdicts[i] == peer.Undecided && q.Expired {
				expired = append(expired, q.Key.Attempt)
			}
		}
		// Waits for a concurrent commit of the same attempt; the next statements then see its rows.
		if _, err := tx.Exec(ctx, decideAbortedSQL, expired); err != nil {
			return err
		}
		// Decisions before references: the references of an attempt that commits between the two statements are seen.
		decided, err := decisions(ctx, tx, k.Attempts)
		if err != nil {
			return err
		}
		if err := held(tx); err != nil {
			return err
		}
		for i := range verdicts {
			if verdicts[i] == peer.Undecided && decided[k.Attempts[i]] {
				verdicts[i] = peer.GoneVerdict
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("resolve attempts: %w", err)
	}
	return &peer.Answers{Verdicts: verdicts, Epoch: epoch}, nil
}

func decisions(ctx context.Context, tx pgx.Tx, attempts []peer.AttemptID) (map[peer.AttemptID]bool, error) {
	rows, err := tx.Query(ctx, selectDecisionsSQL, attempts)
	if err != nil {
		return nil, err
	}
	decided := map[peer.AttemptID]bool{}
	var a peer.AttemptID
	var committed bool
	_, err = pgx.ForEachRow(rows, []any{&a, &committed}, func() error { decided[a] = true; return nil })
	return decided, err
}
