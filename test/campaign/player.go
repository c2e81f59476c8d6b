package campaign

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/direct"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

const (
	// storm is how long an operation is tried under faults. Then they end until its outcome is definite: an
	// atomic deletion needs all deployments at the same time.
	storm = 20 * time.Second
	// patience is how long an operation may stay unknown.
	patience = 2 * time.Minute
)

// Player plays one operation after the other against the system and the oracle.
type Player struct {
	t       testing.TB
	w       *World
	o       *Oracle
	g       *generator
	c       *Coverage
	mu      sync.Mutex
	journal []string // guarded by mu
	// gone are removed names.
	gone map[string]bool
	// going are names that the last deletes removed: references to them now arrive just before or after the
	// cascade.
	going []string
	// deleted are names with an accepted delete that were not created again.
	deleted map[string]bool
	// said is the content of the last accepted put of a name: its references stay until a deletion has unset
	// them.
	said map[string]said
	// held ends the delay of a deployment's deletions.
	held    func()
	cleaner *Cleaner
	deletes int
}

// NewPlayer returns a player of a language.
func NewPlayer(t testing.TB, w *World, c *Coverage, r *rand.Rand, l language, each int) *Player {
	t.Helper()
	p := &Player{
		t: t, w: w, o: newOracle(t), g: newGenerator(r, l, each), c: c, gone: map[string]bool{},
		deleted: map[string]bool{}, said: map[string]said{},
	}
	p.cleaner = newCleaner(p)
	return p
}

type said struct {
	uid     string
	targets []string
}

// note writes to the journal, which is printed when the campaign fails.
func (p *Player) note(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.journal = append(p.journal, fmt.Sprintf("%s  ", time.Now().Format("05.000"))+fmt.Sprintf(format, args...))
}

// wrong fails the campaign.
func (p *Player) wrong(format string, args ...any) {
	p.t.Helper()
	p.mu.Lock()
	tail := slices.Clone(p.journal[max(0, len(p.journal)-60):])
	p.mu.Unlock()
	require.FailNow(p.t, fmt.Sprintf(format, args...), "the last operations:\n%s", strings.Join(tail, "\n"))
}

// Step does one operation.
func (p *Player) Step(ctx context.Context) {
	p.t.Helper()
	p.forgetSettled(ctx)
	name := p.g.name()
	if len(p.going) > 0 && p.g.IntN(2) == 0 {
		p.chase(ctx)
		return
	}
	if p.g.IntN(10) < 8 {
		// An earlier write could save a resource that a deletion is reaching, with all its dependants: the
		// outcome is clear only for a resource without dependants.
		if p.o.flight[name] && !p.g.of[name].leaf {
			p.c.add("skipped: a deletion was reaching the resource", 1)
			return
		}
		p.Put(ctx, name, p.content(name))
		return
	}
	if !p.w.calm && p.g.IntN(3) == 0 {
		p.confirmLate(ctx)
		return
	}
	if there := slices.Sorted(maps.Keys(p.o.rows)); len(there) > 0 && p.g.IntN(5) > 0 {
		name = there[p.g.IntN(len(there))]
	}
	if !p.w.calm && p.g.IntN(2) == 0 {
		p.holdBack(name)
		p.Delete(ctx, name)
		for range 1 + p.g.IntN(4) {
			if len(p.going) == 0 {
				p.going = append(p.going, name)
			}
			p.chase(ctx)
		}
		p.held()
		return
	}
	p.Delete(ctx, name)
}

// holdBack delays the delivery of a deployment's deletions, so that its resources stay in DELETING for a
// while.
func (p *Player) holdBack(name string) {
	p.c.add("fault: deletions held back", 1)
	p.held = p.suffer(name, "WatchImportedServiceDeletions", "AcknowledgeDeletions")
}

// Populate writes every resource once.
func (p *Player) Populate(ctx context.Context) {
	p.t.Helper()
	for range 2 {
		for _, name := range p.g.names {
			p.Put(ctx, name, p.content(name))
		}
	}
}

