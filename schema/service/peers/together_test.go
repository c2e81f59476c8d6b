package peers

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/internal/inprocess"
	"github.com/db-controller/db-controller/internal/requestid"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/service/outcome"
	"github.com/db-controller/db-controller/schema/wire"
)

// target is the deployment of targets: a target's name says its answer, and its uid is the id of the attempt.
type target struct {
	schemav1.UnimplementedSchemaServiceServer
	hold     chan struct{} // each call of one attempt waits for it
	err      error         // of calls of several attempts
	oneByOne bool          // it takes no calls of several attempts

	mu    sync.Mutex
	calls []string // guarded by mu; the holders of each call
	asked []*schemav1.EstablishReferencesRequest_Attempt
}

// answering is the time that a call of several attempts takes.
const answering = time.Millisecond

func (s *target) note(attempts []*schemav1.EstablishReferencesRequest_Attempt) {
	var names []string
	for _, a := range attempts {
		names = append(names, a.GetReferences()[0].GetHolder().GetName())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, strings.Join(names, " "))
}

func (s *target) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := s.calls
	s.calls = nil
	return calls
}

func (s *target) EstablishReferences(ctx context.Context,
	req *schemav1.EstablishReferencesRequest,
) (*schemav1.EstablishReferencesResponse, error) {
	attempts := req.GetAttempts()
	if len(attempts) == 1 {
		s.note(attempts)
		if attempts[0].GetReferences()[0].GetTarget().GetName() == "slow" {
			select {
			case <-s.hold:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		done := &peer.Established{UIDs: []uuid.UUID{uuid.UUID(attempts[0].GetAttempt())}}
		return &schemav1.EstablishReferencesResponse{Outcomes: []*schemav1.EstablishReferencesResponse_Outcome{
			wire.EstablishOutcomeProto(peer.EstablishOutcome{Established: done}),
		}}, nil
	}
	if s.oneByOne {
		return s.UnimplementedSchemaServiceServer.EstablishReferences(ctx, req)
	}
	defer time.Sleep(answering)
	out := &schemav1.EstablishReferencesResponse{}
	for _, a := range attempts {
		o := wire.EstablishOutcomeProto(
			peer.EstablishOutcome{Established: &peer.Established{UIDs: []uuid.UUID{uuid.UUID(a.GetAttempt())}}})
		switch r := a.GetReferences()[0]; r.GetTarget().GetName() {
		case "refused":
			o = wire.EstablishOutcomeProto(peer.EstablishOutcome{Err: outcome.Status(nil,
				&peer.RefusedError{Refusals: []peer.Refusal{{
					Holder: r.GetHolder().GetName(), Path: "p", Target: schema.FullName{Deployment: self, Name: "ts/t"},
					Reason: peer.TargetMissing,
				}}})})
		case "locked":
			o.Outcome = &schemav1.EstablishReferencesResponse_Outcome_LeftOut{LeftOut: &emptypb.Empty{}}
		case "new":
			o.Outcome = nil // of a later release
		}
		if r := a.GetReferences()[0]; r.GetTarget().GetName() != "forgotten" {
			out.Outcomes = append(out.Outcomes, o)
		}
	}
	s.note(attempts)
	s.mu.Lock()
	s.asked = attempts
	s.mu.Unlock()
	return out, s.err
}

// busy returns Peers with a slow call under way, so that the attempts after them share calls.
func busy(t *testing.T,
	s *target) (p *Peers, establish func(ctx context.Context, holder, target string) (*peer.Established, error),
	end func(),
) {
	p = New(self, nil)
	channel := &inprocess.Channel{Unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo,
		handler grpc.UnaryHandler,
	) (any, error) {
		return handler(ctx, req)
	}}
	schemav1.RegisterSchemaServiceServer(channel, s)
	p.SetSelf(channel, channel)
	establish = func(ctx context.Context, holder, target string) (*peer.Established, error) {
		attempt := uuid.NewSHA1(uuid.Nil, []byte(holder))
		done, err := p.Establish(ctx, self, attempt,
			[]peer.EstablishReference{{HolderName: holder, TargetName: target}})
		if err == nil {
			require.Equal(t, []uuid.UUID{attempt}, done.UIDs, "the answer is that of its attempt")
		}
		return done, err
	}
	return p, establish, occupied(t, s, establish)
}

// occupied begins a slow call, which end ends.
func occupied(t *testing.T, s *target, establish func(ctx context.Context, holder,
	target string) (*peer.Established, error),
) (end func()) {
	var g sync.WaitGroup
	s.hold = make(chan struct{})
	g.Go(func() {
		_, err := establish(t.Context(), "slow", "slow")
		require.NoError(t, err)
	})
	synctest.Wait()
	require.Len(t, s.take(), 1, "an attempt waits for nobody")
	return func() { close(s.hold); g.Wait() }
}

// An answer with fewer outcomes than attempts counts for none of them: it does not say whose outcome is
// missing.
func TestAnAnswerWithoutAnOutcomeIsThatOfNoAttempt_I20(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &target{}
		_, establish, end := busy(t, s)
		var g sync.WaitGroup
		for _, name := range []string{"first", "forgotten", "last"} {
			g.Go(func() {
				_, err := establish(t.Context(), name, name)
				require.ErrorContains(t, err, "2 outcomes for 3 attempts", name)
			})
			synctest.Wait()
		}
		g.Wait()
		end()
	})
}

