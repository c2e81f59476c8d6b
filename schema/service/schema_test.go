package service

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/service/outcome"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/schema/wire"
)

// schemaCalls are calls of every method of the SchemaService with valid requests.
func schemaCalls(s *schemas) map[string]func(ctx context.Context) error {
	v7 := uuid.Must(uuid.NewV7())
	return map[string]func(ctx context.Context) error{
		"EstablishReferences": func(ctx context.Context) error {
			_, err := establishOne(ctx, s, establishRequest(v7))
			return err
		},
		"ConfirmBlockades": func(ctx context.Context) error {
			_, err := s.ConfirmBlockades(ctx, &schemav1.ConfirmBlockadesRequest{Epoch: v7[:]})
			return err
		},
		"ResolveBlockades": func(ctx context.Context) error {
			_, err := s.ResolveBlockades(ctx, &schemav1.ResolveBlockadesRequest{})
			return err
		},
		"RecallDelegations": func(ctx context.Context) error {
			_, err := s.RecallDelegations(ctx, &schemav1.RecallDelegationsRequest{})
			return err
		},
		"ReleaseBlockades": func(ctx context.Context) error {
			_, err := s.ReleaseBlockades(ctx, &schemav1.ReleaseBlockadesRequest{Epoch: v7[:]})
			return err
		},
		"CheckReferences": func(ctx context.Context) error {
			_, err := s.CheckReferences(ctx, &schemav1.CheckReferencesRequest{})
			return err
		},
		"AcknowledgeDeletions": func(ctx context.Context) error {
			_, err := s.AcknowledgeDeletions(ctx, &schemav1.AcknowledgeDeletionsRequest{Epoch: v7[:]})
			return err
		},
		"CheckOwners": func(ctx context.Context) error {
			_, err := s.CheckOwners(ctx, &schemav1.CheckOwnersRequest{})
			return err
		},
		"DropOwners": func(ctx context.Context) error {
			_, err := s.DropOwners(ctx, &schemav1.DropOwnersRequest{Epoch: v7[:]})
			return err
		},
		"UpgradeOwnerReferences": func(ctx context.Context) error {
			_, err := s.UpgradeOwnerReferences(ctx, &schemav1.UpgradeOwnerReferencesRequest{Version: "v1"})
			return err
		},
		"AnnounceEpoch": func(ctx context.Context) error {
			_, err := s.AnnounceEpoch(ctx, &schemav1.AnnounceEpochRequest{Epoch: v7[:]})
			return err
		},
		"ConfirmEpoch": func(ctx context.Context) error {
			_, err := s.ConfirmEpoch(ctx, &schemav1.ConfirmEpochRequest{Epoch: v7[:], OwnEpoch: v7[:]})
			return err
		},
		"WatchImportedServiceDeletions": func(ctx context.Context) error {
			return s.WatchImportedServiceDeletions(&schemav1.WatchImportedServiceDeletionsRequest{},
				newServerStream[schemav1.WatchImportedServiceDeletionsResponse](ctx))
		},
		"WatchResourceShadows": func(ctx context.Context) error {
			return s.WatchResourceShadows(&schemav1.WatchResourceShadowsRequest{},
				newServerStream[schemav1.WatchResourceShadowsResponse](ctx))
		},
		"ListResourceShadows": func(ctx context.Context) error {
			_, err := s.ListResourceShadows(ctx, &schemav1.ListResourceShadowsRequest{})
			return err
		},
		"ListBlockades": func(ctx context.Context) error {
			_, err := s.ListBlockades(ctx, &schemav1.ListBlockadesRequest{})
			return err
		},
	}
}

// establishOne calls for one attempt, and returns its outcome.
func establishOne(ctx context.Context, s *schemas,
	attempt *schemav1.EstablishReferencesRequest_Attempt,
) (*schemav1.EstablishReferencesResponse_Established, error) {
	out, err := s.EstablishReferences(ctx,
		&schemav1.EstablishReferencesRequest{Attempts: []*schemav1.EstablishReferencesRequest_Attempt{attempt}})
	if err != nil {
		return nil, err
	}
	return out.GetOutcomes()[0].GetEstablished(), wire.EstablishOutcome(out.GetOutcomes()[0]).Err
}

func establishRequest(attempt uuid.UUID) *schemav1.EstablishReferencesRequest_Attempt {
	return &schemav1.EstablishReferencesRequest_Attempt{
		Attempt:    attempt[:],
		References: []*schemav1.EstablishReferencesRequest_Reference{establishedReference()},
	}
}

func establishedReference() *schemav1.EstablishReferencesRequest_Reference {
	return &schemav1.EstablishReferencesRequest_Reference{
		Holder: wire.ResourceRef("Device", "devices/d", uid(1)), Path: "spec.account",
		Target: wire.ResourceRef("Account", "accounts/a", uid(2)), Behaviour: schemav1.Behaviour_BEHAVIOUR_BLOCK,
	}
}

func TestOnlyDeploymentsCallTheSchemaService(t *testing.T) {
	t.Parallel()
	for method, call := range schemaCalls(newSchemaService(&schemaStore{})) {
		require.Equal(t, codes.PermissionDenied, status.Code(call(as(t, ann))), "%s by a user", method)
		err := call(t.Context())
		require.Contains(t, []codes.Code{codes.Unauthenticated, codes.PermissionDenied}, status.Code(err),
			"%s without an identity", method)
	}
}