// chase operates on a resource that a deletion is reaching, or has just removed.
func (p *Player) chase(ctx context.Context) {
	p.t.Helper()
	name := p.going[0]
	p.going = p.going[1:]
	p.c.add("operations on resources of a running deletion", 1)
	switch p.g.IntN(4) {
	case 0:
		p.Delete(ctx, name)
	case 1:
		if p.g.of[name].leaf || !p.o.flight[name] {
			p.Put(ctx, name, p.content(name))
		}
	default:
		var holders []string
		for _, h := range p.g.names {
			if slices.Contains(p.g.targets[h], name) && (p.g.of[h].leaf || !p.o.flight[h]) {
				holders = append(holders, h)
			}
		}
		if len(holders) > 0 {
			holder := holders[p.g.IntN(len(holders))]
			c, fields := p.content(holder), p.g.of[holder].fields
			if f := fields[p.g.IntN(len(fields))]; f != "d" {
				c.Refs[f] = []string{name}
			}
			p.Put(ctx, holder, c)
		}
	}
}

func (p *Player) content(name string) Content {
	c := p.g.content(name, p.o.there)
	if p.g.owners && p.g.IntN(4) == 0 {
		for range 1 + p.g.IntN(2) {
			owner := p.g.name()
			if r, ok := p.o.rows[owner]; ok && owner != name && !p.g.of[owner].leaf &&
				!slices.Contains(c.Owners, owner+" "+r.UID) {
				c.Owners = append(c.Owners, owner+" "+r.UID)
			}
		}
		slices.Sort(c.Owners)
	}
	return c
}

// Put writes a resource, and repeats that until the outcome is definite.
func (p *Player) Put(ctx context.Context, name string, c Content) {
	p.t.Helper()
	p.put(ctx, name, c, uuid.NewString())
}

func (p *Player) resource(name string, c Content) *resourcev1.Resource {
	body, err := structpb.NewStruct(c.body())
	require.NoError(p.t, err)
	resource := &resourcev1.Resource{Name: name, Body: body}
	for _, owner := range c.Owners {
		of, uid, _ := strings.Cut(owner, " ")
		resource.OwnerReferences = append(resource.OwnerReferences, &resourcev1.OwnerReference{
			Name: of, Uid: uid,
			Kind: kindOf(of),
		})
	}
	return resource
}

func (p *Player) put(ctx context.Context, name string, c Content, request string) {
	p.t.Helper()
	quiet, would := p.o.quiet(), p.o.Would(name, &c)
	resource := p.resource(name, c)
	full, err := schema.ParseFullName(name)
	require.NoError(p.t, err)
	var answer *resourcev1.Resource
	err = p.until(ctx, full, func(ctx context.Context, r resourcev1.ResourceServiceClient) (err error) {
		answer, err = r.PutResource(ctx, &resourcev1.PutResourceRequest{Resource: resource, RequestId: request})
		return err
	})
	p.note("put %s %v %v: %v", name, c.Refs, c.Owners, err)
	p.judge("put", name, quiet, would, err)
	if err != nil {
		return
	}
	if before, ok := p.o.rows[name]; ok && before.UID != answer.GetUid() && !p.o.flight[name] {
		p.wrong("%s was created again, and nothing had deleted it", name)
	}
	switch {
	case p.o.flight[name]:
		p.c.add("put on a resource that a deletion was reaching", 1)
	case p.gone[name] && !p.o.there(name):
		p.c.add("created again", 1)
	}
	for _, target := range c.targets() {
		last := p.said[name]
		keeps := last.uid == answer.GetUid() && slices.Contains(last.targets, target) ||
			slices.Contains(p.o.rows[name].targets(), target)
		if p.deleted[target] && !keeps && !p.underARight(name, target, c) {
			p.wrong("put %s was accepted, and refers to %s, which was deleted (I4)", name, target)
		}
	}
	p.said[name] = said{answer.GetUid(), c.targets()}
	delete(p.deleted, name)
	before := len(p.o.rows)
	late := p.o.Put(name, answer.GetUid(), c)
	p.c.add("referred to a resource that a deletion was reaching", late)
	if late > 0 && quiet {
		p.wrong("put %s was accepted, and refers to missing resources: %v", name, would)
	}
	p.count(before+1, name)
}

