package rights

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/attempt"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/prepare"
	"github.com/db-controller/db-controller/schema/shadow/internal/rows"
)

// Asked is a right that rows of attached tables are about to need.
type Asked struct {
	Target schema.FullName
	Kind   schema.KindID
	Block  bool   // the right to block; else the one to act
	By     string // the asker, before a row here uses the right; empty: rows are there that need it
}

// toUse is the time for which rights that an application has asked for are kept, before rows use them; rows
// that are there use theirs at once.
const toUse = 15 * time.Second

// The row of a target is there before the question, because an answer must not make it: a deletion that comes
// between the two finds it. It is kept for a while, so that the application can use the rights that it has
// asked for.
const keepTargetsSQL = `
WITH i AS (
    SELECT * FROM unnest(@uids::uuid[], @kinds::int[], @names::text[], @by::text[]) WITH ORDINALITY AS i (uid, kind_id, name, asked_by, n)
), kept AS (
    INSERT INTO dbcontroller.foreign_target (uid, deployment_id, kind_id, name, kept_until, asked_by)
    SELECT DISTINCT ON (uid) uid, @deployment::int, kind_id, name, now() + @kept::interval, NULLIF(asked_by, '') FROM i ORDER BY uid, asked_by DESC
    ON CONFLICT ON CONSTRAINT foreign_target_uid DO UPDATE SET kept_until = greatest(foreign_target.kept_until, EXCLUDED.kept_until),
        asked_by = CASE WHEN foreign_target.uid = ANY (@blocking) AND (EXCLUDED.asked_by IS NULL OR foreign_target.block_attempt IS NULL)
            THEN EXCLUDED.asked_by ELSE foreign_target.asked_by END -- a question about the right to act changes nothing about the right to block
    RETURNING id, uid, turn, kind_id, name, asked_by IS NOT NULL AS unused
)
SELECT kept.id, kept.uid, kept.turn, kept.kind_id, kept.name, kept.unused FROM i JOIN kept USING (uid) ORDER BY i.n`

// One uid has the right, and no process is about to end it, as in the trigger. A right that is about to end
// is asked for anew.
const selectHeldSQL = `
SELECT i.n - 1 FROM unnest($1::int[], $2::int[], $3::text[], $4::boolean[]) WITH ORDINALITY AS i (deployment_id, kind_id, name, block, n)
CROSS JOIN LATERAL (
    SELECT f.id FROM dbcontroller.foreign_target f
    WHERE NOT i.block AND f.deployment_id = i.deployment_id AND f.kind_id = i.kind_id AND f.name = i.name AND ` + db.RightCountsSQL + ` AND ` + db.NotEndingSQL + `
    UNION ALL
    SELECT f.id FROM dbcontroller.foreign_target f
    WHERE i.block AND f.deployment_id = i.deployment_id AND f.kind_id = i.kind_id AND f.name = i.name AND ` + db.BlockRightCountsSQL + ` AND ` + db.NotEndingSQL + `
    OFFSET 0
) AS f
GROUP BY i.n HAVING count(*) = 1`

// held reports of each right whether this deployment has it.
func (s *Rights) held(ctx context.Context, asked []Asked) ([]bool, error) {
	deployments, kinds, names, block := make([]int32, len(asked)), make([]int32, len(asked)),
		make([]string, len(asked)), make([]bool, len(asked))
	for i, a := range asked {
		var err error
		if deployments[i], err = s.Names.Deployment(ctx, a.Target.Deployment); err != nil {
			return nil, err
		}
		if kinds[i], err = s.Names.Kind(ctx, a.Kind); err != nil {
			return nil, err
		}
		names[i], block[i] = a.Target.Name, a.Block
	}
	found, err := s.Pool.Query(ctx, selectHeldSQL, deployments, kinds, names, block)
	if err != nil {
		return nil, fmt.Errorf("read rights: %w", err)
	}
	there, err := pgx.CollectRows(found, pgx.RowTo[int])
	if err != nil {
		return nil, fmt.Errorf("read rights: %w", err)
	}
	held := make([]bool, len(asked))
	for _, i := range there {
		held[i] = true
	}
	return held, nil
}

// acquireAsked asks a deployment for rights to refer to targets that nothing here may refer to yet. It
// returns the reasons of refused rights, by name; other errors are of all. A right to act is there when its
// confirm is answered. Rights are not returned for as long as they are kept.
func (s *Rights) acquireAsked(ctx context.Context, at schema.DeploymentID, asked []Asked,
	kept time.Duration,
) (map[string]error, error) {
	refused := map[string]error{}
	id := s.preparer.NewAttempt()
	uids, err := s.find(ctx, at, id, asked)
	var named *peer.RefusedError
	if errors.As(err, &named) {
		for _, r := range named.Refusals {
			refused[r.Target.Name] = named
		}
		asked = slices.DeleteFunc(slices.Clone(asked), func(a Asked) bool { return refused[a.Target.Name] != nil })
		if len(asked) == 0 || len(refused) == 0 {
			return refused, nil
		}
		id = s.preparer.NewAttempt()
		uids, err = s.find(ctx, at, id, asked)
	}
	if err != nil {
		return refused, err
	}
	deployment, err := s.Names.Deployment(ctx, at)
	if err != nil {
		return refused, err
	}
	err = s.acquireAll(ctx, at, deployment, asked, uids, kept)
	return refused, errors.Join(err, attempt.AbandonAt(ctx, s.attempts, id, deployment))
}

