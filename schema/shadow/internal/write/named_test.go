package write

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

// The cost of the arguments of a put with one reference elsewhere: parsed at every call, and once.
func BenchmarkNamedArguments(b *testing.B) {
	put := map[string]db.Named{
		insertResourcesSQL: {
			"ids": 1, "uids": 1, "kinds": 1, "names": 1, "shards": 1, "revisions": 1,
			"labels": 1, "bodies": 1, "owners": 1,
		},
		insertForeignReferencesSQL: {
			"holders": 1, "uids": 1, "deployments": 1, "fields": 1, "behaviours": 1,
			"attempt": 1,
		},
	}
	b.Run("each time", func(b *testing.B) {
		for b.Loop() {
			for sql, args := range put {
				_, _, _ = pgx.StrictNamedArgs(args).RewriteQuery(b.Context(), nil, sql, nil)
			}
		}
	})
	b.Run("once", func(b *testing.B) {
		for b.Loop() {
			for sql, args := range put {
				_, _, _ = args.RewriteQuery(b.Context(), nil, sql, nil)
			}
		}
	})
}