// A failure of the store reaches the caller of every method with its reason.
func TestEveryMethodOfTheSchemaServiceReportsFailuresOfTheStore(t *testing.T) {
	t.Parallel()
	failing := peer.ErrAborted
	s := newSchemaService(&schemaStore{
		unread: failing,
		establish: func(schema.DeploymentID, peer.AttemptID, []peer.EstablishReference) (*peer.Established, error) {
			return nil, failing
		},
		confirm: func(schema.DeploymentID, uuid.UUID, []peer.AttemptID) ([]peer.AttemptID, error) {
			return nil, failing
		},
		release: func(schema.DeploymentID, uuid.UUID, []peer.BlockadeKey, []peer.AttemptID) error { return failing },
		answer:  func(schema.DeploymentID, []peer.Question) (*peer.Answers, error) { return nil, failing },
		recall:  func(schema.DeploymentID, []peer.Recall) (*peer.Recalled, error) { return nil, failing },
		checkReferences: func(schema.DeploymentID, []peer.CheckedReference) ([]peer.Known, error) {
			return nil, failing
		},
		watchDeletions: func(schema.DeploymentID, string, func(schema.Event[schema.Deletion]) error) error {
			return failing
		},
		acknowledge: func(schema.DeploymentID, uuid.UUID, string, []uuid.UUID, time.Duration) (bool, error) {
			return false, failing
		},
		checkOwners: func(schema.DeploymentID, []peer.OwnerQuestion) (*peer.OwnerAnswers, error) {
			return nil, failing
		},
		dropOwners: func(schema.DeploymentID, uuid.UUID, []schema.Deletion,
			[]peer.OwnerRelease,
		) ([]uuid.UUID, bool, error) {
			return nil, false, failing
		},
		upgradeOwners: func(schema.DeploymentID, string, int64, map[string]string) (int64, error) { return 0, failing },
		told:          func(schema.DeploymentID, uuid.UUID) (uuid.UUID, error) { return uuid.Nil, failing },
		confirmed:     func(schema.DeploymentID, uuid.UUID, uuid.UUID) error { return failing },
		listShadows:   func(string, string, int) ([]shadow.ResourceView, string, error) { return nil, "", failing },
		listBlockades: func(schema.DeploymentID, string, int) ([]shadow.BlockadeView, string, error) {
			return nil, "", failing
		},
		watchWork: func([]int16, string, func(schema.Event[schema.Work]) error) error { return failing },
	})
	for method, call := range schemaCalls(s) {
		err := call(asDeployment(t, self))
		require.Equal(t, codes.Aborted, status.Code(err), method)
		require.Equal(t, "ABORTED", reasonOf(t, err), method)
	}
}

func TestEstablishReferencesPassesTheReferencesToTheStore(t *testing.T) {
	t.Parallel()
	attempt, epoch := newAttempt(t), uid(9)
	want := []peer.EstablishReference{{
		HolderKind: "Device", HolderName: "devices/d", HolderUID: uid(1), Path: "spec.account",
		TargetKind: "Account", TargetName: "accounts/a", TargetUID: uid(2), Behaviour: schema.Block,
	}}
	s := newSchemaService(&schemaStore{
		establish: func(holder schema.DeploymentID, a peer.AttemptID,
			refs []peer.EstablishReference,
		) (*peer.Established, error) {
			require.Equal(t, other, holder)
			require.Equal(t, attempt, a)
			require.Equal(t, want, refs)
			return &peer.Established{UIDs: []uuid.UUID{uid(2)}, Version: "v2", Epoch: epoch}, nil
		},
		wouldEstablish: func(holder schema.DeploymentID, with peer.AttemptID,
			refs []peer.EstablishReference,
		) (*peer.Established, error) {
			require.Equal(t, other, holder)
			require.Equal(t, attempt, with)
			require.Equal(t, want, refs)
			return &peer.Established{UIDs: []uuid.UUID{uid(3)}, Version: "v3", Epoch: epoch}, nil
		},
	})
	out, err := establishOne(asDeployment(t, other), s, establishRequest(attempt))
	require.NoError(t, err)
	require.Equal(t, epoch[:], out.GetEpoch())
	require.Len(t, out.GetTargets(), 1)
	require.Equal(t, bytesOf(uid(2)), out.GetTargets()[0].GetUid())
	require.Equal(t, "v2", out.GetTargets()[0].GetVersion())

	req := establishRequest(attempt)
	req.ValidateOnly = true
	out, err = establishOne(asDeployment(t, other), s, req)
	require.NoError(t, err)
	require.Equal(t, bytesOf(uid(3)), out.GetTargets()[0].GetUid())
	require.Equal(t, "v3", out.GetTargets()[0].GetVersion())
}

