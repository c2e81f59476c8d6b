package shadow_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

// PostgreSQL accepts exactly the names that Go accepts.
func TestGoAndPostgreSQLAcceptTheSameNames(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, services, nil, aWest)
	pool := b.Pools[b.ID(aWest)]
	var constraint string
	require.NoError(t, pool.QueryRow(t.Context(), `
SELECT pg_get_expr(conbin, conrelid) FROM pg_constraint WHERE conname = 'shadow_name_grammar' AND conrelid = 'dbcontroller.shadow'::regclass AND convalidated`).Scan(&constraint))

	names := []string{
		"", "a", "a/b", "a/b/c", "a/b/c/d", "a//b", "/a/b", "a/b/", "A/b", "1a/b", "aB1/b", "a/.", "a/..",
		"a/...", "a/./b/c", "a/../b/c", "a/b/c/..", "a/.b", "a/b\nc/d", "a/b\n",
	}
	for n := range 256 {
		names = append(names, "a/"+string([]byte{byte(n)}), "a/x"+string([]byte{byte(n)})+"y", string([]byte{byte(n)})+
			"/b", "a"+string([]byte{byte(n)})+"/b")
	}
	const hex = "0123456789ABCDEFabcdefg/."
	for _, high := range hex {
		for _, low := range hex {
			names = append(names, fmt.Sprintf("a/%%%c%c", high, low), fmt.Sprintf("a/x%%%c%cy", high, low))
		}
	}
	for n := 505; n < 516; n++ {
		names = append(names, "a/"+strings.Repeat("b", n), "a/b/"+strings.Repeat("c", n-4)+"/d",
			"a/"+strings.Repeat("%2F", n/3)+strings.Repeat("b", n%3))
	}
	pieces := []string{
		"a", "b9", "/", "/", ".", "..", "%", "%2F", "%2f", "%41", "%C3", "é", "~", "@", ":", "'", "*",
		"+", " ", "|", "\\", "-", "Z",
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		var s strings.Builder
		s.WriteString([]string{"", "a/"}[random.IntN(2)])
		for range random.IntN(9) {
			s.WriteString(pieces[random.IntN(len(pieces))])
		}
		names = append(names, s.String())
	}
	var storable []string
	for _, name := range names {
		if utf8.ValidString(name) && !strings.Contains(name, "\x00") {
			storable = append(storable, name)
		} else {
			require.Error(t, schema.CheckName(name), "%q", name)
		}
	}
	rows, err := pool.Query(t.Context(), `SELECT name, `+constraint+` FROM unnest($1::text[]) AS t (name)`, storable)
	require.NoError(t, err)
	good := 0
	var name string
	var fits bool
	_, err = pgx.ForEachRow(rows, []any{&name, &fits}, func() error {
		require.Equal(t, schema.CheckName(name) == nil, fits, "%q: in Go %v", name, schema.CheckName(name))
		if fits {
			good++
		}
		return nil
	})
	require.NoError(t, err)
	require.Greater(t, good, 1000)
}

// FuzzNamesInSQL checks each name in the database by itself.
func FuzzNamesInSQL(f *testing.F) {
	b := harness.NewBox(f, services, nil, aWest)
	pool := b.Pools[b.ID(aWest)]
	for _, seed := range []string{
		"a/b", "a/%2F", "a/%2f", "a/..", "a/b/c/.", "a/!$&'()*+,;=:@", "aA0/é",
		"a/" + strings.Repeat("x", 511),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		goErr := schema.CheckName(name)
		tx, err := pool.Begin(t.Context())
		require.NoError(t, err)
		defer func() { _ = tx.Rollback(t.Context()) }()
		_, err = tx.Exec(t.Context(),
			`INSERT INTO dbcontroller.shadow (uid, kind_id, state, shard, revision, generation, name) VALUES (gen_random_uuid(), 1, 1, 1, 1, 1, $1)`, name)
		if (goErr == nil) != (err == nil) {
			t.Fatalf("%q: in Go %v, in PostgreSQL %v", name, goErr, err)
		}
	})
}

// Ids may contain characters with a meaning in SQL, filters, page tokens and paths.
var nasty = []string{
	"a%2Fb", "..%2Fetc", "a*", "*", "a%25b", "a_b", "it's", "'%20OR%201=1--", "a,b", "$1", "a=b", "a@b.example:80",
	"(x)&;y!", "-", "~", "...", "a%00b", "%C3%A9", "a+b", "auth0%7C5f",
}

