package peers

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/inprocess"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/wire"
)

// scripted is a deployment that keeps each request, and returns the answers of a test.
type scripted struct {
	schemav1.UnimplementedSchemaServiceServer
	refuse   error
	asked    []any
	known    *schemav1.CheckReferencesResponse
	verdicts *schemav1.ResolveBlockadesResponse
	recalled *schemav1.RecallDelegationsResponse
	done     *schemav1.ConfirmBlockadesResponse
	epoch    []byte
	parts    int // answers to AcknowledgeDeletions that say "more"
	version  func(call int) int64
	owners   int // calls of CheckOwners
	lost     int // answers that each of them lacks
}

func (a *scripted) note(req any) { a.asked = append(a.asked, req) }

func (a *scripted) CheckReferences(_ context.Context,
	req *schemav1.CheckReferencesRequest,
) (*schemav1.CheckReferencesResponse, error) {
	a.note(req)
	return a.known, a.refuse
}

func (a *scripted) ResolveBlockades(_ context.Context,
	req *schemav1.ResolveBlockadesRequest,
) (*schemav1.ResolveBlockadesResponse, error) {
	a.note(req)
	return a.verdicts, a.refuse
}

func (a *scripted) RecallDelegations(_ context.Context,
	req *schemav1.RecallDelegationsRequest,
) (*schemav1.RecallDelegationsResponse, error) {
	a.note(req)
	return a.recalled, a.refuse
}

func (a *scripted) ConfirmBlockades(_ context.Context,
	req *schemav1.ConfirmBlockadesRequest,
) (*schemav1.ConfirmBlockadesResponse, error) {
	a.note(req)
	return a.done, a.refuse
}

func (a *scripted) AnnounceEpoch(_ context.Context,
	req *schemav1.AnnounceEpochRequest,
) (*schemav1.AnnounceEpochResponse, error) {
	a.note(req)
	return &schemav1.AnnounceEpochResponse{Epoch: a.epoch}, a.refuse
}

func (a *scripted) GetEpoch(_ context.Context, req *schemav1.GetEpochRequest) (*schemav1.GetEpochResponse, error) {
	a.note(req)
	return &schemav1.GetEpochResponse{Epoch: a.epoch}, a.refuse
}

func (a *scripted) ConfirmEpoch(_ context.Context,
	req *schemav1.ConfirmEpochRequest,
) (*schemav1.ConfirmEpochResponse, error) {
	a.note(req)
	return &schemav1.ConfirmEpochResponse{}, a.refuse
}

func (a *scripted) AcknowledgeDeletions(_ context.Context,
	req *schemav1.AcknowledgeDeletionsRequest,
) (*schemav1.AcknowledgeDeletionsResponse, error) {
	a.note(req)
	a.parts--
	return &schemav1.AcknowledgeDeletionsResponse{More: a.parts >= 0}, a.refuse
}

func (a *scripted) UpgradeOwnerReferences(_ context.Context,
	req *schemav1.UpgradeOwnerReferencesRequest,
) (*schemav1.UpgradeOwnerReferencesResponse, error) {
	a.note(req)
	return &schemav1.UpgradeOwnerReferencesResponse{Remaining: 7}, a.refuse
}

func (a *scripted) CheckOwners(_ context.Context,
	req *schemav1.CheckOwnersRequest,
) (*schemav1.CheckOwnersResponse, error) {
	a.note(req)
	a.owners++
	out := &schemav1.CheckOwnersResponse{Version: "v1", Generation: a.version(a.owners)}
	for range req.GetQuestions()[a.lost:] {
		out.Answers = append(out.Answers,
			&schemav1.CheckOwnersResponse_Answer{Verdict: schemav1.CheckOwnersResponse_VERDICT_ABSENT})
	}
	return out, a.refuse
}