// A parent is a reference without a field path, and ALLOW_DANGLING is a behaviour like the others.
func TestEstablishReferencesTakesParentsAndAllBehaviours(t *testing.T) {
	t.Parallel()
	for b := schema.Block; b <= schema.AllowDangling; b++ {
		var got []peer.EstablishReference
		s := newSchemaService(
			&schemaStore{establish: func(_ schema.DeploymentID, _ peer.AttemptID,
				refs []peer.EstablishReference,
			) (*peer.Established, error) {
				got = refs
				return &peer.Established{}, nil
			}})
		req := establishRequest(newAttempt(t))
		req.References[0].Path, req.References[0].Behaviour = schema.ParentPath, schemav1.Behaviour(b)
		_, err := establishOne(asDeployment(t, other), s, req)
		require.NoError(t, err, b)
		require.Equal(t, schema.ParentPath, got[0].Path)
		require.Equal(t, b, got[0].Behaviour)
	}
}

func TestEstablishReferencesRefusesInvalidReferences(t *testing.T) {
	t.Parallel()
	type request = schemav1.EstablishReferencesRequest_Attempt
	for says, change := range map[string]func(r *request){
		"attempt: ":              func(r *request) { r.Attempt = []byte("short") },
		"attempt: want a UUIDv7": func(r *request) { r.Attempt = bytesOf(uid(1)) },
		"references: ":           func(r *request) { r.References = nil },
		"at most 10000 are allowed": func(r *request) {
			r.References = make([]*schemav1.EstablishReferencesRequest_Reference, wire.MaxMessages+1)
		},
		"references[0]: kind \"\"":           func(r *request) { r.References[0].Holder.Kind = "" },
		"references[0]: name is empty":       func(r *request) { r.References[0].Holder.Name = "" },
		"references[0]: name \"accounts\"":   func(r *request) { r.References[0].Target.Name = "accounts" },
		"references[0]: path \"a..b\"":       func(r *request) { r.References[0].Path = "a..b" },
		"references[0]: unknown behaviour 0": func(r *request) { r.References[0].Behaviour = 0 },
		"references[0]: unknown behaviour 7": func(r *request) { r.References[0].Behaviour = 7 },
		"references[0]: a uid has 16 bytes":  func(r *request) { r.References[0].Holder.Uid = nil },
		"references[1]: a uid has 16 bytes": func(r *request) {
			r.References = append(r.References, &schemav1.EstablishReferencesRequest_Reference{})
		},
		"references[0]: a uid has 16 bytes, go": func(r *request) { r.References[0].Target.Uid = []byte{1} },
	} {
		req := establishRequest(newAttempt(t))
		change(req)
		_, err := establishOne(asDeployment(t, other), newSchemaService(&schemaStore{}), req)
		require.Equal(t, codes.InvalidArgument, status.Code(err), says)
		require.ErrorContains(t, err, says)
	}
}

// A deployment is asked whether it may refer as for a new reference, until all uids are known: then it has
// referred before.
func TestReferencesThatWereEstablishedBeforeAreRecognised(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		targets [][]byte
		again   bool
	}{
		"one new":      {[][]byte{nil}, false},
		"one known":    {[][]byte{bytesOf(uid(1))}, true},
		"known, new":   {[][]byte{bytesOf(uid(1)), nil}, false},
		"known, known": {[][]byte{bytesOf(uid(1)), bytesOf(uid(2))}, true},
	} {
		s := newSchemaService(
			&schemaStore{establish: func(schema.DeploymentID, peer.AttemptID,
				[]peer.EstablishReference,
			) (*peer.Established, error) {
				return &peer.Established{}, nil
			}})
		asked := false
		s.mayRefer = func(holder schema.DeploymentID, again bool) (bool, error) {
			asked = true
			require.Equal(t, other, holder)
			require.Equal(t, c.again, again, name)
			return true, nil
		}
		req := establishRequest(newAttempt(t))
		req.References = nil
		for _, target := range c.targets {
			r := establishedReference()
			r.Target.Uid = target
			req.References = append(req.References, r)
		}
		_, err := establishOne(asDeployment(t, other), s, req)
		require.NoError(t, err, name)
		require.True(t, asked, name)
	}
}

func TestADeploymentThatDoesNotImportTheServiceIsRefusedEachReference(t *testing.T) {
	t.Parallel()
	s := newSchemaService(&schemaStore{})
	s.mayRefer = func(schema.DeploymentID, bool) (bool, error) { return false, nil }
	req := establishRequest(newAttempt(t))
	second := establishedReference()
	second.Path = "spec.backup"
	req.References = append(req.References, second)
	_, err := establishOne(asDeployment(t, other), s, req)
	require.Equal(t, string(peer.NotImported), reasonOf(t, err))
	var refused *peer.RefusedError
	require.ErrorAs(t, outcome.FromStatus(err), &refused)
	target := schema.FullName{Deployment: self, Name: "accounts/a"}
	require.Equal(t, []peer.Refusal{
		{Holder: "devices/d", Path: "spec.account", Target: target, Reason: peer.NotImported},
		{Holder: "devices/d", Path: "spec.backup", Target: target, Reason: peer.NotImported},
	}, refused.Refusals)
}

// While the registry's environment lacks the caller, it is unknown whether the caller may refer.
func TestAnUnknownDeploymentIsNotRefusedForGood_I15(t *testing.T) {
	t.Parallel()
	s := newSchemaService(&schemaStore{})
	s.mayRefer = func(schema.DeploymentID, bool) (bool, error) { return false, errors.New("not in the environment") }
	_, err := establishOne(asDeployment(t, other), s, establishRequest(newAttempt(t)))
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.Equal(t, "UNAVAILABLE", reasonOf(t, err))
	require.ErrorContains(t, err, "not in the environment")
}

