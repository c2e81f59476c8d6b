package shadow

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
)

// versionLock is the advisory lock that writers hold shared, and a switch of the version exclusively.
const versionLock int64 = 0x6462_6374_6c01

const (
	lockVersionSQL  = `SELECT pg_advisory_xact_lock($1)`
	shareVersionSQL = `SELECT pg_advisory_xact_lock_shared($1)`

	switchSQL = `
WITH before AS (
    SELECT version <> $1 OR digest <> $2 AS moves FROM dbcontroller.meta
)
UPDATE dbcontroller.meta SET version = $1, digest = $2, generation = generation + moves::int
FROM before RETURNING generation, moves`

	selectRunningSQL = `SELECT ` + runningColumns + ` FROM dbcontroller.meta m`

	// runningColumns are of a row m of meta.
	runningColumns = `m.version, m.generation, m.digest`

	// Kinds that the version lacks are not derived by it. An empty fingerprint makes a later version that has them again derive them.
	forgetDerivationsSQL = `UPDATE dbcontroller.derivation SET fingerprint = '' WHERE NOT kind_id = ANY ($1)`
)

var (
	// Work to send the new version to each deployment with ownees of resources here. It replaces the work of an earlier switch.
	upgradeWorkSQL = codes(`
WITH old AS (
    DELETE FROM dbcontroller.work WHERE action = {upgrade_owners}
)
INSERT INTO dbcontroller.work (action, shard, deployment_id)
SELECT DISTINCT {upgrade_owners}, deployment_id % $1, deployment_id FROM dbcontroller.ownee_entry`)

	// Work to derive the references of each kind whose fingerprint has changed and that has resources. It replaces the work of an
	// earlier switch.
	deriveWorkSQL = codes(`
WITH i AS (
    SELECT * FROM unnest($1::int[], $2::text[], $3::smallint[]) AS i (kind_id, fingerprint, shard)
), moved AS (
    INSERT INTO dbcontroller.derivation AS d (kind_id, fingerprint) SELECT kind_id, fingerprint FROM i
    ON CONFLICT (kind_id) DO UPDATE SET fingerprint = EXCLUDED.fingerprint WHERE d.fingerprint <> EXCLUDED.fingerprint
    RETURNING d.kind_id
), old AS (
    DELETE FROM dbcontroller.work WHERE action = {derive} AND kind_id IN (SELECT kind_id FROM moved)
)
INSERT INTO dbcontroller.work (action, shard, deployment_id, kind_id, cursor)
SELECT {derive}, i.shard, $4, i.kind_id, '' FROM moved JOIN i USING (kind_id)
WHERE EXISTS (SELECT FROM dbcontroller.shadow s WHERE s.kind_id = i.kind_id)`)
)

// Switch makes the model the one that validates writes, in the database and in this process. It waits for writes that hold the
// version lock; later writes that were validated with another version, in any process, fail at their commit and are retried. It
// creates work for the background: to derive the kinds whose references are derived differently, and to send the new version to the
// deployments of ownees.
func (s *Store) Switch(ctx context.Context, model *schema.Model) error {
	for {
		err := s.switchVersion(ctx, model)
		if errors.Is(err, errStale) {
			continue
		}
		if err != nil {
			return fmt.Errorf("switch to %s: %w", model.Descriptor.ServiceVersion, err)
		}
		return nil
	}
}

