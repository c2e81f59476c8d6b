package write

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/prepare"
)

// rightFinder finds the rights under which references to other deployments are written without asking. They
// are locked and checked in the transaction of the write (rights_locks.go).
type rightFinder struct {
	*db.DB
	known knownRights
}

// newRightFinder returns a finder for one database.
func newRightFinder(d *db.DB) *rightFinder { return &rightFinder{DB: d} }

// take takes the new references that need no question out of the references that are to be established: this
// deployment has the right to their targets that covers their behaviour. The right is checked again under the
// lock of its row.
func (f *rightFinder) take(ctx context.Context, q db.Querier, sv *prepare.Saving) error {
	refs, err := f.delegable(ctx, sv)
	if err != nil {
		return err
	}
	if err := f.look(ctx, q, f.known.find(refs)); err != nil {
		return fmt.Errorf("read delegations: %w", err)
	}
	takeDelegated(sv)
	return nil
}

// delegable returns the new references to other deployments that may be written under a right. The other
// references are asked about: references of a kind that any version excludes, and references to which the
// writing person has no right by the grants known here. A derivation asks as well: the right to it is the
// deployment's.
func (f *rightFinder) delegable(ctx context.Context, sv *prepare.Saving) ([]*prepare.NewReference, error) {
	if !f.Cfg.Delegations {
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
	may := peer.PersonFrom(ctx).Refer
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

// look reads the rights of references.
func (f *rightFinder) look(ctx context.Context, q db.Querier, refs []*prepare.NewReference) (err error) {
	if len(refs) == 0 {
		return nil
	}
	deployments, kinds, names, blocks := make([]int32, len(refs)), make([]int32, len(refs)), make([]string, len(refs)),
		make([]bool, len(refs))
	for i, ref := range refs {
		if deployments[i], err = f.Names.Deployment(ctx, ref.Target.Deployment); err != nil {
			return err
		}
		kinds[i], names[i], blocks[i] = ref.KindID, ref.Target.Name, ref.Behaviour == schema.Block
	}
	rows, err := q.Query(ctx, selectDelegatedSQL, deployments, kinds, names, blocks)
	if err != nil {
		return err
	}
	var n int
	var id int64
	var uid uuid.UUID
	_, err = pgx.ForEachRow(rows, []any{&n, &id, &uid}, func() error {
		refs[n].Rights = append(refs[n].Rights, prepare.DelegatedTarget{ID: id, UID: uid})
		return nil
	})
	if err == nil {
		f.known.add(refs)
	}
	return err
}

// takeDelegated moves the references with exactly one right.
func takeDelegated(sv *prepare.Saving) {
	for d, refs := range sv.Foreign {
		left := slices.DeleteFunc(slices.Clone(refs), func(ref *prepare.NewReference) bool {
			if len(ref.Rights) != 1 {
				return false
			}
			ref.TargetID, ref.UID, ref.Delegated = ref.Rights[0].ID, ref.Rights[0].UID, true
			sv.Delegated = append(sv.Delegated, ref)
			return true
		})
		if sv.Foreign[d] = left; len(left) == 0 {
			delete(sv.Foreign, d)
		}
	}
}