func validKey() *schemav1.BlockadeKey {
	return &schemav1.BlockadeKey{
		Attempt: bytesOf(uid(1)), HolderUid: bytesOf(uid(2)), Path: "a.*",
		TargetUid: bytesOf(uid(3)),
	}
}

func TestBlockadeKeysAreChecked(t *testing.T) {
	t.Parallel()
	key, err := wire.BlockadeKey(validKey())
	require.NoError(t, err)
	require.Equal(t, peer.BlockadeKey{Attempt: uid(1), HolderUID: uid(2), Path: "a.*", TargetUID: uid(3)}, key)
	require.Equal(t, validKey().String(), wire.BlockadeKeyProto(key).String())
	for says, change := range map[string]func(k *schemav1.BlockadeKey){
		"a uid has 16 bytes, got 0":  func(k *schemav1.BlockadeKey) { k.Attempt = nil },
		"a uid has 16 bytes, got 1":  func(k *schemav1.BlockadeKey) { k.HolderUid = []byte{1} },
		"a uid has 16 bytes, got 17": func(k *schemav1.BlockadeKey) { k.TargetUid = make([]byte, 17) },
		"path \"\"":                  func(k *schemav1.BlockadeKey) { k.Path = "" },
		"path \"@owner\"":            func(k *schemav1.BlockadeKey) { k.Path = "@owner" },
	} {
		k := validKey()
		change(k)
		_, err := wire.BlockadeKey(k)
		require.ErrorContains(t, err, says)
		for method, call := range map[string]func() error{
			"questions: ": func() error {
				_, err := newSchemaService(&schemaStore{}).ResolveBlockades(asDeployment(t, other),
					&schemav1.ResolveBlockadesRequest{
						Questions: []*schemav1.ResolveBlockadesRequest_Question{{Key: k}},
					})
				return err
			},
			"keys: ": func() error {
				_, err := newSchemaService(&schemaStore{}).ReleaseBlockades(asDeployment(t, other),
					&schemav1.ReleaseBlockadesRequest{Keys: []*schemav1.BlockadeKey{k}})
				return err
			},
			"references: ": func() error {
				_, err := newSchemaService(&schemaStore{}).CheckReferences(asDeployment(t, other),
					&schemav1.CheckReferencesRequest{References: []*schemav1.CheckReferencesRequest_Reference{
						{Key: k, Behaviour: 1},
					}})
				return err
			},
		} {
			err := call()
			require.Equal(t, codes.InvalidArgument, status.Code(err), says)
			require.ErrorContains(t, err, method)
			require.ErrorContains(t, err, says)
		}
	}
	parent := validKey()
	parent.Path = schema.ParentPath
	_, err = wire.BlockadeKey(parent)
	require.NoError(t, err)
}

// A list with 10,001 entries is refused before the store is asked.
func TestCallsOfTheSchemaServiceAreBounded_I21(t *testing.T) {
	t.Parallel()
	ctx := asDeployment(t, other)
	many := make([][]byte, wire.MaxMessages+1)
	for i := range many {
		many[i] = make([]byte, 16)
	}
	s := newSchemaService(&schemaStore{})
	for field, call := range map[string]func() error{
		"attempts": func() error {
			_, err := s.ConfirmBlockades(ctx, &schemav1.ConfirmBlockadesRequest{Attempts: many})
			return err
		},
		"keys": func() error {
			_, err := s.ReleaseBlockades(ctx, &schemav1.ReleaseBlockadesRequest{
				Attempts: many[1:],
				Keys:     []*schemav1.BlockadeKey{validKey()},
			})
			return err
		},
		"questions": func() error {
			_, err := s.ResolveBlockades(ctx,
				&schemav1.ResolveBlockadesRequest{Questions: make([]*schemav1.ResolveBlockadesRequest_Question,
					wire.MaxMessages+1)})
			return err
		},
		"references": func() error {
			_, err := s.CheckReferences(ctx,
				&schemav1.CheckReferencesRequest{References: make([]*schemav1.CheckReferencesRequest_Reference,
					wire.MaxMessages+1)})
			return err
		},
		"owners": func() error {
			_, err := s.DropOwners(ctx, &schemav1.DropOwnersRequest{
				DeletedUids: many[1:],
				LetGo:       make([]*schemav1.DropOwnersRequest_LetGo, 1),
			})
			return err
		},
		"targets": func() error {
			_, err := s.PlanDeletion(ctx,
				&schemav1.PlanDeletionRequest{Targets: make([]*schemav1.PlanDeletionRequest_Target,
					wire.MaxMessages+1)})
			return err
		},
		"uids": func() error {
			_, err := s.TraceCascades(ctx, &schemav1.TraceCascadesRequest{Uids: many})
			return err
		},
	} {
		err := call()
		require.Equal(t, codes.InvalidArgument, status.Code(err), field)
		require.ErrorContains(t, err, field+": 10001 in one call, at most 10000 are allowed")
	}
	_, err := s.CheckOwners(ctx, &schemav1.CheckOwnersRequest{Questions: make([]*schemav1.CheckOwnersRequest_Question,
		wire.MaxMessages+1)})
	require.ErrorContains(t, err, "questions: 10001 in one call")
}

