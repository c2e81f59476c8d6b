package service

import (
	"context"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/internal/inprocess"
	"github.com/db-controller/db-controller/internal/requestid"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/schema/shadow"
)

// Channels are in-process connections to the deployment's own services: without sockets and encoding.
// Deadlines, metadata and call options pass as over a connection, and a panic of a service is an error of its
// caller.
type Channels struct {
	// Shared passes messages as they are: for caches, which do not change the messages that they receive.
	Shared grpc.ClientConnInterface
	// Copied passes copies of messages: for handlers, which may change them.
	Copied grpc.ClientConnInterface
}

// newChannels makes the channels of the deployment's own process, on which it is the caller itself: its
// watches share, its calls copy.
func newChannels(cfg Config) *Channels {
	self := identity.Deployment(cfg.Store.Deployment())
	shared, copied := newChannel(cfg.Logger, self, nil, nil), newChannel(cfg.Logger, self, nil, nil)
	shared.Share = true
	register(shared, cfg)
	register(copied, cfg)
	cfg.Peers.SetSelf(shared, copied)
	return &Channels{Shared: shared, Copied: copied}
}

// NewReader returns a channel to a store's resources for a reader inside the process with all rights.
// Messages are shared.
func NewReader(store *shadow.Store, who identity.Identity, log *zap.Logger) grpc.ClientConnInterface {
	channel := newChannel(log, who, nil, nil)
	channel.Share = true
	resourcev1.RegisterResourceServiceServer(channel, newResources(Config{Store: store, Logger: log}))
	return channel
}

func newChannel(log *zap.Logger, who identity.Identity, unary []grpc.UnaryServerInterceptor,
	stream []grpc.StreamServerInterceptor,
) *inprocess.Channel {
	named := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		return handler(identity.NewContext(ctx, who), req)
	}
	namedStream := func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		return handler(srv, &ownStream{ServerStream: ss, ctx: identity.NewContext(ss.Context(), who)})
	}
	return &inprocess.Channel{
		Unary: inprocess.ChainUnary(append([]grpc.UnaryServerInterceptor{
			requestid.Unary(log),
			recovery.UnaryServerInterceptor(), named,
		}, unary...)),
		Stream: inprocess.ChainStream(append([]grpc.StreamServerInterceptor{
			requestid.Stream(log),
			recovery.StreamServerInterceptor(), namedStream,
		}, stream...)),
	}
}

// ownStream is a stream with another context, which has the identity of the caller.
type ownStream struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // a stream is its context
}

func (s *ownStream) Context() context.Context { return s.ctx }