func (s *Store) switchVersion(ctx context.Context, model *schema.Model) error {
	v := &version{model: model}
	err := s.inTx(ctx, workFeed, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockVersionSQL, versionLock); err != nil {
			return err
		}
		var moved bool
		if err := tx.QueryRow(ctx, switchSQL, model.Descriptor.Version, model.Digest).Scan(&v.generation, &moved); err != nil || !moved {
			return err
		}
		_, err := tx.Exec(ctx, upgradeWorkSQL, schema.RingSize)
		return err
	})
	if err != nil {
		return err
	}
	s.names.model.Store(model)
	ids, fingerprints, shards, err := s.learn(ctx, v)
	if err != nil {
		return err
	}
	err = s.inTx(ctx, workFeed, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockVersionSQL, versionLock); err != nil {
			return err
		}
		var stored running
		if err := tx.QueryRow(ctx, selectRunningSQL).Scan(stored.into()...); err != nil {
			return err
		}
		if stored.generation != v.generation {
			return errStale // another process has switched in between
		}
		if _, err := tx.Exec(ctx, forgetDerivationsSQL, ids); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, deriveWorkSQL, ids, fingerprints, shards, s.selfID); err != nil {
			return err
		}
		kinds, shapes := v.shapes(ids)
		if _, err := tx.Exec(ctx, noteShapesSQL, kinds, shapes); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM dbcontroller.derivation WHERE dropped <> '{}')`).Scan(&v.keeps)
	})
	if err == nil {
		s.version.Store(v)
	}
	return err
}

// Refresh replaces the model by one of the same version made of more descriptors: it has the names of kinds in versions that were
// described meanwhile. A model of another version is ignored.
func (s *Store) Refresh(model *schema.Model) {
	for {
		v := s.version.Load()
		if v == nil || v.model.Digest != model.Digest {
			return
		}
		fresh := *v
		fresh.model = model
		if s.version.CompareAndSwap(v, &fresh) {
			s.names.model.Store(model)
			return
		}
	}
}

// running is the version stored in the database.
type running struct {
	version    string
	generation int64 // increases with each switch
	digest     string
}

func (r *running) into() []any { return []any{&r.version, &r.generation, &r.digest} }

// checkVersion fails with ErrAborted, and signals Superseded, when the version stored in the database is not the caller's: another name, or
// the same name with another digest. The caller's request is retried.
func (s *Store) checkVersion(v *version, stored running) error {
	switch {
	case stored.generation == v.generation:
		return nil
	case !v.model.Says(stored.version, stored.digest):
		select {
		case s.superseded <- struct{}{}:
		default:
		}
		return fmt.Errorf("%w: the deployment switched its version", ErrAborted)
	}
	s.adopt(v, stored.generation)
	return nil
}

// stillRuns fails with ErrAborted when the version or the epoch of a write is not the current one, so that it could not commit.
func (s *Store) stillRuns(ctx context.Context, sv *saving) error {
	var stored running
	var epoch *uuid.UUID
	err := s.pool.QueryRow(ctx, `SELECT `+runningColumns+`, `+epochNowSQL+` FROM dbcontroller.meta m`).Scan(append(stored.into(), &epoch)...)
	switch {
	case err != nil:
		return fmt.Errorf("read the version: %w", err)
	case epoch == nil || *epoch != sv.epoch:
		s.signalEpochChanged()
		return fmt.Errorf("%w: the database failed over or was restored", ErrAborted)
	}
	return s.checkVersion(sv.version, stored)
}

// Runs reports whether the version stored in the database is that of the model. If not, another process has switched the version.
func (s *Store) Runs(ctx context.Context, model *schema.Model) (bool, error) {
	var stored running
	if err := s.pool.QueryRow(ctx, selectRunningSQL).Scan(stored.into()...); err != nil {
		return false, fmt.Errorf("read the version: %w", err)
	}
	return model.Says(stored.version, stored.digest), nil
}

// Superseded receives after a transaction met another version than this process has switched to. Its capacity is one, since a signal
// says all that several would; it is never closed.
func (s *Store) Superseded() <-chan struct{} { return s.superseded }

// adopt takes over the generation of the database: another process has switched to another version and back.
func (s *Store) adopt(v *version, generation int64) {
	fresh := *v
	fresh.generation = generation
	s.version.CompareAndSwap(v, &fresh)
}

// shapes returns pairs of a kind's id and a shape of its names. ids are in the order of the model's KindNames.
func (v *version) shapes(ids []int32) (kinds []int32, shapes []string) {
	for i, name := range v.model.KindNames() {
		if kind, err := v.model.Kind(name); err == nil {
			for _, shape := range kind.Shapes() {
				kinds, shapes = append(kinds, ids[i]), append(shapes, shape)
			}
		}
	}
	return kinds, shapes
}

// learn stores and caches the ids of the version's kinds and field paths, so that no transaction needs a second connection to look
// one up (I22).
func (s *Store) learn(ctx context.Context, v *version) (ids []int32, fingerprints []string, shards []int16, err error) {
	for _, name := range v.model.KindNames() {
		kind, err := v.model.Kind(name)
		if err != nil {
			return nil, nil, nil, err
		}
		for i, id := range kind.Kinds() {
			n, err := s.names.kind(ctx, id)
			if err != nil {
				return nil, nil, nil, err
			}
			if i > 0 {
				continue
			}
			ids, fingerprints = append(ids, n), append(fingerprints, kind.Fingerprint())
			shards = append(shards, int16(schema.Shard(name)))
			if kind.Hides {
				v.hiding = append(v.hiding, n)
			}
		}
		for _, path := range kind.Paths() {
			if _, err := s.names.field(ctx, path); err != nil {
				return nil, nil, nil, err
			}
		}
	}
	return ids, fingerprints, shards, nil
}
