package db

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNamedArgumentsAreInTheOrderOfTheStatement(t *testing.T) {
	t.Parallel()
	const sql = `SELECT @b::int, '@no', @a::text WHERE @b > 0`
	for range 2 { // parsed, and as it was parsed before
		text, args, err := Named{"a": "x", "b": 1}.RewriteQuery(t.Context(), nil, sql, nil)
		require.NoError(t, err)
		require.Equal(t, `SELECT $1::int, '@no', $2::text WHERE $1 > 0`, text)
		require.Equal(t, []any{1, "x"}, args)
	}
}

func TestAMissingOrSuperfluousNamedArgumentIsAnError(t *testing.T) {
	t.Parallel()
	for _, sql := range []string{`SELECT @c::int`, `SELECT @c::int, @d::int, @e::int`} {
		for range 2 {
			_, _, err := Named{"c": 1, "d": 2}.RewriteQuery(t.Context(), nil, sql, nil)
			require.Error(t, err)
		}
		_, _, _ = Named{"c": 1, "d": 2, "e": 3}.RewriteQuery(t.Context(), nil, sql, nil)
	}
}
