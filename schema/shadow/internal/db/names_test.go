package db

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
)

// An unknown name counts once, also when it is repeated or given by another name of its kind; known names do
// not count.
func TestUnknownNamesAreCountedOnce(t *testing.T) {
	t.Parallel()
	v1 := schema.ServiceVersion{Service: "a.example.com", Version: "v1"}
	describe := func(v schema.ServiceVersion, kinds ...schema.Kind) *schema.Descriptor {
		return &schema.Descriptor{ServiceVersion: v, Kinds: kinds}
	}
	v2 := schema.ServiceVersion{Service: "a.example.com", Version: "v2"}
	model, err := schema.NewModel(v2, []*schema.Descriptor{
		describe(v1, schema.Kind{Name: "Old", Patterns: []string{"olds/{old}"}},
			schema.Kind{Name: "Former", Patterns: []string{"formers/{former}"}}),
		describe(v2, schema.Kind{Name: "New", PreviousName: "Old", Patterns: []string{"olds/{old}"}},
			schema.Kind{Name: "Later", PreviousName: "Former", Patterns: []string{"formers/{former}"}}),
	})
	require.NoError(t, err)
	kind := func(name string) schema.KindID { return schema.KindID{Service: "a.example.com", Kind: name} }
	n := newNames(nil)
	n.Model.Store(model)
	n.kinds.put(kind("Old"), 1) // as it is stored
	n.fields.put("known", 2)
	for _, c := range []struct {
		paths   []string
		kinds   []string
		unknown int
	}{
		{nil, nil, 0},
		{[]string{"known"}, []string{"New", "Old"}, 0},
		{[]string{"a", "known", "a", "b"}, nil, 2},
		{nil, []string{"Later", "Former", "Later"}, 1},
		{[]string{"Later"}, []string{"Later", "Other", "Old"}, 3},
	} {
		var kinds []schema.KindID
		for _, name := range c.kinds {
			kinds = append(kinds, kind(name))
		}
		require.Equal(t, c.unknown, n.Unknown(c.paths, kinds), "%v %v", c.paths, c.kinds)
	}
	require.Equal(t, 1, n.Unknown(nil, []schema.KindID{{Service: "b.example.com", Kind: "Old"}}), "of another service")
	n.Forget()
	require.Equal(t, 2, n.Unknown([]string{"known"}, []schema.KindID{kind("New")}), "a new epoch")
}

type failing struct{ err error }

func (f failing) Query(context.Context, string, ...any) (pgx.Rows, error) { return nil, f.err }

// A transaction that meets a new number asks for its name over its own connection: the pool may have no other
// one, and here there is none.
func TestNamesAreReadOverTheConnectionOfTheTransaction_I22(t *testing.T) {
	t.Parallel()
	n, own := newNames(nil), failing{errors.New("the transaction was asked")}
	_, err := n.DeploymentOf(t.Context(), own, 7)
	require.ErrorIs(t, err, own.err)
	_, err = n.KindOf(t.Context(), own, 7)
	require.ErrorIs(t, err, own.err)
	_, err = n.FieldOf(t.Context(), own, 7)
	require.ErrorIs(t, err, own.err)
}
