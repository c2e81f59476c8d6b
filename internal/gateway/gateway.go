// Package gateway serves the API of a deployment as HTTP/JSON, for programs without gRPC. It has no rights of
// its own: each request is a gRPC call with the caller's own token, on a connection without a certificate, so
// that it has the limits, the policy and the rights of gRPC. The routes are in schema/schemapb/http.yaml.
package gateway

import (
	"cmp"
	"context"
	_ "embed" // the OpenAPI document
	"errors"
	"fmt"
	"hash/fnv"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/grpc-ecosystem/grpc-gateway/v2/utilities"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/db-controller/db-controller/internal/budget"
	admingw "github.com/db-controller/db-controller/schema/gatewaypb/dbcontroller/admin/v1"
	resourcegw "github.com/db-controller/db-controller/schema/gatewaypb/dbcontroller/resource/v1"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

//go:embed openapi.swagger.json
var openapi []byte

const (
	// MaxBodyBytes bounds the body of a request.
	MaxBodyBytes = 1 << 20
	// maxCalls and maxStreams are the calls and the watches of one caller that are under way, maxWaiting the
	// further ones that wait; the others bound the calls and watches of all callers together. An answer is
	// held as a message and as JSON until its caller has read it.
	maxCalls, maxStreams       = 2, 8
	maxWaiting                 = 32
	maxAllCalls, maxAllStreams = 32, 256
	// readTimeout is the patience with a caller that does not read its answer.
	readTimeout = 30 * time.Second
)

// Verify returns the identity of a bearer token, or an error as a gRPC status.
type Verify func(ctx context.Context, token string) (who string, err error)

// Handler is the gateway.
type Handler struct {
	mux    *runtime.ServeMux
	verify Verify
	slots  *slots
	memory *budget.Budget // of decoded answers
}

// New returns a gateway over connections to the gRPC server of the deployment, which have no certificate of
// their own. Callers are spread over the connections. Nothing of a request is read before verify has accepted
// its token. memory bounds the decoded answers of all callers.
func New(ctx context.Context, conns []grpc.ClientConnInterface, verify Verify, memory int64) (*Handler, error) {
	h := &Handler{verify: verify, slots: newSlots(), memory: budget.New(memory)}
	mux := runtime.NewServeMux(
		runtime.WithMarshalerOption(runtime.MIMEWildcard, &runtime.JSONPb{}),
		runtime.WithIncomingHeaderMatcher(incoming),
		runtime.WithOutgoingHeaderMatcher(func(header string) (string, bool) {
			return header, header == "x-request-id"
		}),
		runtime.WithUnescapingMode(runtime.UnescapingModeAllCharacters),
		runtime.WithDisablePathLengthFallback(), // no form is another method
		runtime.WithRoutingErrorHandler(noRoute),
		runtime.SetQueryParameterParser(strictQuery{}),
	)
	conn := spread{conns, h}
	err := errors.Join(
		resourcegw.RegisterResourceServiceHandlerClient(ctx, mux, resourcev1.NewResourceServiceClient(conn)),
		admingw.RegisterAdminServiceHandlerClient(ctx, mux, adminv1.NewAdminServiceClient(conn)),
	)
	h.mux = mux
	return h, err
}

// strictQuery refuses a parameter that the request does not have, which the runtime ignores: a delete with a
// misspelt retention would be for good.
type strictQuery struct{ runtime.DefaultQueryParser }

// Parse implements runtime.QueryParameterParser.
func (p strictQuery) Parse(request proto.Message, values url.Values, filter *utilities.DoubleArray) error {
	for parameter := range values {
		if !hasField(request.ProtoReflect().Descriptor(), strings.Split(parameter, ".")) {
			return fmt.Errorf("unknown parameter %q in the query: GET /openapi.json describes the calls", parameter)
		}
	}
	return p.DefaultQueryParser.Parse(request, values, filter)
}

// hasField reports whether a message has a field with a path of names in JSON or in the definition.
func hasField(message protoreflect.MessageDescriptor, path []string) bool {
	if message == nil {
		return false
	}
	name, _, _ := strings.Cut(path[0], "[") // the key of a map
	field := message.Fields().ByJSONName(name)
	if field == nil {
		field = message.Fields().ByName(protoreflect.Name(name))
	}
	return field != nil && (len(path) == 1 || hasField(field.Message(), path[1:]))
}

// noRoute answers a request that is no call. It is not NOT_FOUND: a script with a misspelt path would take a
// resource for an absent one.
func noRoute(ctx context.Context, mux *runtime.ServeMux, out runtime.Marshaler, w http.ResponseWriter, r *http.Request,
	code int,
) {
	if code == http.StatusBadRequest {
		runtime.DefaultRoutingErrorHandler(ctx, mux, out, w, r, code)
		return
	}
	err := status.Errorf(codes.Unimplemented, "no call has this path with %s: GET /openapi.json describes the calls",
		r.Method)
	runtime.DefaultHTTPErrorHandler(ctx, mux, out, w, r, err)
}

// incoming passes the headers that the gRPC server reads. The runtime passes the token.
func incoming(header string) (string, bool) {
	switch header = strings.ToLower(header); header {
	case "x-request-id", "traceparent", "tracestate":
		return header, true
	}
	return "", false
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(to http.ResponseWriter, r *http.Request) {
	w := &patient{ResponseWriter: to, control: http.NewResponseController(to)}
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	if r.URL.Path == "/openapi.json" && r.Method == http.MethodGet {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(openapi) // the caller has gone
		return
	}
	who, err := h.authenticate(r)
	if err != nil {
		h.refuse(w, r, err)
		return
	}
	leave, err := h.slots.enter(r.Context(), who, streams(r))
	if err != nil {
		h.refuse(w, r, err)
		return
	}
	defer leave()
	if err := cmp.Or(checkText(r), checkMask(r)); err != nil {
		h.refuse(w, r, err)
		return
	}
	r = r.Clone(context.WithValue(r.Context(), caller{}, who))
	if err := readBody(w, r); err != nil {
		h.refuse(w, r, err)
		return
	}
	r.URL.RawPath = r.URL.EscapedPath() // without it the runtime decodes a decoded path
	h.mux.ServeHTTP(w, r)
}

// Enter waits for a slot of a caller, which the gateway's own requests take as well, and returns a function
// that frees it.
func (h *Handler) Enter(ctx context.Context, who string, stream bool) (leave func(), err error) {
	return h.slots.enter(ctx, who, stream)
}

func (h *Handler) authenticate(r *http.Request) (who string, err error) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "bearer") || token == "" {
		return "", status.Error(codes.Unauthenticated, "want a token: the header Authorization: Bearer TOKEN")
	}
	return h.verify(r.Context(), token)
}

