package plan

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

var (
	home  = schema.DeploymentID{Service: "a.example.com", Region: "west"}
	away  = schema.DeploymentID{Service: "b.example.com", Region: "east"}
	third = schema.DeploymentID{Service: "c.example.com", Region: "north"}
)

// world has the resources of all deployments, each with the resources that its deletion removes or changes,
// by one reference each.
type world struct {
	resources map[string]*resource
	down      map[schema.DeploymentID]bool

	mu    sync.Mutex
	asked []string // guarded by mu
}

type resource struct {
	at        schema.DeploymentID
	name      string
	protected bool
	cascades  []string // resources that its deletion removes
	owns      []string // resources that it owns alone
	unsets    []string
	blockers  []string
}

func (w *world) add(at schema.DeploymentID, name string, change func(r *resource)) *world {
	if w.resources == nil {
		w.resources, w.down = map[string]*resource{}, map[schema.DeploymentID]bool{}
	}
	r := &resource{at: at, name: name}
	if change != nil {
		change(r)
	}
	w.resources[name] = r
	return w
}

func uidOf(name string) uuid.UUID { return uuid.NewSHA1(uuid.NameSpaceURL, []byte(name)) }

func (w *world) target(name string) peer.PlanTarget {
	return peer.PlanTarget{Deployment: w.resources[name].at, UID: uidOf(name)}
}

func (w *world) member(name string, vias ...peer.Via) peer.PlanMember {
	r := w.resources[name]
	m := peer.PlanMember{UID: uidOf(name), Kind: "things", Name: name, Vias: vias, BlockDeletion: r.protected}
	for _, to := range r.cascades {
		m.Entries = append(m.Entries, w.resources[to].at)
	}
	for _, to := range r.unsets {
		m.Entries = append(m.Entries, w.resources[to].at)
	}
	for _, to := range r.owns {
		m.Ownees = append(m.Ownees, w.resources[to].at)
	}
	return m
}

func (w *world) blockersOf(name string) (out []peer.PlanBlocker) {
	for _, by := range w.resources[name].blockers {
		out = append(out, peer.PlanBlocker{
			Holder: peer.Holder{
				Name: schema.FullName{Deployment: w.resources[by].at, Name: by}, Path: "ref",
				Target: schema.FullName{Deployment: w.resources[name].at, Name: name},
			},
			UID: uidOf(by), TargetUID: uidOf(name),
		})
	}
	return out
}

func (w *world) called(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked = append(w.asked, fmt.Sprintf(format, args...))
}

// Plan answers as a deployment does: with the resources there that refer to the targets, or are owned by
// them.
func (w *world) Plan(_ context.Context, at schema.DeploymentID, q peer.PlanQuestion) (*peer.Plan, error) {
	w.called("plan %s", at.Region)
	if w.down[at] {
		return nil, errors.New("connection refused")
	}
	p := &peer.Plan{}
	defer func() { countLeaves(p, q) }()
	for _, t := range q.Targets {
		for name, r := range w.resources {
			if w.target(name) != t {
				continue
			}
			for _, to := range r.cascades {
				w.found(p, at, to, peer.Via{Target: t, Path: "ref", Behaviour: schema.CascadeDelete})
			}
			for _, to := range r.owns {
				w.found(p, at, to, peer.Via{Target: t, Path: peer.OwnerPath})
			}
			for _, to := range r.unsets {
				if w.resources[to].at == at {
					p.Unsets = append(p.Unsets, peer.PlanUnset{
						UID: uidOf(to), Kind: "things", Name: to,
						Via: peer.Via{Target: t, Path: "ref", Behaviour: schema.Unset},
					})
				}
			}
		}
	}
	return p, nil
}

// countLeaves replaces the members of a plan by their number, where all of them concern no other deployment.
func countLeaves(p *peer.Plan, q peer.PlanQuestion) {
	concerns := func(m peer.PlanMember) bool {
		return m.BlockDeletion || len(m.Entries)+len(m.Ownees) > 0 || m.Vias[0].Path == peer.OwnerPath
	}
	if q.CountLeaves && len(p.Blockers) == 0 && !slices.ContainsFunc(p.Members, concerns) {
		distinct := map[uuid.UUID]bool{}
		for _, m := range p.Members {
			distinct[m.UID] = true
		}
		p.Members, p.Leaves = nil, len(distinct)
	}
}

