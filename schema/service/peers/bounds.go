package peers

import (
	"context"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/identity"
)

// Answers of other deployments are bounded, as requests of callers are: an answer of 16 MiB can take seventy
// times its size when it is decoded. Nearly all answers are small. A larger answer, such as a plan of
// thousands of resources, is asked for again when one of a few places of its deployment is free. Calls
// between deployments can be repeated.
const (
	smallAnswer, smallAnswerDecoded = 512 << 10, 2 << 20
	largestAnswerDecoded            = 64 << 20
	largeAnswersAtOnce              = 4
	// largestEvent of a watch of deletions has a page of them.
	largestEvent, largestEventDecoded = 4 << 20, 16 << 20
)

func boundAnswers() grpc.UnaryClientInterceptor {
	places := make(chan struct{}, largeAnswersAtOnce)
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
		opts ...grpc.CallOption,
	) error {
		if !BetweenDeployments(method) {
			return invoke(ctx, method, req, reply, cc, opts...)
		}
		small := identity.NewAnswerCodec(smallAnswerDecoded)
		err := invoke(ctx, method, req, reply, cc, append(opts, grpc.ForceCodecV2(small),
			grpc.MaxCallRecvMsgSize(smallAnswer))...)
		if !small.TooLarge && !receivedTooMuch(err) {
			return err
		}
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
		defer func() { <-places }()
		return invoke(ctx, method, req, reply, cc,
			append(opts, grpc.ForceCodecV2(identity.NewAnswerCodec(largestAnswerDecoded)))...)
	}
}

// receivedTooMuch reports whether gRPC has refused an answer by its size, here. The text comes from
// google.golang.org/grpc.
func receivedTooMuch(err error) bool {
	return status.Code(err) == codes.ResourceExhausted &&
		strings.Contains(err.Error(), "received message larger than max")
}

// boundEvents ends a watch with an event that is too large.
func boundEvents(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer,
	opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	if BetweenDeployments(method) {
		opts = append(opts, grpc.ForceCodecV2(identity.NewAnswerCodec(largestEventDecoded)),
			grpc.MaxCallRecvMsgSize(largestEvent))
	}
	return open(ctx, desc, cc, method, opts...)
}
