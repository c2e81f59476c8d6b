package shadow_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/nodemanager"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/rounds"
	"github.com/db-controller/db-controller/test/wait"
)

// Users, handlers and switches at once; at rest the stored references equal the references in the bodies.
func TestSwitchesUnderLoad_I26(t *testing.T) {
	t.Parallel()
	b := newVersions(t, func(cfg *shadow.Config) {
		cfg.Times.DeleteTimeout = 300 * time.Millisecond
		cfg.Times.TentativeTTL = time.Second
	})
	store := b.Stores[b.ID(bEast)]
	ctx, cancel := context.WithTimeout(context.Background(), wait.Limit)
	defer cancel()
	end := time.Now().Add(rounds.Of(5*time.Second, 2*time.Second))
	var wg sync.WaitGroup
	random := func() body {
		v := func() string { return targetName(fmt.Sprint("t", rand.IntN(6))) }
		out := body{}
		for _, f := range []string{"block", "dropped", "added"} {
			if rand.IntN(3) == 0 {
				out[f] = v()
			}
		}
		if rand.IntN(2) == 0 {
			out["turns"] = body{"unset": v(), "block": v()}
		}
		if rand.IntN(4) == 0 {
			out["near"] = fmt.Sprint("holders/h", rand.IntN(25))
		}
		return out
	}
	counts := make([]atomic.Int64, 7)
	over := func() bool { // a starved machine needs longer until one of each has succeeded
		for i := range counts {
			if counts[i].Load() == 0 {
				return ctx.Err() != nil
			}
		}
		return time.Now().After(end)
	}
	every := func(i int, pause time.Duration, f func() error) {
		wg.Go(func() {
			for range time.Tick(max(pause, time.Microsecond)) {
				if over() {
					return
				}
				if f() == nil {
					counts[i].Add(1)
				}
			}
		})
	}
	for i := range 6 {
		b.MustPut(targetName(fmt.Sprint("t", i)), nil)
	}
	for range 2 {
		every(0, 0, func() error {
			_, err := store.Write.Save(ctx,
				[]peer.Write{{Name: fmt.Sprint("holders/h", rand.IntN(25)), Body: random()}})
			return err
		})
	}
	every(1, 0, func() error {
		_, err := b.Stores[b.ID(aWest)].Deletions.Delete(ctx,
			shadow.DeleteRequest{Name: fmt.Sprint("targets/t", rand.IntN(6))})
		return err
	})
	every(2, 20*time.Millisecond, func() error {
		_, err := b.Stores[b.ID(aWest)].Write.Save(ctx, []peer.Write{{Name: fmt.Sprint("targets/t", rand.IntN(6))}})
		return err
	})
	every(3, 100*time.Millisecond, func() error {
		_, err := store.Deletions.Delete(ctx, shadow.DeleteRequest{Name: fmt.Sprint("holders/h", rand.IntN(25))})
		return err
	})
	v := []*schema.Model{modelOf(t, versions, "b.example.com", "v1"), modelOf(t, versions, "b.example.com", "v2")}
	n, written := 0, int64(0)
	every(4, 100*time.Millisecond, func() error {
		now := counts[0].Load()
		if n > 0 && now == written {
			// each switch aborts the writes in flight: on a busy machine all
			return errors.New("no write has succeeded since the last switch")
		}
		n, written = n+1, now
		return store.Admin.Switch(ctx, v[n%2])
	})
	for i, id := range []schema.DeploymentID{b.ID(aWest), b.ID(bEast)} {
		every(5+i, 0, func() error {
			for a := schema.Confirm; a <= schema.Derive; a++ {
				_, _ = b.Do(id, a)
			}
			_ = b.Resolve(id)
			for from := range b.Stores {
				_, _ = b.Act(id, from)
			}
			return nil
		})
	}
	wg.Wait()
	for i := range counts {
		require.Positive(t, counts[i].Load(), "of %d not one succeeded", i)
	}
	for i := range 6 {
		if r := b.Get(targetName(fmt.Sprint("t", i))); r == nil {
			b.MustPut(targetName(fmt.Sprint("t", i)), nil)
		}
	}
	b.Expire(aWest)
	b.Settle()
	b.Switch(bEast, "v1")
	b.Settle()
	b.Audit()
	model := v[0]
	rows, err := b.Pools[b.ID(bEast)].Query(context.Background(), `SELECT h.name, f.path, r.behaviour, COALESCE(t.name, s.name)
		FROM dbcontroller.reference r JOIN dbcontroller.shadow h ON h.id = r.holder_id JOIN dbcontroller.field f ON f.id = r.field_id
		LEFT JOIN dbcontroller.foreign_target t ON t.id = r.target_id LEFT JOIN dbcontroller.shadow s ON s.id = r.target_id`)
	require.NoError(t, err)
	got := map[string]bool{}
	for rows.Next() {
		var holder, path, target string
		var behaviour schema.Behaviour
		require.NoError(t, rows.Scan(&holder, &path, &behaviour, &target))
		got[fmt.Sprint(holder, " ", path, " ", behaviour, " ", target)] = true
	}
	require.NoError(t, rows.Err())
	want := map[string]bool{}
	all, _, err := store.Read.List(context.Background(), shadow.ListRequest{Limit: 1000})
	require.NoError(t, err)
	for _, r := range all {
		if r.State != peer.Active {
			continue
		}
		kind, err := model.KindOf(r.Name)
		require.NoError(t, err)
		var content map[string]any
		require.NoError(t, json.Unmarshal(r.Body, &content))
		found, err := kind.References(b.ID(bEast), r.Name, content)
		require.NoError(t, err)
		e, err := store.Operate.Explain(context.Background(), r.Name)
		require.NoError(t, err)
		reasons := ""
		for _, reason := range e.Reasons {
			reasons += reason.Error
		}
		for _, f := range found {
			k := fmt.Sprint(r.Name, " ", f.Path, " ", f.Behaviour, " ", f.Target.Name)
			if strings.Contains(reasons, f.Path+": ") {
				delete(got, k)
				continue
			}
			want[k] = true
		}
	}
	require.Equal(t, want, got)
}