func TestNamesAreQuotedInSQLFiltersPagesAndPaths_I1(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	store, ctx := b.Stores[b.ID(aWest)], t.Context()
	for _, id := range nasty {
		there, here := "//"+aWest+"/targets/"+id, "//"+bEast+"/holders/"+id
		b.MustPut(there, nil)
		b.MustPut(there+"/children/"+id, nil)
		b.MustPut(here, body{
			"block": there, "list": []any{there},
			"roles": map[string]any{id: map[string]any{"who": there}},
		})
	}
	b.Settle()
	for _, id := range nasty {
		full := "//" + aWest + "/targets/" + id
		_, err := b.Delete(full)
		require.ErrorContains(t, err, "//"+bEast+"/holders/"+id, id)

		// In double quotes only the stars of a name have to be escaped.
		for _, field := range []string{`name = "%s"`, `NOT name != "%s"`} {
			filter := fmt.Sprintf(field, strings.ReplaceAll("targets/"+id, "*", `\\*`))
			found, _, err := store.Read.List(ctx, shadow.ListRequest{Kind: "Target", Filter: filter, Limit: 100})
			require.NoError(t, err, filter)
			require.Len(t, found, 1, filter)
			require.Equal(t, "targets/"+id, found[0].Name)
		}
		holders, _, err := b.Stores[b.ID(bEast)].Read.List(ctx,
			shadow.ListRequest{
				Filter: fmt.Sprintf(`body.block = "%s"`, strings.ReplaceAll(full, "*", `\\*`)),
				Limit:  100,
			})
		require.NoError(t, err)
		require.Len(t, holders, 1, id)
	}
	// An unescaped star matches any text, and pages are in the order of bytes.
	found, _, err := store.Read.List(ctx, shadow.ListRequest{Kind: "Target", Filter: `name = "targets/a*"`, Limit: 100})
	require.NoError(t, err)
	require.Len(t, found, 10)
	var listed []string
	for token := ""; ; {
		page, next, err := store.Read.List(ctx, shadow.ListRequest{Kind: "Target", Limit: 3, Token: token})
		require.NoError(t, err)
		for _, r := range page {
			listed = append(listed, strings.TrimPrefix(r.Name, "targets/"))
		}
		if token = next; token == "" {
			break
		}
	}
	require.ElementsMatch(t, nasty, listed)
	require.IsIncreasing(t, listed)

	for _, id := range nasty {
		b.MustPut("//"+bEast+"/holders/"+id, body{"cascade": "//" + aWest + "/targets/" + id})
		b.MustDelete("//" + aWest + "/targets/" + id)
	}
	b.Settle()
	for _, id := range nasty {
		b.Gone("//" + aWest + "/targets/" + id)
		b.Gone("//" + aWest + "/targets/" + id + "/children/" + id)
		b.Gone("//" + bEast + "/holders/" + id)
	}
	b.Audit()
}

// A version of many kinds and fields is stored in as many statements as one of few; processes that switch at
// the same time store each name once.
func TestAVersionsNamesAreStoredTogether(t *testing.T) {
	t.Parallel()
	var kinds strings.Builder
	for i := range 60 {
		fmt.Fprintf(&kinds,
			"  - kind: K%d\n    patterns: [\"k%ds/{k}\"]\n    references: [{ path: to%d, targets: [K0], behaviour: BLOCK }]\n", i, i, i)
	}
	many := "service: a.example.com\nversion: v1\nkinds: [{ kind: K0, patterns: [\"k0s/{k}\"] }]\n---\nservice: a.example.com\nversion: v2\nkinds:\n" + kinds.String()
	b := harness.NewBox(t, many, nil, aWest)
	var statements atomic.Int64
	cfg := b.Pools[b.ID(aWest)].Config()
	cfg.ConnConfig.Tracer = tracer(func(string) { statements.Add(1) })
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	file, err := schema.ParseFile("many.yaml", strings.NewReader(many))
	require.NoError(t, err)
	model, err := schema.NewModel(schema.ServiceVersion{Service: "a.example.com", Version: "v2"}, file.Services)
	require.NoError(t, err)
	var processes []*shadow.Store
	for range 3 {
		store, err := shadow.Open(t.Context(), shadow.Config{
			Pool: pool, Deployment: b.ID(aWest),
			Peers: b.Peers(aWest),
		})
		require.NoError(t, err)
		processes = append(processes, store)
	}
	statements.Store(0)
	require.NoError(t, processes[0].Admin.Switch(t.Context(), model))
	require.LessOrEqual(t, statements.Load(), int64(20), "60 kinds and 60 fields")
	var stored int
	require.NoError(t,
		pool.QueryRow(t.Context(), `SELECT count(*) FROM dbcontroller.kind WHERE service = 'a.example.com'`).
			Scan(&stored))
	require.Equal(t, 60, stored)
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM dbcontroller.field WHERE path LIKE 'to%'`).Scan(
		&stored))
	require.Equal(t, 60, stored)

	_, err = pool.Exec(t.Context(), `DELETE FROM dbcontroller.kind WHERE kind <> 'K0'; DELETE FROM dbcontroller.field`)
	require.NoError(t, err)
	var g errgroup.Group
	for _, store := range processes[1:] {
		g.Go(func() error { return store.Admin.Switch(t.Context(), model) })
	}
	require.NoError(t, g.Wait())
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM dbcontroller.kind`).Scan(&stored))
	require.Equal(t, 60, stored)
}
