package resources

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// A resource comes after those of other deployments that it names, also by way of others of its own
// deployment; the ones of a deployment stay together.
func TestExportedTargetsComeBeforeTheirHolders(t *testing.T) {
	t.Parallel()
	full := func(text string) schema.FullName {
		name, err := schema.ParseFullName(text)
		require.NoError(t, err)
		return name
	}
	const a, b = "//a.example.com/eu/", "//b.example.com/eu/"
	cases := map[string]struct {
		names  []string
		bodies map[string]any // a string is the name that the body has
		want   []string
	}{
		"as it was": {
			names: []string{a + "xs/1", a + "xs/2", b + "ys/1"},
			want:  []string{a + "xs/1", a + "xs/2", b + "ys/1"},
		},
		"by a relative name": {
			names: []string{b + "ys/1", a + "xs/1"}, bodies: map[string]any{b + "ys/1": "xs/1"},
			want: []string{a + "xs/1", b + "ys/1"},
		},
		"within one transaction": {
			names: []string{a + "xs/1", a + "xs/2"}, bodies: map[string]any{a + "xs/1": "xs/2"},
			want: []string{a + "xs/1", a + "xs/2"},
		},
		"by way of another": {
			names:  []string{a + "xs/1", a + "xs/2", a + "xs/3", b + "ys/1"},
			bodies: map[string]any{a + "xs/1": "xs/2", a + "xs/2": b + "ys/1"},
			want:   []string{a + "xs/3", b + "ys/1", a + "xs/1", a + "xs/2"},
		},
		"below another": {
			names: []string{b + "xs/1/ys/1", a + "xs/1"},
			want:  []string{a + "xs/1", b + "xs/1/ys/1"},
		},
		"a cycle over deployments": {
			names:  []string{a + "xs/1", b + "ys/1"},
			bodies: map[string]any{a + "xs/1": b + "ys/1", b + "ys/1": a + "xs/1"},
			want:   []string{a + "xs/1", b + "ys/1"},
		},
		"a name of another resource": {
			names:  []string{b + "ys/1", a + "xs/1"},
			bodies: map[string]any{b + "ys/1": a + "xs/2"}, want: []string{b + "ys/1", a + "xs/1"},
		},
	}
	for name, c := range cases {
		e := &exported{resources: map[schema.FullName]*resourcev1.Resource{}}
		for _, text := range c.names {
			body, err := structpb.NewStruct(map[string]any{"deep": []any{map[string]any{"ref": c.bodies[text]}}})
			require.NoError(t, err)
			e.names = append(e.names, full(text))
			e.resources[full(text)] = &resourcev1.Resource{Body: body}
		}
		e.sort()
		got := []string{}
		for _, n := range e.names {
			got = append(got, n.String())
		}
		require.Equal(t, c.want, got, name)
	}
}
