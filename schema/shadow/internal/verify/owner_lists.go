package verify

import (
	"context"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow/internal/owner"
)

// ownerLists reports, and with Repair repairs, differences between lists of owners and owner references.
func (v *verifying) ownerLists(ctx context.Context, lists []*owner.ListDifference) (err error) {
	var repaired map[int64]bool
	if v.how.Repair && len(lists) > 0 {
		if repaired, err = owner.RepairLists(ctx, v.store.DB, lists); err != nil {
			return err
		}
	}
	for _, l := range lists {
		found := func(kind DifferenceKind, owner schema.FullName) error {
			return v.found(Difference{
				Kind: kind, Holder: v.store.FullName(l.Row.Name), Target: owner, Path: "@owner",
				Repaired: repaired[l.Row.ID],
			})
		}
		for _, o := range l.NotStored {
			if err := found(OwnerNotStored, o.Owner); err != nil {
				return err
			}
		}
		for _, owner := range l.NotListed {
			if err := found(OwnerNotListed, owner); err != nil {
				return err
			}
		}
	}
	return nil
}
