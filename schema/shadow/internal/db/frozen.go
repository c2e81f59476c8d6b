package db

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema/peer"
)

// FreezeExpiredSQL is a condition on a row f of freeze: its time has passed, or is impossibly late because
// the clock went back. A scheduled deletion has no end in time.
const FreezeExpiredSQL = `(f.expires_at <= now() OR f.expires_at > now() + interval '10 min' AND f.expires_at < 'infinity')`

// ScheduledDeletion stands in the place of the number of references of a confirm: the participant has to hide
// the members of a scheduled deletion.
const ScheduledDeletion = -1

// PurgeDueSQL is a condition on a row f of freeze that is not committed: this deployment coordinates a
// scheduled deletion whose time has come.
const PurgeDueSQL = `f.purge_at <= now() AND f.participants IS NOT NULL AND (f.try_at IS NULL OR f.try_at <= now())`

const selectFrozenSQL = `
SELECT m.target_id, bool_or(f.purge_at IS NOT NULL AND NOT f.committed)
FROM dbcontroller.frozen m LEFT JOIN dbcontroller.freeze f USING (deletion) WHERE m.target_id = ANY ($1) GROUP BY m.target_id`

// Freeze is how a locked resource is frozen.
type Freeze int

// A resource is not frozen; is a member of an atomic deletion that is undecided, or that is committed and has
// not marked it yet; or is a member of a scheduled one, perhaps for days.
const (
	NotFrozen Freeze = iota
	UndecidedFreeze
	ScheduledFreeze
)

// Refuse returns the error of a write of a frozen resource, which is temporary unless the deletion is
// scheduled.
func (f Freeze) Refuse(name string) error {
	if f == ScheduledFreeze {
		return fmt.Errorf("%s %w", name, peer.ErrDeleted)
	}
	return fmt.Errorf("%s: %w: %w", name, peer.ErrAborted, errFrozen)
}

// Reason is the refusal of a new reference to a frozen resource.
func (f Freeze) Reason() peer.Reason {
	if f == ScheduledFreeze {
		return peer.TargetDeleted
	}
	return peer.TargetClosing
}

// Frozen returns how some locked resources are frozen; others are not. Only resources whose column frozen is
// set, as the statement that locked them read it, have to be asked about: a freeze sets it under FOR UPDATE,
// and this statement sees the rows that such a freeze has committed before the lock.
func Frozen(ctx context.Context, tx pgx.Tx, ids []int64) (map[int64]Freeze, error) {
	if len(ids) == 0 {
		return nil, nil //nolint:nilnil // none
	}
	rows, err := tx.Query(ctx, selectFrozenSQL, ids)
	if err != nil {
		return nil, fmt.Errorf("read frozen resources: %w", err)
	}
	frozen := map[int64]Freeze{}
	var id int64
	var scheduled *bool
	_, err = pgx.ForEachRow(rows, []any{&id, &scheduled}, func() error {
		if frozen[id] = UndecidedFreeze; scheduled != nil && *scheduled {
			frozen[id] = ScheduledFreeze
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read frozen resources: %w", err)
	}
	return frozen, nil
}

// errFrozen is temporary: the deletion is decided soon, or has marked the resource.
var errFrozen = errors.New("an atomic deletion that reaches the resource is not decided yet")