// A uid or an epoch of a wrong length is reported with its field.
func TestMalformedUIDsAreReportedWithTheirField(t *testing.T) {
	t.Parallel()
	ctx, bad, s := asDeployment(t, other), []byte("bad"), newSchemaService(&schemaStore{})
	v7 := newAttempt(t)
	for says, call := range map[string]func() error{
		"attempts: ": func() error {
			_, err := s.ConfirmBlockades(ctx, &schemav1.ConfirmBlockadesRequest{Attempts: [][]byte{bad}})
			return err
		},
		"epoch: a": func() error {
			_, err := s.ConfirmBlockades(ctx, &schemav1.ConfirmBlockadesRequest{Epoch: bad})
			return err
		},
		"attempts: a": func() error {
			_, err := s.ReleaseBlockades(ctx, &schemav1.ReleaseBlockadesRequest{Attempts: [][]byte{bad}})
			return err
		},
		"epoch: a uid": func() error {
			_, err := s.ReleaseBlockades(ctx, &schemav1.ReleaseBlockadesRequest{Epoch: bad})
			return err
		},
		"except_uids: ": func() error {
			_, err := s.AcknowledgeDeletions(ctx, &schemav1.AcknowledgeDeletionsRequest{ExceptUids: [][]byte{bad}})
			return err
		},
		"epoch: a uid has": func() error {
			_, err := s.AcknowledgeDeletions(ctx, &schemav1.AcknowledgeDeletionsRequest{Epoch: bad})
			return err
		},
		"deleted_uids: ": func() error {
			_, err := s.DropOwners(ctx, &schemav1.DropOwnersRequest{DeletedUids: [][]byte{bad}})
			return err
		},
		"let_go[1]: ": func() error {
			_, err := s.DropOwners(ctx, &schemav1.DropOwnersRequest{LetGo: []*schemav1.DropOwnersRequest_LetGo{
				{OwnerUid: bytesOf(uid(1)), OwneeUid: bytesOf(uid(2))}, {OwnerUid: bytesOf(uid(1)), OwneeUid: bad},
			}})
			return err
		},
		"epoch: a uid has 16": func() error {
			_, err := s.DropOwners(ctx, &schemav1.DropOwnersRequest{Epoch: bad})
			return err
		},
		"questions[0]: a uid": func() error {
			_, err := s.CheckOwners(ctx,
				&schemav1.CheckOwnersRequest{Questions: []*schemav1.CheckOwnersRequest_Question{
					{Owner: &schemav1.ResourceRef{Kind: "A", Name: "as/a", Uid: bad}},
				}})
			return err
		},
		"questions[0]: a uid has": func() error {
			_, err := s.CheckOwners(ctx,
				&schemav1.CheckOwnersRequest{Questions: []*schemav1.CheckOwnersRequest_Question{
					{Owner: &schemav1.ResourceRef{Kind: "A", Name: "as/a"}, RequiredBy: bad},
				}})
			return err
		},
		"questions[0]: kind": func() error {
			_, err := s.CheckOwners(ctx,
				&schemav1.CheckOwnersRequest{Questions: []*schemav1.CheckOwnersRequest_Question{
					{Owner: &schemav1.ResourceRef{Kind: "a", Name: "as/a"}},
				}})
			return err
		},
		"questions[0]: name": func() error {
			_, err := s.CheckOwners(ctx,
				&schemav1.CheckOwnersRequest{Questions: []*schemav1.CheckOwnersRequest_Question{
					{Owner: &schemav1.ResourceRef{Kind: "A", Name: "as"}},
				}})
			return err
		},
		"version: ": func() error {
			_, err := s.UpgradeOwnerReferences(ctx, &schemav1.UpgradeOwnerReferencesRequest{Version: "one"})
			return err
		},
		"renamed: ": func() error {
			_, err := s.UpgradeOwnerReferences(ctx, &schemav1.UpgradeOwnerReferencesRequest{
				Version: "v1",
				Renamed: []*schemav1.UpgradeOwnerReferencesRequest_Renamed{{From: "A", To: "b"}},
			})
			return err
		},
		"epoch: want": func() error {
			_, err := s.AnnounceEpoch(ctx, &schemav1.AnnounceEpochRequest{Epoch: bytesOf(uid(4))})
			return err
		},
		"epoch: a uid has 16 bytes": func() error {
			_, err := s.ConfirmEpoch(ctx, &schemav1.ConfirmEpochRequest{Epoch: bad, OwnEpoch: v7[:]})
			return err
		},
		"epoch: want a UUIDv7": func() error {
			_, err := s.ConfirmEpoch(ctx, &schemav1.ConfirmEpochRequest{
				Epoch:    bytesOf(uid(3)),
				OwnEpoch: bytesOf(uid(4)),
			})
			return err
		},
		"targets[0]: deployment": func() error {
			_, err := s.PlanDeletion(ctx,
				&schemav1.PlanDeletionRequest{Targets: []*schemav1.PlanDeletionRequest_Target{{
					Deployment: "here",
					Uid:        bytesOf(uid(1)),
				}}})
			return err
		},
		"targets[0]: a uid": func() error {
			_, err := s.PlanDeletion(ctx,
				&schemav1.PlanDeletionRequest{Targets: []*schemav1.PlanDeletionRequest_Target{
					{Deployment: other.String(), Uid: bad},
				}})
			return err
		},
		"uids: ": func() error {
			_, err := s.TraceCascades(ctx, &schemav1.TraceCascadesRequest{Uids: [][]byte{bad}})
			return err
		},
		"references: unknown behaviour": func() error {
			_, err := s.CheckReferences(ctx,
				&schemav1.CheckReferencesRequest{References: []*schemav1.CheckReferencesRequest_Reference{
					{Key: validKey()},
				}})
			return err
		},
	} {
		err := call()
		require.Equal(t, codes.InvalidArgument, status.Code(err), says)
		require.Equal(t, "INVALID", reasonOf(t, err), says)
		require.ErrorContains(t, err, says)
	}
}

