package campaign

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

// schedule is a sequence of steps in which each step waits for the one before. It is played without random
// faults: random operations reach it too seldom, or never.
type schedule struct {
	name string
	play func(*stage)
}

// stage is where a schedule is played: a target, and holders in another deployment, which gets the right to
// block it.
type stage struct {
	*Player // without an oracle
	ctx     context.Context
	name    string
	target  string
	uid     string // of the target
	n       int
}

// worldOfSchedules returns a world in which blockades expire late and nothing is compared in the background,
// so that no timer repairs anything.
func worldOfSchedules(t testing.TB, binary string) *World {
	t.Helper()
	w := NewWorld(t, binary, false, "--tentative-ttl", "1m", "--audit-interval", "0")
	w.calm = true
	return w
}

// perform plays a schedule, and fails the test when the audit at its end does.
func (w *World) perform(t testing.TB, s schedule) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), playLimit)
	defer cancel()
	st := &stage{
		Player: &Player{t: t, w: w, c: NewCoverage()}, ctx: ctx, name: s.name,
		target: "//a.example.com/west/nodes/" + s.name,
	}
	s.play(st)
	st.Quiet(ctx, false)
	st.Audit(ctx)
}

// holder is the name of a resource in the deployment with the right.
func (s *stage) holder(n int) string {
	return fmt.Sprintf("//b.example.com/east/nodes/%s-%d", s.name, n)
}

func (s *stage) blocks() map[string][]string { return map[string][]string{"b1": {s.target}} }

// write writes a resource, once.
func (s *stage) write(name string, refs map[string][]string) (*resourcev1.Resource, error) {
	full, err := schema.ParseFullName(name)
	require.NoError(s.t, err)
	s.n++
	ctx, cancel := context.WithTimeout(s.ctx, definiteWithin)
	defer cancel()
	r, err := s.w.resources(ctx, full.Deployment).PutResource(ctx, &resourcev1.PutResourceRequest{
		Resource: s.resource(name, Content{Payload: fmt.Sprintf("p%d", s.n), Refs: refs}), RequestId: uuid.NewString(),
	})
	s.note("put %s %v: %v", name, refs, err)
	return r, err
}

// remove deletes a resource, once.
func (s *stage) remove(name string) error {
	full, err := schema.ParseFullName(name)
	require.NoError(s.t, err)
	ctx, cancel := context.WithTimeout(s.ctx, definiteWithin)
	defer cancel()
	_, err = s.w.resources(ctx, full.Deployment).DeleteResource(ctx, &resourcev1.DeleteResourceRequest{Name: full.Name})
	s.note("delete %s: %v", name, err)
	return err
}

// definiteWithin is the time in which an operation without faults has a definite outcome, and a step its
// effect.
const definiteWithin = 50 * time.Second

// puts writes a resource, which has to be accepted.
func (s *stage) puts(name string, refs map[string][]string) *resourcev1.Resource {
	s.t.Helper()
	r, err := s.write(name, refs)
	for began := time.Now(); status.Code(err) == codes.Unavailable && time.Since(began) < definiteWithin; r,
		err = s.write(name, refs) {
		<-time.After(50 * time.Millisecond) // the processes have just started
	}
	if err != nil {
		s.wrong("put %s %v was refused, and nothing is in its way: %v", name, refs, err)
	}
	return r
}

// cannotPut writes a resource, which has to be refused.
func (s *stage) cannotPut(name string, refs map[string][]string, why string) {
	s.t.Helper()
	switch _, err := s.write(name, refs); status.Code(err) {
	case codes.FailedPrecondition:
	case codes.OK:
		s.wrong("put %s %v was accepted, and %s", name, refs, why)
	default:
		s.wrong("put %s %v: %v", name, refs, err)
	}
}

// deletes deletes a resource, which has to be accepted.
func (s *stage) deletes(name string) {
	s.t.Helper()
	if err := s.remove(name); err != nil {
		s.wrong("delete %s was refused, and nothing is in its way: %v", name, err)
	}
}

// cannotDelete deletes a resource, which has to be answered with a code.
func (s *stage) cannotDelete(name string, want codes.Code, why string) {
	s.t.Helper()
	s.answered(s.remove(name), want, name, why)
}

