package costs

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/db-controller/db-controller/internal/identity"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/schema/service/outcome"
)

// reads are the methods of the ResourceService that leave no row. All others count, at least with the outcome
// of a request with an id: a new method counts unless it is listed here.
var reads = map[string]bool{
	resourcev1.ResourceService_GetResource_FullMethodName:               true,
	resourcev1.ResourceService_BatchGetResources_FullMethodName:         true,
	resourcev1.ResourceService_ListResources_FullMethodName:             true,
	resourcev1.ResourceService_ListReferrers_FullMethodName:             true,
	resourcev1.ResourceService_PlanDeletion_FullMethodName:              true,
	resourcev1.ResourceService_MutateAndValidateResource_FullMethodName: true,
}

func writes(method string) bool {
	return strings.HasPrefix(method, "/"+resourcev1.ResourceService_ServiceDesc.ServiceName+"/") && !reads[method]
}

// callRows is the number of bytes that each part of a call counts beside its answer: its rows in indexes, the
// record of a removal, or the outcome of a refusal.
const callRows = 1 << 10

// parts are the resources, or the rights, of a request: the elements of its lists, at least one.
func parts(req any) int64 {
	m, ok := req.(proto.Message)
	if !ok {
		return 1
	}
	n := 0
	m.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if f.IsList() {
			n += v.List().Len()
		}
		return true
	})
	return int64(max(1, n))
}

// DefaultMaxWritten is the number of bytes that one person may write in an hour by a process.
const DefaultMaxWritten = 32 << 30

// Written bounds the bytes that each person writes in an hour. A resource counts as it is answered, since a
// small change of a large one stores all of it, and once more with a request id, whose outcome is stored as
// well. Calls in progress are not counted yet.
type Written struct {
	max     atomic.Int64
	refused func(what string, who identity.Identity)

	mu    sync.Mutex
	since time.Time        // guarded by mu; the beginning of the hour
	bytes map[writer]int64 // guarded by mu; of people who wrote in it
}

// writer is a person who writes here, or by way of another deployment: a deployment that names a person takes
// away nothing of the person's own writes.
type writer struct {
	who identity.Identity
	by  identity.Identity
}

// NewWritten returns a bound of max bytes, or of DefaultMaxWritten. It tells refused of each call that it
// refuses; it may be nil.
func NewWritten(max int64, refused func(what string, who identity.Identity)) *Written {
	if refused == nil {
		refused = func(string, identity.Identity) {}
	}
	w := &Written{refused: refused, bytes: map[writer]int64{}}
	w.SetMax(max)
	return w
}

// SetMax changes the bound; bytes that were written in this hour count.
func (w *Written) SetMax(bytes int64) { w.max.Store(cmp.Or(bytes, DefaultMaxWritten)) }

// Unary runs after the identity of a forwarded call is known.
func (w *Written) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler,
) (any, error) {
	who, err := identity.FromContext(ctx)
	if err != nil || who.Role != identity.RoleUser || !writes(info.FullMethod) {
		return handler(ctx, req)
	}
	if r, ok := req.(interface{ GetValidateOnly() bool }); ok && r.GetValidateOnly() {
		return handler(ctx, req)
	}
	if err := w.exceeded(writer{who: who}); err != nil {
		return nil, err
	}
	out, err := handler(ctx, req)
	written := callRows * parts(req)
	if m, ok := out.(proto.Message); ok && err == nil {
		size := int64(proto.Size(m))
		written += size
		if r, ok := req.(interface{ GetRequestId() string }); ok && r.GetRequestId() != "" {
			written += size
		}
	}
	w.add(writer{who: who}, written)
	return out, err
}

// References counts the references that another deployment establishes here for a person's write: each is a
// row, with its entries in indexes, that is written, confirmed and released. It fails, and counts nothing,
// when the person has written too much here. Nil counts nothing.
func (w *Written) References(by identity.Identity, person string, n int) error {
	who, err := identity.ParsePath("/" + person)
	if w == nil || err != nil || who.Role != identity.RoleUser {
		return nil //nolint:nilerr // a person that is none is refused elsewhere
	}
	of := writer{who, by}
	if err := w.exceeded(of); err != nil {
		return err
	}
	w.add(of, int64(n)*callRows)
	return nil
}

// exceeded returns an error when a person has written as much as allowed in this hour.
func (w *Written) exceeded(of writer) error {
	max := w.max.Load()
	if w.add(of, 0) < max {
		return nil
	}
	w.refused("written bytes", of.who)
	return outcome.Because("TOO_MUCH_WRITTEN", fmt.Errorf("%s has written %d MiB in an hour, and %w", of.who, max>>20,
		outcome.ErrTooMuchWritten))
}

// add counts bytes, and returns the bytes of this hour.
func (w *Written) add(of writer, bytes int64) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Since(w.since) >= time.Hour {
		w.since = time.Now()
		clear(w.bytes)
	}
	if bytes > 0 {
		w.bytes[of] += bytes
	}
	return w.bytes[of]
}