type idle struct{}

func (idle) Run(ctx context.Context) error { <-ctx.Done(); return nil }

// Another service's new version is described after this deployment has started: its model receives the kind's
// other name.
func TestARunningVersionLearnsOfLaterRenames(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, chain, nil, aWest, bEast)
	ctx, cancel := context.WithCancel(context.Background())
	environment := func(text, version string) *schema.Environment {
		file, err := schema.ParseFile("services.yaml", strings.NewReader(text))
		require.NoError(t, err)
		return &schema.Environment{
			Regions: []string{"us-west2"}, Services: file.Services,
			Deployments: []schema.Deployment{{DeploymentID: b.ID(aWest), Version: version, Address: "x:1"}},
		}
	}
	environments, store := make(chan *schema.Environment), b.Stores[b.ID(aWest)]
	m, err := nodemanager.New(nodemanager.Config{
		Deployment: b.ID(aWest), Environments: environments, Logger: zap.NewNop(),
		Store: nodemanager.Store{
			Switch: store.Admin.Switch, Refresh: store.Admin.Refresh,
			PointedTo: store.Attempts.ReferencedDeployments,
		},
		Sharing: nodemanager.Sharing{Nodes: 1, Leases: store.Leases("one", 5*time.Second)},
		NewNode: func(s nodemanager.Share) (nodemanager.Runner, error) {
			go func() {
				for {
					select {
					case <-s.Subscriptions:
					case <-ctx.Done():
						return
					}
				}
			}()
			return idle{}, nil
		},
	})
	require.NoError(t, err)
	done := make(chan error)
	go func() { done <- m.Run(ctx) }()
	v1, _, _ := strings.Cut(chainOfTwo, "---")
	environments <- environment(v1, "v1")
	environments <- environment(chainOfTwo, "v1") // v2 is described, and no deployment runs it yet
	environments <- environment(chainOfTwo, "v1") // the one before was taken
	cancel()
	require.NoError(t, <-done)
	b.MustPut(targetName("t"), nil)
	b.Switch(bEast, "v2") // imports a@v2, says Goal
	_, err = b.Put(holder, body{"block": targetName("t")})
	require.NoError(t, err)
}

// A page is derived although one of its resources is written continuously.
func TestABusyResourceDoesNotStarveAPass_I22(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, versions, nil, aWest, bEast)
	ctx := context.Background()
	b.MustPut(targetName("t"), nil)
	for i := range 20 {
		b.MustPut(fmt.Sprintf("//%s/holders/h%02d", bEast, i), body{"added": targetName("t")})
	}
	b.Settle()
	b.Switch(bEast, "v2")
	n := 0
	var busy bool
	b.AfterEstablish = func() {
		if busy {
			return // the write's own
		}
		busy = true
		n++
		b.MustPut("//"+bEast+"/holders/h07", body{"n": n, "added": targetName("t")}) // say a heartbeat
		busy = false
	}
	for range 20 {
		for _, w := range b.Work(b.ID(bEast)) {
			if w.Action == schema.Derive {
				_, _ = b.Stores[b.ID(bEast)].Admin.Derive(ctx, w.Seq)
			}
		}
	}
	require.GreaterOrEqual(t, b.Count(bEast, "reference"), 19, "the other 19 are kept from being derived")
}

