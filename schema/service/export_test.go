package service

// For tests in package service_test, which use the harness.
var (
	Policy     = policy
	ResponseOf = responseOf
)

// OnBehalfOf is the header of forwarded requests.
const OnBehalfOf = onBehalfOf

// NewChannels returns the channels of NewServer, without its listeners.
func NewChannels(cfg Config) *Channels {
	return newChannels(cfg, newForwarder(cfg), newAccess(cfg))
}
