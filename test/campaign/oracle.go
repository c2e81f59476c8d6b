package campaign

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/test/harness"
)

// All constraints are deferred. PostgreSQL runs the actions of ON DELETE at once all the same; the deferred
// checks do not depend on the order in which constraints were created.
const nativeSQL = `
CREATE TABLE node (
    id text PRIMARY KEY,
    uid text NOT NULL,
    payload text NOT NULL,
    owners text[] NOT NULL,
    d text,
    b1 text REFERENCES node DEFERRABLE INITIALLY DEFERRED,
    c1 text REFERENCES node ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
    c2 text REFERENCES node ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
    u1 text REFERENCES node ON DELETE SET NULL DEFERRABLE INITIALLY DEFERRED,
    u2 text REFERENCES node ON DELETE SET NULL DEFERRABLE INITIALLY DEFERRED
);
CREATE TABLE bl (
    holder text REFERENCES node ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
    target text REFERENCES node DEFERRABLE INITIALLY DEFERRED, PRIMARY KEY (holder, target)
);
CREATE TABLE ul (
    holder text REFERENCES node ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
    target text REFERENCES node ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED, PRIMARY KEY (holder, target)
)`

const (
	nativePutSQL = `
INSERT INTO node (id, uid, payload, owners, d, b1, c1, c2, u1, u2) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
ON CONFLICT (id) DO UPDATE SET uid = $2, payload = $3, owners = $4, d = $5, b1 = $6, c1 = $7, c2 = $8, u1 = $9, u2 = $10`
	nativeDropBlockingSQL = `DELETE FROM bl WHERE holder = $1`
	nativeDropListedSQL   = `DELETE FROM ul WHERE holder = $1`
	nativeBlockingSQL     = `INSERT INTO bl (holder, target) SELECT $1, unnest($2::text[])`
	nativeListedSQL       = `INSERT INTO ul (holder, target) SELECT $1, unnest($2::text[])`
	nativeStateSQL        = `
SELECT id, uid, payload, owners, d, b1, c1, c2, u1, u2,
    ARRAY(SELECT target FROM bl WHERE holder = id ORDER BY target), ARRAY(SELECT target FROM ul WHERE holder = id ORDER BY target)
FROM node`
)

var scalars = []string{"d", "b1", "c1", "c2", "u1", "u2"}

// row is a resource of the oracle.
type row struct {
	UID string
	Content
}

// Oracle has the expected state.
type Oracle struct {
	t    testing.TB
	pool *pgxpool.Pool
	rows map[string]row // as in the database
	// flight are names whose removal, or unset values, may not be complete in the system yet.
	flight map[string]bool
	// held are blocking references, holder and target, that the system has and native keys could not keep:
	// they were written between the look-ahead of a deletion and its cascade.
	held map[[2]string]bool
}

func newOracle(t testing.TB) *Oracle {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), harness.Postgres(t).NewDatabase(t, ""))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	_, err = pool.Exec(context.Background(), nativeSQL)
	require.NoError(t, err)
	return &Oracle{t: t, pool: pool, rows: map[string]row{}, flight: map[string]bool{}, held: map[[2]string]bool{}}
}

func (o *Oracle) there(name string) bool { _, ok := o.rows[name]; return ok }

// read reads the state from the database.
func (o *Oracle) read() {
	rows, err := o.pool.Query(context.Background(), nativeStateSQL)
	require.NoError(o.t, err)
	state := map[string]row{}
	var (
		id, uid, payload string
		owners, bl, ul   []string
		v                [6]*string
	)
	_, err = pgx.ForEachRow(rows, []any{
		&id, &uid, &payload, &owners, &v[0], &v[1], &v[2], &v[3], &v[4], &v[5], &bl,
		&ul,
	}, func() error {
		r := row{UID: uid, Content: Content{
			Payload: payload, Owners: slices.Clone(owners),
			Refs: map[string][]string{},
		}}
		for i, f := range scalars {
			if v[i] != nil {
				r.Refs[f] = []string{*v[i]}
			}
		}
		for f, list := range map[string][]string{"bl": bl, "ul": ul} {
			if len(list) > 0 {
				r.Refs[f] = slices.Clone(list)
			}
		}
		state[id] = r
		return nil
	})
	require.NoError(o.t, err)
	for name, before := range o.rows {
		if after, ok := state[name]; !ok || after.UID == before.UID && after.Payload == before.Payload &&
			fmt.Sprint(after.Refs) != fmt.Sprint(before.Refs) {
			o.flight[name] = true
		}
	}
	o.rows = state
}