// The pages of a list of all kinds continue after a switch that renames a kind.
func TestAListGoesOnAfterARename(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, versions, nil, aWest, bEast)
	ctx := context.Background()
	for i := range 6 {
		b.MustPut(fmt.Sprintf("//%s/holders/h%d", bEast, i), nil)
	}
	store := b.Stores[b.ID(bEast)]
	first, token, err := store.Read.List(ctx, shadow.ListRequest{Limit: 2})
	require.NoError(t, err)
	b.Switch(bEast, "v2")
	rest, _, err := store.Read.List(ctx, shadow.ListRequest{Limit: 100, Token: token})
	if err == nil { // an error would be as well
		require.Len(t, append(first, rest...), 6, "the list says that it is complete")
	}
}

// Two processes derive the same pass, and set aside each resource once: when the other one has ended the pass
// meanwhile, when it has advanced it, and when a resource was created meanwhile, so that the other one's page
// is not the last one any more.
func TestTwoProcessesSetAsideOnce(t *testing.T) {
	t.Parallel()
	for what, n := range map[string]int{"ended": 1, "advanced": 501, "not the last": 499} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := harness.NewBox(t, versions, nil, aWest, bEast)
			ctx := context.Background()
			writes := []peer.Write{{Name: "holders/h000", Body: body{"added": targetName("missing")}}}
			for i := 1; i < n; i++ {
				writes = append(writes, peer.Write{Name: fmt.Sprintf("holders/h%03d", i)})
			}
			_, err := b.Stores[b.ID(bEast)].Write.Save(ctx, writes)
			require.NoError(t, err)
			b.Switch(bEast, "v2")
			var pass int64
			for _, w := range b.Work(b.ID(bEast)) {
				if w.Action == schema.Derive {
					pass = w.Seq
				}
			}
			second := b.SecondProcess(bEast, shadow.Config{})
			did := false
			b.OnEstablish = func(schema.DeploymentID, peer.AttemptID, []peer.EstablishReference) error {
				if !did {
					did = true
					if n == 499 {
						b.MustPut("//"+bEast+"/holders/h999", nil)
					}
					_, err := second.Admin.Derive(ctx, pass)
					require.NoError(t, err)
				}
				return nil
			}
			_, err = b.Stores[b.ID(bEast)].Admin.Derive(ctx, pass)
			require.NoError(t, err)
			b.OnEstablish = nil
			_, _, derivations, err := b.Stores[b.ID(bEast)].Operate.Status(ctx)
			require.NoError(t, err)
			require.EqualValues(t, 1, derivations[0].SetAside)
			b.Settle()
			require.Equal(t, 1, b.Count(bEast, "work"), "the pass ends")
		})
	}
}

const danglers = `
service: a.example.com
version: v1
kinds: [{ kind: Target, patterns: ["targets/{target}"] }]
---
service: b.example.com
version: v1
imports: [a.example.com@v1]
kinds:
  - kind: Holder
    patterns: ["holders/{holder}"]
    references:
      - { path: loose, targets: [a.example.com/Target], behaviour: ALLOW_DANGLING }
---
service: b.example.com
version: v2
kinds: [{ kind: Holder, patterns: ["holders/{holder}"] }]
`

// v1 -> v2 -> v1: a value that dangles by permission in another deployment.
func TestADanglingValueAfterASwitchThereAndBack_I26(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, danglers, nil, aWest, bEast)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"loose": target})
	b.Settle()
	b.MustDelete(target)
	b.Settle()
	b.MustPut(holder, body{"loose": target, "n": 1}) // allowed
	b.Settle()
	b.Switch(bEast, "v2")
	b.Settle()
	b.Switch(bEast, "v1")
	b.Settle()
	require.Zero(t, b.Count(bEast, "work"), "it may dangle: it is not set aside")
	_, err := b.Put(holder, body{"loose": target, "n": 2})
	require.NoError(t, err)
}

// A crash between the two transactions of a switch, and the same switch again.
func TestACrashBetweenTheTransactionsOfASwitch_I19(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, versions, nil, aWest, bEast)
	b.MustPut(targetName("t"), nil)
	b.MustPut(holder, body{"added": targetName("t")})
	b.Settle()
	v1, v2 := modelOf(t, versions, "b.example.com", "v1"), modelOf(t, versions, "b.example.com", "v2")
	g := newGate("FROM dbcontroller.field")
	store := gatedProcess(t, b, bEast, g, v1)
	g.arm(0)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- store.Admin.Switch(ctx, v2) }()
	<-g.reached
	cancel()
	close(g.open)
	require.Error(t, <-done)
	b.Switch(bEast, "v2")
	b.Settle()
	require.Equal(t, 1, b.Count(bEast, "reference"))
	b.Audit()
}

// Lists and watches, which are forwarded to regions that may run another version, take either name of a kind,
// as writes do.
func TestListsKnowTheOtherName(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, regions, nil, aWest, bWest, bEast)
	b.MustPut(holder, nil)
	b.Switch(bWest, "v2") // a caller there says Keeper, and asks for the other region
	_, _, err := b.Stores[b.ID(bEast)].Read.List(context.Background(), shadow.ListRequest{Kind: "Keeper", Limit: 10})
	require.NoError(t, err)
}