// An epoch with a time of the far future could never be replaced by a later one.
func TestEpochsOfTheFarFutureAreRefused(t *testing.T) {
	t.Parallel()
	at := func(ahead time.Duration) uuid.UUID {
		id := newAttempt(t)
		ms := uint64(time.Now().Add(ahead).UnixMilli())
		for i := range 6 {
			id[i] = byte(ms >> (8 * (5 - i)))
		}
		return id
	}
	for _, ahead := range []time.Duration{-24 * time.Hour, 0, time.Hour, maxAhead - time.Minute} {
		id := at(ahead)
		got, err := epochOf(id[:])
		require.NoError(t, err, ahead)
		require.Equal(t, id, got)
	}
	for _, ahead := range []time.Duration{maxAhead + time.Minute, 365 * 24 * time.Hour} {
		id := at(ahead)
		_, err := epochOf(id[:])
		require.ErrorContains(t, err, "ahead of the clock of this deployment", ahead)
	}
}

func TestDeletionsAreAcknowledgedInPartsOrAsAWhole(t *testing.T) {
	t.Parallel()
	for inParts, limit := range map[bool]time.Duration{true: acknowledgeTime, false: math.MaxInt64} {
		s := newSchemaService(&schemaStore{acknowledge: func(holder schema.DeploymentID, epoch uuid.UUID, token string,
			except []uuid.UUID, got time.Duration,
		) (bool, error) {
			require.Equal(t, other, holder)
			require.Equal(t, uid(1), epoch)
			require.Equal(t, "position", token)
			require.Equal(t, []uuid.UUID{uid(2), uid(3)}, except)
			require.Equal(t, limit, got)
			return inParts, nil
		}})
		out, err := s.AcknowledgeDeletions(asDeployment(t, other), &schemav1.AcknowledgeDeletionsRequest{
			Position: "position", ExceptUids: [][]byte{bytesOf(uid(2)), bytesOf(uid(3))}, Epoch: bytesOf(uid(1)),
			InParts: inParts,
		})
		require.NoError(t, err)
		require.Equal(t, inParts, out.GetMore())
	}
}

// The items of an event come before its position, and an event without a token has no position yet.
func TestEventsOfDeletionsBecomeMessages(t *testing.T) {
	t.Parallel()
	cause := &schema.Cause{
		ID: uid(7), Root: "//a.example.com/us-west2/as/a", Actor: "user/ann",
		At: time.Unix(1_700_000_000, 0),
	}
	items := []schema.Deletion{
		{Seq: 5, Kind: "A", Name: "as/a", UID: uid(1), Cause: cause},
		{Seq: 6, Kind: "B", Name: "bs/b", UID: uid(2)},
	}
	for name, c := range map[string]struct {
		event schema.Event[schema.Deletion]
		want  []string
	}{
		"the end of the snapshot": {
			schema.Event[schema.Deletion]{EndOfSnapshot: true, Token: "t"},
			[]string{"end t"},
		},
		"a bookmark":                   {schema.Event[schema.Deletion]{Token: "t"}, []string{"bookmark t"}},
		"items of an unfinished event": {schema.Event[schema.Deletion]{Items: items}, []string{"upsert"}},
		"items with their position": {
			schema.Event[schema.Deletion]{Items: items, Token: "t"},
			[]string{"upsert", "bookmark t"},
		},
		"items at the end of a snapshot": {schema.Event[schema.Deletion]{
			Items: items, Token: "t",
			EndOfSnapshot: true,
		}, []string{"upsert", "end t"}},
		"a bookmark without any position": {schema.Event[schema.Deletion]{}, []string{"bookmark "}},
	} {
		s := newSchemaService(
			&schemaStore{watchDeletions: func(holder schema.DeploymentID, token string,
				deliver func(schema.Event[schema.Deletion]) error,
			) error {
				require.Equal(t, other, holder)
				require.Equal(t, "resume", token)
				return deliver(c.event)
			}})
		stream := newServerStream[schemav1.WatchImportedServiceDeletionsResponse](asDeployment(t, other))
		require.NoError(t,
			s.WatchImportedServiceDeletions(&schemav1.WatchImportedServiceDeletionsRequest{ResumeToken: "resume"},
				stream), name)
		var got []string
		for _, m := range stream.messages(t) {
			switch {
			case m.GetUpsert() != nil:
				got = append(got, "upsert")
				require.Equal(t, []int64{5, 6}, m.GetUpsert().GetNotices())
				require.Equal(t, "as/a", m.GetUpsert().GetResources()[0].GetName())
				require.Equal(t, bytesOf(uid(2)), m.GetUpsert().GetResources()[1].GetUid())
				require.Equal(t, []int32{1, 0}, m.GetUpsert().GetCauseOf())
				require.Len(t, m.GetUpsert().GetCauses(), 1)
			case m.GetEndOfSnapshot() != nil:
				got = append(got, "end "+m.GetEndOfSnapshot().GetResumeToken())
			case m.GetBookmark() != nil:
				got = append(got, "bookmark "+m.GetBookmark().GetResumeToken())
			}
		}
		require.Equal(t, c.want, got, name)
		if len(c.event.Items) > 0 { // sent values are read again
			back, err := wire.DeletionEvent(stream.messages(t)[0])
			require.NoError(t, err)
			require.Equal(t, items[1], back.Items[1])
			require.Equal(t, cause.ID, back.Items[0].Cause.ID)
		}
	}
	broken := errors.New("the connection is lost")
	stream := newServerStream[schemav1.WatchImportedServiceDeletionsResponse](asDeployment(t, other))
	stream.failing = broken
	for _, e := range []schema.Event[schema.Deletion]{{Items: items, Token: "t"}, {Token: "t"}, {EndOfSnapshot: true}} {
		require.ErrorIs(t, sendDeletions(e, stream.Send), broken)
	}
}