// asking returns Peers whose calls of their own deployment arrive at a server.
func asking(a *scripted) *Peers {
	p := New(self, nil)
	channel := &inprocess.Channel{Unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo,
		handler grpc.UnaryHandler,
	) (any, error) {
		return handler(ctx, req)
	}}
	schemav1.RegisterSchemaServiceServer(channel, a)
	p.SetSelf(channel, channel)
	return p
}

var key = peer.BlockadeKey{Attempt: uid(1), HolderUID: uid(2), Path: "account", TargetUID: uid(3)}

// A verdict of a newer version is unknown: it neither confirms nor removes a blockade.
func TestVerdictsOfANewerVersionDecideNothing_I15(t *testing.T) {
	t.Parallel()
	a := &scripted{
		known: &schemav1.CheckReferencesResponse{Verdicts: []schemav1.CheckReferencesResponse_Verdict{
			schemav1.CheckReferencesResponse_VERDICT_KNOWN, schemav1.CheckReferencesResponse_VERDICT_ABSENT, 99, 0,
		}},
		verdicts: &schemav1.ResolveBlockadesResponse{
			Epoch: bytesOf(uid(9)),
			Verdicts: []schemav1.ResolveBlockadesResponse_Verdict{
				schemav1.ResolveBlockadesResponse_VERDICT_HELD, schemav1.ResolveBlockadesResponse_VERDICT_GONE, 99, 0,
			},
		},
	}
	p := asking(a)
	known, err := p.CheckReferences(t.Context(), self, []peer.CheckedReference{{Key: key, Behaviour: schema.Block}})
	require.NoError(t, err)
	require.Equal(t, []peer.Known{peer.KnownHeld, peer.KnownAbsent, peer.KnownNot, peer.KnownNot}, known)
	sent := a.asked[0].(*schemav1.CheckReferencesRequest).GetReferences()[0]
	back, err := wire.BlockadeKey(sent.GetKey())
	require.NoError(t, err)
	require.Equal(t, key, back)
	require.EqualValues(t, schema.Block, sent.GetBehaviour())

	answers, err := p.Resolve(t.Context(), self, []peer.Question{{Key: key, Expired: true}})
	require.NoError(t, err)
	require.Equal(t, &peer.Answers{Verdicts: []peer.Verdict{
		peer.Held, peer.GoneVerdict, peer.Undecided,
		peer.Undecided,
	}, Epoch: uid(9)}, answers)
	require.True(t, a.asked[1].(*schemav1.ResolveBlockadesRequest).GetQuestions()[0].GetExpired())
}

func TestRecallsAreAskedWithTheirModes(t *testing.T) {
	t.Parallel()
	a := &scripted{recalled: &schemav1.RecallDelegationsResponse{
		Epoch: bytesOf(uid(9)),
		Answers: []*schemav1.RecallDelegationsResponse_Answer{
			{
				Verdict: schemav1.ResolveBlockadesResponse_VERDICT_HELD, More: true,
				Holders: []*schemav1.RecallDelegationsResponse_Holder{{
					Uid: bytesOf(uid(4)), Name: "devices/d",
					Path: "account",
				}},
			},
			{Verdict: schemav1.ResolveBlockadesResponse_VERDICT_GONE},
		},
	}}
	p := asking(a)
	recalled, err := p.Recall(t.Context(), self,
		[]peer.Recall{{Question: peer.Question{Key: key}, Mode: peer.RecallIfFree}, {Mode: peer.RecallEnds}})
	require.NoError(t, err)
	require.Equal(t, &peer.Recalled{Epoch: uid(9), Answers: []peer.RecallAnswer{
		{
			Verdict: peer.Held, More: true,
			Holders: []peer.RecalledHolder{{UID: uid(4), Name: "devices/d", Path: "account"}},
		}, {
			Verdict: peer.GoneVerdict,
		},
	}}, recalled)
	require.Equal(t, &recalled.Answers[1], recalled.Of(1))
	require.Nil(t, (*peer.Recalled)(nil).Of(1))
	questions := a.asked[0].(*schemav1.RecallDelegationsRequest).GetQuestions()
	require.Equal(t, schemav1.RecallDelegationsRequest_MODE_END_IF_FREE, questions[0].GetMode())
	require.Equal(t, schemav1.RecallDelegationsRequest_MODE_END, questions[1].GetMode())
	a.recalled.Answers[0].Holders[0].Uid = []byte{1}
	_, err = p.Recall(t.Context(), self, nil)
	require.Error(t, err)
}

