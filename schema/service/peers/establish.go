package peers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/db-controller/db-controller/internal/gather"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/internal/requestid"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/service/outcome"
	"github.com/db-controller/db-controller/schema/wire"
)

const (
	// pace is the time for which an attempt waits for the answer of the call before it, so that a deployment
	// that is far away delays it only so long.
	pace = 3 * time.Millisecond
	// callsBeside is the number of calls with several attempts that a deployment has not answered.
	callsBeside = 32
	// mostWaiting is the number of attempts of one person that wait for a call.
	mostWaiting = 1000
	// largestTogether is the size of the references of an attempt that shares its call: a call has
	// MaxAttempts of them.
	largestTogether = maxEstablishBytes / wire.MaxAttempts
	// oneByOneFor is the time for which a deployment is asked one by one after it has refused a call with
	// several attempts.
	oneByOneFor = time.Minute
)

// Establish implements peer.Establisher. Attempts that are established at one deployment at the same time
// share a call.
func (p *Peers) Establish(ctx context.Context, target schema.DeploymentID, attempt peer.AttemptID,
	refs []peer.EstablishReference,
) (*peer.Established, error) {
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	a := newAsked(ctx, attempt, refs)
	alone := func() error {
		var err error
		a.answer, err = p.establishAlone(target, a)
		return err
	}
	t := p.togetherAt(target)
	if len(refs) > peer.MaxTogether || proto.Size(a.attempt) > largestTogether || t.isOneByOne() {
		err := alone()
		return a.answer, err
	}
	switch err := t.queue.Do(ctx, a.who(), a, alone); {
	case err == nil:
		return a.answer, nil
	case errors.Is(err, gather.ErrLeft):
		return nil, context.Cause(ctx)
	case errors.Is(err, gather.ErrWaiting), errors.Is(err, gather.ErrTooMany):
		return nil, fmt.Errorf("%w: %w", peer.ErrNotSent, err)
	default:
		return nil, err
	}
}

// WouldEstablish implements peer.Establisher.
func (p *Peers) WouldEstablish(ctx context.Context, target schema.DeploymentID, attempt peer.AttemptID,
	refs []peer.EstablishReference,
) (*peer.Established, error) {
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	a := newAsked(ctx, attempt, refs)
	a.attempt.ValidateOnly = true
	return p.establishAlone(target, a)
}

// establishAlone makes the calls of one attempt.
func (p *Peers) establishAlone(target schema.DeploymentID, a *asked) (*peer.Established, error) {
	out := &peer.Established{}
	for i, part := range establishParts(a.attempt.GetReferences()) {
		outcomes, err := p.establish(a.ctx, target, a.message(part))
		switch {
		case i > 0 && errors.Is(err, peer.ErrNotSent): // a part of the attempt was
			err = &peer.UnavailableError{
				Deployments: []schema.DeploymentID{target},
				Err:         errors.New("it was not reached a second time: try again"),
			}
		case err == nil:
			err = outcomes[0].Err
		}
		if err != nil {
			return nil, err
		}
		done := outcomes[0].Established
		if i > 0 && done.Epoch != out.Epoch {
			return nil, &peer.UnavailableError{
				Deployments: []schema.DeploymentID{target},
				Err:         errors.New("its database began a new epoch between two calls: try again"),
			}
		}
		out.UIDs, out.Epoch = append(out.UIDs, done.UIDs...), done.Epoch
	}
	return out, nil
}

// establish makes one call, and returns the outcome of each attempt. It fails with ErrNotSent when nothing
// was sent, and with errOneByOne when the deployment wants the attempts one by one, and has done nothing.
func (p *Peers) establish(ctx context.Context, target schema.DeploymentID,
	attempts ...*schemav1.EstablishReferencesRequest_Attempt,
) ([]peer.EstablishOutcome, error) {
	client, err := p.Client(target)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", peer.ErrNotSent, err)
	}
	var server grpcpeer.Peer
	answer, err := client.EstablishReferences(ctx, &schemav1.EstablishReferencesRequest{Attempts: attempts},
		grpc.Peer(&server))
	switch {
	case err != nil && server.Addr == nil: // the call never got a stream
		return nil, fmt.Errorf("%w: %w", peer.ErrNotSent, outcome.FromStatus(err))
	case status.Code(err) == codes.Unimplemented:
		return nil, errOneByOne
	case err != nil:
		return nil, outcome.FromStatus(err)
	case len(answer.GetOutcomes()) != len(attempts):
		return nil, fmt.Errorf("its answer has %d outcomes for %d attempts", len(answer.GetOutcomes()), len(attempts))
	}
	out := make([]peer.EstablishOutcome, len(attempts))
	for i, o := range answer.GetOutcomes() {
		out[i] = wire.EstablishOutcome(o)
		if out[i].Err != nil && !errors.Is(out[i].Err, peer.ErrLeftOut) {
			out[i].Err = outcome.FromStatus(out[i].Err)
		}
	}
	return out, nil
}

var errOneByOne = errors.New("the deployment wants attempts one by one")

// asked is an attempt that may share a call with others.
type asked struct {
	ctx     context.Context //nolint:containedctx // of its own write
	attempt *schemav1.EstablishReferencesRequest_Attempt
	answer  *peer.Established // set before its outcome is
}