// put reports whether native keys accept a put, and keeps it when keep is set.
func (o *Oracle) put(name, uid string, c Content, keep bool) error {
	return o.in(keep, func(tx pgx.Tx) error {
		args := []any{name, uid, c.Payload, append([]string{}, c.Owners...)}
		for _, f := range scalars {
			var v *string
			if values := c.Refs[f]; len(values) > 0 {
				v = &values[0]
			}
			args = append(args, v)
		}
		b := &pgx.Batch{}
		b.Queue(nativePutSQL, args...)
		b.Queue(nativeDropBlockingSQL, name)
		b.Queue(nativeDropListedSQL, name)
		b.Queue(nativeBlockingSQL, name, c.Refs["bl"])
		b.Queue(nativeListedSQL, name, c.Refs["ul"])
		return tx.SendBatch(context.Background(), b).Close()
	})
}

func (o *Oracle) delete(names []string, keep bool) error {
	return o.in(keep, func(tx pgx.Tx) error {
		_, err := tx.Exec(context.Background(), `DELETE FROM node WHERE id = ANY ($1)`, names)
		return err
	})
}

// in runs one transaction, and returns the refusal of a foreign key. Without keep it is rolled back after the
// checks.
func (o *Oracle) in(keep bool, fn func(pgx.Tx) error) error {
	ctx := context.Background()
	tx, err := o.pool.Begin(ctx)
	require.NoError(o.t, err)
	if err = fn(tx); err == nil {
		_, err = tx.Exec(ctx, `SET CONSTRAINTS ALL IMMEDIATE`)
	}
	if err == nil && keep {
		err = tx.Commit(ctx)
	} else {
		_ = tx.Rollback(ctx)
	}
	var pg *pgconn.PgError
	if err != nil && (!errors.As(err, &pg) || pg.Code != "23503") {
		require.NoError(o.t, err)
	}
	if keep && err == nil {
		o.read()
	}
	return err
}

// missing returns the targets that do not exist now, by field. Dangling values are checked when they are
// written again.
func (o *Oracle) missing(name string, c Content) map[string][]string {
	out := map[string][]string{}
	for f, values := range c.Refs {
		for _, v := range values {
			if !o.there(v) && v != name && (f != "d" || !slices.Contains(o.rows[name].Refs["d"], v)) {
				out[f] = append(out[f], v)
			}
		}
	}
	return out
}

// Would returns the expected refusal of a put or, without content, of a delete. Native keys decide it, except
// for owners, which they do not know: a blocker that loses its last owner in the deletion blocks nothing.
func (o *Oracle) Would(name string, c *Content) error {
	if c != nil {
		if m := o.missing(name, *c); len(m) > 0 {
			return fmt.Errorf("missing: %v", m)
		}
		return o.put(name, "any", *c, false)
	}
	err := o.delete([]string{name}, false)
	if err == nil || !slices.ContainsFunc(slices.Collect(maps.Values(o.rows)), func(r row) bool {
		return len(r.Owners) > 0
	}) {
		return err
	}
	cascades, goes := o.closure(name)
	for _, pair := range o.blockers(goes) {
		if cascades[pair[1]] {
			return err
		}
	}
	return nil
}

// wouldTogether is Would of an atomic delete, which the blocker of an ownee refuses too.
func (o *Oracle) wouldTogether(name string) error {
	_, goes := o.closure(name)
	if pairs := o.blockers(goes); len(pairs) > 0 {
		return fmt.Errorf("blocked: %v", pairs)
	}
	return o.delete([]string{name}, false)
}

