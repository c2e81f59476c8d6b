package test

import (
	"bytes"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
)

// anyBytes is the codec of a server that sends bytes.
type anyBytes struct{ encoding.CodecV2 }

func (anyBytes) Marshal(v any) (mem.BufferSlice, error) {
	raw, _ := v.([]byte)
	return mem.BufferSlice{mem.SliceBuffer(raw)}, nil
}

func (anyBytes) Unmarshal(mem.BufferSlice, any) error { return nil }

// answerHugely serves in the place of a deployment: each answer, and each event of a watch, is 15 MiB of tiny
// values. It counts answers and watches.
func (f *fixture) answerHugely(deployment schema.DeploymentID) (answers, watches *atomic.Int64) {
	f.t.Helper()
	p := f.Deployments[deployment]
	certs, err := identity.Load(identity.InDir(p.Certs))
	require.NoError(f.t, err)
	require.NoError(f.t, p.Stop())
	var listener net.Listener
	f.eventually("its address is free", func() bool { listener, err = net.Listen("tcp", p.Address); return err == nil })
	answers, watches = &atomic.Int64{}, &atomic.Int64{}
	messages, numbers := bytes.Repeat([]byte{1<<3 | 2, 0}, 15<<19), bytes.Repeat([]byte{1 << 3, 1}, 15<<19)
	server := grpc.NewServer(grpc.Creds(certs.Server(nil)),
		grpc.ForceServerCodecV2(anyBytes{encoding.GetCodecV2("proto")}),
		grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
			if err := stream.RecvMsg(nil); err != nil {
				return err
			}
			answers.Add(1)
			switch method, _ := grpc.MethodFromServerStream(stream); method {
			case schemav1.SchemaService_ResolveBlockades_FullMethodName:
				return stream.SendMsg(numbers)
			case schemav1.SchemaService_WatchImportedServiceDeletions_FullMethodName:
				answers.Add(-1)
				watches.Add(1)
				for stream.Context().Err() == nil {
					if err := stream.SendMsg(messages); err != nil {
						return err
					}
				}
				return nil
			default:
				return stream.SendMsg(messages)
			}
		}))
	go func() { _ = server.Serve(listener) }()
	f.t.Cleanup(server.Stop)
	return answers, watches
}

// A deployment whose answers and events are 15 MiB of tiny values each takes little memory of a process that
// asks it in many deletes at a time, and no other caller is refused.
func TestHugeAnswersOfADeploymentStopNobody_I20(t *testing.T) { //nolint:paralleltest // it compares memory
	if testing.Short() {
		t.Skip("starts processes")
	}
	const of, targets, most = "a.example.com/us-west2", 20, 512 << 20
	f := newFixture(t, "--tentative-ttl", "1h") // nothing is decided before the answers are huge
	hostile := f.id(bEast + "holders/x")
	peer := schemav1.NewSchemaServiceClient(f.as(f.Deployments[hostile].Certs, of))
	for i := range targets {
		name := "targets/t" + strconv.Itoa(i)
		f.mustPut(aWest+name, nil)
		err := establishOne(t.Context(), peer, &schemav1.EstablishReferencesRequest_Attempt{
			Attempt: raw(uuid.Must(uuid.NewV7())), References: []*schemav1.EstablishReferencesRequest_Reference{{
				Holder: &schemav1.ResourceRef{Kind: "Holder", Name: "holders/h", Uid: raw(uuid.New())}, Path: "block",
				Target: &schemav1.ResourceRef{Kind: "Target", Name: name}, Behaviour: schemav1.Behaviour(schema.Block),
			}},
		})
		require.NoError(t, err)
	}
	before := f.memory(of)
	answers, watches := f.answerHugely(hostile)
	var deletes sync.WaitGroup
	began := time.Now()
	for i := range targets {
		deletes.Go(func() {
			for range 2 {
				err := f.delete(aWest + "targets/t" + strconv.Itoa(i))
				if code := status.Code(err); code != codes.Unavailable && code != codes.FailedPrecondition &&
					code != codes.DeadlineExceeded {
					t.Errorf("%v", err)
				}
			}
		})
	}
	grown := 0.0
	for n := 0; time.Since(began) < 6*time.Second; n++ {
		f.mustPut(aWest+"targets/other", nil)
		f.mustDelete(aWest + "targets/other")
		grown = max(grown, f.memory(of)-before)
	}
	deletes.Wait()
	grown = max(grown, f.memory(of)-before)
	t.Logf("%.0f MB more, after %d answers and %d watches", grown/1e6, answers.Load(), watches.Load())
	require.Greater(t, answers.Load()+watches.Load(), int64(5))
	require.Less(t, grown, float64(most))
}
