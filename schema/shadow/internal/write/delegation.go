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
)

const (
	// A name that more than one uid has a right of is left to the target's deployment.
	selectDelegatedSQL = `
SELECT i.n - 1, f.id, f.uid
FROM unnest($1::int[], $2::int[], $3::text[]) WITH ORDINALITY AS i (deployment_id, kind_id, name, n)
JOIN dbcontroller.foreign_target f ON f.deployment_id = i.deployment_id AND f.kind_id = i.kind_id AND f.name = i.name
WHERE ` + db.RightCountsSQL + ` AND ` + notEndingSQL

	// The time bounds what a process leaves that dies while it ends a right.
	notEndingSQL = `NOT EXISTS (SELECT FROM dbcontroller.ending e WHERE e.target_id = f.id AND e.until > now() AND e.until < now() + interval '1 min')`

	// Whoever ends a right waits for these locks. It would wait for ever if new ones were taken beside it.
	lockDelegatedSQL = `SELECT id FROM dbcontroller.foreign_target f WHERE id = ANY ($1) AND ` + notEndingSQL + ` ORDER BY id FOR SHARE`

	// After the locks, in a statement of its own: a right that ended before the lock is not seen.
	checkDelegatedSQL = `SELECT count(*) FROM dbcontroller.foreign_target f WHERE id = ANY ($1) AND ` + db.RightCountsSQL
)

// delegate takes the new references that need no question out of those that are to be established: acting references to
// targets that are delegated to this deployment. The right is checked again under the lock of its row.
func (s *Writer) delegate(ctx context.Context, q db.Querier, sv *saving) error {
	refs, err := s.delegable(ctx, sv)
	if err != nil || len(refs) == 0 {
		return err
	}
	deployments, kinds, names := make([]int32, len(refs)), make([]int32, len(refs)), make([]string, len(refs))
	for i, ref := range refs {
		if deployments[i], err = s.Names.Deployment(ctx, ref.Target.Deployment); err != nil {
			return err
		}
		kinds[i], names[i] = ref.kindID, ref.Target.Name
	}
	rows, err := q.Query(ctx, selectDelegatedSQL, deployments, kinds, names)
	if err != nil {
		return fmt.Errorf("read delegations: %w", err)
	}
	var n int
	var id int64
	var uid uuid.UUID
	_, err = pgx.ForEachRow(rows, []any{&n, &id, &uid}, func() error {
		refs[n].rights = append(refs[n].rights, delegatedTarget{id, uid})
		return nil
	})
	if err != nil {
		return fmt.Errorf("read delegations: %w", err)
	}
	sv.takeDelegated()
	return nil
}

// delegable returns the new references to other deployments that may be written under a right. The others are asked about: those
// that block, since that is another right; those of a kind that any version excludes; and those to which the person who writes may
// not refer by the grants known here. A derivation asks as well: the right to it is the deployment's.
func (s *Writer) delegable(ctx context.Context, sv *saving) ([]*newReference, error) {
	if !s.Cfg.Delegations {
		return nil, nil
	}
	var refs []*newReference
	var names []schema.FullName
	for _, all := range sv.foreign {
		for _, ref := range all {
			if ref.Behaviour != schema.Block && !ref.holder.derives && sv.version.Model.Delegable(ref.TargetKind) {
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
	var out []*newReference
	for i, ref := range refs {
		if allowed[i] {
			out = append(out, ref)
		}
	}
	return out, nil
}

type delegatedTarget struct {
	id  int64
	uid uuid.UUID
}

// takeDelegated moves the references with exactly one right.
func (sv *saving) takeDelegated() {
	for d, refs := range sv.foreign {
		left := slices.DeleteFunc(slices.Clone(refs), func(ref *newReference) bool {
			if len(ref.rights) != 1 {
				return false
			}
			ref.targetID, ref.uid = ref.rights[0].id, ref.rights[0].uid
			sv.delegated = append(sv.delegated, ref)
			return true
		})
		if sv.foreign[d] = left; len(left) == 0 {
			delete(sv.foreign, d)
		}
	}
}

// delegatedIDs returns the rows of the delegated targets.
func (sv *saving) delegatedIDs() []int64 {
	ids := make([]int64, len(sv.delegated))
	for i, ref := range sv.delegated {
		ids[i] = ref.targetID
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

var errRightEnded = errors.New("a delegation has ended")

// queueDelegated locks the rows of the delegated targets, and then checks the rights. The batch fails with ErrStale when one has
// ended or is about to end: the write is prepared again, and asks the target's deployment.
func (s *Writer) queueDelegated(b *pgx.Batch, sv *saving) {
	ids := sv.delegatedIDs()
	if len(ids) == 0 {
		return
	}
	b.Queue(lockDelegatedSQL, ids).Exec(wrote(len(ids)))
	b.Queue(checkDelegatedSQL, ids).QueryRow(func(row pgx.Row) error {
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
INSERT INTO dbcontroller.reference (holder_id, target_id, attempt, field_id, behaviour)
SELECT holder_id, target_id, $5, field_id, behaviour FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::smallint[]) AS i (holder_id, target_id, field_id, behaviour)`

func (s *Writer) insertDelegated(b *pgx.Batch, sv *saving) {
	if len(sv.delegated) == 0 {
		return
	}
	var holders, targets []int64
	var fields []int32
	var behaviours []int16
	for _, ref := range sv.delegated {
		holders, targets = append(holders, ref.holder.id), append(targets, ref.targetID)
		fields, behaviours = append(fields, ref.fieldID), append(behaviours, int16(ref.Behaviour))
	}
	b.Queue(insertDelegatedSQL, holders, targets, fields, behaviours, sv.attempt)
}

// DelegatedWrites is the number of references that this process has written under rights.
func (s *Writer) DelegatedWrites() int64 { return s.delegatedWrites.Load() }
