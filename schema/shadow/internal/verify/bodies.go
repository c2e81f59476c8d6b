package verify

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/owner"
	"github.com/db-controller/db-controller/schema/shadow/internal/prepare"
	"github.com/db-controller/db-controller/schema/shadow/internal/read"
)

// bodiesPage is the number of bodies in memory at a time; large ones are fewer.
const bodiesPage = 100

const lastShadowSQL = `SELECT COALESCE(max(id), 0) FROM dbcontroller.shadow`

var (
	comparedBodiesSQL = db.Codes(prepare.ShadowColumns + `
FROM dbcontroller.shadow s JOIN dbcontroller.resource r ON r.id = s.id
WHERE s.id > $1 AND ($2 = 0 OR s.id <= $2) AND s.state = {active} ORDER BY s.id LIMIT $3`)

	// Resources that wait to be derived again, or whose derivation failed: status and explain report these.
	selectUnderivedSQL = db.Codes(`
SELECT s.id FROM dbcontroller.shadow s
WHERE s.id = ANY ($1) AND EXISTS (
    SELECT FROM dbcontroller.work w WHERE w.action = {derive} AND w.kind_id = s.kind_id AND (w.target_id IS NULL OR w.target_id = s.id)
)`)

	deriveAnewSQL = db.Codes(`
INSERT INTO dbcontroller.work (action, shard, deployment_id, kind_id, target_id, reason)
SELECT {derive}, s.shard, $2, s.kind_id, s.id, $3 FROM dbcontroller.shadow s
WHERE s.id = ANY ($1) AND NOT EXISTS (SELECT FROM dbcontroller.work w WHERE w.action = {derive} AND w.target_id = s.id)
ORDER BY s.id`)
)

// bodies compares the references that the current version derives from bodies with the stored ones. With
// how.Bodies it reads that many resources, starting where the last comparison of this process ended.
func (v *verifying) bodies(ctx context.Context) error {
	if v.how.Bodies <= 0 {
		_, err := v.bodiesFrom(ctx, 0, 0)
		return err
	}
	s := v.store
	from := s.sampled.Load()
	if from == 0 { // a random start: processes may not live long enough to reach all bodies from the first
		var last int64
		if err := s.Pool.QueryRow(ctx, lastShadowSQL).Scan(&last); err != nil {
			return err
		}
		from = rand.Int64N(last + 1)
	}
	last, err := v.bodiesFrom(ctx, from, 0)
	if err == nil && from > 0 && v.out.Bodies < int64(v.how.Bodies) {
		last, err = v.bodiesFrom(ctx, 0, from) // wrap around, up to the start
	}
	s.sampled.Store(last)
	return err
}

// bodiesFrom compares the bodies with ids in (after, to], without an upper limit when to is 0. It returns the
// last id compared.
func (v *verifying) bodiesFrom(ctx context.Context, after, to int64) (int64, error) {
	for size := bodiesPage; ; {
		limit := size
		if v.how.Bodies > 0 {
			limit = min(limit, v.how.Bodies-int(v.out.Bodies))
		}
		page, err := v.readBodies(ctx, after, to, limit)
		if err != nil {
			return after, err
		}
		if err := v.compareBodies(ctx, page); err != nil {
			return after, err
		}
		size = prepare.PageSize(size, len(page.rows), page.cut, bodiesPage)
		if len(page.rows) > 0 {
			after = page.rows[len(page.rows)-1].ID
		}
		v.out.Bodies += int64(len(page.rows))
		if err := v.how.Progress(ctx, v.out); err != nil || len(page.rows) < limit && !page.cut ||
			int(v.out.Bodies) == v.how.Bodies {
			return after, err
		}
	}
}

// bodyPage is read in one snapshot, in which bodies and stored references belong together.
type bodyPage struct {
	model     *schema.Model
	rows      []*prepare.ShadowRow
	cut       bool // there are further ones, but these are large
	held      map[int64][]read.HeldReference
	differing map[int64][]Difference
	// ownerLists are the lists that differ from their rows.
	ownerLists []*owner.ListDifference
}

