package service

import (
	"google.golang.org/grpc"

	"github.com/db-controller/db-controller/internal/identity"
)

// For tests in package service_test, which use the harness.
var (
	Policy     = policy
	ResponseOf = responseOf
)

// OnBehalfOf is the header of forwarded requests.
const OnBehalfOf = onBehalfOf

// TestChannels are the channels of NewServer, without its listeners.
type TestChannels struct {
	*Channels
	cfg Config
}

// NewChannels returns channels to the services of a configuration.
func NewChannels(cfg Config) *TestChannels { return &TestChannels{newChannels(cfg), cfg} }

// As returns a channel whose caller has an identity, with the rights of the policy, and whose requests are
// forwarded as a listener's are.
func (c *TestChannels) As(who identity.Identity) grpc.ClientConnInterface {
	forward, rights := newForwarder(c.cfg), newAccess(c.cfg)
	channel := newChannel(c.cfg.Logger, who,
		[]grpc.UnaryServerInterceptor{forward.actForUnary, policy.Unary, forward.Unary, rights.Unary},
		[]grpc.StreamServerInterceptor{forward.actForStream, policy.Stream, forward.Stream, rights.Stream})
	register(channel, c.cfg)
	return channel
}

// NewChannel returns a channel with the interceptors of all channels, for services of other packages.
var NewChannel = newChannel
