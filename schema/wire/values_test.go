package wire_test

import (
	"errors"
	"fmt"
	"reflect"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/wire"
)

// filler sets every field of a value, except positions, to a value that is not zero and occurs once.
type filler struct{ n int }

func (f *filler) fill(v reflect.Value) {
	f.n++
	switch {
	case v.Type() == reflect.TypeFor[schema.Pos]():
	case v.Type() == reflect.TypeFor[uuid.UUID]():
		v.Set(reflect.ValueOf(uuid.New()))
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			f.fill(v.Field(i))
		}
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		f.fill(v.Elem())
	case v.Kind() == reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		f.fill(v.Index(0))
		f.fill(v.Index(1))
	case v.Kind() == reflect.Map:
		v.Set(reflect.ValueOf(map[string]any{fmt.Sprint("k", f.n): []any{1.5, "x", nil, true}}))
	case v.Kind() == reflect.Interface:
		v.Set(reflect.ValueOf(fmt.Sprint("v", f.n)))
	case v.Kind() == reflect.String:
		v.SetString(fmt.Sprint("s", f.n))
	case v.Kind() == reflect.Bool:
		v.SetBool(true)
	case v.CanInt():
		v.SetInt(int64(1 + f.n%5)) // a valid behaviour, too
	default:
		panic(v.Type().String())
	}
}

func withoutPositions(v reflect.Value) {
	switch {
	case v.Type() == reflect.TypeFor[schema.Pos]():
		v.SetZero()
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			withoutPositions(v.Field(i))
		}
	case v.Kind() == reflect.Pointer && !v.IsNil():
		withoutPositions(v.Elem())
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			withoutPositions(v.Index(i))
		}
	}
}

// A field that is added to a descriptor, a deployment, or the rights is lost between registry and deployments
// unless both conversions have it: here every field is set by reflection.
func TestNoFieldIsLostOnTheWire(t *testing.T) {
	t.Parallel()
	env := &schema.Environment{}
	(&filler{}).fill(reflect.ValueOf(env).Elem())
	env.Incomplete, env.Unheard = false, nil // of the reader, not of the environment
	for _, d := range env.Services {
		d.Acknowledged = nil // of the file: the registry has no use for it
	}
	raw, err := proto.Marshal(wire.EnvironmentProto(env))
	require.NoError(t, err)
	message := wire.EnvironmentProto(&schema.Environment{})
	require.NoError(t, proto.Unmarshal(raw, message))
	back := wire.Environment(message)
	require.Equal(t, "rights.grants[1]", back.Rights.Grants[1].Pos.Path)
	withoutPositions(reflect.ValueOf(back).Elem())
	require.Equal(t, env, back)
}

// An environment without declared rights has none, rather than rights that allow nothing.
func TestMissingPartsStayMissing(t *testing.T) {
	t.Parallel()
	back := wire.Environment(wire.EnvironmentProto(&schema.Environment{Deployments: []schema.Deployment{{}}}))
	require.Nil(t, back.Rights)
	require.Equal(t, uuid.Nil, back.Deployments[0].Database)
	message := wire.DeploymentProto(schema.Deployment{})
	message.Database = "nonsense"
	require.Equal(t, uuid.Nil, wire.Deployment(message).Database)
	kind := wire.DescriptorProto(&schema.Descriptor{Kinds: []schema.Kind{{Name: "A"}}}).GetKinds()[0]
	require.Empty(t, kind.GetTable())
	require.Nil(t, kind.GetSchema())
	require.Zero(t,
		wire.Descriptor(&schemav1.ServiceDescriptor{Kinds: []*schemav1.KindDescriptor{kind}}).Kinds[0].Table)
}

func drawUID(t *rapid.T, name string) (out uuid.UUID) {
	copy(out[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, name))
	return out
}

