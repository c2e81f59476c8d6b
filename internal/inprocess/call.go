package inprocess

import (
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// call has the headers and the trailers of a call: a grpc.ServerTransportStream.
type call struct {
	method string
	sent   chan struct{} // closed when the header can be read
	once   sync.Once

	mu              sync.Mutex
	header, trailer metadata.MD // guarded by mu
}

func newCall(method string) *call { return &call{method: method, sent: make(chan struct{})} }

// Method implements grpc.ServerTransportStream.
func (c *call) Method() string { return c.method }

// SetHeader implements grpc.ServerTransportStream.
func (c *call) SetHeader(md metadata.MD) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.sent:
		return status.Error(codes.Internal, "the header was sent before")
	default:
	}
	c.header = metadata.Join(c.header, md)
	return nil
}

// SendHeader implements grpc.ServerTransportStream.
func (c *call) SendHeader(md metadata.MD) error {
	err := c.SetHeader(md)
	c.end()
	return err
}

// SetTrailer implements grpc.ServerTransportStream.
func (c *call) SetTrailer(md metadata.MD) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trailer = metadata.Join(c.trailer, md)
	return nil
}

// end sends the header, if it is not sent yet.
func (c *call) end() { c.once.Do(func() { close(c.sent) }) }

func (c *call) metadata() (header, trailer metadata.MD) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.header.Copy(), c.trailer.Copy()
}

// tell sets the results that call options ask for, once the call has ended.
func (c *call) tell(opts []grpc.CallOption) {
	header, trailer := c.metadata()
	for _, o := range opts {
		switch o := o.(type) {
		case grpc.HeaderCallOption:
			*o.HeaderAddr = header
		case grpc.TrailerCallOption:
			*o.TrailerAddr = trailer
		case grpc.PeerCallOption:
			*o.PeerAddr = peer.Peer{Addr: address{}}
		}
	}
}
