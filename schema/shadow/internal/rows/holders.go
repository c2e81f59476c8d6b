package rows

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

// Holder is a row that names a target, with its resource. Most rows have none, because nothing refers to them.
type Holder struct {
	Referrer
	ID     int64     // of the resource; 0: there is none
	UID    uuid.UUID // of the resource, or made of the name
	State  peer.State
	Stored bool // the reference is stored as well
}

const selectHoldersSQL = `
SELECT i.n - 1, s.id, s.uid, s.state, EXISTS (
    SELECT FROM dbcontroller.reference r JOIN dbcontroller.field f ON f.id = r.field_id WHERE r.holder_id = s.id AND r.target_id = i.target_id AND f.path = i.path
) FROM unnest($2::text[], $3::bigint[], $4::text[]) WITH ORDINALITY AS i (name, target_id, path, n)
CROSS JOIN LATERAL (SELECT * FROM dbcontroller.shadow s WHERE s.kind_id = $1 AND s.name = i.name OFFSET 0) AS s`

// Holders returns the rows of Referring with their resources.
func (s *Rows) Holders(ctx context.Context, q db.Querier, blocking bool, targets []Target, limit int) ([]Holder, error) {
	found, err := s.Referring(ctx, q, blocking, targets, limit)
	if err != nil {
		return nil, err
	}
	return s.resources(ctx, q, targets, found)
}

func (s *Rows) resources(ctx context.Context, q db.Querier, targets []Target, found []Referrer) ([]Holder, error) {
	type question struct {
		names, paths []string
		targets      []int64
		at           []int
	}
	questions := map[int32]*question{}
	out := make([]Holder, len(found))
	for i, r := range found {
		out[i] = Holder{Referrer: r, UID: uuid.NewSHA1(uuid.NameSpaceOID, []byte(r.Table.Definition.Table.String()+" "+r.Name))}
		of := questions[r.Table.KindID]
		if of == nil {
			of = &question{}
			questions[r.Table.KindID] = of
		}
		of.names, of.paths, of.targets, of.at = append(of.names, r.Name), append(of.paths, r.Path), append(of.targets, targets[r.Target].ID), append(of.at, i)
	}
	for kind, of := range questions {
		got, err := q.Query(ctx, selectHoldersSQL, kind, of.names, of.targets, of.paths)
		if err != nil {
			return nil, fmt.Errorf("read the resources of rows: %w", err)
		}
		var n int
		var h Holder
		_, err = pgx.ForEachRow(got, []any{&n, &h.ID, &h.UID, &h.State, &h.Stored}, func() error {
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

// Place is a row among those that name a target, in the order of tables, references and keys.
type Place struct {
	Kind int32    `json:"k,omitempty"`
	Path string   `json:"p,omitempty"`
	Key  []string `json:"r,omitempty"` // nil: before the first row
}

// HoldersPage returns the holders of a target behind a place, at most limit, and the place of the last one; it is that before when there are no more.
func (s *Rows) HoldersPage(ctx context.Context, q db.Querier, target Target, after Place, limit int) (page []Holder, last Place, err error) {
	var found []Referrer
	tables := s.strict()
	slices.SortFunc(tables, func(a, b *Table) int { return int(a.KindID - b.KindID) })
	last = after
	for _, t := range tables {
		for _, path := range t.strictPaths() {
			if t.KindID < after.Kind || t.KindID == after.Kind && strings.Compare(path, after.Path) < 0 {
				continue
			}
			var key []string
			if t.KindID == after.Kind && path == after.Path {
				key = after.Key
			}
			rows, err := t.page(ctx, q, s.Self, path, target, key, limit-len(found))
			if err != nil {
				return nil, last, err
			}
			if found = append(found, rows...); len(rows) > 0 {
				last = Place{Kind: t.KindID, Path: path, Key: rows[len(rows)-1].Key}
			}
			if len(found) == limit {
				page, err = s.resources(ctx, q, []Target{target}, found)
				return page, last, err
			}
		}
	}
	page, err = s.resources(ctx, q, []Target{target}, found)
	return page, last, err
}

// strictPaths are those of the strict references, in order.
func (t *Table) strictPaths() (paths []string) {
	for path := range t.referring {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	return paths
}

func (t *Table) page(ctx context.Context, q db.Querier, self schema.DeploymentID, path string, target Target, after []string, limit int) (out []Referrer, err error) {
	r := t.referring[path]
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
	if err := t.unhidden(ctx, q); err != nil {
		return nil, err
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
		out = append(out, Referrer{Table: t, Path: path, Behaviour: r.reference.Strict.Behaviour, Key: key, Name: t.NameOf(key)})
	}
	return out, nil
}

// namedBy returns the target that the texts of the columns of a strict reference name.
func namedBy(r schema.DefinitionReference, self schema.DeploymentID, columns []*string, region *string) (target schema.FullName, ok bool) {
	values := make([]string, len(columns))
	for i, v := range columns {
		if v == nil {
			return target, false
		}
		values[i] = *v
	}
	target.Deployment = schema.DeploymentID{Service: r.Strict.Kind.Service, Region: cmp.Or(r.Strict.Region, self.Region)}
	if r.Region != "" {
		if region == nil {
			return target, false
		}
		target.Deployment.Region = *region
	}
	target.Name, ok = r.TargetName(values)
	return target, ok
}

const selectNamedSQL = `
SELECT i.n - 1, f.id, f.uid FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS i (service, region, name, n)
JOIN dbcontroller.deployment d ON d.service = i.service AND d.region = i.region
CROSS JOIN LATERAL (SELECT f.id, f.uid FROM dbcontroller.foreign_target f WHERE f.deployment_id = d.id AND f.name = i.name ORDER BY f.id DESC LIMIT 1) AS f`

// Cascading returns the targets whose deletion takes rows along, by the names of the rows: those of their strict references.
func (s *Rows) Cascading(ctx context.Context, q db.Querier, kindID int32, names []string) (map[string][]peer.PlanTarget, error) {
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
		for _, r := range t.Definition.References {
			own := values[:len(r.Columns)]
			values = values[len(r.Columns):]
			var region *string
			if r.Region != "" {
				region, values = values[0], values[1:]
			}
			if r.Strict == nil || !r.Strict.Behaviour.Cascades() {
				continue
			}
			if target, ok := namedBy(r, s.Self, own, region); ok {
				holders, targets, deployments = append(holders, name), append(targets, target.Name), append(deployments, target.Deployment)
				services, regions = append(services, target.Deployment.Service), append(regions, target.Deployment.Region)
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
	var id int64
	var uid uuid.UUID
	_, err = pgx.ForEachRow(found, []any{&n, &id, &uid}, func() error {
		out[holders[n]] = append(out[holders[n]], peer.PlanTarget{Deployment: deployments[n], UID: uid})
		return nil
	})
	return out, err
}
