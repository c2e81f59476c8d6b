package wire_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/wire"
)

func TestAFreezeIsReadAsItWasWritten(t *testing.T) {
	t.Parallel()
	of := schema.DeploymentID{Service: "a.example.com", Region: "eu"}
	f := &peer.Freeze{
		Coordinator: of, Epoch: uuid.New(), Deletion: uuid.Must(uuid.NewV7()), Root: "targets/t",
		For: time.Minute,
	}
	read, err := wire.Freeze(of, wire.FreezeProto(f))
	require.NoError(t, err)
	require.Equal(t, f, read)
	f.ParticipantEpoch = uuid.New()
	read, err = wire.Freeze(of, wire.FreezeProto(f))
	require.NoError(t, err)
	require.Equal(t, f, read)
	for name, change := range map[string]func(m *schemav1.PlanDeletionRequest_Freeze){
		"an epoch that is no uuid":   func(m *schemav1.PlanDeletionRequest_Freeze) { m.Epoch = []byte{1} },
		"a deletion that is no uuid": func(m *schemav1.PlanDeletionRequest_Freeze) { m.Deletion = nil },
		"a deletion of another version": func(m *schemav1.PlanDeletionRequest_Freeze) {
			u := uuid.New()
			m.Deletion = u[:]
		},
		"a participant's epoch of a byte": func(m *schemav1.PlanDeletionRequest_Freeze) {
			m.ParticipantEpoch = []byte{1}
		},
		"no root": func(m *schemav1.PlanDeletionRequest_Freeze) { m.Root = "" },
		"a root that is too long": func(m *schemav1.PlanDeletionRequest_Freeze) {
			m.Root = strings.Repeat("n", schema.MaxNameBytes+1)
		},
		"no time": func(m *schemav1.PlanDeletionRequest_Freeze) { m.For = nil },
		"a time that has passed already": func(m *schemav1.PlanDeletionRequest_Freeze) {
			m.For = durationpb.New(-time.Second)
		},
	} {
		m := wire.FreezeProto(f)
		change(m)
		_, err := wire.Freeze(of, m)
		require.Error(t, err, name)
	}
}