func newAsked(ctx context.Context, attempt peer.AttemptID, refs []peer.EstablishReference) *asked {
	return &asked{ctx: ctx, attempt: &schemav1.EstablishReferencesRequest_Attempt{
		Attempt:    attempt[:],
		References: establishProto(refs), Person: person(ctx),
	}}
}

// who takes turns with others; nil is the deployment itself.
func (a *asked) who() any {
	if a.attempt.GetPerson() == nil {
		return nil
	}
	return a.attempt.GetPerson().GetIdentity()
}

// message returns the attempt with a part of its references, and with the time that is left for it.
func (a *asked) message(
	refs []*schemav1.EstablishReferencesRequest_Reference,
) *schemav1.EstablishReferencesRequest_Attempt {
	out := &schemav1.EstablishReferencesRequest_Attempt{
		Attempt: a.attempt.GetAttempt(), References: refs, ValidateOnly: a.attempt.GetValidateOnly(),
		Person: a.attempt.GetPerson(),
	}
	if id := requestid.ID(a.ctx); id != uuid.Nil {
		out.RequestId = id.String()
	}
	if until, ok := a.ctx.Deadline(); ok {
		out.Timeout = durationpb.New(time.Until(until))
	}
	return out
}

// together makes the calls with several attempts to one deployment.
type together struct {
	peers *Peers
	to    schema.DeploymentID
	queue *gather.Queue[*asked]

	oneByOne atomic.Int64 // until when, in Unix nanoseconds
}

func (p *Peers) togetherAt(to schema.DeploymentID) *together {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.togethers[to]
	if t == nil {
		t = &together{peers: p, to: to}
		t.queue = gather.New(gather.Config[*asked]{
			Run: t.run, Most: wire.MaxAttempts, Beside: callsBeside, Pace: pace, Waiting: mostWaiting,
		})
		p.togethers[to] = t
	}
	return t
}

func (t *together) isOneByOne() bool { return time.Now().UnixNano() < t.oneByOne.Load() }

// run makes one call, and returns the outcome of each attempt.
func (t *together) run(batch []*asked) []error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(batch[0].ctx), peerTimeout) // a trace has the call once
	defer cancel()
	attempts := make([]*schemav1.EstablishReferencesRequest_Attempt, len(batch))
	for i, a := range batch {
		attempts[i] = a.message(a.attempt.GetReferences())
	}
	outcomes, err := t.peers.establish(ctx, t.to, attempts...)
	if errors.Is(err, errOneByOne) {
		t.oneByOne.Store(time.Now().Add(oneByOneFor).UnixNano())
		err = gather.ErrAlone
	}
	if err != nil {
		return slices.Repeat([]error{err}, len(batch))
	}
	errs := make([]error, len(batch))
	for i, o := range outcomes {
		batch[i].answer, errs[i] = o.Established, o.Err
		if errors.Is(o.Err, peer.ErrLeftOut) {
			errs[i] = gather.ErrAlone
		}
	}
	return errs
}

// maxEstablishBytes is the size of the references of one call: a request has identity.MaxRequestBytes at
// most.
const maxEstablishBytes = 3 << 20

// establishParts divides references among calls: one, unless their names are very long. Blockades of one
// attempt can be established by several calls, and a refusal of one aborts the attempt.
func establishParts(
	refs []*schemav1.EstablishReferencesRequest_Reference,
) (parts [][]*schemav1.EstablishReferencesRequest_Reference) {
	begin, bytes := 0, 0
	for i, ref := range refs {
		size := proto.Size(ref) + 8
		if bytes += size; bytes > maxEstablishBytes {
			parts, begin, bytes = append(parts, refs[begin:i]), i, size
		}
	}
	return append(parts, refs[begin:])
}

// person returns the person for whom references are established: the target's deployment decides whether they
// may refer to it. An operator refers with the rights of the user of the same name, since no deployment
// speaks for operators. It is nil for writes of the deployment itself.
func person(ctx context.Context) *schemav1.EstablishReferencesRequest_Person {
	who, err := identity.CallerFromContext(ctx)
	if err != nil || who.Role != identity.RoleUser && who.Role != identity.RoleOperator {
		return nil
	}
	who.Role = identity.RoleUser
	return &schemav1.EstablishReferencesRequest_Person{
		Identity: who.Identity.String(), Groups: who.Groups,
		Token: who.Token,
	}
}

func establishProto(refs []peer.EstablishReference) []*schemav1.EstablishReferencesRequest_Reference {
	out := make([]*schemav1.EstablishReferencesRequest_Reference, len(refs))
	for i, r := range refs {
		out[i] = &schemav1.EstablishReferencesRequest_Reference{
			Holder: wire.ResourceRef(r.HolderKind, r.HolderName, r.HolderUID), Path: r.Path,
			Target: &schemav1.ResourceRef{
				Kind: r.TargetKind, Name: r.TargetName,
				Uid: wire.OptionalBytes(r.TargetUID),
			},
			Behaviour: schemav1.Behaviour(r.Behaviour), Right: wire.OptionalBytes(r.Right),
		}
	}
	return out
}
