package wire_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/db-controller/db-controller/schema"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/wire"
)

func TestUIDsHaveSixteenBytes(t *testing.T) {
	t.Parallel()
	id := uuid.New()
	got, err := wire.UID(id[:])
	require.NoError(t, err)
	require.Equal(t, id, got)
	for _, bad := range [][]byte{nil, {1}, make([]byte, 15), make([]byte, 17), []byte(id.String())} {
		_, err := wire.UID(bad)
		require.ErrorContains(t, err, "a uid has 16 bytes, got")
		_, err = wire.UIDs([][]byte{id[:], bad})
		require.Error(t, err)
		if len(bad) > 0 {
			_, err = wire.OptionalUID(bad)
			require.Error(t, err)
		}
	}
	none, err := wire.OptionalUID(nil)
	require.NoError(t, err)
	require.Equal(t, uuid.Nil, none)
	list := []uuid.UUID{id, uuid.New(), uuid.Nil}
	back, err := wire.UIDs(wire.Bytes(list))
	require.NoError(t, err)
	require.Equal(t, list, back)
	empty, err := wire.UIDs(nil)
	require.NoError(t, err)
	require.Empty(t, empty)
}

func TestBehavioursHaveTheSameNumbers(t *testing.T) {
	t.Parallel()
	for number, name := range schemav1.Behaviour_name {
		b, err := wire.Behaviour(schemav1.Behaviour(number))
		if number == 0 {
			require.ErrorContains(t, err, "unknown behaviour 0")
			continue
		}
		require.NoError(t, err)
		require.Equal(t, name, "BEHAVIOUR_"+b.String())
	}
	_, err := wire.Behaviour(7)
	require.ErrorContains(t, err, "unknown behaviour 7")
}

// positionless removes the positions, which differ between a file and a message.
func positionless(e *schema.Environment) *schema.Environment {
	for _, d := range e.Services {
		d.Pos = schema.Pos{}
		for i := range d.Imports {
			d.Imports[i].Pos = schema.Pos{}
		}
		for i := range d.Kinds {
			k := &d.Kinds[i]
			k.Pos = schema.Pos{}
			for j := range k.Finalizers {
				k.Finalizers[j].Pos = schema.Pos{}
			}
			for j := range k.Parents {
				k.Parents[j].Pos = schema.Pos{}
			}
			for j := range k.References {
				k.References[j].Pos = schema.Pos{}
			}
		}
	}
	for i := range e.Deployments {
		e.Deployments[i].Pos = schema.Pos{}
	}
	return e
}

// Every field of a descriptor, a deployment and an environment survives the wire.
func TestEnvironmentsSurviveTheWire(t *testing.T) {
	t.Parallel()
	file, err := schema.ParseFile("f", strings.NewReader(`
service: a.example.com
version: v1
patterns_dropped: keep
imports: [b.example.com@v2]
kinds:
  - kind: A
    previous_name: Old
    patterns: ["as/{a}", "regions/{region}/as/{a}"]
    hide_while_deleting: true
    finalizers: [{ name: calendar, holder: user/calendar }]
    constraints_disabled: true
    referable_by: [c.example.com]
    parents:
      - { kind: b.example.com/B, behaviour: BLOCK, region: eu }
      - { kind: A, behaviour: CASCADE_DELETE, region: { field: home } }
    references:
      - { path: "x.*", targets: [A, b.example.com/B], behaviour: ASYNC_UNSET }
---
regions: [eu, us]
deployments:
  - { deployment: a.example.com/us, version: v1, address: "host:1", disabled: true }
`))
	require.NoError(t, err)
	env := &schema.Environment{
		Revision: 7, Regions: file.Regions, Services: file.Services,
		Deployments: file.Deployments,
	}
	env.Deployments[0].Generation = 12
	back := wire.Environment(wire.EnvironmentProto(env))
	require.Equal(t, "a.example.com@v1.kinds[A].references[x.*]", back.Services[0].Kinds[0].References[0].Pos.Path,
		"a message has paths instead of lines")
	require.Equal(t, "a.example.com@v1.imports[b.example.com@v2]", back.Services[0].Imports[0].Pos.Path)
	require.Equal(t, "deployments[a.example.com/us]", back.Deployments[0].Pos.Path)
	require.Equal(t, positionless(env), positionless(back))
}

