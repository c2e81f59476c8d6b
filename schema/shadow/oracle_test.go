package shadow_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/rounds"
)

// Nodes of two services with two fields of each behaviour, like the columns of one native table.
const nodes = `
service: a.example.com
version: v1
kinds:
  - kind: Node
    patterns: ["nodes/{node}"]
    references:
      - { path: b1, targets: [Node], behaviour: BLOCK }
      - { path: b2, targets: [Node], behaviour: BLOCK }
      - { path: c1, targets: [Node], behaviour: CASCADE_DELETE }
      - { path: c2, targets: [Node], behaviour: CASCADE_DELETE }
      - { path: u1, targets: [Node], behaviour: UNSET }
      - { path: u2, targets: [Node], behaviour: UNSET }
---
service: b.example.com
version: v1
imports: [a.example.com@v1]
kinds:
  - kind: Item
    patterns: ["items/{item}"]
    references:
      - { path: b1, targets: [Item, a.example.com/Node], behaviour: BLOCK }
      - { path: b2, targets: [Item, a.example.com/Node], behaviour: BLOCK }
      - { path: c1, targets: [Item, a.example.com/Node], behaviour: CASCADE_DELETE }
      - { path: c2, targets: [Item, a.example.com/Node], behaviour: CASCADE_DELETE }
      - { path: u1, targets: [Item, a.example.com/Node], behaviour: UNSET }
      - { path: u2, targets: [Item, a.example.com/Node], behaviour: UNSET }
`

// All constraints are deferred. PostgreSQL runs the actions of ON DELETE at once all the same, but checks
// have to wait: a row that loses two values and is then removed is checked after the first change, and would
// fail although its holders are removed as well.
const nativeSQL = `
CREATE TABLE node (
    id text PRIMARY KEY,
    b1 text REFERENCES node DEFERRABLE INITIALLY DEFERRED,
    b2 text REFERENCES node DEFERRABLE INITIALLY DEFERRED,
    c1 text REFERENCES node ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
    c2 text REFERENCES node ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
    u1 text REFERENCES node ON DELETE SET NULL DEFERRABLE INITIALLY DEFERRED,
    u2 text REFERENCES node ON DELETE SET NULL DEFERRABLE INITIALLY DEFERRED
)`

var fields = []string{"b1", "b2", "c1", "c2", "u1", "u2"}

// native is one PostgreSQL database with native foreign keys: the expected behaviour.
type native struct {
	t    *testing.T
	pool *pgxpool.Pool
}

func (n *native) put(id string, values map[string]string) error {
	var columns [6]*string
	for i, f := range fields {
		if v, ok := values[f]; ok {
			columns[i] = &v
		}
	}
	_, err := n.pool.Exec(context.Background(), `
INSERT INTO node (id, b1, b2, c1, c2, u1, u2) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (id) DO UPDATE SET b1 = $2, b2 = $3, c1 = $4, c2 = $5, u1 = $6, u2 = $7`, id, columns[0], columns[1], columns[2], columns[3], columns[4], columns[5])
	return n.refused(err)
}

func (n *native) delete(id string) error {
	_, err := n.pool.Exec(context.Background(), `DELETE FROM node WHERE id = $1`, id)
	return n.refused(err)
}

// refused returns the error of a foreign key; any other error is a fault of the test.
func (n *native) refused(err error) error {
	n.t.Helper()
	var pg *pgconn.PgError
	if err != nil {
		require.ErrorAs(n.t, err, &pg)
		require.Equal(n.t, "23503", pg.Code, pg.Message)
	}
	return err
}

func (n *native) state() map[string]map[string]string {
	rows, err := n.pool.Query(context.Background(), `SELECT id, b1, b2, c1, c2, u1, u2 FROM node`)
	require.NoError(n.t, err)
	out := map[string]map[string]string{}
	var id string
	var v [6]*string
	_, err = pgx.ForEachRow(rows, []any{&id, &v[0], &v[1], &v[2], &v[3], &v[4], &v[5]}, func() error {
		out[id] = map[string]string{}
		for i, f := range fields {
			if v[i] != nil {
				out[id][f] = *v[i]
			}
		}
		return nil
	})
	require.NoError(n.t, err)
	return out
}