func TestKeysSurviveTheWire(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		key := peer.BlockadeKey{
			Attempt: drawUID(t, "attempt"), HolderUID: drawUID(t, "holder"), TargetUID: drawUID(t, "target"),
			Path: rapid.SampledFrom([]string{"account", "spec.items.*.owner", schema.ParentPath, peer.RightPath}).
				Draw(t, "path"),
		}
		back, err := wire.BlockadeKey(wire.BlockadeKeyProto(key))
		require.NoError(t, err)
		require.Equal(t, key, back)
		require.Equal(t, key.Path == peer.RightPath, back.OfRight())
		target := peer.PlanTarget{
			Deployment: schema.DeploymentID{Service: "a.example.com", Region: "us"},
			UID:        key.TargetUID,
		}
		message := wire.PlanTargetProto(target)
		read, err := wire.PlanTarget(message.GetDeployment(), message.GetUid())
		require.NoError(t, err)
		require.Equal(t, target, read)
	})
}

// Each part of a message of another deployment is checked.
func TestBrokenKeysAreErrors(t *testing.T) {
	t.Parallel()
	valid := func() *schemav1.BlockadeKey {
		return wire.BlockadeKeyProto(peer.BlockadeKey{
			Attempt: uuid.New(), HolderUID: uuid.New(), TargetUID: uuid.New(),
			Path: "account",
		})
	}
	for says, change := range map[string]func(*schemav1.BlockadeKey){
		"a uid has 16 bytes, got 0":  func(k *schemav1.BlockadeKey) { k.Attempt = nil },
		"a uid has 16 bytes, got 3":  func(k *schemav1.BlockadeKey) { k.HolderUid = []byte("abc") },
		"a uid has 16 bytes, got 17": func(k *schemav1.BlockadeKey) { k.TargetUid = make([]byte, 17) },
		"path":                       func(k *schemav1.BlockadeKey) { k.Path = "a..b" },
	} {
		k := valid()
		change(k)
		_, err := wire.BlockadeKey(k)
		require.ErrorContains(t, err, says)
	}
	_, err := wire.PlanTarget("nonsense", make([]byte, 16))
	require.Error(t, err)
	_, err = wire.PlanTarget("a.example.com/us", nil)
	require.ErrorContains(t, err, "16 bytes")
	require.Error(t, wire.CheckPath("@owner"), "no other path in the place of a field")
}

func TestUIDsAreSentAsBytes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var ids []uuid.UUID
		for range rapid.IntRange(0, 5).Draw(t, "n") {
			ids = append(ids, drawUID(t, "uid"))
		}
		back, err := wire.UIDs(wire.Bytes(ids))
		require.NoError(t, err)
		require.ElementsMatch(t, ids, back)
		for i, id := range ids {
			require.Equal(t, id, back[i])
			optional, err := wire.OptionalUID(wire.OptionalBytes(id))
			require.NoError(t, err)
			require.Equal(t, id, optional)
		}
	})
	require.Nil(t, wire.OptionalBytes(uuid.Nil))
	_, err := wire.UIDs([][]byte{make([]byte, 16), {}})
	require.ErrorContains(t, err, "16 bytes, got 0")
}

// Every number of an enumeration of the wire has one value here and back. One of a newer version decides
// nothing and ends nothing.
func TestVerdictsSurviveTheWire(t *testing.T) {
	t.Parallel()
	for n := range schemav1.ResolveBlockadesResponse_Verdict_name {
		message := schemav1.ResolveBlockadesResponse_Verdict(n)
		want := message
		if n == 0 {
			want = schemav1.ResolveBlockadesResponse_VERDICT_UNDECIDED
		}
		require.Equal(t, want, wire.Verdicts[wire.Verdict(message)], message)
	}
	require.Equal(t, peer.Undecided, wire.Verdict(99))
	for n := range schemav1.RecallDelegationsRequest_Mode_name {
		message := schemav1.RecallDelegationsRequest_Mode(n)
		want := message
		if n == 0 {
			want = schemav1.RecallDelegationsRequest_MODE_LOOK
		}
		require.Equal(t, want, wire.RecallModes[wire.RecallMode(message)], message)
	}
	require.Equal(t, peer.RecallLooks, wire.RecallMode(99))
	known := map[schemav1.CheckReferencesResponse_Verdict]bool{}
	for value, message := range wire.KnownVerdicts {
		require.Equal(t, int32(value), int32(message), "the values are those of the message")
		known[message] = true
	}
	require.Len(t, known, len(schemav1.CheckReferencesResponse_Verdict_name)-1)
	owners := map[schemav1.CheckOwnersResponse_Verdict]bool{}
	for _, message := range wire.OwnerVerdicts {
		owners[message] = true
	}
	require.Len(t, owners, len(schemav1.CheckOwnersResponse_Verdict_name)-1)
}

