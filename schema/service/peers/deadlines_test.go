package peers

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/inprocess"
	"github.com/db-controller/db-controller/schema/peer"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
)

// A deployment that does not answer is given up after a few seconds, also when the caller's deadline is
// later.
func TestCallsOfPeersHaveDeadlines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		silent := func(ctx context.Context, _ any, _ *grpc.UnaryServerInfo, _ grpc.UnaryHandler) (any, error) {
			<-ctx.Done()
			return nil, status.FromContextError(ctx.Err()).Err()
		}
		p := New(self, nil)
		channel := &inprocess.Channel{Unary: silent}
		schemav1.RegisterSchemaServiceServer(channel, schemav1.UnimplementedSchemaServiceServer{})
		p.SetSelf(channel, channel)
		ctx := t.Context()
		for name, c := range map[string]struct {
			call func() error
			want time.Duration
		}{
			"Confirm": {func() error {
				_, err := p.Confirm(ctx, self, peer.Confirm{Epoch: uid(1)})
				return err
			}, peerTimeout},
			"Release":     {func() error { return p.Release(ctx, self, uid(1), nil, nil) }, peerTimeout},
			"Resolve":     {func() error { _, err := p.Resolve(ctx, self, nil); return err }, peerTimeout},
			"Establish":   {func() error { _, err := p.Establish(ctx, self, uid(1), nil); return err }, peerTimeout},
			"CheckOwners": {func() error { _, err := p.CheckOwners(ctx, self, nil); return err }, peerTimeout},
			"Trace": {func() error {
				_, err := p.Trace(ctx, self, []uuid.UUID{uid(1)})
				return err
			}, peerTimeout},
			"Plan": {func() error {
				_, err := p.Plan(ctx, self, peer.PlanQuestion{})
				return err
			}, longPeerTimeout},
			"Acknowledge": {func() error { return p.Acknowledge(ctx, self, uid(1), "", nil) }, longPeerTimeout},
			"DropOwners": {func() error {
				_, _, err := p.DropOwners(ctx, self, uid(1), nil, nil)
				return err
			}, longPeerTimeout},
		} {
			began := time.Now()
			require.Error(t, c.call(), name)
			require.Equal(t, c.want, time.Since(began), name)
		}
	})
}
