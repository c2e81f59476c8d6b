package campaign

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

var fullName = regexp.MustCompile(`//[a-z.]+/[a-z]+/[a-z]+/[0-9]+`)

// underRight matches the reason of a resource that is blocked under the right of a deployment, whose holders
// it does not name.
var underRight = regexp.MustCompile(`references of ([a-z.]+/[a-z]+) under its right to block`)

// blockers returns the resources of deployments that block a resource.
func blockers(system map[string]*resourcev1.Resource, deployments [][]string, name string) (all []string) {
	for _, d := range deployments {
		for holder, r := range system {
			if c := read(r); at(holder) == "//"+d[1] && slices.Contains(slices.Concat(c.Refs["b1"], c.Refs["bl"]),
				name) {
				all = append(all, holder)
			}
		}
	}
	return all
}

// Drain removes the reported blockers until nothing is blocked.
func (p *Player) Drain(ctx context.Context) {
	p.t.Helper()
	for round := 0; ; round++ {
		p.Quiet(ctx, true)
		system := p.list(ctx)
		blocked := map[string]map[string]bool{}
		for name, r := range system {
			if r.GetState() != resourcev1.Resource_STATE_DELETING {
				continue
			}
			said := ""
			for _, c := range p.explain(ctx, name).GetReasons() {
				said += c.GetType() + ": " + c.GetMessage() + "\n"
			}
			named := append(fullName.FindAllString(said, -1),
				blockers(system, underRight.FindAllStringSubmatch(said, -1), name)...)
			found := 0
			for _, b := range named {
				if b == name {
					continue
				}
				h := system[b]
				if h == nil {
					p.wrong("%s waits for %s, which does not exist:\n%s", name, b, said)
				}
				c := read(h)
				if !slices.Contains(slices.Concat(c.Refs["b1"], c.Refs["bl"]), name) {
					p.wrong("%s waits for %s, which does not block it:\n%s", name, b, said)
				}
				if blocked[b] == nil {
					blocked[b] = map[string]bool{}
				}
				blocked[b][name] = true
				found++
			}
			if found == 0 {
				p.wrong("%s is DELETING without a reported reason: %q (I13)", name, said)
			}
			p.c.add("reported blocked, and drained", 1)
		}
		if len(blocked) == 0 {
			return
		}
		if round > 30 {
			p.wrong("still blocked after %d rounds: %v", round, blocked)
		}
		for _, b := range slices.Sorted(maps.Keys(blocked)) {
			c := read(system[b])
			for name := range blocked[b] {
				c = c.without(name, blocks)
			}
			p.g.n++
			c.Payload = fmt.Sprintf("drained%d", p.g.n)
			if system[b].GetState() == resourcev1.Resource_STATE_ACTIVE {
				p.Put(ctx, b, c)
			}
		}
	}
}

// Tentative blockades are no outstanding work: they expire first.
const tentativeSQL = `SELECT count(*) FROM dbcontroller.blockade WHERE expires_at IS NOT NULL`

// quietBound is the time within which everything settles after the last fault (I28).
const quietBound = 45 * time.Second