func TestAnswersToRecallsSurviveTheWire(t *testing.T) {
	t.Parallel()
	answer := peer.RecallAnswer{Verdict: peer.Held, More: true, Closed: true, Holders: []peer.RecalledHolder{
		{UID: uuid.New(), Name: "devices/d1", Path: "account"}, {
			UID: uuid.New(), Name: "devices/d2",
			Path: "spec.account",
		},
	}}
	message := wire.RecallAnswerProto(answer)
	back, err := wire.RecallAnswer(message)
	require.NoError(t, err)
	require.Equal(t, answer, back)
	message.Holders[1].Uid = nil
	_, err = wire.RecallAnswer(message)
	require.Error(t, err)
}

// Several attempts of one call have outcomes of their own: none may be read as another one.
func TestOutcomesOfAttemptsSurviveTheWire(t *testing.T) {
	t.Parallel()
	established := &peer.Established{UIDs: []uuid.UUID{uuid.New(), uuid.New()}, Version: "v2", Epoch: uuid.New()}
	message := wire.EstablishOutcomeProto(peer.EstablishOutcome{Established: established})
	require.Equal(t, "v2", message.GetEstablished().GetTargets()[1].GetVersion())
	back := wire.EstablishOutcome(message)
	require.NoError(t, back.Err)
	require.Equal(t, established.UIDs, back.Established.UIDs)
	require.Equal(t, established.Epoch, back.Established.Epoch)

	back = wire.EstablishOutcome(wire.EstablishOutcomeProto(peer.EstablishOutcome{Err: fmt.Errorf("attempt: %w",
		peer.ErrLeftOut)}))
	require.ErrorIs(t, back.Err, peer.ErrLeftOut)

	refused, err := status.New(codes.FailedPrecondition, "projects/p is being deleted").
		WithDetails(&errdetails.ErrorInfo{Reason: "TARGET_DELETING"})
	require.NoError(t, err)
	back = wire.EstablishOutcome(wire.EstablishOutcomeProto(peer.EstablishOutcome{Err: refused.Err()}))
	require.True(t, proto.Equal(refused.Proto(), status.Convert(back.Err).Proto()))

	back = wire.EstablishOutcome(wire.EstablishOutcomeProto(peer.EstablishOutcome{Err: errors.New("plain")}))
	require.Equal(t, codes.Unknown, status.Code(back.Err))
}

// An answer without a meaning here is an error: neither success nor refusal.
func TestUnknownOutcomesAreErrors(t *testing.T) {
	t.Parallel()
	for name, message := range map[string]*schemav1.EstablishReferencesResponse_Outcome{
		"none": {},
		"no":   nil,
		"ok": {Outcome: &schemav1.EstablishReferencesResponse_Outcome_Failure{
			Failure: &schemav1.EstablishReferencesResponse_Failure{Code: int32(codes.OK)},
		}},
		"uid": {Outcome: &schemav1.EstablishReferencesResponse_Outcome_Established{
			Established: &schemav1.EstablishReferencesResponse_Established{
				Targets: []*schemav1.EstablishReferencesResponse_Target{{Uid: []byte{1}}},
			},
		}},
		"epoch": {Outcome: &schemav1.EstablishReferencesResponse_Outcome_Established{
			Established: &schemav1.EstablishReferencesResponse_Established{Epoch: []byte{1}},
		}},
	} {
		require.Error(t, wire.EstablishOutcome(message).Err, name)
	}
}