// Rights that come with a confirm count only if this deployment has asked for them, and in a known epoch.
func TestRightsOfAConfirmAreThoseThatWereAskedFor(t *testing.T) {
	t.Parallel()
	a := &scripted{done: &schemav1.ConfirmBlockadesResponse{
		UnknownAttempts: [][]byte{bytesOf(uid(1))},
		DelegatedUids:   [][]byte{bytesOf(uid(3))}, Epoch: bytesOf(uid(9)),
	}}
	p := asking(a)
	confirmed, err := p.Confirm(t.Context(), self,
		peer.Confirm{Epoch: uid(8), Attempts: []peer.AttemptID{uid(1), uid(2)}, Delegable: true})
	require.NoError(t, err)
	require.Equal(t, &peer.Confirmed{Unknown: []uuid.UUID{uid(1)}, Delegated: []uuid.UUID{uid(3)}, Epoch: uid(9)},
		confirmed)
	confirmed, err = p.Confirm(t.Context(), self, peer.Confirm{Epoch: uid(8)})
	require.NoError(t, err)
	require.Empty(t, confirmed.Delegated)
	a.done.Epoch = nil
	_, err = p.Confirm(t.Context(), self, peer.Confirm{Epoch: uid(8), Delegable: true})
	require.Error(t, err, "rights of no epoch")
	a.done.UnknownAttempts = [][]byte{{1}}
	_, err = p.Confirm(t.Context(), self, peer.Confirm{Epoch: uid(8)})
	require.Error(t, err)
}

// An acknowledgement goes on until the other deployment has recorded all of it; a failure ends it, and it is
// repeated as a whole.
func TestAnAcknowledgementIsRecordedInParts(t *testing.T) {
	t.Parallel()
	a := &scripted{parts: 2}
	p := asking(a)
	require.NoError(t, p.Acknowledge(t.Context(), self, uid(8), "token", []uuid.UUID{uid(1)}))
	require.Len(t, a.asked, 3)
	for _, req := range a.asked {
		req := req.(*schemav1.AcknowledgeDeletionsRequest)
		require.Equal(t, "token", req.GetPosition())
		require.Equal(t, [][]byte{bytesOf(uid(1))}, req.GetExceptUids())
	}
	a.parts, a.refuse = 2, status.Error(codes.Unavailable, "away")
	require.Equal(t, codes.Unavailable, status.Code(p.Acknowledge(t.Context(), self, uid(8), "token", nil)))
	require.Len(t, a.asked, 4)
}

func TestEpochsAreAnnouncedAndConfirmed(t *testing.T) {
	t.Parallel()
	a := &scripted{epoch: bytesOf(uid(9))}
	p := asking(a)
	known, refersTo, err := p.AnnounceEpoch(t.Context(), self, uid(8))
	require.NoError(t, err)
	require.Equal(t, uid(9), known, "a later epoch that is known there")
	require.False(t, refersTo.Known, "an answer without kinds, as of an earlier program, may refer to any")
	require.NoError(t, p.ConfirmEpoch(t.Context(), self, uid(7), uid(8)))
	confirmed := a.asked[1].(*schemav1.ConfirmEpochRequest)
	require.Equal(t, [][]byte{bytesOf(uid(7)), bytesOf(uid(8))},
		[][]byte{confirmed.GetEpoch(), confirmed.GetOwnEpoch()})
	a.epoch = nil
	_, _, err = p.AnnounceEpoch(t.Context(), self, uid(8))
	require.Error(t, err, "an answer without an epoch is no epoch")
	_, _, err = p.Epoch(t.Context(), self)
	require.Error(t, err, "an answer without an epoch is no epoch")
	a.epoch = bytesOf(uid(9))
	_, refersTo, err = p.Epoch(t.Context(), self)
	require.NoError(t, err)
	require.False(t, refersTo.Known, "an answer without kinds, as of an earlier program, may refer to any")
	remaining, err := p.UpgradeOwners(t.Context(), self, &peer.Upgrade{
		Version: "v2", Generation: 3,
		Renamed: map[string]string{"Old": "New"},
	})
	require.NoError(t, err)
	require.EqualValues(t, 7, remaining)
	upgrade := a.asked[len(a.asked)-1].(*schemav1.UpgradeOwnerReferencesRequest)
	require.Equal(t, "Old", upgrade.GetRenamed()[0].GetFrom())
	require.Equal(t, "New", upgrade.GetRenamed()[0].GetTo())
}

