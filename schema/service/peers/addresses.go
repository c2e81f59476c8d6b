package peers

import (
	"context"
	"regexp"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/address"
	"github.com/db-controller/db-controller/internal/requestid"
	"github.com/db-controller/db-controller/internal/trace"
	"github.com/db-controller/db-controller/schema"
)

// addresses matches the addresses of hosts in errors of connections.
var addresses = regexp.MustCompile(`\b(dial|read|write) tcp \S+:|\blookup \S+ on \S+:|\blookup \S+:`)

// withoutAddress is an error of a connection to another deployment without gRPC's words around it and without
// the addresses in its text, which the callers of this deployment must not learn. The error that it wraps has
// the original text, for the log.
type withoutAddress struct {
	text string
	err  error
}

func (e *withoutAddress) Error() string { return e.text }

func (e *withoutAddress) Unwrap() error { return e.err }

// GRPCStatus returns the code of the original status with the new text.
func (e *withoutAddress) GRPCStatus() *status.Status {
	return status.New(status.Code(e.err), e.text)
}

// withoutAddresses removes the addresses from an error of a connection. An error of the other deployment
// itself, which has an ErrorInfo, stays as it is.
func withoutAddresses(err error) error {
	s, ok := status.FromError(err)
	if err == nil || !ok || s.Code() == codes.OK {
		return err
	}
	for _, d := range s.Details() {
		if _, ok := d.(*errdetails.ErrorInfo); ok {
			return err
		}
	}
	reason, _ := address.Reason(s.Message())
	if text := addresses.ReplaceAllString(reason, "$1 …:"); text != s.Message() {
		return &withoutAddress{text: text, err: err}
	}
	return err
}

// interceptors returns the interceptors of a connection to another deployment.
func (p *Peers) interceptors(id schema.DeploymentID) []grpc.DialOption {
	return append(trace.Client(),
		grpc.WithChainUnaryInterceptor(requestid.ToPeer), grpc.WithChainStreamInterceptor(requestid.StreamToPeer),
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
			invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
		) error {
			return withoutAddresses(p.hear(id, method, invoke(ctx, method, req, reply, cc, opts...)))
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn,
			method string, open grpc.Streamer, opts ...grpc.CallOption,
		) (grpc.ClientStream, error) {
			stream, err := open(ctx, desc, cc, method, opts...)
			if err != nil {
				return nil, withoutAddresses(p.hear(id, method, err))
			}
			return &addresslessStream{stream, func(err error) error {
				return withoutAddresses(p.hear(id, method, err))
			}}, nil
		}),
		grpc.WithChainUnaryInterceptor(p.checkAnswers(id), p.beginWithAPosition(id), boundAnswers()),
		grpc.WithChainStreamInterceptor(p.sendDatabase, boundEvents),
	)
}

type addresslessStream struct {
	grpc.ClientStream
	hear func(error) error
}

func (s *addresslessStream) RecvMsg(m any) error { return s.hear(s.ClientStream.RecvMsg(m)) }