func (s *stage) answered(err error, want codes.Code, name, why string) {
	s.t.Helper()
	switch status.Code(err) {
	case want:
	case codes.OK:
		s.wrong("delete %s was accepted, and %s", name, why)
	default:
		s.wrong("delete %s: %v, and not %s", name, err, want)
	}
}

// dropReferences drops the references of holders.
func (s *stage) dropReferences(holders ...int) {
	s.t.Helper()
	for _, n := range holders {
		s.puts(s.holder(n), nil)
	}
	s.settled()
}

// awaits waits for a step.
func (s *stage) awaits(what string, done func() bool) {
	s.t.Helper()
	for began := time.Now(); !done(); <-time.After(5 * time.Millisecond) {
		if time.Since(began) > wait.Limit {
			s.wrong("it never came: %s", what)
		}
	}
}

// finds asks the database of the deployment of a resource.
func (s *stage) finds(name, sql string, args ...any) (is bool) {
	s.t.Helper()
	require.NoError(s.t, s.siteOf(name).admin.QueryRow(s.ctx, sql, args...).Scan(&is))
	return is
}

// settled waits until the deployments of the target and of the holders owe one another nothing but deletions.
func (s *stage) settled() {
	s.t.Helper()
	s.awaits("nothing is owed", func() bool {
		before := s.marks(s.ctx)
		for _, name := range []string{s.target, s.holder(0)} {
			now, err := s.w.status(s.ctx, s.siteOf(name).id)
			if err != nil || !s.finds(name, "SELECT 0 = ("+tentativeSQL+")") {
				return false
			}
			for _, o := range now.GetOutstanding() {
				if o.GetGroup() != "deleting" {
					return false
				}
			}
		}
		return s.marks(s.ctx) == before
	})
}

// barrier stops calls between deployments when they were executed, before their answers are sent.
type barrier struct {
	reached, open chan struct{}
	release       func()
	mend          func()
}

// stops holds back the answer of the nth call of some methods to the deployment of a resource, from now on.
func (s *stage) stops(name string, nth int, of func(method string) bool) *barrier {
	b := &barrier{reached: make(chan struct{}), open: make(chan struct{})}
	b.release = sync.OnceFunc(func() { close(b.open); b.mend() })
	s.t.Cleanup(b.release)
	var mu sync.Mutex
	b.mend = s.siteOf(name).calls.Suffer(func(from identity.Identity, method string) harness.Mishap {
		mu.Lock()
		defer mu.Unlock()
		if !fromPeer(from) || !of(method) {
			return harness.Mishap{}
		}
		if nth--; nth != 0 {
			return harness.Mishap{}
		}
		return harness.Mishap{Executed: func() { close(b.reached); <-b.open }}
	})
	return b
}

// awaits waits until the call has been executed.
func (b *barrier) awaits(s *stage, what string) {
	s.t.Helper()
	s.awaits(what, func() bool {
		select {
		case <-b.reached:
			return true
		default:
			return false
		}
	})
}

// locks locks a resource in the database until the returned function is called, so that writes of it wait for
// a session.
func (s *stage) locks(name string) (session uint32, unlock func()) {
	s.t.Helper()
	full, err := schema.ParseFullName(name)
	require.NoError(s.t, err)
	tx, err := s.siteOf(name).admin.Begin(s.ctx)
	require.NoError(s.t, err)
	_, err = tx.Exec(s.ctx, `SELECT FROM dbcontroller.shadow WHERE name = $1 FOR UPDATE`, full.Name)
	require.NoError(s.t, err)
	unlock = sync.OnceFunc(func() { _ = tx.Rollback(context.WithoutCancel(s.ctx)) })
	s.t.Cleanup(unlock)
	return tx.Conn().PgConn().PID(), unlock
}

// state returns the state of a resource; unspecified when it does not exist.
func (s *stage) state(name string) resourcev1.Resource_State {
	s.t.Helper()
	full, err := schema.ParseFullName(name)
	require.NoError(s.t, err)
	r, err := s.w.resources(s.ctx, full.Deployment).GetResource(s.ctx, &resourcev1.GetResourceRequest{Name: full.Name})
	if status.Code(err) == codes.NotFound {
		return resourcev1.Resource_STATE_UNSPECIFIED
	}
	require.NoError(s.t, err)
	return r.GetState()
}
