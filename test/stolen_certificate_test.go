package test

import (
	"context"
	"net"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/identity"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
)

// thief answers in the place of a deployment, with its certificate and without its database.
type thief struct {
	schemav1.UnimplementedSchemaServiceServer
	epoch uuid.UUID
}

func (t *thief) GetEpoch(context.Context, *schemav1.GetEpochRequest) (*schemav1.GetEpochResponse, error) {
	return &schemav1.GetEpochResponse{Epoch: t.epoch[:]}, nil
}

// A thief of the certificate of a deployment announces an epoch in its name, and answers at its registered
// address that it is in that epoch: deletes wait for its comparison. The real one heals that by itself when
// it is back, whether it only refers to the resources of the other one, or both refer to one another; its
// references last.
func TestAnEpochThatAThiefHasAnnouncedIsOutdone_I13_I15(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const at = "a.example.com/us-west2"
	f.mustPut(aWest+"targets/free", nil)
	f.mustPut(aWest+"targets/held", nil)
	f.mustPut(bEast+"holders/h", fields{"block": aWest + "targets/held"})
	f.mustPut(aEast+"targets/e", fields{"next": aWest + "targets/held"})
	f.mustPut(aWest+"targets/w", fields{"next": aEast + "targets/e"})
	for _, robbed := range []string{bEast, aEast} {
		id := f.id(robbed + "x/y")
		p := f.Deployments[id]
		certs, err := identity.Load(identity.InDir(p.Certs))
		require.NoError(t, err)
		require.NoError(t, p.Stop())
		var listener net.Listener
		f.eventually("its address is free", func() bool {
			listener, err = net.Listen("tcp", p.Address)
			return err == nil
		})
		server := grpc.NewServer(grpc.Creds(certs.Server(nil)))
		madeUp := uuid.Must(uuid.NewV7())
		schemav1.RegisterSchemaServiceServer(server, &thief{epoch: madeUp})
		go func() { _ = server.Serve(listener) }()
		t.Cleanup(server.Stop)
		stolen := schemav1.NewSchemaServiceClient(f.as(p.Certs, at))
		f.eventually("the thief is believed", func() bool {
			_, err := stolen.AnnounceEpoch(t.Context(), &schemav1.AnnounceEpochRequest{Epoch: madeUp[:]})
			return err == nil
		})
		err = f.delete(aWest + "targets/free")
		require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
		require.ErrorContains(t, err, id.String())

		server.Stop()
		require.NoError(t, p.Start())
		f.ready(id.String())
		f.eventually("deletes go on", func() bool { return f.delete(aWest+"targets/free") == nil })
		require.EqualValues(t, 2, f.status(id.String()).GetEpoch().GetOrdinal())
		require.Equal(t, codes.FailedPrecondition, status.Code(f.delete(aWest+"targets/held")))
		f.mustPut(aWest+"targets/free", nil)
	}
}