// closure returns the members of a deletion: by cascades alone, and by cascades and the loss of last owners.
func (o *Oracle) closure(name string) (cascades, goes map[string]bool) {
	cascades, goes = map[string]bool{name: true}, map[string]bool{name: true}
	for changed := true; changed; {
		changed = false
		add := func(set map[string]bool, id string) {
			changed = changed || !set[id]
			set[id] = true
		}
		for id, r := range o.rows {
			for _, f := range []string{"c1", "c2"} {
				for _, v := range r.Refs[f] {
					if cascades[v] {
						add(cascades, id)
					}
					if goes[v] {
						add(goes, id)
					}
				}
			}
			if len(r.Owners) > 0 && !slices.ContainsFunc(r.Owners, func(owner string) bool {
				of, _, _ := strings.Cut(owner, " ")
				return o.owns(owner) && !goes[of]
			}) {
				add(goes, id)
			}
		}
	}
	return cascades, goes
}

// blockers returns the holders outside a closure, each with the member that it blocks, sorted.
func (o *Oracle) blockers(goes map[string]bool) (pairs [][2]string) {
	for _, id := range slices.Sorted(maps.Keys(o.rows)) {
		for _, f := range []string{"b1", "bl"} {
			for _, v := range o.rows[id].Refs[f] {
				if pair := [2]string{id, v}; goes[v] && !goes[id] && !slices.Contains(pairs, pair) {
					pairs = append(pairs, pair)
				}
			}
		}
	}
	return pairs
}

// Put does an accepted put. Its references to resources that are removed here, and still DELETING in the
// system, are handled by their behaviour, later than a native key would. It returns their number.
func (o *Oracle) Put(name, uid string, c Content) (late int) {
	c, missing := c.clone(), o.missing(name, c)
	goes := false
	for f, values := range missing {
		for _, v := range values {
			late++
			switch b := behaviours[f]; {
			case b.Cascades():
				goes = true
			case blocks(f):
				o.held[[2]string{name, v}] = true
			}
			if f != "d" {
				c = c.without(v, func(field string) bool { return field == f })
			}
		}
	}
	for pair := range o.held {
		if pair[0] == name && !slices.Contains(slices.Concat(missing["b1"], missing["bl"]), pair[1]) {
			delete(o.held, pair) // it was dropped
		}
	}
	require.NoError(o.t, o.put(name, uid, c, true), "%s %v", name, c)
	if late > 0 {
		o.flight[name] = true
	}
	if goes || len(c.Owners) > 0 && !slices.ContainsFunc(c.Owners, o.owns) {
		o.Delete(name)
	}
	return late
}

// Delete does an accepted delete: it removes the resource, all that cascades and all ownees that lose their
// last owner. Holders outside that block a member lose the reference here, and keep it in the system, where
// the member waits for them. It returns these holders.
func (o *Oracle) Delete(name string) (blockers [][2]string) {
	_, goes := o.closure(name)
	blockers = o.blockers(goes)
	for _, pair := range blockers {
		o.held[pair] = true
		r := o.rows[pair[0]]
		require.NoError(o.t, o.put(pair[0], r.UID, r.without(pair[1], blocks), true))
	}
	left := len(o.rows) - len(goes)
	if !o.there(name) {
		left++
	}
	require.NoError(o.t, o.delete(slices.Sorted(maps.Keys(goes)), true))
	require.Len(o.t, o.rows, left, "native keys took more along than %v", goes)
	o.flight[name] = true
	for pair := range o.held {
		if goes[pair[0]] {
			delete(o.held, pair) // the holder is DELETING itself
		}
	}
	return blockers
}

func blocks(field string) bool { return field == "b1" || field == "bl" }

// owns reports whether an owner, its name and uid, exists.
func (o *Oracle) owns(owner string) bool {
	name, uid, _ := strings.Cut(owner, " ")
	return o.rows[name].UID == uid
}

// quiet reports that the system has completed everything that the oracle has done.
func (o *Oracle) quiet() bool { return len(o.flight)+len(o.held) == 0 }
