package owner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/cascade"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
	"github.com/db-controller/db-controller/schema/shadow/internal/prepare"
)

const (
	// Keyset pagination: a batch does not scan the rows of earlier batches.
	selectOutdatedSQL = `
SELECT DISTINCT ownee_id FROM dbcontroller.owner_reference
WHERE ownee_id > $1 AND deployment_id = $3 AND generation < $4 ORDER BY ownee_id LIMIT $2`

	// Also rows that are not checked yet: an answer from before the switch does not apply to them any more.
	outdateSQL = `
UPDATE dbcontroller.owner_reference SET generation = $2
WHERE deployment_id = $1 AND generation < $2 AND ownee_id = ANY ($3)`

	countOutdatedSQL = `SELECT count(*) FROM dbcontroller.owner_reference WHERE deployment_id = $1 AND generation < $2`
)

// UpgradeOwners stores the version that an owners' deployment runs, and its renamed kinds (old name → new
// name), in the owner references to its resources. References with the same or a later generation stay, so
// messages may arrive in any order. It works for about two seconds and returns the number of references that
// are left; the caller repeats the call until it is 0.
func (s *Owners) UpgradeOwners(ctx context.Context, from schema.DeploymentID, version string, generation int64,
	renamed map[string]string,
) (remaining int64, err error) {
	deployment, err := s.Names.Deployment(ctx, from)
	if err != nil {
		return 0, err
	}
	kinds, err := s.renamed(ctx, from.Service, renamed)
	if err != nil {
		return 0, err
	}
	u := ownerUpgrade{deployment: deployment, version: version, generation: generation, kinds: kinds}
	run := func(part []int64) error {
		return s.InTx(ctx, db.ChangeFeed, func(tx pgx.Tx) error { return s.upgradeSome(ctx, tx, u, part) })
	}
	var failed error
	more, err := s.pass(ctx, passKey{deployment, strconv.FormatInt(generation, 10)}, selectOutdatedSQL,
		[]any{deployment, generation}, run, func(ownee int64, err error) {
			failed = fmt.Errorf("change the owners of resource %d: %w", ownee, err)
		})
	if err != nil {
		return 0, fmt.Errorf("upgrade owner references: %w", err)
	}
	if err := s.Pool.QueryRow(ctx, countOutdatedSQL, deployment, generation).Scan(&remaining); err != nil {
		return 0, fmt.Errorf("count owner references: %w", err)
	}
	if !more && remaining > 0 { // failed now, or earlier in the pass
		return 0, errors.Join(fmt.Errorf("upgrade owner references: %d are left", remaining), failed)
	}
	return remaining, nil
}

// renamed returns the pins of renamed kinds by the number of the old kind. A kind without a number is in no
// owner reference, and gets none.
func (s *Owners) renamed(ctx context.Context, service string, names map[string]string) (map[int32]cascade.Pin, error) {
	if err := s.Names.Load(ctx); err != nil {
		return nil, err
	}
	kinds := map[int32]cascade.Pin{}
	for old, stored := range names {
		from, to := schema.KindID{Service: service, Kind: old}, schema.KindID{Service: service, Kind: stored}
		if s.Names.Unknown(nil, []schema.KindID{from}) > 0 {
			continue
		}
		if err := s.gate.CheckNamedKind(ctx, to); err != nil {
			return nil, err
		}
		was, err := s.Names.Kind(ctx, from)
		if err != nil {
			return nil, err
		}
		is, err := s.Names.Kind(ctx, to)
		if err != nil {
			return nil, err
		}
		kinds[was] = cascade.Pin{KindID: is, Kind: stored}
	}
	return kinds, nil
}

// ownerUpgrade is the content of one UpgradeOwnerReferences message.
type ownerUpgrade struct {
	deployment int32
	version    string
	generation int64
	kinds      map[int32]cascade.Pin // by the id of the old kind
}

func (s *Owners) upgradeSome(ctx context.Context, tx pgx.Tx, u ownerUpgrade, ownees []int64) error {
	err := s.cascade.ChangeOwners(ctx, tx, slices.Clone(ownees), cascade.OwnerChange{
		Version:    u.version,
		Generation: u.generation, Pin: func(r prepare.OwnerRow) (cascade.Pin, bool) {
			if r.DeploymentID != u.deployment || !r.Checked || r.Generation >= u.generation {
				return cascade.Pin{}, false
			}
			p, ok := u.kinds[r.KindID]
			if !ok {
				p = cascade.Pin{KindID: r.KindID}
			}
			p.UID = r.UID
			return p, true
		},
	})
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, outdateSQL, u.deployment, u.generation, ownees)
	return err
}

var selectUpgradesSQL = db.Codes(
	`SELECT EXISTS (SELECT FROM dbcontroller.work WHERE seq = ANY ($1) AND action = {upgrade_owners})`)

// Upgrade returns the version information to send for some pieces of work; nil when the work is done already.
func (s *Owners) Upgrade(ctx context.Context, seqs []int64) (*peer.Upgrade, error) {
	v, err := s.Current()
	if err != nil {
		return nil, err
	}
	u := &peer.Upgrade{Renamed: v.Model.Renamed()}
	var open bool
	if err := s.Pool.QueryRow(ctx, selectUpgradesSQL, seqs).Scan(&open); err != nil {
		return nil, fmt.Errorf("read upgrades: %w", err)
	}
	if !open {
		return nil, nil //nolint:nilnil // nothing to do
	}
	var stored gate.Running
	if err := s.Pool.QueryRow(ctx, gate.SelectRunningSQL).Scan(stored.Into()...); err != nil {
		return nil, fmt.Errorf("read the version: %w", err)
	}
	u.Version, u.Generation = stored.Version, stored.Generation
	return u, s.gate.CheckVersion(v, stored)
}

// Upgraded removes the pieces of work of a deployment that has received the upgrade.
func (s *Owners) Upgraded(ctx context.Context, seqs []int64) error { return s.Finish(ctx, seqs) }