func (w *world) found(p *peer.Plan, at schema.DeploymentID, name string, via peer.Via) {
	if w.resources[name].at == at {
		p.Members = append(p.Members, w.member(name, via))
		p.Blockers = append(p.Blockers, w.blockersOf(name)...)
	}
}

// Trace answers with the targets of the resources' references.
func (w *world) Trace(_ context.Context, at schema.DeploymentID, uids []uuid.UUID) (map[uuid.UUID]peer.Trace, error) {
	w.called("trace %s", at.Region)
	if w.down[at] {
		return nil, errors.New("connection refused")
	}
	out := map[uuid.UUID]peer.Trace{}
	for name, r := range w.resources {
		for _, uid := range uids {
			trace := out[uid]
			for _, to := range r.cascades {
				if uidOf(to) == uid {
					trace.Cascades = append(trace.Cascades, w.target(name))
				}
			}
			for _, to := range r.owns {
				if uidOf(to) == uid {
					trace.Owners = append(trace.Owners, w.target(name))
				}
			}
			out[uid] = trace
		}
	}
	return out, nil
}

// deletes walks as a delete of the resource named root does.
func (w *world) deletes(t *testing.T, detailed bool) *Walk {
	t.Helper()
	walk := w.walks(t, detailed, len(w.resources["root"].blockers) > 0)
	if walk.AskForNames() {
		require.NoError(t, walk.Run(t.Context()))
		require.NoError(t, walk.Judge(t.Context(), nil))
	}
	return walk
}

func (w *world) walks(t *testing.T, detailed, names bool) *Walk {
	t.Helper()
	walk := NewWalk(home, w, detailed)
	walk.NameLeaves = names
	walk.Begin([]peer.PlanMember{w.member("root")})
	for _, b := range w.blockersOf("root") {
		walk.Block(b)
	}
	walk.Follow(home, w.target("root"))
	require.NoError(t, walk.Run(t.Context()))
	require.NoError(t, walk.Judge(t.Context(), nil))
	return walk
}

func to(names ...string) func(r *resource) { return func(r *resource) { r.cascades = names } }

func blockedBy(names ...string) func(r *resource) { return func(r *resource) { r.blockers = names } }

func (w *world) goes(walk *Walk) (out []string) {
	for _, name := range []string{"root", "b", "c", "d", "e"} {
		if w.resources[name] != nil && walk.Goes(w.target(name)) {
			out = append(out, name)
		}
	}
	return out
}

func TestAWalkFollowsADeletionOverDeployments(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		world *world
		goes  []string
	}{
		"nothing refers": {new(world).add(home, "root", nil), []string{"root"}},
		"a chain over three": {
			new(world).add(home, "root", to("b")).add(away, "b", to("c")).add(third, "c", nil).add(third, "d", nil),
			[]string{"root", "b", "c"},
		},
		"back to the first": {
			new(world).add(home, "root", to("b")).add(away, "b", to("c")).add(home, "c", nil),
			[]string{"root", "b", "c"},
		},
		"a cycle": {new(world).add(home, "root", to("b")).add(away, "b", to("root")), []string{"root", "b"}},
		"a diamond": {
			new(world).add(home, "root", to("b", "c")).add(away, "b", to("d")).add(third, "c", to("d")).
				add(home, "d", nil),
			[]string{"root", "b", "c", "d"},
		},
		"found from two deployments": {
			new(world).add(home, "root", to("b", "c")).add(away, "b", to("c")).add(third, "c", nil),
			[]string{"root", "b", "c"},
		},
		"leaves that are reached at two levels": {
			new(world).add(home, "root", to("b", "c")).add(away, "b", to("d")).add(third, "c", nil).
				add(third, "d", nil),
			[]string{"root", "b", "c", "d"},
		},
		"a leaf that comes again beside another member": {
			new(world).add(home, "root", to("b", "c")).add(away, "b", to("c", "e")).add(third, "c", nil).
				add(third, "e", to("d")).add(away, "d", nil),
			[]string{"root", "b", "c", "d", "e"},
		},
		"owned": {
			new(world).add(home, "root", func(r *resource) {
				r.owns = []string{"b"}
			}).add(away, "b", to("c")).add(third, "c", nil),
			[]string{"root", "b", "c"},
		},
		"unset stays": {new(world).add(home, "root", func(r *resource) {
			r.unsets = []string{"b"}
		}).add(away, "b", to("c")).add(third, "c", nil), []string{"root"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			walk := c.world.walks(t, false, true)
			require.Equal(t, c.goes, c.world.goes(walk))
			require.Equal(t, len(c.goes), walk.Size(), "one that is found twice counts once")
			counting := c.world.walks(t, false, false)
			for _, walk := range []*Walk{walk, counting} {
				require.Empty(t, walk.Unasked)
				require.False(t, walk.Truncated)
				require.NoError(t, walk.Refusal("root"))
			}
		})
	}
}

