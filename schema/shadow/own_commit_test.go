package shadow_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/shadow"
)

// A transaction tells its watches the id under which its rows are written, and the epoch in which it runs;
// not when its commit does not wait for the disk, and none before it has written.
func TestATransactionKnowsWhetherItsRowsAreOnDisk_I23(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	store, pool := b.Stores[b.ID(aWest)], b.Pools[b.ID(aWest)]
	errRolledBack := errors.New("rolled back")
	for commit, tells := range map[string]bool{"on": true, "local": true, "off": false} {
		err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			exec := func(sql string) {
				_, err := tx.Exec(t.Context(), sql)
				require.NoError(t, err)
			}
			own := func() (of []string) {
				rows, err := tx.Query(t.Context(), shadow.OwnSQL)
				require.NoError(t, err)
				var xid, epoch *string
				_, err = pgx.ForEachRow(rows, []any{&xid, &epoch}, func() error {
					if xid != nil {
						of = append(of, *xid, *epoch)
					}
					return nil
				})
				require.NoError(t, err)
				return of
			}
			exec("SET LOCAL synchronous_commit = " + commit)
			require.Empty(t, own())
			exec(
				"INSERT INTO dbcontroller.work (action, shard, deployment_id) SELECT 1, 0, id FROM dbcontroller.deployment LIMIT 1")
			var xid string
			require.NoError(t, tx.QueryRow(t.Context(), "SELECT max(xid)::text FROM dbcontroller.work").Scan(&xid))
			if tells {
				require.Equal(t, []string{xid, store.Gate.PresentEpoch().String()}, own())
			} else {
				require.Empty(t, own())
			}
			return errRolledBack
		})
		require.ErrorIs(t, err, errRolledBack)
	}
}