// kindOf returns the kind of an owner, by its name in the first version.
func kindOf(name string) string {
	collection := strings.Split(name, "/")[4]
	return map[string]string{
		"nodes": "Node", "leaves": "Leaf", "roots": "Root", "chains": "Chain",
		"blockers": "Blocker",
	}[collection]
}

// Delete deletes a resource, and repeats that until the outcome is definite. Half of the deletes are atomic;
// half of those are scheduled first, and undeleted or carried out at once.
func (p *Player) Delete(ctx context.Context, name string) {
	p.t.Helper()
	p.deletes++
	atomic, now := p.deletes%2 == 0, false
	if p.deletes%4 == 0 && p.o.there(name) && !p.o.flight[name] {
		now = p.schedule(ctx, name, p.deletes%8 == 0)
	}
	p.delete(ctx, name, atomic, now)
}

// schedule hides a resource with all that its deletion reaches, and shows it again, unless it stays hidden:
// it is deleted at once then. A refused one changes nothing, as the delete that follows shows.
func (p *Player) schedule(ctx context.Context, name string, stays bool) (hidden bool) {
	p.t.Helper()
	full, err := schema.ParseFullName(name)
	require.NoError(p.t, err)
	for name, row := range p.o.rows { // any of them may be a member
		p.w.mayHide(row.UID)
		if p.o.flight[name] || row.UID == "" {
			p.w.mayHide(name)
		}
	}
	for name := range p.o.flight {
		p.w.mayHide(name)
	}
	err = p.until(ctx, full, func(ctx context.Context, r resourcev1.ResourceServiceClient) error {
		_, err := r.DeleteResource(ctx, &resourcev1.DeleteResourceRequest{
			Name: name, Uid: p.o.rows[name].UID,
			AllowMissing: true, Retention: durationpb.New(time.Hour),
		})
		if err != nil && strings.Contains(err.Error(), peer.ErrDeleted.Error()) { // by an earlier try
			return nil
		}
		return err
	})
	p.note("schedule the deletion of %s: %v", name, err)
	if err != nil || stays {
		return err == nil
	}
	p.c.add("deletions undone", 1)
	err = p.until(ctx, full, func(ctx context.Context, r resourcev1.ResourceServiceClient) error {
		_, err := r.UndeleteResource(ctx, &resourcev1.UndeleteResourceRequest{Name: name})
		// a failover has lost the schedule
		if status.Code(err) == codes.AlreadyExists || status.Code(err) == codes.NotFound {
			return nil
		}
		return err
	})
	p.note("undelete %s: %v", name, err)
	return false
}

