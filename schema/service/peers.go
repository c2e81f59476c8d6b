package service

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/schema/wire"
)

// peerTimeout bounds one call to another deployment; the caller's own deadline counts when it is earlier.
const peerTimeout = 5 * time.Second

// longPeerTimeout bounds a call that works for a while at the other end, and then answers that there is more.
const longPeerTimeout = 15 * time.Second

// Peers are the connections to other deployments, at the addresses of the newest environment, and the channel to this
// one. One connection a deployment; a new address replaces it.
type Peers struct {
	self        schema.DeploymentID
	credentials *identity.Credentials

	mu    sync.Mutex
	own   *Channels                     // guarded by mu
	store *shadow.Store                 // guarded by mu; whose database speaks
	env   *schema.Environment           // guarded by mu
	conns map[connectionKey]*connection // guarded by mu
}

// connectionKey: what people ask for goes over a connection of its own, so that it cannot keep what deployments say to one
// another waiting.
type connectionKey struct {
	to      schema.DeploymentID
	forward bool
}

type connection struct {
	address string
	conn    *grpc.ClientConn
}

// NewPeers makes connections when they are first needed.
func NewPeers(self schema.DeploymentID, credentials *identity.Credentials) *Peers {
	return &Peers{self: self, credentials: credentials, env: &schema.Environment{}, conns: map[connectionKey]*connection{}}
}

// Update takes a newer environment: connections to what moved or went are closed.
func (p *Peers) Update(env *schema.Environment) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.env = env
	for key, c := range p.conns {
		if d, ok := env.Deployment(key.to); !ok || d.Disabled || d.Address != c.address {
			_ = c.conn.Close()
			delete(p.conns, key)
		}
	}
}

// MayRefer tells whether the current version of a deployment is of this service or imports it; for references that it has
// already and establishes again, whether some version of its service does. It fails while that is not known: unknown is not
// "no".
func (p *Peers) MayRefer(holder schema.DeploymentID, again bool) (bool, error) {
	p.mu.Lock()
	env := p.env
	p.mu.Unlock()
	d, ok := env.Deployment(holder)
	if !ok {
		return false, fmt.Errorf("%s is not in the environment that is known here", holder)
	}
	if d.Disabled {
		return false, nil
	}
	if d.Service == p.self.Service {
		return true, nil
	}
	if again {
		return env.MayRefer(d.Service, p.self.Service), nil
	}
	for _, s := range env.Services {
		if s.Service != d.Service || s.Version != d.Version {
			continue
		}
		for _, imp := range s.Imports {
			if imp.Service == p.self.Service {
				return true, nil
			}
		}
	}
	return false, nil
}

// Environment is the newest one that is known; never changed.
func (p *Peers) Environment() *schema.Environment {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.env
}

// Disabled fails while the registry has disabled a deployment. That passes: it is never a "no".
func (p *Peers) Disabled(id schema.DeploymentID) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d, ok := p.env.Deployment(id); ok && d.Disabled {
		return fmt.Errorf("%s is disabled in the registry: enable it, or wait until it is enabled", id)
	}
	return nil
}

// knows tells whether a deployment is in the environment; while there is none, it may be.
func (p *Peers) knows(id schema.DeploymentID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, ok := p.env.Deployment(id)
	return ok || len(p.env.Deployments) == 0
}

// Close closes all connections.
func (p *Peers) Close() {
	p.Update(&schema.Environment{})
}

func (p *Peers) setOwn(own *Channels) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.own = own
}

func (p *Peers) speakFrom(store *shadow.Store) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.store = store
}

// Client speaks to a deployment; to this one without a socket.
func (p *Peers) Client(id schema.DeploymentID) (schemav1.SchemaServiceClient, error) {
	conn, err := p.Conn(id)
	if err != nil {
		return nil, err
	}
	return schemav1.NewSchemaServiceClient(conn), nil
}

// shared is the way to this deployment without copies.
func (p *Peers) shared() schemav1.SchemaServiceClient {
	p.mu.Lock()
	defer p.mu.Unlock()
	return schemav1.NewSchemaServiceClient(p.own.Shared)
}

// Conn is the connection to a deployment, for what deployments say; to this one its in-process channel that copies.
func (p *Peers) Conn(id schema.DeploymentID) (grpc.ClientConnInterface, error) {
	return p.conn(connectionKey{to: id})
}

// forwarding is the connection to another deployment for what people ask of it here.
func (p *Peers) forwarding(id schema.DeploymentID) (grpc.ClientConnInterface, error) {
	return p.conn(connectionKey{to: id, forward: true})
}

