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
	"github.com/db-controller/db-controller/schema/wire"
)

// strict believes no identity without a token.
type strict struct{ identity.TokenVerifier }

func (strict) RequireForwarded() bool { return true }

func (strict) Denied(identity.Identity) error { return nil }

// A deployment whose authorization service, or whose tokens, decide who may refer to its resources gives no
// deployment the right to refer to them without asking.
func TestWhoDecidesByWhatOthersDoNotKnowDelegatesNothing(t *testing.T) {
	t.Parallel()
	store := &schemaStore{confirm: func(schema.DeploymentID, uuid.UUID, []peer.AttemptID) ([]peer.AttemptID, error) {
		return nil, nil
	}}
	s := newSchemaService(store)
	for _, c := range []struct {
		authorizer access.Authorizer
		tokens     access.Tokens
		want       bool
	}{{nil, nil, true}, {access.Outside(nil), nil, false}, {nil, strict{}, false}} {
		s.delegates = delegatesUnless(c.authorizer, c.tokens)
		for _, asks := range []bool{true, false} {
			_, err := s.ConfirmBlockades(asDeployment(t, other), &schemav1.ConfirmBlockadesRequest{
				Delegable: asks,
				Epoch:     bytesOf(uid(3)),
			})
			require.NoError(t, err)
			require.Equal(t, asks && c.want, store.delegable)
		}
	}
}

// Recalls arrive as they were sent, and so do their answers.
func TestRecallsOfRights(t *testing.T) {
	t.Parallel()
	key := peer.BlockadeKey{Attempt: uid(1), HolderUID: uid(2), Path: peer.RightPath, TargetUID: uid(2)}
	asked := []peer.Recall{
		{Question: peer.Question{Key: key, Expired: true}, Mode: peer.RecallEnds},
		{Question: peer.Question{Key: key}, Mode: peer.RecallIfFree},
		{Question: peer.Question{Key: key}, Mode: peer.RecallLooks},
	}
	answers := &peer.Recalled{Epoch: uid(9), Answers: []peer.RecallAnswer{
		{
			Verdict: peer.Held, Holders: []peer.RecalledHolder{{UID: uid(3), Name: "holders/h", Path: "block"}},
			More: true,
		}, {Verdict: peer.GoneVerdict}, {Verdict: peer.Undecided},
	}}
	store := &schemaStore{recall: func(from schema.DeploymentID, got []peer.Recall) (*peer.Recalled, error) {
		require.Equal(t, other, from)
		require.Equal(t, asked, got)
		return answers, nil
	}}
	req := &schemav1.RecallDelegationsRequest{}
	for _, a := range asked {
		req.Questions = append(req.Questions,
			&schemav1.RecallDelegationsRequest_Question{
				Key: wire.BlockadeKeyProto(a.Key), Expired: a.Expired,
				Mode: wire.RecallModes[a.Mode],
			})
	}
	out, err := newSchemaService(store).RecallDelegations(asDeployment(t, other), req)
	require.NoError(t, err)
	require.Equal(t, uid(9), uuid.UUID(out.GetEpoch()))
	for i, a := range out.GetAnswers() {
		got, err := wire.RecallAnswer(a)
		require.NoError(t, err)
		require.Equal(t, answers.Answers[i], got)
	}
	require.Equal(t, peer.RecallLooks, wire.RecallMode(99), "what is not known changes nothing")
}

// A deployment that decides about references by rules that others do not know gives no right to block either.
func TestNoRightToBlockIsGivenByWhoDecidesItself(t *testing.T) {
	t.Parallel()
	s := newSchemaService(&schemaStore{})
	s.delegates = delegatesUnless(access.Outside(nil), nil)
	err := s.checkHolder(other, []peer.EstablishReference{{
		HolderName: "targets/t", Path: peer.RightPath,
		TargetName: "targets/t", TargetUID: uid(2),
	}})
	var refused *peer.RefusedError
	require.ErrorAs(t, err, &refused)
	require.True(t, refused.Only(peer.NotReferable), "%v", err)
}
