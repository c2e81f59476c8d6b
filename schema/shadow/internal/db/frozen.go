package db

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema/peer"
)

// FreezeExpiredSQL is a condition on a row f of freeze: its time has passed, or is impossibly late because
// the clock went back.
const FreezeExpiredSQL = `(f.expires_at <= now() OR f.expires_at > now() + interval '10 min')`

const selectFrozenSQL = `SELECT DISTINCT target_id FROM dbcontroller.frozen WHERE target_id = ANY ($1)`

// Frozen returns which of some locked resources are members of an atomic deletion that is undecided, or that
// is committed and has not marked them yet. Only resources whose column frozen is set, as the statement that
// locked them read it, have to be asked about: a freeze sets it under FOR UPDATE, and this statement sees the
// rows that such a freeze has committed before the lock.
func Frozen(ctx context.Context, tx pgx.Tx, ids []int64) (map[int64]bool, error) {
	if len(ids) == 0 {
		return nil, nil //nolint:nilnil // none
	}
	rows, err := tx.Query(ctx, selectFrozenSQL, ids)
	if err != nil {
		return nil, fmt.Errorf("read frozen resources: %w", err)
	}
	frozen := map[int64]bool{}
	var id int64
	if _, err = pgx.ForEachRow(rows, []any{&id}, func() error { frozen[id] = true; return nil }); err != nil {
		return nil, fmt.Errorf("read frozen resources: %w", err)
	}
	return frozen, nil
}

// errFrozen is temporary: the deletion is decided soon, or has marked the resource.
var errFrozen = errors.New("an atomic deletion that reaches the resource is not decided yet")

// RefuseFrozen returns the error of a write of a frozen resource.
func RefuseFrozen(name string) error {
	return fmt.Errorf("%s: %w: %w", name, peer.ErrAborted, errFrozen)
}