// find returns the uids of targets. The tentative references that it establishes for that keep them there,
// and are never committed: the row of this database that stands for such a target is not known yet.
func (s *Rights) find(ctx context.Context, at schema.DeploymentID, id peer.AttemptID,
	asked []Asked,
) ([]uuid.UUID, error) {
	v, err := s.Current()
	if err != nil {
		return nil, err
	}
	if err := attempt.NoteTargets(ctx, s.attempts,
		&prepare.Saving{Foreign: map[schema.DeploymentID][]*prepare.NewReference{at: nil}}); err != nil {
		return nil, err
	}
	refs := make([]peer.EstablishReference, len(asked))
	for i, a := range asked {
		// which refuses no delete, also when this deployment is away before the release
		kind, behaviour := v.Model.Canonical(a.Kind).Kind, schema.Unset
		if a.Block {
			behaviour = schema.Block
		}
		refs[i] = peer.EstablishReference{
			HolderUID: uuid.Must(uuid.NewV7()), HolderKind: kind, HolderName: a.Target.Name, Path: peer.RightPath,
			TargetKind: kind, TargetName: a.Target.Name, Behaviour: behaviour,
		}
	}
	answer, err := s.Peers.Establish(ctx, at, id, refs)
	if err != nil {
		return nil, err
	}
	if len(answer.UIDs) != len(asked) {
		return nil, fmt.Errorf("the answer of %s has %d uids for %d names", at, len(answer.UIDs), len(asked))
	}
	return answer.UIDs, nil
}

// acquireAll asks for the rights to block and for the acting rights, by an attempt each.
func (s *Rights) acquireAll(ctx context.Context, at schema.DeploymentID, deployment int32, asked []Asked,
	uids []uuid.UUID, kept time.Duration,
) error {
	requests, err := s.keep(ctx, deployment, asked, uids, kept)
	if err != nil {
		return fmt.Errorf("keep targets: %w", err)
	}
	blocking, unused, acting := map[int64]rightRequest{}, map[int64]rightRequest{}, map[int64]rightRequest{}
	for i, w := range requests {
		switch {
		case asked[i].Block && w.Unused:
			unused[w.ID] = w
		case asked[i].Block:
			blocking[w.ID] = w
		default:
			acting[w.ID] = w
		}
	}
	if len(blocking) > 0 {
		err = s.acquire(ctx, at, slices.Collect(maps.Values(blocking)), schema.Block, false)
	}
	if len(unused) > 0 { // an attempt of their own: it is not confirmed before their use
		err = errors.Join(err, s.acquire(ctx, at, slices.Collect(maps.Values(unused)), schema.Block, true))
	}
	if len(acting) > 0 {
		err = errors.Join(err, s.acquire(ctx, at, slices.Collect(maps.Values(acting)), schema.Unset, false))
	}
	return err
}

func (s *Rights) keep(ctx context.Context, deployment int32, asked []Asked, uids []uuid.UUID,
	kept time.Duration,
) (requests []rightRequest, err error) {
	kinds, names, by, blocking := make([]int32, len(asked)), make([]string, len(asked)), make([]string, len(asked)),
		[]uuid.UUID{}
	for i, a := range asked {
		if kinds[i], err = s.Names.Kind(ctx, a.Kind); err != nil {
			return nil, err
		}
		if names[i], by[i] = a.Target.Name, a.By; a.Block {
			blocking = append(blocking, uids[i])
		}
	}
	err = s.InTx(ctx, db.NoFeed, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, db.EndingLockTimeoutSQL); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, keepTargetsSQL, db.Named{
			"uids": uids, "kinds": kinds, "names": names, "by": by,
			"blocking": blocking, "deployment": deployment, "kept": kept,
		})
		if err != nil {
			return err
		}
		requests, err = pgx.CollectRows(rows, pgx.RowToStructByPos[rightRequest])
		return err
	})
	if err == nil && len(requests) != len(asked) {
		err = fmt.Errorf("%d rows for %d targets", len(requests), len(asked))
	}
	return requests, err
}

// Claim acquires the rights to all targets at a deployment that rows of tables name, and whose rights this
// deployment has lost with their epochs. A value whose right is refused is lacking.
func (s *Rights) Claim(ctx context.Context, at schema.DeploymentID) error {
	if err := s.askAgain(ctx, at); err != nil {
		return err
	}
	return s.rows.Walk(ctx, at, func(r rows.Reference, page []rows.Value) error {
		lacking, err := s.withoutRight(ctx, r, page)
		if err != nil || len(lacking) == 0 {
			return err
		}
		asked := make([]Asked, len(lacking))
		for i, v := range lacking {
			asked[i] = askedOf(r, v)
		}
		refused, err := s.acquireAsked(ctx, at, asked, 0)
		left := slices.DeleteFunc(lacking, func(v rows.Value) bool { return refused[v.Target.Name] == nil })
		return errors.Join(err, s.Lack(ctx, r, left))
	})
}
