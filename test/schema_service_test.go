package test

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/schema"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/wire"
	"github.com/db-controller/db-controller/test/wait"
)

// orders returns all permutations of n things.
func orders(n int) [][]int {
	if n == 0 {
		return [][]int{nil}
	}
	var all [][]int
	for _, rest := range orders(n - 1) {
		for at := range n {
			order := append(append(append([]int{}, rest[:at]...), n-1), rest[at:]...)
			all = append(all, order)
		}
	}
	return all
}

func raw(id uuid.UUID) []byte { return id[:] }

// peer sends the messages of a deployment to another one by hand.
type peer struct {
	f       *fixture
	service schemav1.SchemaServiceClient // at a.example.com/us-west2, as b.example.com/eastus2
	target  uuid.UUID
	epoch   []byte // of its database
}

// epoch returns the epoch of the database of a deployment.
func (f *fixture) epoch(id schema.DeploymentID) []byte {
	f.t.Helper()
	conn, err := pgx.Connect(f.t.Context(), f.Deployments[id].DSN)
	require.NoError(f.t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	var epoch uuid.UUID
	require.NoError(f.t, conn.QueryRow(f.t.Context(), `SELECT epoch FROM dbcontroller.meta`).Scan(&epoch))
	return epoch[:]
}

func newPeer(f *fixture) *peer {
	f.t.Helper()
	uid := uuid.MustParse(f.mustPut(aWest+"targets/t", nil).GetUid())
	conn := f.as(f.Deployments[f.id(bEast+"holders/x")].Certs, "a.example.com/us-west2")
	return &peer{
		f: f, service: schemav1.NewSchemaServiceClient(conn), target: uid,
		epoch: f.epoch(f.id(bEast + "holders/x")),
	}
}

func (p *peer) establish(ctx context.Context, attempt, holder uuid.UUID, path string, b schema.Behaviour,
	validateOnly bool,
) error {
	return establishOne(ctx, p.service, &schemav1.EstablishReferencesRequest_Attempt{
		Attempt: raw(attempt), ValidateOnly: validateOnly,
		References: []*schemav1.EstablishReferencesRequest_Reference{{
			Holder: &schemav1.ResourceRef{Kind: "Holder", Name: "holders/h", Uid: raw(holder)}, Path: path,
			Target: &schemav1.ResourceRef{Kind: "Target", Name: "targets/t"}, Behaviour: schemav1.Behaviour(b),
		}},
	})
}

// establishOne establishes the references of one attempt.
func establishOne(ctx context.Context, at schemav1.SchemaServiceClient,
	attempt *schemav1.EstablishReferencesRequest_Attempt,
) error {
	answer, err := at.EstablishReferences(ctx,
		&schemav1.EstablishReferencesRequest{Attempts: []*schemav1.EstablishReferencesRequest_Attempt{attempt}})
	if err != nil {
		return err
	}
	return wire.EstablishOutcome(answer.GetOutcomes()[0]).Err
}

func (p *peer) key(attempt, holder uuid.UUID, path string) *schemav1.BlockadeKey {
	return &schemav1.BlockadeKey{Attempt: raw(attempt), HolderUid: raw(holder), Path: path, TargetUid: raw(p.target)}
}

// Establish, confirm and release of attempts that never committed: repeated, late, and in every order. In
// each case the target's deployment asks, gets the verdict gone, and no rows are left.
func TestMessagesOfAnAttemptInEveryOrder_I5_I7(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p, ctx := newPeer(f), t.Context()
	for i, order := range orders(5) {
		attempt, holder := uuid.Must(uuid.NewV7()), uuid.Must(uuid.NewV7())
		path, behaviour := "block", schema.Block
		if i%2 == 1 {
			path, behaviour = "cascade", schema.CascadeDelete
		}
		released := false
		for _, message := range order {
			switch message {
			case 0, 1:
				err := p.establish(ctx, attempt, holder, path, behaviour, false)
				require.Equal(t, released, err != nil, "order %v: a released attempt cannot establish: %v", order, err)
			case 2:
				for range 2 {
					_, err := p.service.ReleaseBlockades(ctx, &schemav1.ReleaseBlockadesRequest{
						Epoch: p.epoch,
						Keys:  []*schemav1.BlockadeKey{p.key(attempt, holder, path)},
					})
					require.NoError(t, err)
				}
				released = true
			case 3:
				// A release of another key of the same target does not affect this one.
				_, err := p.service.ReleaseBlockades(ctx, &schemav1.ReleaseBlockadesRequest{
					Epoch: p.epoch,
					Keys:  []*schemav1.BlockadeKey{p.key(uuid.Must(uuid.NewV7()), holder, path)},
				})
				require.NoError(t, err)
			case 4:
				require.Equal(t, released, p.establish(ctx, attempt, holder, path, behaviour, false) != nil)
				_, err := p.service.ResolveBlockades(ctx,
					&schemav1.ResolveBlockadesRequest{Questions: []*schemav1.ResolveBlockadesRequest_Question{
						{Key: p.key(attempt, holder, path)},
					}})
				require.NoError(t, err, "a question about an unknown reference is answered, and changes nothing")
			}
		}
	}
	require.NoError(t, p.establish(ctx, uuid.Must(uuid.NewV7()), uuid.New(), "block", schema.Block, true))
	f.eventually("blockades without a holder are removed", func() bool {
		found, err := p.service.ListBlockades(ctx, &schemav1.ListBlockadesRequest{})
		return err == nil && len(found.GetBlockades()) == 0
	})
	f.mustDelete(aWest + "targets/t")
	f.gone(aWest + "targets/t")
	f.settled()
}

// Repeated messages about committed references, at any time, do not change them.
func TestRepeatedMessagesOfCommittedReferences_I7_I8(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p, ctx := newPeer(f), t.Context()
	for i := range 6 {
		f.mustPut(fmt.Sprintf("%sholders/h%d", bEast, i), fields{
			"block":   aWest + "targets/t",
			"cascade": aWest + "targets/t",
		})
	}
	f.settled()
	operator := schemav1.NewSchemaServiceClient(f.as(f.ClientCerts(), "b.example.com/eastus2"))
	var attempts [][]byte
	var keys []*schemav1.BlockadeKey
	for token := ""; ; {
		page, err := operator.ListResourceShadows(ctx, &schemav1.ListResourceShadowsRequest{
			PageSize:  2,
			PageToken: token, Kind: "Holder",
		})
		require.NoError(t, err)
		for _, s := range page.GetShadows() {
			require.Len(t, s.GetReferences(), 2)
			for _, r := range s.GetReferences() {
				attempts = append(attempts, r.GetAttempt())
				keys = append(keys, &schemav1.BlockadeKey{
					Attempt: r.GetAttempt(), HolderUid: s.GetResource().GetUid(),
					Path: r.GetPath(), TargetUid: r.GetTargetUid(),
				})
			}
		}
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	require.Len(t, keys, 12)
	blockades := func() (n int) {
		for token := ""; ; {
			page, err := p.service.ListBlockades(ctx, &schemav1.ListBlockadesRequest{PageSize: 4, PageToken: token})
			require.NoError(t, err)
			for _, b := range page.GetBlockades() {
				require.Nil(t, b.GetExpireTime(), "confirmed")
				n++
			}
			if token = page.GetNextPageToken(); token == "" {
				return n
			}
		}
	}
	require.Equal(t, 6, blockades())
	for range 3 {
		confirmed, err := p.service.ConfirmBlockades(ctx, &schemav1.ConfirmBlockadesRequest{
			Epoch:    p.epoch,
			Attempts: attempts,
		})
		require.NoError(t, err)
		require.NotEmpty(t, confirmed.GetUnknownAttempts(), "nothing is invented")
	}
	// A late duplicate of the establish: resolved, held, confirmed.
	for _, k := range keys {
		b := schema.Block
		if k.GetPath() == "cascade" {
			b = schema.CascadeDelete
		}
		require.NoError(t, p.establish(ctx, uuid.UUID(k.GetAttempt()), uuid.UUID(k.GetHolderUid()),
			k.GetPath(), b, false))
	}
	f.eventually("what is held is confirmed", func() bool {
		found, err := p.service.ListBlockades(ctx, &schemav1.ListBlockadesRequest{})
		for _, b := range found.GetBlockades() {
			if b.GetExpireTime() != nil {
				return false
			}
		}
		return err == nil
	})
	require.Equal(t, 6, blockades())
	// Repeated questions and plans change nothing.
	holder := schemav1.NewSchemaServiceClient(f.as(f.Deployments[f.id(aWest+"targets/t")].Certs,
		"b.example.com/eastus2"))
	for range 2 {
		var questions []*schemav1.ResolveBlockadesRequest_Question
		for _, k := range keys {
			questions = append(questions, &schemav1.ResolveBlockadesRequest_Question{Key: k, Expired: true})
		}
		answer, err := holder.ResolveBlockades(ctx, &schemav1.ResolveBlockadesRequest{Questions: questions})
		require.NoError(t, err)
		for _, v := range answer.GetVerdicts() {
			require.Equal(t, schemav1.ResolveBlockadesResponse_VERDICT_HELD, v)
		}
		plan, err := holder.PlanDeletion(ctx,
			&schemav1.PlanDeletionRequest{Targets: []*schemav1.PlanDeletionRequest_Target{
				{Deployment: "a.example.com/us-west2", Uid: raw(p.target)},
			}})
		require.NoError(t, err)
		require.Len(t, plan.GetMembers(), 6)
	}
	require.NoError(t, f.delete(aWest+"targets/t"), "the blocker is removed as well")
	f.gone(aWest+"targets/t", bEast+"holders/h0", bEast+"holders/h5")
	f.settled()
}

// Acknowledgements: of an earlier position, again, of another deployment's position.
func TestRepeatedAndLateAcknowledgements(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p, ctx := newPeer(f), t.Context()
	position := func() (deletions int, token string) {
		ctx, cancel := context.WithTimeout(ctx, wait.Limit)
		defer cancel()
		watch, err := p.service.WatchImportedServiceDeletions(ctx, &schemav1.WatchImportedServiceDeletionsRequest{})
		require.NoError(t, err)
		for {
			event, err := watch.Recv()
			require.NoError(t, err)
			if end := event.GetEndOfSnapshot(); end != nil {
				return deletions, end.GetResumeToken()
			}
			deletions += len(event.GetUpsert().GetResources())
		}
	}
	_, early := position()
	f.mustPut(bEast+"holders/h", fields{"cascade": aWest + "targets/t"})
	f.settled()
	require.NoError(t, f.Deployments[f.id(bEast+"holders/h")].Kill())
	f.mustDelete(aWest + "targets/t")
	for range 2 { // a position from before the deletion: does not count
		_, err := p.service.AcknowledgeDeletions(ctx, &schemav1.AcknowledgeDeletionsRequest{
			Epoch:    p.epoch,
			Position: early,
		})
		require.NoError(t, err)
	}
	n, latest := position()
	require.Equal(t, 1, n, "still to be acted upon")
	for range 2 { // with an exception: not done
		_, err := p.service.AcknowledgeDeletions(ctx, &schemav1.AcknowledgeDeletionsRequest{
			Epoch:    p.epoch,
			Position: latest, ExceptUids: [][]byte{raw(p.target)},
		})
		require.NoError(t, err)
	}
	stranger := schemav1.NewSchemaServiceClient(f.as(f.Deployments[f.id(bWest+"holders/h")].Certs,
		"a.example.com/us-west2"))
	_, err := stranger.AcknowledgeDeletions(ctx,
		&schemav1.AcknowledgeDeletionsRequest{Epoch: f.epoch(f.id(bWest + "holders/h")), Position: latest})
	require.Equal(t, codes.FailedPrecondition, status.Code(err), "a position is valid only for its receiver")
	require.NotNil(t, f.get(aWest+"targets/t"))
	require.NoError(t, f.Deployments[f.id(bEast+"holders/h")].Start())
	f.ready("b.example.com/eastus2")
	f.gone(aWest+"targets/t", bEast+"holders/h")
	_, err = p.service.AcknowledgeDeletions(ctx, &schemav1.AcknowledgeDeletionsRequest{
		Epoch:    p.epoch,
		Position: latest,
	})
	require.NoError(t, err, "of a removed resource")
	f.settled()
}

// The messages about owners: checked, dropped, let go, upgraded, in every order and twice each.
func TestMessagesOfOwnersInEveryOrder_I7_I16(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ctx := t.Context()
	owner := f.mustPut(bEast+"holders/owner", nil)
	uid := uuid.MustParse(owner.GetUid())
	at := schemav1.NewSchemaServiceClient(f.as(f.Deployments[f.id(bEast+"holders/x")].Certs, "a.example.com/eastus2"))
	epoch := f.epoch(f.id(bEast + "holders/x"))
	back := schemav1.NewSchemaServiceClient(f.as(f.Deployments[f.id(aEast+"targets/x")].Certs, "b.example.com/eastus2"))
	for i, order := range orders(4) {
		name := fmt.Sprintf("%stargets/o%d", aEast, i)
		kept := f.mustPut(name, nil, ownedBy("Holder", bEast+"holders/owner"))
		f.pinned(name, 1)
		for _, message := range order {
			for range 2 {
				var err error
				switch message {
				case 0:
					var answer *schemav1.CheckOwnersResponse
					answer, err = back.CheckOwners(ctx,
						&schemav1.CheckOwnersRequest{Questions: []*schemav1.CheckOwnersRequest_Question{
							{Owner: &schemav1.ResourceRef{Kind: "Holder", Name: "holders/owner"}},
							{Owner: &schemav1.ResourceRef{Kind: "Holder", Name: "holders/nobody"}},
							{Owner: &schemav1.ResourceRef{Kind: "Robot", Name: "robots/r"}},
						}})
					require.NoError(t, err)
					require.Equal(t, schemav1.CheckOwnersResponse_VERDICT_EXISTS, answer.GetAnswers()[0].GetVerdict())
					require.Equal(t, schemav1.CheckOwnersResponse_VERDICT_ABSENT, answer.GetAnswers()[1].GetVerdict())
					require.Equal(t, schemav1.CheckOwnersResponse_VERDICT_UNSPECIFIED,
						answer.GetAnswers()[2].GetVerdict())
				case 1: // an owner that was never one
					_, err = at.DropOwners(ctx, &schemav1.DropOwnersRequest{
						Epoch:       epoch,
						DeletedUids: [][]byte{raw(uuid.New())},
					})
				case 2: // a let-go by an owner that need not refer
					_, err = at.DropOwners(ctx, &schemav1.DropOwnersRequest{
						Epoch: epoch,
						LetGo: []*schemav1.DropOwnersRequest_LetGo{{
							OwnerUid: raw(uid),
							OwneeUid: raw(uuid.MustParse(kept.GetUid())),
						}},
					})
				case 3: // an upgrade that the deployment, asked for it, does not say
					_, err = at.UpgradeOwnerReferences(ctx, &schemav1.UpgradeOwnerReferencesRequest{
						Version:    "v7",
						Generation: 1 << 60,
					})
					require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
					err = nil
				}
				require.NoError(t, err)
			}
		}
		require.Equal(t, "v1", f.get(name).GetOwnerReferences()[0].GetVersion())
	}
	f.settled()
	f.mustDelete(bEast + "holders/owner")
	for i := range 24 {
		f.gone(fmt.Sprintf("%stargets/o%d", aEast, i))
	}
	f.gone(bEast + "holders/owner")
	f.settled()
}

// Data about a deployment is not sent to other deployments, and malformed input is refused with its place.
func TestTheSchemaServiceRefusesStrangersAndNonsense(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p, ctx := newPeer(f), t.Context()
	_, err := p.service.ListResourceShadows(ctx, &schemav1.ListResourceShadowsRequest{})
	require.Equal(t, codes.PermissionDenied, status.Code(err))
	watch, err := p.service.WatchResourceShadows(ctx, &schemav1.WatchResourceShadowsRequest{})
	require.NoError(t, err)
	_, err = watch.Recv()
	require.Equal(t, codes.PermissionDenied, status.Code(err))
	user := schemav1.NewSchemaServiceClient(f.asUser("a.example.com/us-west2"))
	_, err = user.CheckOwners(ctx, &schemav1.CheckOwnersRequest{})
	require.Equal(t, codes.PermissionDenied, status.Code(err))
	for says, call := range map[string]func() error{
		"questions[0]: name is empty": func() error {
			_, err := p.service.CheckOwners(ctx,
				&schemav1.CheckOwnersRequest{Questions: []*schemav1.CheckOwnersRequest_Question{{}}})
			return err
		},
		"deleted_uids: a uid has 16 bytes, got 1": func() error {
			_, err := p.service.DropOwners(ctx, &schemav1.DropOwnersRequest{Epoch: p.epoch, DeletedUids: [][]byte{{1}}})
			return err
		},
		`version: version "x"`: func() error {
			_, err := p.service.UpgradeOwnerReferences(ctx, &schemav1.UpgradeOwnerReferencesRequest{Version: "x"})
			return err
		},
		"page_token: want the next_page_token": func() error {
			_, err := p.service.ListBlockades(ctx, &schemav1.ListBlockadesRequest{PageToken: "x"})
			return err
		},
		"questions: 10001 in one call": func() error {
			_, err := p.service.CheckOwners(ctx,
				&schemav1.CheckOwnersRequest{Questions: make([]*schemav1.CheckOwnersRequest_Question, 10_001)})
			return err
		},
	} {
		err := call()
		require.Equal(t, codes.InvalidArgument, status.Code(err), says)
		require.ErrorContains(t, err, says)
	}
}