func (h *Handler) refuse(w http.ResponseWriter, r *http.Request, err error) {
	runtime.DefaultHTTPErrorHandler(r.Context(), h.mux, &runtime.JSONPb{}, w, r, err)
}

// checkText refuses a path or a query of bytes that no message can have: the call would fail as a fault of
// this server.
func checkText(r *http.Request) error {
	query, _ := url.QueryUnescape(r.URL.RawQuery) // the runtime refuses what is no query
	if !utf8.ValidString(r.URL.Path) || !utf8.ValidString(query) {
		return status.Error(codes.InvalidArgument, "the path and the query of the request: want text in UTF-8")
	}
	return nil
}

// checkMask refuses a change without the names of its fields: without a mask it would replace everything, as
// PUT does.
func checkMask(r *http.Request) error {
	if r.Method != http.MethodPatch {
		return nil
	}
	if query := r.URL.Query(); query.Get("updateMask")+query.Get("update_mask") == "" {
		return status.Error(codes.InvalidArgument,
			"want updateMask in the query, such as updateMask=labels,body.size: PATCH changes the fields in it; PUT replaces all")
	}
	return nil
}

// streams reports whether the answer has no end of its own, or a late one.
func streams(r *http.Request) bool {
	return strings.HasSuffix(r.URL.Path, ":watch") || strings.HasSuffix(r.URL.Path, ":verify")
}

// caller is the key of the caller's identity in contexts.
type caller struct{}

// spread is connections over which callers are spread, so that the streams of one caller take the place of
// few others.
type spread struct {
	conns   []grpc.ClientConnInterface
	handler *Handler
}

func (s spread) of(ctx context.Context) grpc.ClientConnInterface {
	who, _ := ctx.Value(caller{}).(string)
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(who)) // never fails
	return s.handler.Bounded(s.conns[sum.Sum32()%uint32(len(s.conns))], who)
}

// Invoke implements grpc.ClientConnInterface.
func (s spread) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return s.of(ctx).Invoke(ctx, method, args, reply, opts...)
}

// NewStream implements grpc.ClientConnInterface.
func (s spread) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string,
	opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	return s.of(ctx).NewStream(ctx, desc, method, opts...)
}

// patient waits readTimeout for a caller to read the answer.
type patient struct {
	http.ResponseWriter
	control *http.ResponseController
}

// Write implements http.ResponseWriter.
func (p *patient) Write(raw []byte) (int, error) {
	_ = p.control.SetWriteDeadline(time.Now().Add(readTimeout)) // a connection without deadlines is of a test
	return p.ResponseWriter.Write(raw)
}

// WriteHeader implements http.ResponseWriter. The runtime's own challenge is the text of the error.
func (p *patient) WriteHeader(code int) {
	if code == http.StatusUnauthorized {
		p.Header().Set("WWW-Authenticate", "Bearer")
	}
	p.ResponseWriter.WriteHeader(code)
}

// Unwrap is for http.ResponseController.
func (p *patient) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// Flush implements http.Flusher, which the runtime needs for watches.
func (p *patient) Flush() { _ = p.control.Flush() }
