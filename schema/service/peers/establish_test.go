package peers

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema/peer"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
)

// As many references as one write may have, with the longest names, are established by requests of the
// allowed size.
func TestReferencesWithLongNamesFitIntoRequests(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("n", 512)
	refs := make([]peer.EstablishReference, 10_000)
	for i := range refs {
		refs[i] = peer.EstablishReference{
			HolderKind: long, HolderName: long, Path: long, TargetKind: long,
			TargetName: long,
		}
	}
	parts := establishParts(establishProto(refs))
	n := 0
	for _, part := range parts {
		n += len(part)
		require.Less(t, proto.Size(&schemav1.EstablishReferencesRequest_Attempt{References: part}),
			identity.MaxRequestBytes)
	}
	require.Equal(t, len(refs), n)
	require.Len(t, establishParts(establishProto(refs[:1000])), 1)
	require.Len(t, establishParts(nil), 1)
}
