package shadow

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
)

// versionLock is the advisory lock that writers share and a switch of the version takes alone.
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

	// Kinds that the version does not have: when one of a later version has them again, they are derived anew, since
	// nothing is derived of them until then.
	forgetDerivationsSQL = `UPDATE dbcontroller.derivation SET fingerprint = '' WHERE NOT kind_id = ANY ($1)`
)

var (
	// Whoever has resources that something here owns is told the new version. (A message of an earlier switch would say
	// less.)
	upgradeWorkSQL = codes(`
WITH old AS (
    DELETE FROM dbcontroller.work WHERE action = {upgrade_owners}
)
INSERT INTO dbcontroller.work (action, shard, deployment_id)
SELECT DISTINCT {upgrade_owners}, deployment_id % $1, deployment_id FROM dbcontroller.ownee_entry`)

	// Kinds whose references are derived otherwise than before, and that have resources. A pass that is under way for
	// an earlier version ends with it.
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

// Switch makes the model the one that writes are validated with. Writes validated with another version, in whichever
// process, fail at their commit and are tried again: they hold the version's lock shared until they commit. What has to be done because of it in the background becomes work: references
// of kinds that are derived otherwise now, and the version in owner references to resources of this deployment.
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
		var now running
		if err := tx.QueryRow(ctx, selectRunningSQL).Scan(now.into()...); err != nil {
			return err
		}
		if now.generation != v.generation {
			return errStale // another process has switched in between: what is to be derived is its affair
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

// Refresh takes a model of the version that runs already, made of more descriptors: it knows what other versions, which
// were described meanwhile, call the same kinds.
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

// running is the version that the database runs.
type running struct {
	version    string
	generation int64 // moves with each switch
	digest     string
}

func (r *running) into() []any { return []any{&r.version, &r.generation, &r.digest} }

// inWordsOf fails when the database runs another version than the one that the caller goes by, or one of the same name that
// says something else: whoever asked asks again.
func (s *Store) inWordsOf(v *version, now running) error {
	switch {
	case now.generation == v.generation:
		return nil
	case !v.model.Says(now.version, now.digest):
		select {
		case s.outrun <- struct{}{}:
		default:
		}
		return fmt.Errorf("%w: the deployment switched its version", ErrAborted)
	}
	s.adopt(v, now.generation)
	return nil
}

// stillRuns fails when no transaction could commit by the version, or in the epoch, any more.
func (s *Store) stillRuns(ctx context.Context, sv *saving) error {
	var now running
	var epoch *uuid.UUID
	err := s.pool.QueryRow(ctx, `SELECT `+runningColumns+`, `+epochNowSQL+` FROM dbcontroller.meta m`).Scan(append(now.into(), &epoch)...)
	switch {
	case err != nil:
		return fmt.Errorf("read the version: %w", err)
	case epoch == nil || *epoch != sv.epoch:
		s.epochMoved()
		return fmt.Errorf("%w: a database was restored or failed over", ErrAborted)
	}
	return s.inWordsOf(sv.version, now)
}

// Runs reports whether the database runs what a model says. If not, another process has switched the version.
func (s *Store) Runs(ctx context.Context, model *schema.Model) (bool, error) {
	var now running
	if err := s.pool.QueryRow(ctx, selectRunningSQL).Scan(now.into()...); err != nil {
		return false, fmt.Errorf("read the version: %w", err)
	}
	return model.Says(now.version, now.digest), nil
}

// Outrun tells of transactions that met another version than this process switched to. Capacity one; never closed.
func (s *Store) Outrun() <-chan struct{} { return s.outrun }

// adopt takes the generation of the database over: another process has switched away from the version of this one and
// back to it.
func (s *Store) adopt(v *version, generation int64) {
	fresh := *v
	fresh.generation = generation
	s.version.CompareAndSwap(v, &fresh)
}

// shapes are those of the names of each kind, whose numbers are in the order of the model.
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

// learn stores the names that transactions will need, so that none of them has to ask for a second connection (I22).
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
