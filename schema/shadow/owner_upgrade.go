package shadow

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
)

const (
	// Keyset pagination: a batch does not scan the rows of earlier batches.
	selectOutdatedSQL = `
SELECT DISTINCT ownee_id FROM dbcontroller.owner_reference
WHERE deployment_id = $1 AND generation < $2 AND ownee_id > $3 ORDER BY ownee_id LIMIT $4`

	// Also rows that are not checked yet: an answer from before the switch does not apply to them any more.
	outdateSQL = `
UPDATE dbcontroller.owner_reference SET generation = $2
WHERE deployment_id = $1 AND generation < $2 AND ownee_id = ANY ($3)`

	countOutdatedSQL = `SELECT count(*) FROM dbcontroller.owner_reference WHERE deployment_id = $1 AND generation < $2`
)

// UpgradeOwners stores the version that an owners' deployment runs, and its renamed kinds (old name → new name), in the owner
// references to its resources. References with the same or a later generation stay, so messages may arrive in any order. It
// works for about two seconds and returns the number of references that are left; the caller repeats the call until it is 0.
func (s *Store) UpgradeOwners(ctx context.Context, from schema.DeploymentID, version string, generation int64, renamed map[string]string) (remaining int64, err error) {
	deployment, err := s.names.deployment(ctx, from)
	if err != nil {
		return 0, err
	}
	kinds := map[int32]pin{}
	for old, stored := range renamed {
		was, err := s.names.kind(ctx, schema.KindID{Service: from.Service, Kind: old})
		if err != nil {
			return 0, err
		}
		is, err := s.names.kind(ctx, schema.KindID{Service: from.Service, Kind: stored})
		if err != nil {
			return 0, err
		}
		kinds[was] = pin{kindID: is, kind: stored}
	}
	u := ownerUpgrade{deployment: deployment, version: version, generation: generation, kinds: kinds}
	after := int64(0)
	var failed error
	for began := time.Now(); time.Since(began) < dropTime; {
		rows, err := s.pool.Query(ctx, selectOutdatedSQL, deployment, generation, after, s.cfg.BatchSize)
		if err != nil {
			return 0, fmt.Errorf("read owner references: %w", err)
		}
		ownees, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil {
			return 0, fmt.Errorf("read owner references: %w", err)
		}
		if len(ownees) == 0 {
			break
		}
		failed = errors.Join(failed, s.changeEach(ctx, ownees, func(part []int64) error {
			return s.inTx(ctx, changeFeed, func(tx pgx.Tx) error { return s.upgradeSome(ctx, tx, u, part) })
		}))
		after = ownees[len(ownees)-1]
	}
	if failed != nil {
		return 0, fmt.Errorf("upgrade owner references: %w", failed)
	}
	if err := s.pool.QueryRow(ctx, countOutdatedSQL, deployment, generation).Scan(&remaining); err != nil {
		return 0, fmt.Errorf("count owner references: %w", err)
	}
	return remaining, nil
}

// ownerUpgrade is the content of one UpgradeOwnerReferences message.
type ownerUpgrade struct {
	deployment int32
	version    string
	generation int64
	kinds      map[int32]pin // by the id of the old kind
}

func (s *Store) upgradeSome(ctx context.Context, tx pgx.Tx, u ownerUpgrade, ownees []int64) error {
	err := s.changeOwners(ctx, tx, slices.Clone(ownees), ownerChange{version: u.version, generation: u.generation, pin: func(r ownerRow) (pin, bool) {
		if r.deploymentID != u.deployment || !r.checked || r.generation >= u.generation {
			return pin{}, false
		}
		p, ok := u.kinds[r.kindID]
		if !ok {
			p = pin{kindID: r.kindID}
		}
		p.uid = r.uid
		return p, true
	}})
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, outdateSQL, u.deployment, u.generation, ownees)
	return err
}

var selectUpgradesSQL = codes(`SELECT EXISTS (SELECT FROM dbcontroller.work WHERE seq = ANY ($1) AND action = {upgrade_owners})`)

// Upgrade is the version information that owner references to resources of this deployment store.
type Upgrade struct {
	Version    string
	Generation int64
	// Renamed maps the names of kinds in other versions to their names in this version.
	Renamed map[string]string
}

// Upgrade returns the version information to send for some pieces of work; nil when the work is done already.
func (s *Store) Upgrade(ctx context.Context, seqs []int64) (*Upgrade, error) {
	v, err := s.current()
	if err != nil {
		return nil, err
	}
	u := &Upgrade{Renamed: v.model.Renamed()}
	var open bool
	if err := s.pool.QueryRow(ctx, selectUpgradesSQL, seqs).Scan(&open); err != nil {
		return nil, fmt.Errorf("read upgrades: %w", err)
	}
	if !open {
		return nil, nil //nolint:nilnil // nothing to do
	}
	var stored running
	if err := s.pool.QueryRow(ctx, selectRunningSQL).Scan(stored.into()...); err != nil {
		return nil, fmt.Errorf("read the version: %w", err)
	}
	u.Version, u.Generation = stored.version, stored.generation
	return u, s.checkVersion(v, stored)
}

// Upgraded removes the pieces of work of a deployment that has received the upgrade.
func (s *Store) Upgraded(ctx context.Context, seqs []int64) error { return s.finish(ctx, seqs) }
