package peers

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/wire"
)

// rawAnswers is the codec of a server whose answers are bytes.
type rawAnswers struct{ encoding.CodecV2 }

func (rawAnswers) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (rawAnswers) Unmarshal(mem.BufferSlice, any) error { return nil }

// answeringBytes returns a connection, with the bounds between deployments, to a server that answers every
// call with the same bytes.
func answeringBytes(t *testing.T, answer []byte, times int) *grpc.ClientConn {
	t.Helper()
	listener := bufconn.Listen(1 << 20)
	served := grpc.NewServer(grpc.ForceServerCodecV2(rawAnswers{encoding.GetCodecV2("proto")}),
		grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
			if err := stream.RecvMsg(nil); err != nil {
				return err
			}
			for range times {
				if err := stream.SendMsg(answer); err != nil {
					return err
				}
			}
			return nil
		}))
	go func() { _ = served.Serve(listener) }()
	t.Cleanup(served.Stop)
	conn, err := grpc.NewClient("passthrough:b", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)),
		grpc.WithChainUnaryInterceptor(boundAnswers()), grpc.WithChainStreamInterceptor(boundEvents),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return listener.DialContext(ctx)
		}))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// allocated returns the memory that a function has allocated, in MiB.
func allocated(f func()) int {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int(after.TotalAlloc-before.TotalAlloc) >> 20
}

// An answer or a watch event of another deployment, with any content, takes little memory here: 15 MiB of
// empty messages would take a gigabyte.
func TestAnAnswerOfAnotherDeploymentTakesLittleMemory_I20(t *testing.T) { //nolint:paralleltest // it counts the memory of the process
	tag := func(field byte, megabytes int) []byte { return bytes.Repeat([]byte{field<<3 | 2, 0}, megabytes<<19) }
	for field := byte(1); field < 8; field++ {
		megabytes := 4 // enough for the bound, also where a message takes little
		if field == 1 {
			megabytes = 15
		}
		conn, long, ctx := answeringBytes(t, tag(field, megabytes), 1), answeringBytes(t, tag(field, 15), 1),
			t.Context()
		require.Less(t, allocated(func() {
			_, err := schemav1.NewSchemaServiceClient(conn).PlanDeletion(ctx, &schemav1.PlanDeletionRequest{})
			if err != nil {
				require.Equal(t, codes.Internal, status.Code(err))
				require.ErrorContains(t, err, "of memory, at most 64 are allowed")
			}
		}), 200, "field %d", field)
		require.Less(t, allocated(func() {
			stream, err := schemav1.NewSchemaServiceClient(long).WatchImportedServiceDeletions(ctx,
				&schemav1.WatchImportedServiceDeletionsRequest{})
			require.NoError(t, err)
			_, err = stream.Recv()
			require.Equal(t, codes.ResourceExhausted, status.Code(err))
		}), 64)
	}
	deletions := append([]byte{1<<3 | 2}, append(protoLength(3<<20), bytes.Repeat([]byte{1<<3 | 2, 0}, 3<<19)...)...)
	conn := answeringBytes(t, deletions, 1)
	require.Less(t, allocated(func() {
		stream, err := schemav1.NewSchemaServiceClient(conn).WatchImportedServiceDeletions(t.Context(),
			&schemav1.WatchImportedServiceDeletionsRequest{})
		require.NoError(t, err)
		_, err = stream.Recv()
		require.ErrorContains(t, err, "of memory, at most 16 are allowed")
	}), 64)
}

func protoLength(n uint64) (out []byte) {
	for ; n >= 0x80; n >>= 7 {
		out = append(out, byte(n)|0x80)
	}
	return append(out, byte(n))
}

// Answers of all sizes that deployments give arrive: a plan of ten thousand resources with long names.
func TestLargePlansArrive_I20(t *testing.T) {
	t.Parallel()
	for _, members := range []int{1, 1000, 10_000} {
		plan := &schemav1.PlanDeletionResponse{}
		for i := range members {
			uid := uuid.New()
			plan.Members = append(plan.Members,
				&schemav1.PlanDeletionResponse_Member{Resource: &schemav1.ResourceRef{
					Kind: "Device",
					Name: fmt.Sprint("devices/", strings.Repeat("d", 300), i), Uid: uid[:],
				}})
		}
		raw, err := proto.Marshal(plan)
		require.NoError(t, err)
		got, err := schemav1.NewSchemaServiceClient(answeringBytes(t, raw, 1)).PlanDeletion(t.Context(),
			&schemav1.PlanDeletionRequest{})
		require.NoError(t, err)
		require.Len(t, got.GetMembers(), members)
	}
}