func (p *Peers) conn(key connectionKey) (grpc.ClientConnInterface, error) {
	id := key.to
	p.mu.Lock()
	defer p.mu.Unlock()
	if id == p.self {
		return p.own.Copied, nil
	}
	if c, ok := p.conns[key]; ok {
		return c.conn, nil
	}
	d, ok := p.env.Deployment(id)
	switch {
	case !ok:
		return nil, fmt.Errorf("deployment %s is not known to the registry", id)
	case d.Disabled:
		return nil, fmt.Errorf("deployment %s is disabled", id)
	case d.Address == "":
		return nil, fmt.Errorf("deployment %s has not registered yet", id)
	}
	conn, err := grpc.NewClient(d.Address, append(p.credentials.DialOptions(identity.Deployment(id)), p.ofPeers(id)...)...)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", id, err)
	}
	p.conns[key] = &connection{address: d.Address, conn: conn}
	return conn, nil
}

// Establish is shadow.Peers.
func (p *Peers) Establish(ctx context.Context, target schema.DeploymentID, attempt shadow.AttemptID, refs []shadow.EstablishReference) (*shadow.Established, error) {
	return p.establish(ctx, target, attempt, refs, false)
}

// WouldEstablish is shadow.Peers.
func (p *Peers) WouldEstablish(ctx context.Context, target schema.DeploymentID, refs []shadow.EstablishReference) ([]uuid.UUID, error) {
	answer, err := p.establish(ctx, target, uuid.Must(uuid.NewV7()), refs, true)
	if err != nil {
		return nil, err
	}
	return answer.UIDs, nil
}

func (p *Peers) establish(ctx context.Context, target schema.DeploymentID, attempt shadow.AttemptID, refs []shadow.EstablishReference, validateOnly bool) (*shadow.Established, error) {
	client, err := p.Client(target)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", shadow.ErrNotSent, err)
	}
	req := &schemav1.EstablishReferencesRequest{Attempt: attempt[:], ValidateOnly: validateOnly, References: make([]*schemav1.EstablishReferencesRequest_Reference, len(refs))}
	for i := range refs {
		r := &refs[i]
		target := &schemav1.ResourceRef{Kind: r.TargetKind, Name: r.TargetName}
		if r.TargetUID != uuid.Nil {
			target.Uid = r.TargetUID[:]
		}
		req.References[i] = &schemav1.EstablishReferencesRequest_Reference{
			Holder: &schemav1.ResourceRef{Kind: r.HolderKind, Name: r.HolderName, Uid: r.HolderUID[:]},
			Path:   r.Path, Target: target, Behaviour: schemav1.Behaviour(r.Behaviour),
		}
	}
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	var there peer.Peer
	answer, err := client.EstablishReferences(ctx, req, grpc.Peer(&there))
	switch {
	case err != nil && there.Addr == nil: // there never was a stream
		return nil, fmt.Errorf("%w: %w", shadow.ErrNotSent, fromStatus(err))
	case err != nil:
		return nil, fromStatus(err)
	}
	out := &shadow.Established{UIDs: make([]uuid.UUID, len(answer.GetTargets()))}
	for i, t := range answer.GetTargets() {
		if out.UIDs[i], err = wire.UID(t.GetUid()); err != nil {
			return nil, err
		}
	}
	out.Epoch, err = wire.OptionalUID(answer.GetEpoch())
	return out, err
}

// CheckReferences is shadow.Peers.
func (p *Peers) CheckReferences(ctx context.Context, at schema.DeploymentID, refs []shadow.CheckedReference) ([]shadow.Known, error) {
	client, err := p.Client(at)
	if err != nil {
		return nil, err
	}
	req := &schemav1.CheckReferencesRequest{References: make([]*schemav1.CheckReferencesRequest_Reference, len(refs))}
	for i, r := range refs {
		req.References[i] = &schemav1.CheckReferencesRequest_Reference{Key: keyProto(r.Key), Behaviour: schemav1.Behaviour(r.Behaviour)}
	}
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	answer, err := client.CheckReferences(ctx, req)
	if err != nil {
		return nil, fromStatus(err)
	}
	known := make([]shadow.Known, len(answer.GetVerdicts()))
	for i, verdict := range answer.GetVerdicts() {
		for k, p := range knownProto {
			if p == verdict {
				known[i] = k
			}
		}
	}
	return known, nil
}

