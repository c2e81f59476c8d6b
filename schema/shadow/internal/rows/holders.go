package rows

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

// Holder is a row that names a target, with its resource. Most rows have none, because nothing refers to
// them.
type Holder struct {
	Referrer
	ID    int64     // of the resource; 0: there is none
	UID   uuid.UUID // of the resource, or made of the name
	State peer.State
}

// A hidden resource is of a row that is gone: one of the same key is another one.
const selectHoldersSQL = `
SELECT i.n - 1, s.id, s.uid, s.state FROM unnest($2::text[]) WITH ORDINALITY AS i (name, n)
CROSS JOIN LATERAL (SELECT * FROM dbcontroller.shadow s WHERE s.kind_id = $1 AND s.name = i.name AND NOT s.hidden OFFSET 0) AS s`

// Holders returns the rows of Referring with their resources.
func (s *Rows) Holders(ctx context.Context, q db.Querier, blocking bool, targets []Target,
	limit int,
) ([]Holder, error) {
	found, err := s.Referring(ctx, q, blocking, targets, limit)
	if err != nil {
		return nil, err
	}
	return s.resources(ctx, q, found)
}

func (s *Rows) resources(ctx context.Context, q db.Querier, found []Referrer) ([]Holder, error) {
	type question struct {
		names []string
		at    []int
	}
	questions := map[int32]*question{}
	out := make([]Holder, len(found))
	for i, r := range found {
		out[i] = Holder{Referrer: r, UID: uuid.NewSHA1(uuid.NameSpaceOID,
			[]byte(r.Table.Definition.Table.String()+" "+r.Name))}
		of := questions[r.Table.KindID]
		if of == nil {
			of = &question{}
			questions[r.Table.KindID] = of
		}
		of.names, of.at = append(of.names, r.Name), append(of.at, i)
	}
	for kind, of := range questions {
		got, err := q.Query(ctx, selectHoldersSQL, kind, of.names)
		if err != nil {
			return nil, fmt.Errorf("read the resources of rows: %w", err)
		}
		var n int
		var h Holder
		_, err = pgx.ForEachRow(got, []any{&n, &h.ID, &h.UID, &h.State}, func() error {
			h.Referrer = found[of.at[n]]
			out[of.at[n]] = h
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("read the resources of rows: %w", err)
		}
	}
	return out, nil
}

// Place is a row that names a target, in the order of tables, references and keys.
type Place struct {
	Kind      int32    `json:"k,omitempty"`
	Reference int      `json:"n,omitempty"`
	Key       []string `json:"r,omitempty"` // nil: before the first row
}

// HoldersPage returns the holders of a target behind a place, at most limit, and the place of the last one;
// it is that before when there are no more.
func (s *Rows) HoldersPage(ctx context.Context, q db.Querier, target Target, after Place,
	limit int,
) (page []Holder, last Place, err error) {
	var found []Referrer
	tables := s.holders()
	slices.SortFunc(tables, func(a, b *Table) int { return int(a.KindID - b.KindID) })
	last = after
	for _, t := range tables {
		for n := range t.referring {
			if t.KindID < after.Kind || t.KindID == after.Kind && n < after.Reference {
				continue
			}
			var key []string
			if t.KindID == after.Kind && n == after.Reference {
				key = after.Key
			}
			rows, err := t.page(ctx, q, s.Self, n, target, key, limit-len(found))
			if err != nil {
				return nil, last, err
			}
			if found = append(found, rows...); len(rows) > 0 {
				last = Place{Kind: t.KindID, Reference: n, Key: rows[len(rows)-1].Key}
			}
			if len(found) == limit {
				page, err = s.resources(ctx, q, found)
				return page, last, err
			}
		}
	}
	page, err = s.resources(ctx, q, found)
	return page, last, err
}

func (t *Table) page(ctx context.Context, q db.Querier, self schema.DeploymentID, reference int, target Target,
	after []string, limit int,
) (out []Referrer, err error) {
	r := t.referring[reference]
	values, ok := r.values(self, target)
	if !ok || limit <= 0 {
		return nil, nil
	}
	sql, args := r.page, make([]any, 0, len(values)+1+len(after))
	for _, v := range values {
		args = append(args, v)
	}
	args = append(args, limit)
	if after != nil {
		sql = r.next
		for _, k := range after {
			args = append(args, k)
		}
	}
	found, err := q.Query(ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("read rows of %s: %w", t.Definition.Table, err)
	}
	keys, err := pgx.CollectRows(found, pgx.RowTo[[]string])
	if err != nil {
		return nil, fmt.Errorf("read rows of %s: %w", t.Definition.Table, err)
	}
	for _, key := range keys {
		out = append(out, t.referrer(reference, 0, key))
	}
	return out, nil
}

const selectNamedSQL = `
SELECT i.n - 1, f.uid FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS i (service, region, name, n)
JOIN dbcontroller.deployment d ON d.service = i.service AND d.region = i.region
CROSS JOIN LATERAL (SELECT f.uid FROM dbcontroller.foreign_target f WHERE f.deployment_id = d.id AND f.name = i.name ORDER BY f.latest DESC LIMIT 1) AS f`

// Cascading returns the targets whose deletion takes rows along, by the names of the rows: the targets of
// their references.
func (s *Rows) Cascading(ctx context.Context, q db.Querier, kindID int32,
	names []string,
) (map[string][]peer.PlanTarget, error) {
	t := s.Of(kindID)
	if t == nil || len(t.referring) == 0 {
		return nil, nil
	}
	read, err := t.Read(ctx, q, names)
	if err != nil {
		return nil, err
	}
	var holders, services, regions, targets []string
	var deployments []schema.DeploymentID
	for name, values := range read {
		for _, n := range t.named(s.Self, values) {
			if d := n.target.Deployment; n.Behaviour.Cascades() {
				holders, targets, deployments = append(holders, name), append(targets, n.target.Name),
					append(deployments, d)
				services, regions = append(services, d.Service), append(regions, d.Region)
			}
		}
	}
	out := map[string][]peer.PlanTarget{}
	if len(targets) == 0 {
		return out, nil
	}
	found, err := q.Query(ctx, selectNamedSQL, services, regions, targets)
	if err != nil {
		return nil, fmt.Errorf("read targets: %w", err)
	}
	var n int
	var uid uuid.UUID
	_, err = pgx.ForEachRow(found, []any{&n, &uid}, func() error {
		out[holders[n]] = append(out[holders[n]], peer.PlanTarget{Deployment: deployments[n], UID: uid})
		return nil
	})
	return out, err
}
