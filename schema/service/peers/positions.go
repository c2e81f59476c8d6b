package peers

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/wire"
)

// Positions stores the newest token of the watch of deletions of each other deployment. KeepPositions
// replaces tokens that were stored before, and reports false for a token in whose place another one is
// stored.
type Positions interface {
	HasPosition(ctx context.Context, of schema.DeploymentID) (bool, error)
	Position(ctx context.Context, of schema.DeploymentID) (token string, err error)
	KeepPositions(ctx context.Context, positions []peer.Position) (kept []bool, err error)
}

// keepInterval is the time between two statements that store the tokens of all watches.
const keepInterval = 5 * time.Second

// beginsRelations are the methods after which another deployment has rows for this one.
var beginsRelations = []string{
	schemav1.SchemaService_EstablishReferences_FullMethodName,
	schemav1.SchemaService_CheckOwners_FullMethodName,
}

// beginWithAPosition stores a position of another deployment before that deployment has rows for this one:
// the position shows later that its restored database, and a restored registry, have lost this deployment.
func (p *Peers) beginWithAPosition(of schema.DeploymentID) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
		opts ...grpc.CallOption,
	) error {
		p.mu.Lock()
		kept := p.kept
		p.mu.Unlock()
		if kept != nil && of != p.self && slices.Contains(beginsRelations, method) {
			if err := kept.first(ctx, of, schemav1.NewSchemaServiceClient(cc)); err != nil {
				return err
			}
		}
		return invoke(ctx, method, req, reply, cc, opts...)
	}
}

// first stores the first position of another deployment, from a watch that it ends, unless one is stored.
func (a *positions) first(ctx context.Context, of schema.DeploymentID, at schemav1.SchemaServiceClient) error {
	has, err := a.store.HasPosition(ctx, of)
	if err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	if has {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := at.WatchImportedServiceDeletions(ctx, &schemav1.WatchImportedServiceDeletionsRequest{})
	if err != nil {
		return err
	}
	for {
		msg, err := stream.Recv()
		if err != nil {
			return err
		}
		event, err := wire.DeletionEvent(msg)
		if err != nil {
			return fmt.Errorf("deletions of %s: %w", of, err)
		}
		if event.Token == "" {
			continue
		}
		if _, err := a.store.KeepPositions(ctx, []peer.Position{{Of: of, Token: event.Token}}); err != nil {
			return status.Error(codes.Unavailable, err.Error())
		}
		return nil
	}
}

// SetPositions sets the store of positions, which watches tell and replace from then on.
func (p *Peers) SetPositions(store Positions) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kept = &positions{store: store, told: map[*keptPosition]string{}, now: time.Now}
}

// positions are the tokens that the watches of this process have received since the last statement. A
// deployment that watches many others stores all of their tokens with one statement: idle watches cost no
// statement each.
type positions struct {
	store Positions
	now   func() time.Time

	mu   sync.Mutex
	told map[*keptPosition]string // guarded by mu, like the fields below and the fields of each keptPosition
	at   time.Time                // of the last statement for all
}

// keptPosition is the stored token of a watch of deletions. Each stream sends it before it is replaced by a
// token of that stream, so that the other deployment learns of a position that its database has lost, even
// when every process has restarted since.
type keptPosition struct {
	all   *positions // nil: nothing is stored
	of    schema.DeploymentID
	token string

	begun    bool // a token of this stream was stored, or is being stored
	storing  bool
	outdated bool // another stream has stored a token
}

func (p *Peers) keptPosition(ctx context.Context, of schema.DeploymentID) (*keptPosition, error) {
	p.mu.Lock()
	k := &keptPosition{of: of, all: p.kept}
	p.mu.Unlock()
	if of == p.self {
		k.all = nil
	}
	if k.all == nil {
		return k, nil
	}
	var err error
	if k.token, err = k.all.store.Position(ctx, of); err != nil {
		return nil, fmt.Errorf("the kept position of %s: %w", of, err)
	}
	return k, nil
}

// replace has a newer token stored: the first token of a stream at once, later ones every few seconds
// together with the tokens of the other watches. It fails when another stream has stored a token that this
// stream has not sent: the next stream sends it. While the database fails the stored token stays, and is
// older than it could be.
func (k *keptPosition) replace(ctx context.Context, token string) error {
	if k.all == nil || token == "" {
		return nil
	}
	due := k.all.offer(k, token)
	if len(due) > 0 {
		if err := k.all.keep(ctx, due); err != nil {
			return ctx.Err()
		}
	}
	k.all.mu.Lock()
	defer k.all.mu.Unlock()
	if k.outdated {
		return fmt.Errorf("another watch of the deletions of %s has stored a position", k.of)
	}
	return nil
}

// end forgets a token of a stream that has ended.
func (k *keptPosition) end() {
	if k.all == nil {
		return
	}
	k.all.mu.Lock()
	defer k.all.mu.Unlock()
	delete(k.all.told, k)
}

// offered is a token that is being stored for a stream.
type offered struct {
	k     *keptPosition
	token string
}

// offer notes a token, and returns the tokens that are to be stored now.
func (a *positions) offer(k *keptPosition, token string) (due []offered) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if k.outdated || token == k.token {
		return nil
	}
	a.told[k] = token
	now := a.now()
	if a.at.IsZero() {
		a.at = now
	}
	if !k.begun {
		return a.take(due, k)
	}
	if now.Sub(a.at) >= keepInterval {
		a.at = now
		for other := range a.told {
			due = a.take(due, other)
		}
	}
	return due
}

// take adds the token of a stream, unless one of it is being stored: its outcome is not known yet.
func (a *positions) take(due []offered, k *keptPosition) []offered {
	if k.storing {
		return due
	}
	k.begun, k.storing = true, true
	due = append(due, offered{k, a.told[k]})
	delete(a.told, k)
	return due
}

func (a *positions) keep(ctx context.Context, due []offered) error {
	all := make([]peer.Position, len(due))
	for i, o := range due {
		all[i] = peer.Position{Of: o.k.of, Was: o.k.token, Token: o.token}
	}
	kept, err := a.store.KeepPositions(ctx, all)
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, o := range due {
		o.k.storing = false
		switch {
		case err != nil:
		case kept[i]:
			o.k.token = o.token
		default:
			o.k.outdated = true
		}
	}
	return err
}