func TestBlockersRefuseUnlessTheDeletionRemovesThem(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		world   *world
		blocked []string // by these
	}{
		"of the root": {new(world).add(home, "root", blockedBy("b")).add(away, "b", nil), []string{"b"}},
		"of a member": {
			new(world).add(home, "root", to("b")).add(away, "b", blockedBy("c")).add(third, "c", nil),
			[]string{"c"},
		},
		"removed as well": {new(world).add(home, "root", func(r *resource) {
			r.cascades, r.blockers = []string{"b"}, []string{"b"}
		}).add(away, "b", nil), nil},
		"removed further down": {new(world).add(home, "root", func(r *resource) {
			r.cascades, r.blockers = []string{"b"}, []string{"c"}
		}).add(away, "b", to("c")).add(third, "c", nil), nil},
		"of a member, counted": {new(world).add(home, "root", to("b", "c")).add(away, "b", blockedBy("c")).add(third,
			"c", nil), nil},
		"two, one of them removed": {new(world).add(home, "root", func(r *resource) {
			r.cascades, r.blockers = []string{"b"}, []string{"b", "c"}
		}).add(away, "b", nil).add(third, "c", nil), []string{"c"}},
		"of one that is only owned": {new(world).add(home, "root", func(r *resource) {
			r.owns = []string{"b"}
		}).add(away, "b", blockedBy("c")).add(third, "c", nil), nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := c.world.deletes(t, false).Refusal("root")
			if c.blocked == nil {
				require.NoError(t, err)
				return
			}
			var blocked *peer.BlockedError
			require.ErrorAs(t, err, &blocked)
			require.Equal(t, len(c.blocked), blocked.Total)
			for i, by := range c.blocked {
				require.Equal(t, by, blocked.Holders[i].Name.Name)
			}
			require.False(t, blocked.AtLeast)
		})
	}
}

func TestAMemberWithBlockDeletionRefuses(t *testing.T) {
	t.Parallel()
	protected := func(r *resource) { r.protected = true }
	w := new(world).add(home, "root", to("b")).add(away, "b", protected)
	var refused *peer.ProtectedError
	require.ErrorAs(t, w.deletes(t, false).Refusal("root"), &refused)
	require.Equal(t, []schema.FullName{{Deployment: away, Name: "b"}}, refused.By)

	w = new(world).add(home, "root", func(r *resource) { r.owns = []string{"b"} }).add(away, "b", protected)
	require.NoError(t, w.deletes(t, false).Refusal("root"), "one that only loses its owners waits instead")
}

// A deployment that does not answer leaves the part of the deletion there unknown. Holders of blockers are
// traced upwards instead.
func TestASilentDeploymentIsJudgedByTraces(t *testing.T) {
	t.Parallel()
	silent := func(w *world, at schema.DeploymentID) *world { w.down[at] = true; return w }
	t.Run("no blocker", func(t *testing.T) {
		t.Parallel()
		w := silent(new(world).add(home, "root", to("b")).add(away, "b", nil), away)
		walk := w.deletes(t, false)
		require.NoError(t, walk.Refusal("root"), "the cascade waits for it")
		require.Len(t, walk.Unasked, 1)
		require.Equal(t, away, walk.Unasked[0].Deployment)
	})
	t.Run("the blocker refers to nothing", func(t *testing.T) {
		t.Parallel()
		w := silent(new(world).add(home, "root", func(r *resource) {
			r.cascades, r.blockers = []string{"b"}, []string{"c"}
		}).add(away, "b", nil).add(third, "c", nil), away)
		var blocked *peer.BlockedError
		require.ErrorAs(t, w.deletes(t, false).Refusal("root"), &blocked)
		require.Contains(t, w.asked, "trace north")
	})
	t.Run("the blocker depends on the silent one", func(t *testing.T) {
		t.Parallel()
		w := silent(new(world).add(home, "root", func(r *resource) {
			r.cascades, r.blockers = []string{"b"}, []string{"c"}
		}).add(away, "b", to("c")).add(third, "c", nil), away)
		var unavailable *peer.UnavailableError
		err := w.deletes(t, false).Refusal("root")
		require.ErrorAs(t, err, &unavailable)
		require.Equal(t, []schema.DeploymentID{away}, unavailable.Deployments)
		require.ErrorContains(t, err, "it is unknown whether")
	})
	t.Run("the blocker refers to a member", func(t *testing.T) {
		t.Parallel()
		w := silent(new(world).add(home, "root", func(r *resource) {
			r.cascades, r.blockers = []string{"b", "c"}, []string{"d"}
		}).
			add(away, "b", nil).add(third, "c", to("d")).add(third, "d", nil), away)
		require.NoError(t, w.deletes(t, false).Refusal("root"))
	})
}