// Attempts at the same time share a call, and each has its own outcome, deadline and request id. One that is
// left out is sent by itself.
func TestAttemptsShareACallWithOutcomesOfTheirOwn_I20(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &target{}
		_, establish, end := busy(t, s)
		request := uuid.New()
		ctx, cancel := context.WithTimeout(requestid.WithID(t.Context(), request), time.Second)
		defer cancel()
		errs := map[string]error{}
		var mu sync.Mutex
		var g sync.WaitGroup
		for _, name := range []string{"first", "good", "refused", "locked", "new", "fine"} {
			g.Go(func() {
				_, err := establish(ctx, name, name)
				mu.Lock()
				defer mu.Unlock()
				errs[name] = err
			})
			synctest.Wait()
		}
		g.Wait()
		require.Equal(t, []string{"first good refused locked new fine", "locked"}, s.take())
		require.NoError(t, errors.Join(errs["first"], errs["good"], errs["locked"], errs["fine"]))
		var refused *peer.RefusedError
		require.ErrorAs(t, errs["refused"], &refused)
		require.Equal(t, "refused", refused.Refusals[0].Holder)
		require.Error(t, errs["new"], "what is not understood is unknown")
		require.NotErrorIs(t, errs["new"], peer.ErrNotSent)
		for _, a := range s.asked {
			require.Equal(t, request.String(), a.GetRequestId())
			require.Equal(t, time.Second-pace, a.GetTimeout().AsDuration())
		}
		end()
	})
}

// A deployment that takes no calls of several attempts, such as one with an authorization service, is asked
// one by one.
func TestADeploymentThatTakesNoSharedCallsIsAskedOneByOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &target{oneByOne: true}
		_, establish, end := busy(t, s)
		together := func(names ...string) []string {
			var g sync.WaitGroup
			for _, name := range names {
				g.Go(func() {
					_, err := establish(t.Context(), name, "good")
					require.NoError(t, err)
				})
				synctest.Wait()
			}
			g.Wait()
			return s.take()
		}
		require.ElementsMatch(t, []string{"a", "b", "c"}, together("a", "b", "c"))
		s.oneByOne = false
		require.ElementsMatch(t, []string{"d", "e"}, together("d", "e"), "for a while it is not tried again")
		end()
		time.Sleep(oneByOneFor)
		end = occupied(t, s, establish)
		require.Equal(t, []string{"f g h"}, together("f", "g", "h"))
		end()
	})
}

// The error of a call is the error of each of its attempts: after a call that was sent, each may have been
// established.
func TestAFailedCallLeavesEachOfItsAttemptsUnknown_I8(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &target{err: status.Error(codes.Unavailable, "the answer was lost")}
		_, establish, end := busy(t, s)
		var g sync.WaitGroup
		for _, name := range []string{"a", "b", "c"} {
			g.Go(func() {
				_, err := establish(t.Context(), name, "good")
				require.ErrorContains(t, err, "the answer was lost")
				require.NotErrorIs(t, err, peer.ErrNotSent)
			})
			synctest.Wait()
		}
		g.Wait()
		require.Len(t, s.take(), 1)
		end()
	})
}

// A person with many attempts delays one of another person by its share of a call.
func TestPersonsTakeTurnsInCalls_I20(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &target{}
		_, establish, end := busy(t, s)
		as := func(name string) context.Context {
			return identity.NewContext(t.Context(), identity.Identity{Role: identity.RoleUser, Name: name})
		}
		var g sync.WaitGroup
		do := func(who, holder string) {
			g.Go(func() {
				_, err := establish(as(who), holder, "good")
				require.NoError(t, err)
			})
			synctest.Wait()
		}
		for i := range 2 * wire.MaxAttempts { // the first few are a call; the next one is made after the pace
			do("flood", fmt.Sprint(i))
		}
		do("single", "other")
		g.Wait()
		calls := s.take()
		require.Contains(t, strings.Fields(calls[1])[:2], "other")
		require.Len(t, strings.Fields(calls[1]), wire.MaxAttempts)
		end()
	})
}
