package write

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/pins"
	"github.com/db-controller/db-controller/schema/shadow/internal/prepare"
)

const (
	// A name that more than one uid has a right of is left to the target's deployment.
	selectDelegatedSQL = `
WITH i AS (
    SELECT * FROM unnest($1::int[], $2::int[], $3::text[], $4::boolean[]) WITH ORDINALITY AS i (deployment_id, kind_id, name, blocks, n)
), f AS (
    SELECT i.n, f.id, f.uid FROM i
    JOIN dbcontroller.foreign_target f ON f.deployment_id = i.deployment_id AND f.kind_id = i.kind_id AND f.name = i.name
    WHERE NOT i.blocks AND ` + db.RightCountsSQL + `
    UNION ALL
    SELECT i.n, f.id, f.uid FROM i
    JOIN dbcontroller.foreign_target f ON f.deployment_id = i.deployment_id AND f.kind_id = i.kind_id AND f.name = i.name
    WHERE i.blocks AND ` + db.BlockRightCountsSQL + `
)
SELECT f.n - 1, f.id, f.uid FROM f WHERE ` + db.NotEndingSQL

	// A transaction that ends a right waits for these locks. It would wait for ever if new ones were taken beside it.
	lockDelegatedSQL = `SELECT id FROM dbcontroller.foreign_target f WHERE id = ANY ($1) AND (id = ANY ($2) OR ` + db.NotEndingSQL + `) ORDER BY id FOR SHARE`

	// After the locks, in a statement of its own: a right that ended before the lock is not seen.
	checkDelegatedSQL = `
SELECT count(*) FROM unnest($1::bigint[], $2::boolean[], $3::boolean[]) AS i (id, blocks, pinned) JOIN dbcontroller.foreign_target f USING (id)
WHERE i.pinned OR CASE WHEN i.blocks THEN ` + db.BlockRightCountsSQL + ` ELSE ` + db.RightCountsSQL + ` END`
)

// delegate takes the new references that need no question out of those that are to be established: those to targets to which this
// deployment has the right that covers their behaviour. The right is checked again under the lock of its row.
func (s *Writer) delegate(ctx context.Context, q db.Querier, sv *prepare.Saving) error {
	if err := pins.Find(ctx, s.DB, q, sv); err != nil {
		return err
	}
	takeDelegated(sv)
	refs, err := s.delegable(ctx, sv)
	if err != nil || len(refs) == 0 {
		return err
	}
	deployments, kinds, names, blocks := make([]int32, len(refs)), make([]int32, len(refs)), make([]string, len(refs)), make([]bool, len(refs))
	for i, ref := range refs {
		if deployments[i], err = s.Names.Deployment(ctx, ref.Target.Deployment); err != nil {
			return err
		}
		kinds[i], names[i], blocks[i] = ref.KindID, ref.Target.Name, ref.Behaviour == schema.Block
	}
	rows, err := q.Query(ctx, selectDelegatedSQL, deployments, kinds, names, blocks)
	if err != nil {
		return fmt.Errorf("read delegations: %w", err)
	}
	var n int
	var id int64
	var uid uuid.UUID
	_, err = pgx.ForEachRow(rows, []any{&n, &id, &uid}, func() error {
		refs[n].Rights = append(refs[n].Rights, prepare.DelegatedTarget{ID: id, UID: uid})
		return nil
	})
	if err != nil {
		return fmt.Errorf("read delegations: %w", err)
	}
	takeDelegated(sv)
	return nil
}

// delegable returns the new references to other deployments that may be written under a right. The others are asked about: those of a
// kind that any version excludes, and those to which the person who writes may not refer by the grants known here. A derivation asks as well: the right to it is the deployment's.
func (s *Writer) delegable(ctx context.Context, sv *prepare.Saving) ([]*prepare.NewReference, error) {
	if !s.Cfg.Delegations {
		return nil, nil
	}
	var refs []*prepare.NewReference
	var names []schema.FullName
	for _, all := range sv.Foreign {
		for _, ref := range all {
			if !ref.Holder.Derives && sv.Version.Model.Delegable(ref.TargetKind) {
				refs, names = append(refs, ref), append(names, ref.Target)
			}
		}
	}
	may := peer.ReferrerFrom(ctx)
	if may == nil || len(refs) == 0 {
		return refs, nil
	}
	allowed, err := may(ctx, names)
	if err != nil {
		return nil, err
	}
	var out []*prepare.NewReference
	for i, ref := range refs {
		if allowed[i] {
			out = append(out, ref)
		}
	}
	return out, nil
}

// takeDelegated moves the references with exactly one right.
func takeDelegated(sv *prepare.Saving) {
	for d, refs := range sv.Foreign {
		left := slices.DeleteFunc(slices.Clone(refs), func(ref *prepare.NewReference) bool {
			if len(ref.Rights) != 1 {
				return false
			}
			ref.TargetID, ref.UID = ref.Rights[0].ID, ref.Rights[0].UID
			sv.Delegated = append(sv.Delegated, ref)
			return true
		})
		if sv.Foreign[d] = left; len(left) == 0 {
			delete(sv.Foreign, d)
		}
	}
}

var errRightEnded = errors.New("a delegation has ended")

// queueDelegated locks the rows of the delegated targets, and then checks the rights. The batch fails with ErrStale when one has
// ended or is about to end: the write is prepared again, and asks the target's deployment.
func (s *Writer) queueDelegated(b *pgx.Batch, sv *prepare.Saving) {
	if len(sv.Delegated) == 0 {
		return
	}
	ids, blocks, pinned := make([]int64, len(sv.Delegated)), make([]bool, len(sv.Delegated)), make([]bool, len(sv.Delegated))
	var waitedFor []int64
	for i, ref := range sv.Delegated {
		if ids[i], blocks[i], pinned[i] = ref.TargetID, ref.Behaviour == schema.Block, ref.Pinned; ref.Pinned {
			waitedFor = append(waitedFor, ref.TargetID)
		}
	}
	distinct := slices.Compact(slices.Sorted(slices.Values(ids)))
	b.Queue(lockDelegatedSQL, distinct, waitedFor).Exec(Wrote(len(distinct)))
	b.Queue(checkDelegatedSQL, ids, blocks, pinned).QueryRow(func(row pgx.Row) error {
		var count int
		if err := row.Scan(&count); err != nil || count == len(ids) {
			return err
		}
		return errors.Join(db.ErrStale, errRightEnded)
	})
}

// insertDelegatedSQL stores references whose rows are locked. The attempt identifies the reference, as that of any other; nothing
// was established under it, and no decision on it is stored.
const insertDelegatedSQL = `
INSERT INTO dbcontroller.reference (holder_id, target_id, attempt, field_id, behaviour, delegated)
SELECT holder_id, target_id, $5, field_id, behaviour, true FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::smallint[]) AS i (holder_id, target_id, field_id, behaviour)`

func (s *Writer) insertDelegated(b *pgx.Batch, sv *prepare.Saving) {
	if len(sv.Delegated) == 0 {
		return
	}
	var holders, targets []int64
	var fields []int32
	var behaviours []int16
	for _, ref := range sv.Delegated {
		holders, targets = append(holders, ref.Holder.ID), append(targets, ref.TargetID)
		fields, behaviours = append(fields, ref.FieldID), append(behaviours, int16(ref.Behaviour))
	}
	b.Queue(insertDelegatedSQL, holders, targets, fields, behaviours, sv.Attempt)
}

// DelegatedWrites is the number of references that this process has written under rights.
func (s *Writer) DelegatedWrites() int64 { return s.delegatedWrites.Load() }