func TestMoreBlockersThanWereReadExcuseNone(t *testing.T) {
	t.Parallel()
	w := new(world).add(home, "root", func(r *resource) {
		r.cascades, r.blockers = []string{"b"}, []string{"b"}
	}).add(away, "b", nil)
	walk := w.deletes(t, false)
	require.NoError(t, walk.Refusal("root"))
	walk.MindAll = true
	var blocked *peer.BlockedError
	require.ErrorAs(t, walk.Refusal("root"), &blocked)
	require.True(t, blocked.AtLeast)
}

func TestAConfirmedBlockerReplacesAnUndecidedOne(t *testing.T) {
	t.Parallel()
	w := new(world).add(home, "root", blockedBy("b")).add(away, "b", nil)
	confirmed := w.blockersOf("root")[0]
	undecided := confirmed
	undecided.Undecided = true
	for name, order := range map[string][]peer.PlanBlocker{
		"confirmed last":  {undecided, confirmed},
		"confirmed first": {confirmed, undecided},
	} {
		walk := NewWalk(home, w, false)
		walk.Begin([]peer.PlanMember{w.member("root")})
		for _, b := range order {
			walk.Block(b)
		}
		require.Equal(t, []peer.PlanBlocker{confirmed}, walk.InOrder(), name)
	}
}

func TestAPlanGroupsResourcesByWhatRemovesThem(t *testing.T) {
	t.Parallel()
	w := new(world).add(home, "root", func(r *resource) { r.cascades, r.unsets = []string{"b", "c"}, []string{"d"} }).
		add(away, "b", nil).add(away, "c", to("e")).add(third, "d", nil).add(third, "e", nil)
	groups := w.deletes(t, true).Groups()
	require.Len(t, groups, 4)
	require.Equal(t, Group{Parent: -1, Deployment: home, Kind: "things", Count: 1, Names: []string{"root"}}, groups[0])
	require.Equal(t, 2, groups[1].Count)
	require.Equal(t, 0, groups[1].Parent)
	require.Equal(t, schema.CascadeDelete, groups[1].Behaviour)
	require.Equal(t, 1, groups[2].Parent, "below the group of its target")
	require.Equal(t, third, groups[2].Deployment)
	require.True(t, groups[3].Unset)
	require.Equal(t, 0, groups[3].Parent)
}

func TestTheTreeDoesNotDependOnTheOrderOfAnswers(t *testing.T) {
	t.Parallel()
	build := func() *world {
		return new(world).add(home, "root", to("b", "c")).add(away, "b", to("d")).add(third, "c", to("d")).
			add(home, "d", to("e")).add(away, "e", nil)
	}
	first := build().deletes(t, true).Groups()
	for range 20 {
		require.Equal(t, first, build().deletes(t, true).Groups())
	}
}

func TestAWalkEndsWithItsCaller(t *testing.T) {
	t.Parallel()
	w := new(world).add(home, "root", to("b")).add(away, "b", nil)
	walk := NewWalk(home, w, false)
	walk.Begin([]peer.PlanMember{w.member("root")})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, walk.Run(ctx), context.Canceled)
}

