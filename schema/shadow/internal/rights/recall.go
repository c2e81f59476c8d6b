package rights

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/rows"
)

const selectProxySQL = `
SELECT i.n - 1, f.id FROM unnest($1::uuid[], $2::uuid[]) WITH ORDINALITY AS i (uid, attempt, n)
JOIN dbcontroller.foreign_target f ON f.uid = i.uid AND f.deployment_id = $3 AND f.block_attempt = i.attempt`

var (
	// The references that a proxy stands for: those of ACTIVE holders first, which block.
	selectUnderSQL = underSQL("<>") + " UNION ALL " + underSQL("=")

	endBlockRightSQL = `
UPDATE dbcontroller.foreign_target f SET block_epoch = NULL, block_own = NULL, turn = nextval('dbcontroller.object_id') WHERE id = $1`

	removeProxySQL = `
UPDATE dbcontroller.foreign_target f SET block_attempt = NULL, block_epoch = NULL, block_own = NULL, turn = nextval('dbcontroller.object_id') WHERE id = $1`

	// Another proxy may have taken the place of the proxy that was looked at before the lock.
	isProxySQL = `SELECT EXISTS (SELECT FROM dbcontroller.foreign_target WHERE id = $1 AND block_attempt = $2)`
)

func underSQL(deleting string) string {
	return db.Codes(`
(SELECT h.uid, h.name, r.field_id, h.state = {deleting} FROM dbcontroller.reference r JOIN dbcontroller.shadow h ON h.id = r.holder_id
WHERE r.target_id = $1 AND r.delegated AND r.behaviour = {block} AND NOT r.dangling AND h.state ` + deleting + ` {deleting} LIMIT $2)`)
}

// Recall answers for the proxies that a deployment asks about. A right ends before its references are looked
// for, so that a verdict gone is final: every reference committed under the right is seen, and none follows.
func (s *Rights) Recall(ctx context.Context, from schema.DeploymentID, asked []peer.Recall) (*peer.Recalled, error) {
	questions := make([]peer.Question, len(asked))
	for i, a := range asked {
		questions[i] = a.Question
	}
	answers, err := s.attempts.Answer(ctx, from, questions)
	if err != nil {
		return nil, err
	}
	out := &peer.Recalled{Answers: make([]peer.RecallAnswer, len(asked)), Epoch: answers.Epoch}
	for i, v := range answers.Verdicts {
		out.Answers[i].Verdict = v
	}
	proxies, err := s.proxies(ctx, from, questions)
	if err != nil {
		return nil, err
	}
	for n, a := range asked {
		end := s.close
		switch a.Mode {
		case peer.RecallIfUnused:
			end = s.endUnused
		case peer.RecallCloses:
		default:
			continue
		}
		out.Answers[n] = peer.RecallAnswer{Verdict: peer.Undecided}
		if out.Answers[n].Closed, err = end(ctx, from, a.Key.TargetUID, answers.Epoch); err != nil {
			return nil, fmt.Errorf("end the rights to a target: %w", err)
		}
		delete(proxies, n)
	}
	for n, id := range proxies {
		if out.Answers[n], err = s.recall(ctx, id, asked[n], answers.Epoch); err != nil {
			return nil, fmt.Errorf("recall a right: %w", err)
		}
	}
	return out, nil
}

// proxies returns the rows of the proxies that exist, by question.
func (s *Rights) proxies(ctx context.Context, of schema.DeploymentID,
	questions []peer.Question,
) (map[int]int64, error) {
	deployment, err := s.Names.Deployment(ctx, of)
	if err != nil {
		return nil, err
	}
	uids, attempts := make([]uuid.UUID, len(questions)), make([]uuid.UUID, len(questions))
	for i, q := range questions {
		uids[i], attempts[i] = q.Key.TargetUID, q.Key.Attempt
	}
	rows, err := s.Pool.Query(ctx, selectProxySQL, uids, attempts, deployment)
	if err != nil {
		return nil, fmt.Errorf("read rights: %w", err)
	}
	out := map[int]int64{}
	var n int
	var id int64
	_, err = pgx.ForEachRow(rows, []any{&n, &id}, func() error { out[n] = id; return nil })
	return out, err
}

