package read

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/db-controller/db-controller/schema/peer"
)

var parameters = regexp.MustCompile(`\$(\d+)`)

// compiled returns the SQL of a filter whose parameters begin with 3.
func compiled(t require.TestingT, filter string) (string, []any) {
	c, err := (&Reader{}).compile(filter, 3)
	require.NoError(t, err, filter)
	return c.sql.String(), c.args
}

// No text of a caller becomes SQL: each value and each name of a field is a parameter, and every parameter is
// used.
func TestValuesOfAFilterAreParameters(t *testing.T) {
	t.Parallel()
	quoted := strconv.Quote
	rapid.Check(t, func(t *rapid.T) {
		secret := "zq" + rapid.StringMatching(`[a-z';)( -]{0,12}`).Draw(t, "text")
		field := rapid.SampledFrom([]string{"name", "uid", "labels.zqteam", "body.zqspec.zqsize"}).Draw(t, "field")
		op := rapid.SampledFrom([]string{"=", "!=", "<", ">="}).Draw(t, "op")
		filter := field + " " + op + " " + quoted(secret) + " AND NOT (revision > 5 OR labels:" + quoted(secret) + ")"
		sql, args := compiled(t, filter)
		require.NotContains(t, sql, "zq", filter)
		used := map[string]bool{}
		for _, m := range parameters.FindAllStringSubmatch(sql, -1) {
			used[m[1]] = true
		}
		require.Len(t, used, len(args), "%s: %s", filter, sql)
		for i := range args {
			require.True(t, used[strconv.Itoa(i+3)], "%s: %s", filter, sql)
		}
	})
}

// Strings of any characters are a filter or an error, and never a panic.
func TestAnyFilterIsCompiledOrRefused(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		filter := rapid.StringOf(rapid.SampledFrom([]rune(`ab.:=!<>"*()-~ ANDORTnul5\'`))).Draw(t, "filter")
		if _, err := (&Reader{}).compile(filter, 1); err != nil {
			require.ErrorAs(t, err, new(*peer.InvalidError))
		}
	})
}

// A star stands for any text; LIKE's own characters, and an escaped star, for themselves.
func TestStarsAreTranslated(t *testing.T) {
	t.Parallel()
	for filter, want := range map[string]string{
		`name = "projects/*"`:     `projects/%`,
		`name = "a_b%c*"`:         `a\_b\%c%`,
		`name = "a\\*b*"`:         `a*b%`,
		`name = "projects/acme"`:  `projects/acme`,
		`body.note = "50%*"`:      `50\%%`,
		`labels.team != "blue-*"`: `blue-%`,
	} {
		sql, args := compiled(t, filter)
		require.Equal(t, want, args[len(args)-1], filter)
		require.Equal(t, strings.Contains(want, "%"), strings.Contains(sql, "LIKE"), "%s: %s", filter, sql)
	}
}

// NULL is neither true nor false in SQL: each comparison is made definite, so that NOT has the other
// resources.
func TestComparisonsAreDefinite(t *testing.T) {
	t.Parallel()
	for filter, comparisons := range map[string]int{
		`name = "a"`: 1, `NOT labels.a = "b"`: 1,
		`body.a = 1 AND body.b != null OR state = ACTIVE`: 3,
	} {
		sql, _ := compiled(t, filter)
		require.GreaterOrEqual(t, strings.Count(sql, "COALESCE("), comparisons, sql)
		require.Equal(t, comparisons, strings.Count(sql, ", false)"), sql)
	}
	sql, args := compiled(t, "  ")
	require.Equal(t, "true", sql)
	require.Empty(t, args)
}

func TestWrongFiltersSayWhatIsWanted(t *testing.T) {
	t.Parallel()
	for filter, says := range map[string]string{
		`name`:                  "want comparisons such as",
		`"name" = "a"`:          "want a field on the left",
		`name = other.field`:    "want a string, a number",
		`size = 5`:              "unknown field: known are name, kind",
		`name.first = "a"`:      "unknown field",
		`revision = "x"`:        "revision: want a whole number",
		`create_time > "today"`: "create_time: want a time such as",
		`state > ACTIVE`:        "state: want = or != with ACTIVE or DELETING",
		`state = GONE`:          "state: want = or !=",
		`name = "a`:             "is no filter",
		"name = \"\x00\"":       "NUL",
		`name = "` + strings.Repeat("x", maxFilterBytes) + `"`: "bytes, at most 4096 are allowed",
	} {
		_, err := (&Reader{}).compile(filter, 1)
		require.ErrorAs(t, err, new(*peer.InvalidError), filter)
		require.ErrorContains(t, err, says, filter)
	}
}

func TestAnOrderIsOfKnownFields(t *testing.T) {
	t.Parallel()
	c := &condition{next: 1}
	keys, err := orderBy("create_time desc, body.spec.size, labels.team, name", c)
	require.NoError(t, err)
	require.Len(t, keys, 4)
	require.Equal(t, []bool{true, false, false, false}, []bool{
		keys[0].descending, keys[1].descending,
		keys[2].descending, keys[3].descending,
	})
	require.Equal(t, []any{[]string{"spec", "size"}, "team"}, c.args)
	for _, k := range keys {
		require.Regexp(t, `jsonb|COALESCE`, k.sql, "a page token has the value as JSON")
	}
	for text, says := range map[string]string{
		"size":          `unknown field "size"`,
		"name.first":    `unknown field "name.first"`,
		"uid":           `unknown field "uid"`,
		"name sideways": "order_by",
		"name,name,name,name,name,name,name,name,name": "at most 8 fields are allowed",
	} {
		_, err := orderBy(text, &condition{next: 1})
		require.ErrorAs(t, err, new(*peer.InvalidError), text)
		require.ErrorContains(t, err, says)
	}
	keys, err = orderBy("", c)
	require.NoError(t, err)
	require.Empty(t, keys)
}