func TestEventsOfWorkBecomeMessages(t *testing.T) {
	t.Parallel()
	items := []schema.Work{{
		Seq: 3, Action: schema.Release, Deployment: other,
		CreatedAt: time.Unix(1_700_000_000, 0).UTC(),
	}}
	for name, c := range map[string]struct {
		event schema.Event[schema.Work]
		want  []schema.Event[schema.Work]
	}{
		"the end of the snapshot": {
			schema.Event[schema.Work]{EndOfSnapshot: true, Token: "t"},
			[]schema.Event[schema.Work]{{EndOfSnapshot: true, Token: "t"}},
		},
		"a bookmark": {schema.Event[schema.Work]{Token: "t"}, []schema.Event[schema.Work]{{Token: "t"}}},
		"items": {
			schema.Event[schema.Work]{Items: items},
			[]schema.Event[schema.Work]{{Items: items}},
		},
		"items and a position": {
			schema.Event[schema.Work]{Items: items, Token: "t"},
			[]schema.Event[schema.Work]{{Items: items}, {Token: "t"}},
		},
	} {
		s := newSchemaService(
			&schemaStore{watchWork: func(shards []int16, token string,
				deliver func(schema.Event[schema.Work]) error,
			) error {
				require.Equal(t, []int16{0, 63}, shards)
				require.Equal(t, "resume", token)
				return deliver(c.event)
			}})
		stream := newServerStream[schemav1.WatchResourceShadowsResponse](asDeployment(t, self))
		require.NoError(t, s.WatchResourceShadows(&schemav1.WatchResourceShadowsRequest{
			Shards:      []uint32{0, 63},
			ResumeToken: "resume",
		}, stream), name)
		var got []schema.Event[schema.Work]
		for _, m := range stream.messages(t) {
			event, err := wire.WorkEvent(m, map[string]schema.DeploymentID{})
			require.NoError(t, err)
			got = append(got, event)
		}
		require.Equal(t, c.want, got, name)
	}
	broken := errors.New("the connection is lost")
	stream := newServerStream[schemav1.WatchResourceShadowsResponse](asDeployment(t, self))
	stream.failing = broken
	for _, e := range []schema.Event[schema.Work]{{Items: items, Token: "t"}, {Token: "t"}, {EndOfSnapshot: true}} {
		require.ErrorIs(t, sendWork(e, stream.Send), broken)
	}
}

func TestShardsAreThoseOfTheRing(t *testing.T) {
	t.Parallel()
	all, err := shardList(nil)
	require.NoError(t, err)
	require.Len(t, all, schema.RingSize)
	require.Equal(t, int16(63), all[63])
	some, err := shardList([]uint32{5, 63})
	require.NoError(t, err)
	require.Equal(t, []int16{5, 63}, some)
	for _, bad := range []uint32{64, 1 << 16, math.MaxUint32} {
		_, err := shardList([]uint32{0, bad})
		require.ErrorContains(t, err, "want a number from 0 to 63", bad)
	}
}

