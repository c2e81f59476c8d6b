package shadow

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

func TestNamedArgumentsAreInTheOrderOfTheStatement(t *testing.T) {
	t.Parallel()
	const sql = `SELECT @b::int, '@no', @a::text WHERE @b > 0`
	for range 2 { // parsed, and as it was parsed before
		text, args, err := named{"a": "x", "b": 1}.RewriteQuery(t.Context(), nil, sql, nil)
		require.NoError(t, err)
		require.Equal(t, `SELECT $1::int, '@no', $2::text WHERE $1 > 0`, text)
		require.Equal(t, []any{1, "x"}, args)
	}
}

func TestAMissingOrSuperfluousNamedArgumentIsAnError(t *testing.T) {
	t.Parallel()
	for _, sql := range []string{`SELECT @c::int`, `SELECT @c::int, @d::int, @e::int`} {
		for range 2 {
			_, _, err := named{"c": 1, "d": 2}.RewriteQuery(t.Context(), nil, sql, nil)
			require.Error(t, err)
		}
		_, _, _ = named{"c": 1, "d": 2, "e": 3}.RewriteQuery(t.Context(), nil, sql, nil)
	}
}

// What the arguments of a put with one reference elsewhere, and of a delete, cost: parsed at every call, and once.
func BenchmarkNamedArguments(b *testing.B) {
	put := named{"ids": 1, "uids": 1, "kinds": 1, "names": 1, "shards": 1, "revisions": 1, "labels": 1, "bodies": 1, "owners": 1}
	refs := named{"holders": 1, "uids": 1, "deployments": 1, "fields": 1, "behaviours": 1, "attempt": 1}
	writes := map[string]map[string]named{
		"put":    {insertResourcesSQL: put, insertForeignReferencesSQL: refs},
		"delete": {removeSQL: (&reasons{}).parameters(nil, 1)},
	}
	for name, statements := range writes {
		b.Run(name+"/each time", func(b *testing.B) {
			for b.Loop() {
				for sql, args := range statements {
					_, _, _ = pgx.StrictNamedArgs(args).RewriteQuery(b.Context(), nil, sql, nil)
				}
			}
		})
		b.Run(name+"/once", func(b *testing.B) {
			for b.Loop() {
				for sql, args := range statements {
					_, _, _ = args.RewriteQuery(b.Context(), nil, sql, nil)
				}
			}
		})
	}
}