func stateOf(t *testing.T, b *harness.Box) map[string]map[string]string {
	t.Helper()
	out := map[string]map[string]string{}
	for id, store := range b.Stores {
		found, next, err := store.Read.List(context.Background(), shadow.ListRequest{Limit: 1000})
		require.NoError(t, err)
		require.Empty(t, next)
		for _, r := range found {
			values := map[string]string{}
			require.NoError(t, json.Unmarshal(r.Body, &values))
			require.Equal(t, peer.Active, r.State, "%s/%s waits for something at rest", id, r.Name)
			out["//"+id.String()+"/"+r.Name] = values
		}
	}
	return out
}

// play does random writes and deletes on both, and compares the outcome of each, and at rest all rows.
func play(t *testing.T, b *harness.Box, n *native, names []string, seed uint64, steps int) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, seed))
	accepted, refused, cascaded := 0, 0, 0
	for step := range steps {
		name := names[r.IntN(len(names))]
		if r.IntN(5) < 4 {
			values, content := map[string]string{}, body{}
			there := n.state()
			for _, f := range fields {
				target := names[r.IntN(len(names))]
				_, exists := there[target]
				if r.IntN(2) > 0 || !exists && r.IntN(20) > 0 || strings.HasPrefix(name, "//a.") &&
					!strings.HasPrefix(target, "//a.") {
					continue
				}
				values[f], content[f] = target, target
			}
			want := n.put(name, values)
			_, got := b.Put(name, content)
			require.Equal(t, want == nil, got == nil, "seed %d step %d: put %s %v: native %v, here %v", seed, step,
				name, values, want, got)
		} else {
			before := len(n.state())
			want := n.delete(name)
			_, got := b.Delete(name)
			if errors.Is(got, peer.ErrNotFound) {
				got = nil // native keys do not mind
			}
			require.Equal(t, want == nil, got == nil, "seed %d step %d: delete %s: native %v, here %v", seed, step,
				name, want, got)
			switch gone := before - len(n.state()); {
			case want != nil:
				refused++
			case gone > 1:
				cascaded++
			default:
				accepted++
			}
		}
		b.Settle()
		require.Equal(t, n.state(), stateOf(t, b), "seed %d step %d", seed, step)
	}
	b.Audit()
	require.NotZero(t, refused+cascaded, "seed %d never came to anything interesting", seed)
	t.Logf("seed %d: %d deletes alone, %d with others, %d refused", seed, accepted, cascaded, refused)
}

func newNative(t *testing.T) *native {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), harness.Postgres(t).NewDatabase(t, ""))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	_, err = pool.Exec(context.Background(), nativeSQL)
	require.NoError(t, err)
	return &native{t: t, pool: pool}
}

// seeds is the number of campaigns: a few, or the value of DBCONTROLLER_TEST_SEEDS.
func seeds(t *testing.T) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(cmp.Or(os.Getenv("DBCONTROLLER_TEST_SEEDS"), rounds.Of("2", "1")), 10, 16)
	require.NoError(t, err)
	return n
}

// Inside one database the decisions equal the decisions of native keys with NO ACTION DEFERRABLE INITIALLY
// DEFERRED, with cycles, diamonds and self references.
func TestOneDatabaseDecidesAsNativeKeysDo_I1_I3_I14(t *testing.T) {
	t.Parallel()
	for seed := range seeds(t) {
		b := harness.NewBox(t, nodes, nil, aWest)
		var names []string
		for i := range 9 {
			names = append(names, fmt.Sprintf("//%s/nodes/n%d", aWest, i))
		}
		play(t, b, newNative(t), names, seed+1, rounds.Of(400, 100))
	}
}

// Also over three deployments, one operation at a time: a delete looks ahead and excuses the members of the
// deletion.
func TestDeploymentsAtRestEqualNativeKeys_I1_I8_I14(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("many steps over three deployments")
	}
	for seed := range seeds(t) {
		b := harness.NewBox(t, nodes, nil, aWest, bWest, bEast)
		var names []string
		for i := range 3 {
			names = append(names, fmt.Sprintf("//%s/nodes/n%d", aWest, i), fmt.Sprintf("//%s/items/n%d", bWest, i),
				fmt.Sprintf("//%s/items/n%d", bEast, i))
		}
		slices.Sort(names)
		play(t, b, newNative(t), names, seed+11, 100)
	}
}
