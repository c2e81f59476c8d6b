package inprocess

import (
	"context"

	"google.golang.org/grpc"
)

// ChainUnary nests interceptors as grpc.ChainUnaryInterceptor does: the first is the outermost.
func ChainUnary(all []grpc.UnaryServerInterceptor) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		for i := len(all) - 1; i >= 0; i-- {
			next := handler
			handler = func(ctx context.Context, req any) (any, error) { return all[i](ctx, req, info, next) }
		}
		return handler(ctx, req)
	}
}

// ChainStream is ChainUnary for streams.
func ChainStream(all []grpc.StreamServerInterceptor) grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		for i := len(all) - 1; i >= 0; i-- {
			next := handler
			handler = func(srv any, ss grpc.ServerStream) error { return all[i](srv, ss, info, next) }
		}
		return handler(srv, ss)
	}
}