// Quiet waits until no work is outstanding anywhere, except blocked deletions where blocked is set.
func (p *Player) Quiet(ctx context.Context, blocked bool) {
	p.t.Helper()
	began := time.Now()
	for {
		var outstanding []string
		marks := p.marks(ctx) // a write during the check makes another check necessary
		for _, id := range deployments {
			s, err := p.w.status(ctx, id)
			if err != nil {
				outstanding = append(outstanding, err.Error())
				continue
			}
			if version := p.w.wants(id); version != "" && s.GetVersion() != version {
				outstanding = append(outstanding, fmt.Sprintf("%s runs %s, not %s", id, s.GetVersion(), version))
			}
			for _, o := range s.GetOutstanding() {
				if blocked && o.GetGroup() == "deleting" && p.blocked(ctx, id) {
					continue
				}
				outstanding = append(outstanding, fmt.Sprintf("%s: %v", id, o))
			}
			var tentative int
			require.NoError(p.t, p.w.sites[id].admin.QueryRow(ctx, tentativeSQL).Scan(&tentative))
			if tentative > 0 {
				outstanding = append(outstanding, fmt.Sprintf("%s: %d tentative blockades", id, tentative))
			}
		}
		if len(outstanding) == 0 && p.marks(ctx) == marks {
			p.c.took("until everything was settled", time.Since(began))
			return
		}
		if time.Since(began) > quietBound {
			p.wrong("it does not come to rest within %s (I28):\n%s\n%s", quietBound, strings.Join(outstanding, "\n"),
				p.waiting(ctx))
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// explain returns the reasons why a resource is DELETING.
func (p *Player) explain(ctx context.Context, name string) *adminv1.ExplainResponse {
	full, err := schema.ParseFullName(name)
	require.NoError(p.t, err)
	admin, err := p.w.Client.Admin(ctx, full.Deployment)
	require.NoError(p.t, err)
	var e *adminv1.ExplainResponse
	p.insist(func() (err error) {
		if e, err = admin.Explain(ctx, &adminv1.ExplainRequest{Name: full.Name}); status.Code(err) == codes.NotFound {
			err = nil // removed meanwhile
		}
		return err
	})
	return e
}

// insist repeats a question to a process that may not have noticed yet that some of its connections are
// broken.
func (p *Player) insist(ask func() error) {
	p.t.Helper()
	for began := time.Now(); ; <-time.After(50 * time.Millisecond) {
		err := ask()
		if err == nil {
			return
		}
		if status.Code(err) != codes.Unavailable || time.Since(began) > quietBound {
			p.wrong("after the repair of all faults: %v", err)
		}
	}
}

// waiting describes all resources in DELETING, with the reported reasons.
func (p *Player) waiting(ctx context.Context) (said string) {
	for name, r := range p.list(ctx) {
		if r.GetState() == resourcev1.Resource_STATE_DELETING {
			said += fmt.Sprintf("%s: %v\n", name, p.explain(ctx, name))
		}
	}
	return said
}

// blocked reports whether all DELETING resources of a deployment are reported as blocked.
func (p *Player) blocked(ctx context.Context, id schema.DeploymentID) bool {
	all := true
	for name, r := range p.listAt(ctx, id) {
		if r.GetState() == resourcev1.Resource_STATE_DELETING {
			all = all && slices.ContainsFunc(p.explain(ctx, name).GetReasons(),
				func(r *adminv1.ExplainResponse_Reason) bool {
					return r.GetType() == "BLOCKED"
				})
		}
	}
	return all
}

// Compare fails unless the system has the state of the oracle.
func (p *Player) Compare(ctx context.Context) {
	p.t.Helper()
	system := p.list(ctx)
	var differences []string
	differ := func(name, format string, args ...any) {
		differences = append(differences, name+": "+fmt.Sprintf(format, args...))
	}
	for name, want := range p.o.rows {
		r := system[name]
		switch {
		case r == nil:
			differ(name, "is missing")
		case r.GetState() != resourcev1.Resource_STATE_ACTIVE:
			differ(name, "is %s", r.GetState())
		case r.GetUid() != want.UID:
			differ(name, "has uid %s, not %s", r.GetUid(), want.UID)
		default:
			got := read(r)
			if d := difference(want.Content, got); d != "" {
				differ(name, "%s", d)
			}
			living := slices.DeleteFunc(slices.Clone(want.Owners), func(o string) bool { return !p.o.owns(o) })
			if !slices.Equal(living, got.Owners) {
				differ(name, "is owned by %v, not %v", got.Owners, living)
			}
		}
		delete(system, name)
	}
	for name, r := range system {
		differ(name, "exists (%s %v %v) unexpectedly", r.GetState(), read(r), r.GetConditions())
	}
	if len(differences) > 0 {
		slices.Sort(differences)
		p.wrong("the system and the oracle differ:\n%s", strings.Join(differences, "\n"))
	}
	p.o.flight, p.o.held = map[string]bool{}, map[[2]string]bool{}
	p.c.add("comparisons of all resources with the oracle", 1)
}