func (p *Player) delete(ctx context.Context, name string, atomic, now bool) {
	p.t.Helper()
	quiet, would := p.o.quiet(), p.o.Would(name, nil)
	if atomic {
		would = p.o.wouldTogether(name)
	}
	full, err := schema.ParseFullName(name)
	require.NoError(p.t, err)
	before := p.o.rows[name]
	inFlight := p.o.flight[name]
	if inFlight {
		before.UID = "" // it may be another resource meanwhile
	}
	var answer *resourcev1.DeleteResourceResponse
	first, missed, gone := true, false, false // it did not exist at the first try, or at a later one
	tries := 0
	call := func(ctx context.Context, r resourcev1.ResourceServiceClient) (err error) {
		tries++
		answer, err = r.DeleteResource(ctx, &resourcev1.DeleteResourceRequest{
			Name: name, Uid: before.UID,
			Atomic: atomic, Now: now,
		})
		// through the other region, which does not speak for an operator
		if now && status.Code(err) == codes.PermissionDenied {
			return status.Error(codes.Unavailable, err.Error())
		}
		if status.Code(err) == codes.NotFound {
			gone, missed = true, first
			return nil
		}
		first = false
		return err
	}
	err = p.until(ctx, full, call)
	// A confirmed blockade counts while its holder's deployment cannot be asked, also after the reference was
	// dropped: the answer changes when it can be asked again.
	for began := time.Now(); err != nil && quiet && would == nil && time.Since(began) < 10*time.Second; {
		p.note("  refused, and asked again: %v", err)
		<-time.After(200 * time.Millisecond)
		err = p.until(ctx, full, call)
	}
	switch {
	case missed && !inFlight && p.o.there(name):
		p.wrong("%s did not exist, and nothing had deleted it (I2, I9)", name)
	case err == nil && !gone && !inFlight && !p.o.there(name):
		p.wrong("%s existed again after its removal (I12)", name)
	}
	flight := maps.Clone(p.o.flight)
	p.note("delete %s (atomic: %t): %v", name, atomic, err)
	p.judge("delete", name, quiet, would, err)
	if err != nil || !p.o.there(name) {
		return
	}
	rows, names := len(p.o.rows), slices.Sorted(maps.Keys(p.o.rows))
	blockers := p.o.Delete(name)
	for _, n := range names {
		if n != name && !p.o.there(n) {
			p.going = append(p.going, n)
		}
	}
	p.going = p.going[max(0, len(p.going)-6):]
	p.deleted[name] = true
	for _, b := range blockers {
		p.c.add("accepted deletes with a blocker below", 1)
		if p.g.exact || b[1] == name && !flight[b[0]] && !gone {
			p.wrong("delete %s was accepted, and %s blocks it", name, b[0])
		}
		if atomic && !flight[b[0]] && !flight[b[1]] && !gone {
			p.wrong("the atomic delete of %s was accepted, and %s blocks its member %s (I35)", name, b[0], b[1])
		}
	}
	if atomic {
		p.c.add("atomic deletes accepted", 1)
	}
	// A try whose outcome is unknown may have been accepted without an answer of some deployment: the answer to
	// the next one, about a resource in DELETING, does not name it.
	if len(blockers) > 0 && quiet && tries == 1 && len(answer.GetUnaskedDeployments()) == 0 && would != nil {
		p.wrong("delete %s was accepted, every deployment was asked, and %v block it", name, blockers)
	}
	for _, u := range answer.GetUnasked() {
		switch {
		case u.GetReason() == resourcev1.UnaskedDeployment_REASON_TIMED_OUT: // the machine is busy
			p.c.add("a deployment did not answer a look-ahead in time", 1)
		case p.w.calm:
			p.wrong("delete %s: without a fault, %s could not be asked: %s", name, u.GetDeployment(), u.GetMessage())
		}
	}
	p.count(rows, name)
}

func (p *Player) count(before int, name string) {
	if n := before - len(p.o.rows); n > 1 {
		p.c.add("cascaded", n-1)
	}
	p.gone[name] = true
}

// judge compares a decision with native keys. While deletions are in progress, the system may refuse
// operations that native keys accept.
func (p *Player) judge(verb, name string, quiet bool, would, err error) {
	p.t.Helper()
	p.c.add(verb+map[bool]string{true: " accepted", false: " refused"}[err == nil], 1)
	if quiet {
		p.c.add("decisions compared with the oracle", 1)
		if err != nil && would == nil {
			p.wrong("%s %s was refused, and nothing is in its way: %v", verb, name, err)
		}
	}
	if err == nil && would != nil && (quiet || p.g.exact && verb == "delete") && (verb == "put" || p.g.exact) {
		p.wrong("%s %s was accepted, but %v", verb, name, would)
	}
}

