package outcome

import (
	"context"
	"strconv"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"

	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
)

// A status is sent in HTTP/2 headers, of which most clients accept 8 KiB, and its text is sent twice: the
// second time with the details, in base64. A client that receives more sees a broken stream instead of the
// status, and repeats the call for ever.
const (
	maxErrorText    = 1 << 10 // percent-encoded
	maxErrorDetails = 4 << 10
	// listRoom and tokenRoom are the parts of maxErrorDetails for a list and for the token of its next page;
	// the others are for the reason and the request id.
	listRoom  = 2700
	tokenRoom = 1100
)

// BoundedUnary and BoundedStream are interceptors that shorten every error of a server, with and without a
// list.
func BoundedUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	out, err := handler(ctx, req)
	return out, shortened(err)
}

// BoundedStream is an interceptor that bounds the size of errors.
func BoundedStream(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return shortened(handler(srv, ss))
}

// shortened returns an error with a text of bounded length and the first details that have room.
func shortened(err error) error {
	st, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	p := st.Proto()
	text, room, n := shortText(p.GetMessage()), maxErrorDetails, 0
	for _, d := range p.GetDetails() {
		if room -= proto.Size(d); room < 0 {
			break
		}
		n++
	}
	if text == p.GetMessage() && n == len(p.GetDetails()) {
		return err
	}
	p.Message, p.Details = text, p.GetDetails()[:n]
	return status.ErrorProto(p)
}

// shortText cuts a text that is too long, and marks it as shortened.
func shortText(s string) string {
	const more = " (shortened)"
	left, cut := maxErrorText, -1 // bytes left, and the last place with room for the mark
	for i, r := range s {
		if cut < 0 && left < len(more)+3*utf8.UTFMax {
			cut = i
		}
		if left -= encodedLen(r); left < 0 {
			return s[:cut] + more
		}
	}
	return s
}

// encodedLen returns the number of bytes of a character in the header of a gRPC status.
func encodedLen(r rune) int {
	if r >= ' ' && r <= '~' && r != '%' {
		return 1
	}
	return 3 * utf8.RuneLen(r)
}

// listed makes the detail of an error with the first items of a list that have room, and returns their
// number. When these are not all, the metadata of the info have both numbers.
func listed[T proto.Message](info *errdetails.ErrorInfo, items []T, total int,
	message func([]T) protoadapt.MessageV1,
) (protoadapt.MessageV1, int) {
	room, n := listRoom, 0
	for _, item := range items {
		if room -= proto.Size(item) + 3; room < 0 { // 3 bytes for tag and length
			break
		}
		n++
	}
	if n < total {
		info.Metadata = map[string]string{"total": strconv.Itoa(total), "named": strconv.Itoa(n)}
	}
	return message(items[:n]), n
}

func violations(of []*errdetails.PreconditionFailure_Violation) protoadapt.MessageV1 {
	return &errdetails.PreconditionFailure{Violations: of}
}

func fieldViolations(of []*errdetails.BadRequest_FieldViolation) protoadapt.MessageV1 {
	return &errdetails.BadRequest{FieldViolations: of}
}

func refusals(of []*schemav1.ReferencesRefused_Refusal) protoadapt.MessageV1 {
	return &schemav1.ReferencesRefused{Refusals: of}
}