// The look-ahead of a delete with ten thousand holders is one small answer: a larger one is asked for, and
// read from the database, twice.
func TestAPlanOfLeavesIsASmallAnswer(t *testing.T) {
	t.Parallel()
	uids := make([]byte, 0, 16*peer.PlanLimit)
	for range peer.PlanLimit {
		uid := uuid.New()
		uids = append(uids, uid[:]...)
	}
	target := uuid.New()
	raw, err := proto.Marshal(&schemav1.PlanDeletionResponse{Leaves: []*schemav1.PlanDeletionResponse_Leaves{{
		Via: &schemav1.PlanDeletionResponse_Via{Target: &schemav1.PlanDeletionResponse_Target{
			Deployment: "a.example.com/west", Uid: target[:],
		}, Path: "project"},
		Uids: uids,
	}}})
	require.NoError(t, err)
	require.Less(t, len(raw), smallAnswer)
	codec := identity.NewAnswerCodec(smallAnswerDecoded)
	require.NoError(t, codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(raw)}, &schemav1.PlanDeletionResponse{}))
	require.False(t, codec.TooLarge)
}

// A part of an answer that stays in the database or in memory has the form that it has here.
func TestAnswersHaveTheFormOfRequests(t *testing.T) {
	t.Parallel()
	_, err := readOwnerAnswers(&schemav1.CheckOwnersResponse{Version: "v" + strings.Repeat("1", 1<<20)})
	require.Error(t, err)
	require.Less(t, len(err.Error()), 1000)
	_, err = readOwnerAnswers(&schemav1.CheckOwnersResponse{Version: "v1"})
	require.NoError(t, err)
	uid := uuid.New()
	for _, r := range []*schemav1.ResourceRef{
		{Kind: "A", Name: strings.Repeat("n", schema.MaxNameBytes+1), Uid: uid[:]},
		{Kind: strings.Repeat("K", 64), Name: "as/a", Uid: uid[:]},
	} {
		_, err := wire.DeletionEvent(
			&schemav1.WatchImportedServiceDeletionsResponse{Event: &schemav1.WatchImportedServiceDeletionsResponse_Upsert{
				Upsert: &schemav1.WatchImportedServiceDeletionsResponse_Deletions{
					Resources: []*schemav1.ResourceRef{r},
					Notices:   []int64{1},
				},
			}})
		require.ErrorContains(t, err, "too long")
	}
}

// endless says of each part that more is left.
type endless struct {
	schemav1.UnimplementedSchemaServiceServer
	calls atomic.Int64
}

func (e *endless) AcknowledgeDeletions(context.Context,
	*schemav1.AcknowledgeDeletionsRequest,
) (*schemav1.AcknowledgeDeletionsResponse, error) {
	e.calls.Add(1)
	return &schemav1.AcknowledgeDeletionsResponse{More: true}, nil
}

func (e *endless) DropOwners(context.Context, *schemav1.DropOwnersRequest) (*schemav1.DropOwnersResponse, error) {
	e.calls.Add(1)
	return &schemav1.DropOwnersResponse{More: true}, nil
}

func (e *endless) UpgradeOwnerReferences(context.Context,
	*schemav1.UpgradeOwnerReferencesRequest,
) (*schemav1.UpgradeOwnerReferencesResponse, error) {
	return &schemav1.UpgradeOwnerReferencesResponse{Remaining: -e.calls.Add(1)}, nil
}

// A deployment that answers at once, each time, that more is left to do, is called once a second.
func TestPartsWithoutAnEndAreAskedForNowAndThen_I20(t *testing.T) {
	t.Parallel()
	for name, repeat := range map[string]func(ctx context.Context, p *Peers) error{
		"acknowledge": func(ctx context.Context, p *Peers) error {
			return p.Acknowledge(ctx, other, uuid.New(), "", nil)
		},
		"drop owners": func(ctx context.Context, p *Peers) error {
			for {
				if _, more, err := p.DropOwners(ctx, other, uuid.New(), nil, nil); err != nil || !more {
					return err
				}
			}
		},
		"upgrade owners": func(ctx context.Context, p *Peers) error {
			for {
				if remaining, err := p.UpgradeOwners(ctx, other, &peer.Upgrade{}); err != nil || remaining == 0 {
					return err
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := &endless{}
			p := watching(t, server)
			ctx, cancel := context.WithTimeout(t.Context(), 3500*time.Millisecond)
			defer cancel()
			require.Error(t, repeat(ctx, p))
			require.Positive(t, server.calls.Load())
			require.LessOrEqual(t, server.calls.Load(), int64(5))
		})
	}
}