// until repeats a call with the same request id until its outcome is definite, sometimes through the other
// region.
func (p *Player) until(ctx context.Context, name schema.FullName,
	call func(ctx context.Context, r resourcev1.ResourceServiceClient) error,
) error {
	p.t.Helper()
	began, truce := time.Now(), false
	for try := 0; ; try++ {
		if !truce && time.Since(began) > storm {
			p.c.add("operations that needed a truce", 1)
			p.w.truce.Lock()
			defer p.w.truce.Unlock()
			truce = true
		}
		at := name.Deployment
		if p.g.IntN(5) == 0 {
			at.Region = map[string]string{"east": "west", "west": "east"}[at.Region]
			p.c.add("sent through the other region", 1)
		}
		asked, cancel := context.WithTimeout(ctx, 6*time.Second)
		err := call(asked, p.w.resources(ctx, at))
		cancel()
		switch status.Code(err) {
		case codes.OK, codes.FailedPrecondition:
			if try > 0 {
				p.c.add("definite after unknown", 1)
			}
			p.c.took("an operation without a definite outcome", time.Since(began))
			return err
		case codes.Unavailable, codes.DeadlineExceeded, codes.Aborted, codes.Unknown, codes.Canceled, codes.Internal,
			codes.ResourceExhausted, codes.NotFound:
			p.c.add("unknown: "+status.Code(err).String(), 1)
			if time.Since(began) > patience {
				p.wrong("%s is not definite after %s: %v", name, patience, err)
			}
			p.note("  again: %v", err)
		default:
			p.wrong("%s: %v", name, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Duration(20+try*20) * time.Millisecond):
		}
	}
}

// forgetSettled forgets the names whose deletion is complete: removed in both, or equal in both.
func (p *Player) forgetSettled(ctx context.Context) {
	for name := range p.o.flight {
		full, _ := schema.ParseFullName(name)
		asked, cancel := context.WithTimeout(ctx, time.Second)
		r, err := p.w.resources(ctx, full.Deployment).
			GetResource(asked, &resourcev1.GetResourceRequest{Name: full.Name})
		cancel()
		here, ok := p.o.rows[name]
		switch {
		case status.Code(err) == codes.NotFound && !ok:
			for pair := range p.o.held {
				if pair[1] == name && p.o.there(pair[0]) && !p.o.flight[pair[0]] {
					p.wrong("%s is gone, and %s refers to it (I2)", name, pair[0])
				}
			}
			delete(p.o.flight, name)
		case err == nil && ok && r.GetState() == resourcev1.Resource_STATE_ACTIVE && r.GetUid() == here.UID &&
			difference(here.Content, read(r)) == "":
			delete(p.o.flight, name)
		}
	}
}

// read returns the content of a resource.
func read(r *resourcev1.Resource) Content {
	c := contentOf(r.GetBody().AsMap())
	for _, o := range r.GetOwnerReferences() {
		c.Owners = append(c.Owners, o.GetName()+" "+o.GetUid())
	}
	slices.Sort(c.Owners)
	return c
}

// difference compares two contents; removed owners are left out, since they are dropped one after the other.
func difference(want, got Content) string {
	switch {
	case want.Payload != got.Payload:
		return fmt.Sprintf("payload %s, not %s", got.Payload, want.Payload)
	case !maps.EqualFunc(want.Refs, got.Refs, slices.Equal):
		return fmt.Sprintf("refers to %v, not %v", got.Refs, want.Refs)
	}
	return ""
}

// list returns all resources of the system.
func (p *Player) list(ctx context.Context) map[string]*resourcev1.Resource {
	p.t.Helper()
	out := map[string]*resourcev1.Resource{}
	for _, id := range deployments {
		maps.Copy(out, p.listAt(ctx, id))
	}
	return out
}

func (p *Player) listAt(ctx context.Context, id schema.DeploymentID) (out map[string]*resourcev1.Resource) {
	p.t.Helper()
	p.insist(func() error {
		out = map[string]*resourcev1.Resource{}
		return direct.Each(ctx, p.w.Client, id, client.Query{}, func(r *resourcev1.Resource) error {
			out["//"+id.String()+"/"+r.GetName()] = r
			return nil
		})
	})
	return out
}