// Questions beyond the bound of a call are asked in several calls, whose answers are of one version.
func TestManyOwnersAreAskedForInSeveralCalls(t *testing.T) {
	t.Parallel()
	a := &scripted{version: func(int) int64 { return 1 }}
	p := asking(a)
	questions := make([]peer.OwnerQuestion, 2*wire.MaxMessages+5)
	answers, err := p.WouldCheckOwners(t.Context(), self, questions)
	require.NoError(t, err)
	require.Len(t, answers.Answers, len(questions))
	require.Equal(t, 3, a.owners)
	for _, req := range a.asked {
		require.True(t, req.(*schemav1.CheckOwnersRequest).GetValidateOnly(), "nothing is written")
		require.LessOrEqual(t, len(req.(*schemav1.CheckOwnersRequest).GetQuestions()), wire.MaxMessages)
	}
	a.owners, a.version = 0, func(call int) int64 { return int64(call / 2) }
	_, err = p.CheckOwners(t.Context(), self, questions)
	require.ErrorContains(t, err, "switched its version between two parts of a request")
	a.version, a.lost = func(int) int64 { return 1 }, 1
	_, err = p.CheckOwners(t.Context(), self, questions)
	require.ErrorContains(t, err, "sent 9999 answers to 10000 questions", "an answer is that of its own question")
}

// A failed call is an error, never an empty answer.
func TestAFailedCallHasNoAnswer_I15(t *testing.T) {
	t.Parallel()
	p := asking(&scripted{refuse: status.Error(codes.Unavailable, "away"), version: func(int) int64 { return 1 }})
	for name, call := range map[string]func() error{
		"Resolve":         func() error { _, err := p.Resolve(t.Context(), self, nil); return err },
		"CheckReferences": func() error { _, err := p.CheckReferences(t.Context(), self, nil); return err },
		"Recall":          func() error { _, err := p.Recall(t.Context(), self, nil); return err },
		"Confirm": func() error {
			_, err := p.Confirm(t.Context(), self, peer.Confirm{Epoch: uid(1), Delegable: true})
			return err
		},
		"CheckOwners":   func() error { _, err := p.CheckOwners(t.Context(), self, nil); return err },
		"AnnounceEpoch": func() error { _, _, err := p.AnnounceEpoch(t.Context(), self, uid(1)); return err },
		"Epoch":         func() error { _, _, err := p.Epoch(t.Context(), self); return err },
		"ConfirmEpoch":  func() error { return p.ConfirmEpoch(t.Context(), self, uid(1), uid(2)) },
		"UpgradeOwners": func() error { _, err := p.UpgradeOwners(t.Context(), self, &peer.Upgrade{}); return err },
	} {
		require.Error(t, call(), name)
	}
}

// Each newer environment wakes the calls that wait for one.
func TestANewerEnvironmentWakes(t *testing.T) {
	t.Parallel()
	p := New(self, nil)
	defer p.Close()
	for range 2 {
		changed := p.Changed()
		select {
		case <-changed:
			t.Fatal("nothing has changed")
		default:
		}
		p.Update(environmentOf())
		<-changed
	}
}