func TestCausesAreSentOnce(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_700_000_000, 0).UTC()
	requested := &schema.Cause{
		ID: uuid.New(), Root: "//a.example.com/us/as/a", RootUID: uuid.New(),
		Actor: "user/ann by way of us-east1", RequestID: uuid.New(), At: at,
	}
	collected := &schema.Cause{ID: uuid.New(), Root: "//b.example.com/us/bs/b", At: at}
	deletions := []schema.Deletion{
		{Seq: 1, Cause: requested},
		{Seq: 2},
		{Seq: 3, Cause: collected},
		{Seq: 4, Cause: requested},
	}
	causes, of := wire.CausesProto(deletions)
	require.Len(t, causes, 2)
	require.Equal(t, []int32{1, 0, 2, 1}, of)
	require.Empty(t, causes[1].GetRequestId())
	back := []schema.Deletion{{Seq: 1}, {Seq: 2}, {Seq: 3}, {Seq: 4}}
	wire.SetCauses(back, causes, of)
	require.Equal(t, deletions, back)
	require.Same(t, back[0].Cause, back[3].Cause, "deletions share their cause")
}

// A deletion never fails for its cause: an invalid cause counts as unknown.
func TestInvalidCausesAreUnknown(t *testing.T) {
	t.Parallel()
	id := uuid.New()
	valid := func() *schemav1.Cause {
		return &schemav1.Cause{
			Id: id[:], Root: "//a.example.com/us/as/a", Actor: "user/ann",
			Time: timestamppb.New(time.Unix(1_700_000_000, 0)),
		}
	}
	set := func(causes []*schemav1.Cause, of []int32) []schema.Deletion {
		out := make([]schema.Deletion, 1)
		wire.SetCauses(out, causes, of)
		return out
	}
	require.NotNil(t, set([]*schemav1.Cause{valid()}, []int32{1})[0].Cause)
	for name, change := range map[string]func(c *schemav1.Cause){
		"no id":                  func(c *schemav1.Cause) { c.Id = nil },
		"a zero id":              func(c *schemav1.Cause) { c.Id = make([]byte, 16) },
		"a short uid":            func(c *schemav1.Cause) { c.RootUid = []byte{1} },
		"a short request id":     func(c *schemav1.Cause) { c.RequestId = []byte{1} },
		"a long root":            func(c *schemav1.Cause) { c.Root = strings.Repeat("r", 1000) },
		"a line break":           func(c *schemav1.Cause) { c.Actor = "user/ann\nuser/bob" },
		"a space":                func(c *schemav1.Cause) { c.Root = "a b" },
		"a letter outside ASCII": func(c *schemav1.Cause) { c.Actor = "user/é" },
		"an early time":          func(c *schemav1.Cause) { c.Time = timestamppb.New(time.Unix(-1, 0)) },
		"a late time":            func(c *schemav1.Cause) { c.Time = timestamppb.New(time.Now().AddDate(2, 0, 0)) },
		"an invalid time":        func(c *schemav1.Cause) { c.Time = &timestamppb.Timestamp{Seconds: 1 << 60} },
	} {
		c := valid()
		change(c)
		require.Nil(t, set([]*schemav1.Cause{c}, []int32{1})[0].Cause, name)
	}
	for _, of := range [][]int32{nil, {0}, {-1}, {2}, {1, 1}} {
		require.Nil(t, set([]*schemav1.Cause{valid()}, of)[0].Cause, "%v", of)
	}
}
