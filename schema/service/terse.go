package service

import (
	"context"
	"regexp"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/schema"
)

// addresses are what errors of connections show of hosts.
var addresses = regexp.MustCompile(`\b(dial|read|write) tcp \S+:|\blookup \S+ on \S+:|\blookup \S+:`)

// terse is an error of a connection to another deployment without its address: whoever asks here has no business with that.
// What the other deployment itself has said stays as it is.
type terse struct {
	text string
	err  error
}

func (t *terse) Error() string { return t.text }

func (t *terse) Unwrap() error { return t.err }

// GRPCStatus is the original one's, but for its text.
func (t *terse) GRPCStatus() *status.Status {
	return status.New(status.Code(t.err), t.text)
}

func withoutAddresses(err error) error {
	s, ok := status.FromError(err)
	if err == nil || !ok || s.Code() == codes.OK {
		return err
	}
	for _, d := range s.Details() {
		if _, said := d.(*errdetails.ErrorInfo); said {
			return err
		}
	}
	if text := addresses.ReplaceAllString(s.Message(), "$1 …:"); text != s.Message() {
		return &terse{text: text, err: err}
	}
	return err
}

// ofPeers are options of connections between deployments.
func (p *Peers) ofPeers(id schema.DeploymentID) []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			return withoutAddresses(invoke(ctx, method, req, reply, cc, opts...))
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			stream, err := open(ctx, desc, cc, method, opts...)
			if err != nil {
				return nil, withoutAddresses(err)
			}
			return &terseStream{stream}, nil
		}),
		grpc.WithChainUnaryInterceptor(p.acquaintUnary(id)), grpc.WithChainStreamInterceptor(p.acquaintStream),
	}
}

type terseStream struct{ grpc.ClientStream }

func (s *terseStream) RecvMsg(m any) error { return withoutAddresses(s.ClientStream.RecvMsg(m)) }
