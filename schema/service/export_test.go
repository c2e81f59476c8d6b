package service

// For tests of the package from outside, which may use the harness.
var (
	Policy     = policy
	ResponseOf = responseOf
)

// OnBehalfOf is the header of forwarded requests.
const OnBehalfOf = onBehalfOf

// NewChannels are those of NewServer, without its listeners.
func NewChannels(cfg Config) *Channels {
	c := newChannels(cfg, &forwarder{self: cfg.Store.Deployment(), peers: cfg.Peers, log: cfg.Logger})
	cfg.Peers.setOwn(c)
	return c
}