func TestEventsOfWorkAreRead(t *testing.T) {
	t.Parallel()
	known := map[string]schema.DeploymentID{}
	at := timestamppb.Now()
	event, err := wire.WorkEvent(
		&schemav1.WatchResourceShadowsResponse{Event: &schemav1.WatchResourceShadowsResponse_Upsert{
			Upsert: &schemav1.WatchResourceShadowsResponse_Work{Items: []*schemav1.WorkItem{
				{Id: 7, Action: 2, Deployment: "a.example.com/us", CreateTime: at},
				{Id: 8, Action: 3, Deployment: "a.example.com/us", CreateTime: at},
			}},
		}}, known)
	require.NoError(t, err)
	want := schema.DeploymentID{Service: "a.example.com", Region: "us"}
	require.Equal(t, []schema.Work{
		{Seq: 7, Action: 2, Deployment: want, CreatedAt: at.AsTime()}, {
			Seq: 8, Action: 3, Deployment: want,
			CreatedAt: at.AsTime(),
		},
	}, event.Items)
	require.Equal(t, map[string]schema.DeploymentID{"a.example.com/us": want}, known)
	event, err = wire.WorkEvent(
		&schemav1.WatchResourceShadowsResponse{Event: &schemav1.WatchResourceShadowsResponse_EndOfSnapshot{
			EndOfSnapshot: &schemav1.EndOfSnapshot{ResumeToken: "t1"},
		}}, known)
	require.NoError(t, err)
	require.Equal(t, schema.Event[schema.Work]{EndOfSnapshot: true, Token: "t1"}, event)
	event, err = wire.WorkEvent(
		&schemav1.WatchResourceShadowsResponse{Event: &schemav1.WatchResourceShadowsResponse_Bookmark{
			Bookmark: &schemav1.Bookmark{ResumeToken: "t2"},
		}}, known)
	require.NoError(t, err)
	require.Equal(t, schema.Event[schema.Work]{Token: "t2"}, event)
}

// A read mask names fields of the body, at any depth; a list is one value.
func TestAMaskPicksFieldsOfABody(t *testing.T) {
	t.Parallel()
	const body = `{"a": {"b": 1, "c": {"d": "x"}}, "l": [{"b": 1}], "n": null, "s": "t"}`
	for _, c := range []struct {
		mask []string
		want string // empty: no body
	}{
		{nil, body},
		{[]string{"*"}, body},
		{[]string{"body"}, body},
		{[]string{"labels", "body.s"}, `{"s": "t"}`},
		{[]string{"body.a.b", "body.n"}, `{"a": {"b": 1}, "n": null}`},
		{[]string{"body.a.c", "body.a.c.d"}, `{"a": {"c": {"d": "x"}}}`},
		{[]string{"body.a.c.d", "body.a.c"}, `{"a": {"c": {"d": "x"}}}`},
		{[]string{"body.l"}, `{"l": [{"b": 1}]}`},
		{[]string{"body.a.x"}, `{"a": {}}`},
		{[]string{"body.s.x"}, ``},
		{[]string{"body.missing"}, ``},
	} {
		picked := wire.PickedOf(c.mask)
		require.NotNil(t, picked)
		raw, err := wire.Body([]byte(body), picked)
		require.NoError(t, err)
		got := &resourcev1.Resource{}
		require.NoError(t, proto.Unmarshal(raw, got))
		if c.want == "" {
			require.Nil(t, got.GetBody(), c.mask)
			continue
		}
		want := &structpb.Struct{}
		require.NoError(t, protojson.Unmarshal([]byte(c.want), want))
		require.True(t, proto.Equal(want, got.GetBody()), "%v: %v", c.mask, got.GetBody())
	}
	require.Nil(t, wire.PickedOf([]string{"labels", "name", "bodyguard"}), "the mask names no field of the body")
}

// A key can be the key of a holder entry; no reference can have its path.
func TestTheKeyOfAnEntryIsNoPathOfAReference(t *testing.T) {
	t.Parallel()
	uid := uuid.New()
	key := peer.BlockadeKey{Attempt: uid, HolderUID: uid, Path: peer.EntryPath, TargetUID: uid}
	read, err := wire.BlockadeKey(wire.BlockadeKeyProto(key))
	require.NoError(t, err)
	require.Equal(t, key, read)
	for _, key := range []peer.BlockadeKey{peer.DeletionKey(uid), peer.FrozenKey(uid, uid)} {
		read, err := wire.BlockadeKey(wire.BlockadeKeyProto(key))
		require.NoError(t, err)
		require.Equal(t, key, read)
	}
	require.Error(t, wire.CheckPath(peer.EntryPath))
}
