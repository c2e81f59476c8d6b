package admin

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
	"github.com/db-controller/db-controller/schema/shadow/internal/read"
)

const (
	switchSQL = `
WITH before AS (
    SELECT version <> $1 OR digest <> $2 AS moves FROM dbcontroller.meta
)
UPDATE dbcontroller.meta SET version = $1, digest = $2, generation = generation + moves::int
FROM before RETURNING generation, moves`

	// The last columns: kept resources may exist, and the second transaction of the switch, which notes the
	// derivations of the version, has committed.
	adoptSQL = `
WITH i AS (
    SELECT kind_id, fingerprint, ARRAY(SELECT shape FROM unnest($3::int[], $4::text[]) AS s (kind_id, shape) WHERE s.kind_id = i.kind_id ORDER BY shape) AS shapes
    FROM unnest($1::int[], $2::text[]) AS i (kind_id, fingerprint)
)
SELECT ` + gate.RunningColumns + `, EXISTS (SELECT FROM dbcontroller.derivation WHERE dropped <> '{}'), NOT EXISTS (
    SELECT FROM i FULL JOIN dbcontroller.derivation d USING (kind_id)
    WHERE d.fingerprint IS DISTINCT FROM COALESCE(i.fingerprint, '') OR d.shapes IS DISTINCT FROM COALESCE(i.shapes, '{}')
) FROM dbcontroller.meta m`

	// A kind that the version lacks, or that has none in it, has none from now on. Resources that are in
	// DELETING keep theirs.
	noteDeletionsSQL = `
UPDATE dbcontroller.kind k SET finalizers = o.finalizers, until_removed = o.until_removed
FROM (
    SELECT o.id, string_to_array(NULLIF(i.names, ''), ' ') AS finalizers, string_to_array(NULLIF(i.fields, ''), ' ')::int[] AS until_removed
    FROM dbcontroller.kind o LEFT JOIN unnest($1::int[], $2::text[], $3::text[]) AS i (kind_id, names, fields) ON i.kind_id = o.id
) AS o
WHERE k.id = o.id AND (k.finalizers, k.until_removed) IS DISTINCT FROM (o.finalizers, o.until_removed)`

	// Kinds that the version lacks are not derived by it. An empty fingerprint makes a later version that has
	// them again derive them.
	forgetDerivationsSQL = `UPDATE dbcontroller.derivation SET fingerprint = '' WHERE NOT kind_id = ANY ($1)`
)

var (
	// Work to send the new version to each deployment with ownees of resources here. It replaces the work of
	// an earlier switch.
	upgradeWorkSQL = db.Codes(`
WITH old AS (
    DELETE FROM dbcontroller.work WHERE action = {upgrade_owners}
)
INSERT INTO dbcontroller.work (action, shard, deployment_id)
SELECT DISTINCT {upgrade_owners}, deployment_id % $1, deployment_id FROM dbcontroller.ownee_entry`)

	// Work to derive the references of each kind whose fingerprint has changed and that has resources. It
	// replaces the work of an earlier switch.
	deriveWorkSQL = db.Codes(`
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

// Switch makes the model the one that validates writes, in the database and in this process. It waits for
// writes that hold the version lock; later writes that were validated with another version, in any process,
// fail at their commit and are retried. It creates work for the background: to derive the kinds whose
// references are derived differently, and to send the new version to the deployments of ownees.
func (s *Admin) Switch(ctx context.Context, model *schema.Model) error {
	for {
		err := s.switchVersion(ctx, model)
		if errors.Is(err, db.ErrStale) {
			continue
		}
		if err != nil {
			return fmt.Errorf("switch to %s: %w", model.Descriptor.ServiceVersion, err)
		}
		return nil
	}
}

func (s *Admin) switchVersion(ctx context.Context, model *schema.Model) error {
	v := &db.Version{Model: model}
	kinds, finalizers, fields, err := s.deletionsOf(ctx, model)
	if err != nil {
		return err
	}
	err = s.InTx(ctx, db.WorkFeed, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, gate.LockVersionSQL, gate.VersionLock); err != nil {
			return err
		}
		var moved bool
		if err := tx.QueryRow(ctx, switchSQL, model.Descriptor.Version, model.Digest).
			Scan(&v.Generation, &moved); err != nil {
			return err
		}
		// With the version, and not after it: no resource is created under the version and removed without
		// its finalizers.
		if _, err := tx.Exec(ctx, noteDeletionsSQL, kinds, finalizers, fields); err != nil || !moved {
			return err
		}
		_, err := tx.Exec(ctx, upgradeWorkSQL, schema.RingSize)
		return err
	})
	if err != nil {
		return err
	}
	s.Names.Model.Store(model)
	ids, fingerprints, shards, err := s.learn(ctx, v)
	if err != nil {
		return err
	}
	err = s.InTx(ctx, db.WorkFeed, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, gate.LockVersionSQL, gate.VersionLock); err != nil {
			return err
		}
		var stored gate.Running
		if err := tx.QueryRow(ctx, gate.SelectRunningSQL).Scan(stored.Into()...); err != nil {
			return err
		}
		if stored.Generation != v.Generation {
			return db.ErrStale // another process has switched in between
		}
		if _, err := tx.Exec(ctx, forgetDerivationsSQL, ids); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, deriveWorkSQL, ids, fingerprints, shards, s.SelfID); err != nil {
			return err
		}
		kinds, shapes := v.Shapes(ids)
		if _, err := tx.Exec(ctx, read.NoteShapesSQL, kinds, shapes); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM dbcontroller.derivation WHERE dropped <> '{}')`).
			Scan(&v.Keeps)
	})
	if err == nil {
		s.Version.Store(v)
	}
	return err
}

