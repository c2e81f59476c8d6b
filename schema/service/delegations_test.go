package service

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/service/access"
)

// strict believes nobody without a token.
type strict struct{ identity.TokenVerifier }

func (strict) RequireForwarded() bool { return true }

// A deployment whose authorization service, or whose tokens, decide who may refer to its resources gives nobody the right to refer to them without
// asking.
func TestWhoDecidesByWhatOthersDoNotKnowDelegatesNothing(t *testing.T) {
	t.Parallel()
	store := &schemaStore{confirm: func(schema.DeploymentID, uuid.UUID, []peer.AttemptID) ([]peer.AttemptID, error) { return nil, nil }}
	s := newSchemaService(store)
	for _, c := range []struct {
		authorizer access.Authorizer
		tokens     access.Tokens
		want       bool
	}{{nil, nil, true}, {access.Outside(nil), nil, false}, {nil, strict{}, false}} {
		s.delegates = delegatesUnless(c.authorizer, c.tokens)
		for _, asks := range []bool{true, false} {
			_, err := s.ConfirmBlockades(asDeployment(t, other), &schemav1.ConfirmBlockadesRequest{Delegable: asks})
			require.NoError(t, err)
			require.Equal(t, asks && c.want, store.delegable)
		}
	}
}
