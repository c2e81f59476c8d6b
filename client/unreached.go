package client

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/address"
)

// unreached returns the options of a connection whose failures name the server: a call that did not reach it
// has the error of a connection to some address otherwise.
func unreached(server string) []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
			invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
		) error {
			return naming(server, invoke(ctx, method, req, reply, cc, opts...))
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn,
			method string, open grpc.Streamer, opts ...grpc.CallOption,
		) (grpc.ClientStream, error) {
			stream, err := open(ctx, desc, cc, method, opts...)
			if err != nil {
				return nil, naming(server, err)
			}
			return &namingStream{stream, server}, nil
		}),
	}
}

// naming returns the status of a call that did not reach a server with the name of the server; answers of the
// server stay as they are.
func naming(server string, err error) error {
	s, ok := status.FromError(err)
	if err == nil || !ok || s.Code() != codes.Unavailable {
		return err
	}
	if reason, failed := address.Reason(s.Message()); failed {
		return status.Error(codes.Unavailable, server+" cannot be reached: "+reason)
	}
	return err
}

type namingStream struct {
	grpc.ClientStream
	server string
}

func (s *namingStream) RecvMsg(m any) error { return naming(s.server, s.ClientStream.RecvMsg(m)) }