func (v *verifying) readBodies(ctx context.Context, after, to int64, limit int) (*bodyPage, error) {
	s := v.store
	current, err := s.Current()
	if err != nil {
		return nil, err
	}
	page := &bodyPage{model: current.Model, differing: map[int64][]Difference{}}
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, s.Pool, options, func(tx pgx.Tx) error {
		if err := s.gate.CheckRuns(ctx, tx, current); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, comparedBodiesSQL, after, to, limit)
		if err != nil {
			return err
		}
		if page.rows, page.cut, err = prepare.CollectShadows(rows); err != nil {
			return err
		}
		ids := make([]int64, len(page.rows))
		for i, row := range page.rows {
			ids[i] = row.ID
		}
		if page.held, err = read.Held(ctx, tx, ids); err != nil {
			return err
		}
		for _, row := range page.rows {
			d, err := v.bodyDifferences(ctx, tx, current.Model, row, page.held[row.ID])
			if err != nil {
				return err
			}
			if len(d) > 0 {
				page.differing[row.ID] = d
			}
		}
		if page.ownerLists, err = owner.CompareLists(ctx, s.DB, tx, page.rows); err != nil {
			return err
		}
		return page.leaveUnderived(ctx, tx)
	})
	if err != nil {
		return nil, fmt.Errorf("compare bodies: %w", err)
	}
	return page, nil
}

func (p *bodyPage) ids() []int64 {
	ids := make([]int64, 0, len(p.differing))
	for id := range p.differing {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (p *bodyPage) leaveUnderived(ctx context.Context, tx pgx.Tx) error {
	if len(p.differing) == 0 {
		return nil
	}
	rows, err := tx.Query(ctx, selectUnderivedSQL, p.ids())
	if err != nil {
		return err
	}
	underived, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	for _, id := range underived {
		delete(p.differing, id)
	}
	return err
}

// bodyDifferences compares one resource. A resource of a kind that the current version lacks has no
// differences: it keeps its stored references until a version with the kind derives them.
func (v *verifying) bodyDifferences(ctx context.Context, tx pgx.Tx, model *schema.Model, row *prepare.ShadowRow,
	held []read.HeldReference,
) ([]Difference, error) {
	s := v.store
	id, err := s.Names.KindOf(ctx, tx, row.KindID)
	if err != nil {
		return nil, err
	}
	kind, err := model.Kind(id.Kind)
	if err != nil {
		return nil, nil
	}
	found, err := kind.References(s.Self, row.Name, row.Body)
	if err != nil {
		return []Difference{{
			Kind: BodyUnreadable, Holder: s.FullName(row.Name), Target: s.FullName(row.Name),
			Path: err.Error(),
		}}, nil
	}
	type key struct {
		path   string
		target schema.FullName
	}
	stored := map[key]schema.Behaviour{}
	for _, h := range held {
		if h.Name == nil {
			continue // a missing local target is reported by the references pass
		}
		path, err := s.Names.FieldOf(ctx, tx, h.FieldID)
		if err != nil {
			return nil, err
		}
		target := s.FullName(*h.Name)
		if h.Deployment != nil {
			if target.Deployment, err = s.Names.DeploymentOf(ctx, tx, *h.Deployment); err != nil {
				return nil, err
			}
		}
		stored[key{path, target}] = h.Behaviour
	}
	var out []Difference
	differs := func(kind DifferenceKind, k key, b schema.Behaviour) {
		if v.concerns(k.target.Deployment) {
			out = append(out, Difference{
				Kind: kind, Holder: s.FullName(row.Name), Target: k.target, Path: k.path,
				Behaviour: b,
			})
		}
	}
	for _, f := range found {
		k := key{f.Path, f.Target}
		b, ok := stored[k]
		delete(stored, k)
		// an ALLOW_DANGLING reference is not stored when its target does not exist
		if ok && b != f.Behaviour || !ok && f.Behaviour != schema.AllowDangling {
			differs(ReferenceNotStored, k, f.Behaviour)
		}
	}
	for k, b := range stored {
		differs(ReferenceNotInBody, k, b)
	}
	slices.SortFunc(out, func(a, b Difference) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Target.String(), b.Target.String()))
	})
	return out, nil
}

// compareBodies reports differences. With Repair it queues the resources to be derived again, as a switch of
// the version does.
func (v *verifying) compareBodies(ctx context.Context, page *bodyPage) error {
	ids := page.ids()
	if v.how.Repair && len(ids) > 0 {
		const reason = "verify found that the references in the body differ from the stored ones"
		if err := v.store.InTx(ctx, db.WorkFeed, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, deriveAnewSQL, ids, v.store.SelfID, reason)
			return err
		}); err != nil {
			return fmt.Errorf("queue derivations: %w", err)
		}
	}
	if err := v.ownerLists(ctx, page.ownerLists); err != nil {
		return err
	}
	for _, id := range ids {
		for _, d := range page.differing[id] {
			d.Repaired = v.how.Repair && d.Kind != BodyUnreadable
			if err := v.found(d); err != nil {
				return err
			}
		}
	}
	return nil
}
