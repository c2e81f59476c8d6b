package embed

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/db-controller/db-controller/internal/address"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/service/peers"
)

// byWayOf makes the calls to other deployments by way of the application's own deployment: every connection
// goes there, and names the deployment that is called.
type byWayOf struct{ app *Application }

// DialOptions implements peers.Credentials.
func (b byWayOf) DialOptions(expected identity.Identity) []grpc.DialOption {
	home := identity.Deployment(b.app.cfg.Deployment)
	return append(b.app.credentials.DialOptions(home),
		grpc.WithChainUnaryInterceptor(b.app.relayTo(expected.Deployment)))
}

// relayTo names the called deployment, and refuses answers of a process that uses another database.
func (a *Application) relayTo(to schema.DeploymentID) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
		opts ...grpc.CallOption,
	) error {
		var trailer metadata.MD
		ctx = metadata.AppendToOutgoingContext(ctx, peers.RelayKey, to.String())
		err := invoke(ctx, method, req, reply, cc, append(opts, grpc.Trailer(&trailer))...)
		database, sent, unreadable := peers.SentDatabase(trailer.Get(peers.DatabaseKey))
		switch {
		case unreadable != nil:
			return unreadable
		case sent && database != a.store.Gate.Database():
			return fmt.Errorf("%w: the process of %s uses the database %s, and the application's pool the database %s",
				peer.ErrTransaction, a.cfg.Deployment, database, a.store.Gate.Database())
		}
		return err
	}
}

// reach takes the addresses of an environment: all deployments are called at the address of the application's
// own.
func (a *Application) reach(env *schema.Environment) error {
	own, ok := env.Deployment(a.cfg.Deployment)
	if !ok {
		return fmt.Errorf("the environment does not list %s", a.cfg.Deployment)
	}
	if own.Address == "" {
		return fmt.Errorf("%s has no address yet: start its process", a.cfg.Deployment)
	}
	byHome := *env
	byHome.Deployments = make([]schema.Deployment, len(env.Deployments))
	for i, d := range env.Deployments {
		if d.Address != "" {
			d.Address = own.Address
		}
		byHome.Deployments[i] = d
	}
	if err := a.connectHome(own); err != nil {
		return err
	}
	a.peers.Update(&byHome)
	return nil
}

// connectHome connects to the deployment's own process, for questions to this deployment itself.
func (a *Application) connectHome(own schema.Deployment) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.at == own.Address {
		return nil
	}
	target, err := address.Target(own)
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient(target, byWayOf{a}.DialOptions(identity.Deployment(own.DeploymentID))...)
	if err != nil {
		return errors.Join(fmt.Errorf("connect to %s", own.DeploymentID), err)
	}
	if a.home != nil {
		_ = a.home.Close()
	}
	a.home, a.at = conn, own.Address
	a.peers.SetSelf(conn, conn)
	return nil
}