// AnnounceEpoch tells a deployment that this one's database began a new epoch, and answers the one that is known there.
func (p *Peers) AnnounceEpoch(ctx context.Context, at schema.DeploymentID, epoch uuid.UUID) (uuid.UUID, error) {
	client, err := p.Client(at)
	if err != nil {
		return uuid.Nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, longPeerTimeout) // it waits for writes that are under way
	defer cancel()
	answer, err := client.AnnounceEpoch(ctx, &schemav1.AnnounceEpochRequest{Epoch: epoch[:]})
	if err != nil {
		return uuid.Nil, err
	}
	return wire.UID(answer.GetEpoch())
}

// ConfirmEpoch tells a deployment that all references to it are compared, in its epoch as it was told and in the own one.
func (p *Peers) ConfirmEpoch(ctx context.Context, at schema.DeploymentID, epoch, own uuid.UUID) error {
	client, err := p.Client(at)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	_, err = client.ConfirmEpoch(ctx, &schemav1.ConfirmEpochRequest{Epoch: epoch[:], OwnEpoch: own[:]})
	return err
}

// Resolve is shadow.Peers.
func (p *Peers) Resolve(ctx context.Context, holder schema.DeploymentID, questions []shadow.Question) (*shadow.Answers, error) {
	client, err := p.Client(holder)
	if err != nil {
		return nil, err
	}
	req := &schemav1.ResolveBlockadesRequest{Questions: make([]*schemav1.ResolveBlockadesRequest_Question, len(questions))}
	for i, q := range questions {
		req.Questions[i] = &schemav1.ResolveBlockadesRequest_Question{Key: keyProto(q.Key), Expired: q.Expired}
	}
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	answer, err := client.ResolveBlockades(ctx, req)
	if err != nil {
		return nil, inTime(err)
	}
	out := &shadow.Answers{Verdicts: make([]shadow.Verdict, len(answer.GetVerdicts()))}
	for i, v := range answer.GetVerdicts() {
		switch v {
		case schemav1.ResolveBlockadesResponse_VERDICT_HELD:
			out.Verdicts[i] = shadow.Held
		case schemav1.ResolveBlockadesResponse_VERDICT_GONE:
			out.Verdicts[i] = shadow.GoneVerdict
		default: // undecided, and whatever a newer version may say
		}
	}
	out.Epoch, err = wire.OptionalUID(answer.GetEpoch())
	return out, err
}

// inTime keeps of an error of a call that its time was over, as errors.Is finds it.
func inTime(err error) error {
	st := status.Convert(err)
	if st.Code() == codes.DeadlineExceeded {
		return fmt.Errorf("%w: %s", context.DeadlineExceeded, st.Message())
	}
	return errors.New(st.Message())
}

// Confirm tells a deployment that attempts have committed.
func (p *Peers) Confirm(ctx context.Context, target schema.DeploymentID, epoch uuid.UUID, attempts []shadow.AttemptID) ([]shadow.AttemptID, error) {
	client, err := p.Client(target)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	answer, err := client.ConfirmBlockades(ctx, &schemav1.ConfirmBlockadesRequest{Attempts: wire.Bytes(attempts), Epoch: epoch[:]})
	if err != nil {
		return nil, err
	}
	return wire.UIDs(answer.GetUnknownAttempts())
}

// Release tells a deployment that references were dropped, and that attempts were aborted.
func (p *Peers) Release(ctx context.Context, target schema.DeploymentID, epoch uuid.UUID, keys []shadow.BlockadeKey, attempts []shadow.AttemptID) error {
	client, err := p.Client(target)
	if err != nil {
		return err
	}
	req := &schemav1.ReleaseBlockadesRequest{Keys: make([]*schemav1.BlockadeKey, len(keys)), Attempts: wire.Bytes(attempts), Epoch: epoch[:]}
	for i, k := range keys {
		req.Keys[i] = keyProto(k)
	}
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	_, err = client.ReleaseBlockades(ctx, req)
	return err
}

// Acknowledge tells a deployment that its deletions up to a position are done here, except for some.
func (p *Peers) Acknowledge(ctx context.Context, target schema.DeploymentID, epoch uuid.UUID, position string, except []uuid.UUID) error {
	req := &schemav1.AcknowledgeDeletionsRequest{Position: position, ExceptUids: wire.Bytes(except), Epoch: epoch[:], InParts: true}
	for {
		if more, err := p.acknowledge(ctx, target, req); err != nil || !more {
			return err
		}
	}
}

func (p *Peers) acknowledge(ctx context.Context, target schema.DeploymentID, req *schemav1.AcknowledgeDeletionsRequest) (more bool, err error) {
	client, err := p.Client(target)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, longPeerTimeout)
	defer cancel()
	answer, err := client.AcknowledgeDeletions(ctx, req)
	return answer.GetMore(), err
}