// Numbers of groups are raised to the counts of their deployment: at most by the different holders, and not
// where several kinds share a path. crowded is a world in which each deployment has more resources than a
// walk visits: it answers with as many as it is asked for, and counts the others. The answers take a while,
// one longer than the other.
type crowded struct {
	takes map[schema.DeploymentID]time.Duration
}

func (c crowded) Plan(ctx context.Context, at schema.DeploymentID, q peer.PlanQuestion) (*peer.Plan, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(c.takes[at]):
	}
	via := peer.Via{Target: q.Targets[0], Path: "ref", Behaviour: schema.CascadeDelete}
	p := &peer.Plan{
		Truncated: true, Holders: 1_000_000,
		Counts: []peer.PlanCount{{Path: "ref", Behaviour: schema.CascadeDelete, Count: 1_000_000}},
	}
	for i := range q.Limit {
		name := fmt.Sprintf("%s-%d", at.Region, i)
		p.Members = append(p.Members, peer.PlanMember{
			UID: uidOf(name), Kind: "things", Name: name,
			Vias: []peer.Via{via},
		})
	}
	return p, nil
}

func (c crowded) Trace(context.Context, schema.DeploymentID, []uuid.UUID) (map[uuid.UUID]peer.Trace, error) {
	return nil, errors.New("not asked")
}

// A plan counts the resources of every deployment, also of deployments that answer when it has reached its
// limit. A delete does not wait for them.
func TestAFullWalkCountsTheOtherDeployments(t *testing.T) {
	t.Parallel()
	for _, detailed := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			w := NewWalk(home, crowded{map[schema.DeploymentID]time.Duration{
				away:  2 * time.Second,
				third: 5 * time.Second,
			}}, detailed)
			w.Begin([]peer.PlanMember{{
				UID: uidOf("root"), Kind: "things", Name: "root",
				Entries: []schema.DeploymentID{away, third},
			}})
			began := time.Now()
			require.NoError(t, w.Run(ctx))
			require.True(t, w.Truncated)
			if !detailed {
				require.Less(t, time.Since(began), 3*time.Second)
				require.Equal(t, []peer.Unasked{{Deployment: third, Why: peer.LimitReached}}, w.Unasked)
				return
			}
			require.Empty(t, w.Unasked)
			counts := map[schema.DeploymentID]int{}
			for _, g := range w.Groups() {
				counts[g.Deployment] += g.Count
			}
			require.Equal(t, map[schema.DeploymentID]int{home: 1, away: 1_000_000, third: 1_000_000}, counts)
		})
	}
}

func TestGroupsCountWhatTheWalkDidNotVisit(t *testing.T) {
	t.Parallel()
	cascade := func(path, kind string, n int) Group {
		return Group{Deployment: away, Kind: kind, Path: path, Behaviour: schema.CascadeDelete, Count: n}
	}
	w := NewWalk(home, nil, true)
	w.Truncated = true
	for range 7 {
		w.order = append(w.order, &walkedMember{at: peer.PlanTarget{Deployment: away}})
	}
	count := func(path string, b schema.Behaviour, n int) peer.PlanCount {
		return peer.PlanCount{Path: path, Behaviour: b, Count: n}
	}
	w.takeCounts(away, &peer.Plan{
		Truncated: true, Holders: 100,
		Counts: []peer.PlanCount{
			count("a", schema.CascadeDelete, 60), count("b", schema.CascadeDelete, 70),
			count("c", schema.CascadeDelete, 9), count("u", schema.Unset, 50),
		},
	})
	w.takeCounts(away, &peer.Plan{
		Truncated: true, Holders: 90,
		Counts: []peer.PlanCount{count("a", schema.CascadeDelete, 10)},
	})
	groups := []Group{
		{Parent: -1, Deployment: home, Count: 1},
		cascade("a", "k", 3), cascade("b", "k", 2), cascade("c", "k", 1), cascade("c", "l", 1),
		{Deployment: away, Path: "u", Behaviour: schema.Unset, Unset: true, Count: 4},
		cascade("d", "k", 0),
	}
	w.addBeyond(groups)
	counts := make([]int, len(groups))
	for i, g := range groups {
		counts[i] = g.Count
		require.Equal(t, i > 0, g.AtLeast)
	}
	require.Equal(t, []int{1, 60, 38, 1, 1, 50, 0}, counts, "60 and 38 and 2 are the 100 holders")
}