// recall answers for one proxy. One whose row stays locked is undecided.
func (s *Rights) recall(ctx context.Context, id int64, r peer.Recall, epoch uuid.UUID) (peer.RecallAnswer, error) {
	answer := peer.RecallAnswer{Verdict: peer.Held}
	if err := s.under(ctx, s.Pool, id, &answer); err != nil {
		return answer, err
	}
	if r.Mode == peer.RecallLooks || r.Mode == peer.RecallIfFree && len(answer.Holders) > 0 {
		return answer, nil
	}
	err := s.alone(ctx, id, func(tx pgx.Tx) error {
		if now, err := s.gate.EpochOf(ctx, tx); err != nil || now != epoch {
			return errors.Join(err, s.gate.RecoveringSelf())
		}
		answer = peer.RecallAnswer{Verdict: peer.Held}
		var same bool
		if err := tx.QueryRow(ctx, isProxySQL, id, r.Key.Attempt).Scan(&same); err != nil {
			return err
		}
		if !same { // the next question finds which one stands
			answer.Verdict = peer.Undecided
			return nil
		}
		if err := s.under(ctx, tx, id, &answer); err != nil {
			return err
		}
		switch {
		case len(answer.Holders) == 0:
			answer.Verdict = peer.GoneVerdict
			return s.remove(ctx, tx, id, r.Key.Attempt)
		case r.Mode == peer.RecallEnds:
			_, err := tx.Exec(ctx, endBlockRightSQL, id)
			return err
		}
		return nil
	})
	if db.HasCode(err, db.CodeLockNotAvailable) {
		return peer.RecallAnswer{Verdict: peer.Undecided}, nil
	}
	return answer, err
}

// alone runs fn under the lock of a row, which no write shares: all writes that shared it have ended. The
// tables that they wrote are known then.
func (s *Rights) alone(ctx context.Context, id int64, fn func(tx pgx.Tx) error) error {
	ids := []int64{id}
	if _, err := s.Pool.Exec(ctx, db.BeginEndingSQL, ids); err != nil {
		return err
	}
	return s.InTx(ctx, db.WorkFeed, func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		b.Queue(db.EndingLockTimeoutSQL)
		b.Queue(db.LockRightsSQL, ids)
		b.Queue(db.DoneEndingSQL, ids)
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return err
		}
		if err := s.rows.Refresh(ctx, tx, false); err != nil {
			return err
		}
		return fn(tx)
	})
}

// under adds the references that a proxy stands for to an answer: stored ones, and rows of tables. Those of
// holders in DELETING come last: they do not refuse a delete, and the answer need not name all of them.
func (s *Rights) under(ctx context.Context, q db.Querier, id int64, answer *peer.RecallAnswer) error {
	referrers, err := s.referring(ctx, q, []int64{id}, peer.MaxRecalled+1)
	if err != nil {
		return err
	}
	under, err := q.Query(ctx, selectUnderSQL, id, peer.MaxRecalled+1)
	if err != nil {
		return err
	}
	type row struct {
		UID     uuid.UUID
		Name    string
		Field   int32
		Leaving bool
	}
	found, err := pgx.CollectRows(under, pgx.RowToStructByPos[row])
	if err != nil {
		return err
	}
	var leaving []peer.RecalledHolder
	for _, r := range found {
		path, err := s.Names.FieldOf(ctx, q, r.Field)
		if err != nil {
			return err
		}
		if h := (peer.RecalledHolder{UID: r.UID, Name: r.Name, Path: path, Leaving: r.Leaving}); h.Leaving {
			leaving = append(leaving, h)
		} else {
			answer.Holders = append(answer.Holders, h)
		}
	}
	for _, r := range referrers[id] {
		answer.Holders = append(answer.Holders, peer.RecalledHolder{UID: r.UID, Name: r.Name, Path: r.Path})
	}
	answer.More = len(answer.Holders) > peer.MaxRecalled
	answer.Holders = append(answer.Holders, leaving...)
	answer.Holders = answer.Holders[:min(len(answer.Holders), peer.MaxRecalled)]
	return nil
}

// referring returns rows of tables that block targets, at most limit of each by each reference.
func (s *Rights) referring(ctx context.Context, q db.Querier, ids []int64, limit int) (map[int64][]rows.Holder, error) {
	if !s.rows.Refer() || len(ids) == 0 {
		return nil, nil
	}
	targets, err := s.rows.Targets(ctx, q, ids)
	if err != nil {
		return nil, err
	}
	referrers, err := s.rows.Holders(ctx, q, true, targets, limit)
	if err != nil {
		return nil, err
	}
	out := map[int64][]rows.Holder{}
	for _, r := range referrers {
		id := targets[r.Target].ID
		out[id] = append(out[id], r)
	}
	return out, nil
}

// remove ends a right and releases the proxy, under the lock of its row. The release is repeated until it is
// answered, because the answer to a recall may be lost.
func (s *Rights) remove(ctx context.Context, tx pgx.Tx, id int64, attempt peer.AttemptID) error {
	field, err := s.Names.Field(ctx, peer.RightPath)
	if err != nil {
		return err
	}
	b := &pgx.Batch{}
	b.Queue(releaseProxySQL, []int64{id}, attempt, field)
	b.Queue(removeProxySQL, id)
	return tx.SendBatch(ctx, b).Close()
}