// deletionsOf returns the kinds of a model whose resources wait in DELETING, their finalizers, and the
// numbers of the fields whose references they keep. The kinds are found by their oldest names, since the
// running version may not know the new ones.
func (s *Admin) deletionsOf(ctx context.Context, model *schema.Model) (kinds []int32, finalizers, fields []string,
	err error,
) {
	for _, name := range model.KindNames() {
		kind, err := model.Kind(name)
		if err != nil {
			return nil, nil, nil, err
		}
		names, paths := kind.FinalizerNames(), kind.UntilRemoved()
		if len(names)+len(paths) == 0 {
			continue
		}
		id, err := s.Names.Kind(ctx, model.Root(kind.ID))
		if err != nil {
			return nil, nil, nil, err
		}
		numbers := make([]string, len(paths))
		for i, path := range paths {
			field, err := s.Names.Field(ctx, path)
			if err != nil {
				return nil, nil, nil, err
			}
			numbers[i] = strconv.Itoa(int(field))
		}
		kinds, finalizers, fields = append(kinds, id), append(finalizers, strings.Join(names, " ")),
			append(fields, strings.Join(numbers, " "))
	}
	return kinds, finalizers, fields, nil
}

// Adopt makes the model, of the version that another process has switched the deployment to, validate the
// writes of this process. It fails with *UnavailableError when the database has another version, or its
// switch is not complete: resources that this process writes would not be derived anew if the switch is never
// completed, because the deployment goes back to the version before.
func (s *Admin) Adopt(ctx context.Context, model *schema.Model) error {
	v := &db.Version{Model: model}
	var stored gate.Running
	if err := s.Pool.QueryRow(ctx, gate.SelectRunningSQL).Scan(stored.Into()...); err != nil {
		return fmt.Errorf("adopt %s: %w", model.Descriptor.ServiceVersion, err)
	}
	if err := s.runs(stored, model); err != nil {
		return err
	}
	s.Names.Model.Store(model)
	ids, fingerprints, _, err := s.learn(ctx, v)
	if err != nil {
		return err
	}
	var complete bool
	kinds, shapes := v.Shapes(ids)
	if err := s.Pool.QueryRow(ctx, adoptSQL, ids, fingerprints, kinds, shapes).
		Scan(append(stored.Into(), &v.Keeps, &complete)...); err != nil {
		return fmt.Errorf("adopt %s: %w", model.Descriptor.ServiceVersion, err)
	}
	if err := s.runs(stored, model); err != nil {
		return err
	}
	if !complete {
		return &peer.UnavailableError{
			Deployments: []schema.DeploymentID{s.Self},
			Err:         fmt.Errorf("its switch to version %s is not complete", stored.Version),
		}
	}
	v.Generation = stored.Generation
	s.Version.Store(v)
	return nil
}

// runs fails when the database has another version than the model's.
func (s *Admin) runs(stored gate.Running, model *schema.Model) error {
	if model.Says(stored.Version, stored.Digest) {
		return nil
	}
	return &peer.UnavailableError{
		Deployments: []schema.DeploymentID{s.Self},
		Err:         fmt.Errorf("it runs version %s, not %s", stored.Version, model.Descriptor.Version),
	}
}

// Refresh replaces the model by one of the same version made of more descriptors: it has the names of kinds
// in versions that were described meanwhile. A model of another version is ignored.
func (s *Admin) Refresh(model *schema.Model) {
	for {
		v := s.Version.Load()
		if v == nil || v.Model.Digest != model.Digest {
			return
		}
		fresh := *v
		fresh.Model = model
		if s.Version.CompareAndSwap(v, &fresh) {
			s.Names.Model.Store(model)
			return
		}
	}
}

// learn stores and caches the ids of the version's kinds and field paths, so that no transaction needs a
// second connection to look one up (I22).
func (s *Admin) learn(ctx context.Context, v *db.Version) (ids []int32, fingerprints []string, shards []int16,
	err error,
) {
	if err := s.storeNames(ctx, v.Model); err != nil {
		return nil, nil, nil, err
	}
	for _, name := range v.Model.KindNames() {
		kind, err := v.Model.Kind(name)
		if err != nil {
			return nil, nil, nil, err
		}
		for i, id := range kind.Kinds() {
			n, err := s.Names.Kind(ctx, id)
			if err != nil {
				return nil, nil, nil, err
			}
			if i > 0 {
				continue
			}
			ids, fingerprints = append(ids, n), append(fingerprints, kind.Fingerprint())
			shards = append(shards, int16(schema.Shard(name)))
			v.Tables = v.Tables || kind.Table != nil
			if kind.Hides {
				v.Hiding = append(v.Hiding, n)
			}
		}
		for _, path := range kind.Paths() {
			if _, err := s.Names.Field(ctx, path); err != nil {
				return nil, nil, nil, err
			}
		}
	}
	return ids, fingerprints, shards, nil
}

// storeNames stores the names of all kinds and fields of a version.
func (s *Admin) storeNames(ctx context.Context, m *schema.Model) error {
	var kinds []schema.KindID
	var paths []string
	for _, name := range m.KindNames() {
		kind, err := m.Kind(name)
		if err != nil {
			return err
		}
		kinds, paths = append(kinds, kind.Kinds()...), append(paths, kind.Paths()...)
	}
	return s.Names.Store(ctx, kinds, paths)
}