func TestShadowsAreForTheDeploymentItselfAndForOperators(t *testing.T) {
	t.Parallel()
	s := newSchemaService(&schemaStore{
		listShadows: func(kind, token string, limit int) ([]shadow.ResourceView, string, error) {
			require.Equal(t, "Device", kind)
			require.Equal(t, "page", token)
			require.Equal(t, 100, limit)
			return nil, "next", nil
		},
		watchWork: func([]int16, string, func(schema.Event[schema.Work]) error) error { return nil },
	})
	for who, want := range map[identity.Identity]codes.Code{
		identity.Deployment(self): codes.OK, operator: codes.OK,
		identity.Deployment(other): codes.PermissionDenied, identity.Deployment(sibling): codes.PermissionDenied,
		ann: codes.PermissionDenied,
	} {
		out, err := s.ListResourceShadows(as(t, who), &schemav1.ListResourceShadowsRequest{
			Kind:      "Device",
			PageToken: "page",
		})
		require.Equal(t, want, status.Code(err), who)
		if want == codes.OK {
			require.Equal(t, "next", out.GetNextPageToken())
		}
		err = s.WatchResourceShadows(&schemav1.WatchResourceShadowsRequest{},
			newServerStream[schemav1.WatchResourceShadowsResponse](as(t, who)))
		if who == operator { // outstanding work is for the deployment's own nodes
			want = codes.PermissionDenied
		}
		require.Equal(t, want, status.Code(err), who)
	}
	_, err := s.ListResourceShadows(as(t, operator), &schemav1.ListResourceShadowsRequest{Kind: "device"})
	require.Equal(t, codes.InvalidArgument, status.Code(err))
}

func TestAShadowIsListedWithItsReferences(t *testing.T) {
	t.Parallel()
	s := newSchemaService(&schemaStore{listShadows: func(string, string, int) ([]shadow.ResourceView, string, error) {
		view := shadow.ResourceView{
			Holders: []schema.DeploymentID{other},
			Ownees:  []schema.DeploymentID{sibling, other},
		}
		view.Kind, view.Name, view.UID, view.State, view.Revision = "Device", "devices/d", uid(1), peer.Deleting, 8
		view.References = append(view.References, shadow.ReferenceView{}, shadow.ReferenceView{})
		for i, at := range []schema.DeploymentID{self, other} {
			r := &view.References[i]
			r.Path, r.Target, r.TargetUID, r.Behaviour, r.Attempt = "a", schema.FullName{Deployment: at, Name: "ts/t"},
				uid(2), schema.Unset, uid(3)
		}
		return []shadow.ResourceView{view}, "", nil
	}})
	out, err := s.ListResourceShadows(asDeployment(t, self), &schemav1.ListResourceShadowsRequest{})
	require.NoError(t, err)
	got := out.GetShadows()[0]
	require.Equal(t, "DELETING", got.GetState())
	require.Equal(t, int64(8), got.GetRevision())
	require.Equal(t, []string{other.String()}, got.GetHolderDeployments())
	require.Equal(t, []string{sibling.String(), other.String()}, got.GetOwneeDeployments())
	require.Empty(t, got.GetReferences()[0].GetAttempt(), "a reference inside the deployment has no attempt")
	require.Equal(t, bytesOf(uid(3)), got.GetReferences()[1].GetAttempt())
	require.Equal(t, "//b.example.com/us-west2/ts/t", got.GetReferences()[1].GetTarget())
	require.Equal(t, schemav1.Behaviour_BEHAVIOUR_UNSET, got.GetReferences()[1].GetBehaviour())
}

// Another deployment sees the blockades of its own resources; operators, and the deployment itself, see all.
func TestBlockadesAreListedForTheirHolders(t *testing.T) {
	t.Parallel()
	expires := time.Unix(1_700_000_000, 0).UTC()
	var asked schema.DeploymentID
	s := newSchemaService(
		&schemaStore{listBlockades: func(of schema.DeploymentID, token string,
			limit int,
		) ([]shadow.BlockadeView, string, error) {
			asked = of
			require.Equal(t, 7, limit)
			v := shadow.BlockadeView{}
			v.Kind, v.Name, v.Holder, v.Behaviour = "Account", "accounts/a", schema.FullName{
				Deployment: other,
				Name:       "devices/d",
			}, schema.Block
			v.Key = peer.BlockadeKey{Attempt: uid(1), HolderUID: uid(2), Path: "p", TargetUID: uid(3)}
			tentative := v
			tentative.ExpiresAt = expires
			return []shadow.BlockadeView{v, tentative}, token + "2", nil
		}})
	for who, want := range map[identity.Identity]schema.DeploymentID{
		identity.Deployment(other): other, identity.Deployment(sibling): sibling, identity.Deployment(self): {},
		operator: {},
	} {
		out, err := s.ListBlockades(as(t, who), &schemav1.ListBlockadesRequest{PageSize: 7, PageToken: "page"})
		require.NoError(t, err, who)
		require.Equal(t, want, asked, who)
		require.Equal(t, "page2", out.GetNextPageToken())
		require.Nil(t, out.GetBlockades()[0].GetExpireTime(), "a confirmed blockade does not expire")
		require.Equal(t, expires, out.GetBlockades()[1].GetExpireTime().AsTime())
		require.Equal(t, bytesOf(uid(3)), out.GetBlockades()[0].GetTarget().GetUid())
		require.Equal(t, "//b.example.com/us-west2/devices/d", out.GetBlockades()[0].GetHolder())
	}
	_, err := s.ListBlockades(as(t, ann), &schemav1.ListBlockadesRequest{})
	require.Equal(t, codes.PermissionDenied, status.Code(err))
}

func TestPagesHaveASizeOfTheirOwnAndABound(t *testing.T) {
	t.Parallel()
	for asked, want := range map[int32]int{
		-1: 100, 0: 100, 1: 1, 999: 999, 1000: 1000, 1001: 1000,
		math.MaxInt32: 1000,
	} {
		require.Equal(t, want, pageSize(asked), asked)
	}
}
