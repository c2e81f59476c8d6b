package identity_test

import (
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/test/wait"
)

// A message that many streams send is encoded once, with fields that each stream adds, and counts as memory
// of each of their callers until it is sent: a caller that reads nothing is sent as much as one caller may
// have.
func TestAMessageOfManyStreamsIsEncodedOnce(t *testing.T) {
	const streams, sendingShare = 16, 6
	a, server := authority(t), identity.Deployment(west)
	limiter := identity.NewLimiter(identity.Limits{Connections: 3, Calls: streams}, nil)
	text := strings.Repeat("x", 1<<20)
	shared := identity.NewShared(&spb.Status{Message: text})
	var arrived, sent atomic.Int64
	encodings := identity.CountEncodings(t)
	send := func(_ any, ss grpc.ServerStream) error {
		if err := ss.RecvMsg(&spb.Status{}); err != nil {
			return err
		}
		arrived.Add(1)
		n := int32(sent.Load()) + 1
		if err := ss.SendMsg(shared.With(&spb.Status{Code: n}, &spb.Status{Code: n, Message: text})); err != nil {
			return err
		}
		sent.Add(1)
		return nil
	}
	s := grpc.NewServer(grpc.Creds(issue(t, a, server).Server(limiter)), grpc.InTapHandle(limiter.Tap),
		grpc.StatsHandler(identity.Memory{}),
		grpc.ForceServerCodecV2(identity.Codec()), grpc.StreamInterceptor(identity.Memory{}.Stream))
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "shared",
		Streams:     []grpc.StreamDesc{{StreamName: "Watch", Handler: send, ServerStreams: true}},
	}, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)

	user := issue(t, a, identity.Identity{Role: identity.RoleUser, Name: "u"})
	// windows that do not grow
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(user.Client(server)),
		grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(streams*64<<10))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	var watches []grpc.ClientStream
	for range streams {
		ws, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, "/shared/Watch")
		require.NoError(t, err)
		require.NoError(t, ws.SendMsg(&spb.Status{}))
		require.NoError(t, ws.CloseSend())
		watches = append(watches, ws)
	}
	require.Eventually(t, func() bool {
		return arrived.Load() == streams && sent.Load() >= sendingShare-1
	}, wait.Limit, wait.Poll)
	require.LessOrEqual(t, sent.Load(), int64(sendingShare))
	var readers errgroup.Group // each waits until others are sent theirs
	for _, ws := range watches {
		readers.Go(func() error {
			got := &spb.Status{}
			if err := ws.RecvMsg(got); err != nil || got.GetCode() < 1 || got.GetMessage() != text {
				return fmt.Errorf("received %d and %d bytes: %w", got.GetCode(), len(got.GetMessage()), err)
			}
			return nil
		})
	}
	require.NoError(t, readers.Wait())
	require.EqualValues(t, streams, sent.Load())
	require.EqualValues(t, 1, encodings.Load())
}

// The two parts are the message with the fields of both, also on a server that counts no memory, and there is
// none of its own.
func TestTheOwnFieldsOfAStreamAreMerged(t *testing.T) {
	codec := identity.Codec()
	shared := identity.NewShared(&spb.Status{Message: "shared"})
	for _, code := range []int32{0, 3, 4} {
		var own proto.Message
		if code > 0 {
			own = &spb.Status{Code: code}
		}
		want := &spb.Status{Code: code, Message: "shared"}
		m := shared.With(own, want)
		raw, err := codec.Marshal(m)
		require.NoError(t, err)
		got := &spb.Status{}
		require.NoError(t, proto.Unmarshal(raw.Materialize(), got)) //nolint:misspell // its name
		require.True(t, proto.Equal(want, got), fmt.Sprint(got))
		require.Equal(t, want, m.(interface{ Whole() proto.Message }).Whole())
	}
}

// A batch has the first messages that fit, if these are several, and is encoded as a message with all of
// them.
func TestABatchIsARepeatedField(t *testing.T) {
	t.Parallel()
	const details = 3 // the number of google.rpc.Status.details
	var of []*identity.Shared[*anypb.Any]
	for _, n := range []int{10, 20, 5000, 1} {
		of = append(of, identity.NewShared(&anypb.Any{TypeUrl: "t", Value: make([]byte, n)}))
	}
	for _, c := range []struct{ first, most, want int }{
		{0, 100, 2},
		{0, 1, 1},
		{0, 1 << 20, 4},
		{2, 100, 1},
		{3, 100, 1},
		{1, 5040, 2},
	} {
		batch, n, err := identity.NewBatch(of[c.first:], details, c.most)
		require.NoError(t, err)
		require.Equal(t, c.want, n, "%v", c)
		if n == 1 {
			require.Equal(t, identity.Batch{}, batch, "it is sent as it is")
			continue
		}
		for _, own := range []proto.Message{nil, &spb.Status{Code: 7}} {
			want := &spb.Status{}
			if own != nil {
				want.Code = 7
			}
			for _, s := range of[c.first : c.first+n] {
				want.Details = append(want.Details, s.Message)
			}
			raw, err := identity.Codec().Marshal(batch.With(own))
			require.NoError(t, err)
			got := &spb.Status{}
			require.NoError(t, proto.Unmarshal(raw.Materialize(), got)) //nolint:misspell // its name
			require.True(t, proto.Equal(want, got), fmt.Sprint(got))
		}
	}
	_, n, err := identity.NewBatch(of[:0], details, 100)
	require.NoError(t, err)
	require.Zero(t, n)
}
