package schema_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/violation"
)

func TestBehavioursHaveFixedNumbersAndNames(t *testing.T) {
	t.Parallel()
	for number, c := range map[schema.Behaviour]struct {
		name                          string
		cascades, unsets, acts, later bool
	}{
		1: {"BLOCK", false, false, false, false},
		2: {"UNSET", false, true, true, false},
		3: {"CASCADE_DELETE", true, false, true, false},
		4: {"ASYNC_UNSET", false, true, true, true},
		5: {"ASYNC_CASCADE_DELETE", true, false, true, true},
		6: {"ALLOW_DANGLING", false, false, false, false},
	} {
		require.True(t, number.Valid())
		require.Equal(t, c.name, number.String())
		require.Equal(t, c.cascades, number.Cascades(), c.name)
		require.Equal(t, c.unsets, number.Unsets(), c.name)
		require.Equal(t, c.acts, number.Acts(), c.name)
		require.Equal(t, c.later, number.Later(), c.name)
		parsed, err := schema.ParseBehaviour(c.name)
		require.NoError(t, err)
		require.Equal(t, number, parsed)
	}
	for _, bad := range []schema.Behaviour{-1, 0, 7, 99} {
		require.False(t, bad.Valid())
		require.Equal(t, fmt.Sprintf("Behaviour(%d)", bad), bad.String())
	}
	for _, bad := range []string{"", "block", "DROP", "BLOCK ", strings.Repeat("X", 1000)} {
		_, err := schema.ParseBehaviour(bad)
		require.ErrorContains(t, err,
			"want one of BLOCK, UNSET, CASCADE_DELETE, ASYNC_UNSET, ASYNC_CASCADE_DELETE, ALLOW_DANGLING")
		require.Less(t, len(err.Error()), 300)
	}
}

// The numbers are stored in databases.
func TestActionsHaveFixedNumbersAndNames(t *testing.T) {
	t.Parallel()
	for number, name := range []string{
		1: "confirm", 2: "release", 3: "finalise", 4: "check_owners", 5: "drop_owners", 6: "let_go",
		7: "upgrade_owners", 8: "derive", 9: "clean_up_decommissioned",
		10: "announce_epoch", 11: "confirm_again", 12: "verify_blockades", 13: "look_at_right", 14: "end_rights",
		15: "look_at_entry",
	} {
		if number > 0 {
			require.Equal(t, name, schema.Action(number).String())
		}
	}
	require.Equal(t, "unknown", schema.Action(0).String())
	require.Equal(t, "unknown", schema.Action(16).String())
}

func TestAPartErrorHasItsCause(t *testing.T) {
	t.Parallel()
	cause := errors.New("no answer")
	err := error(&schema.PartError{Failed: []int64{3, 4}, Cause: cause})
	require.ErrorIs(t, err, cause)
	require.EqualError(t, err, "2 pieces of work: no answer")
}

func TestIDsOfDeploymentsKindsAndVersions(t *testing.T) {
	t.Parallel()
	d, err := schema.ParseDeploymentID("iam.example.com/us-west2")
	require.NoError(t, err)
	require.Equal(t, schema.DeploymentID{Service: "iam.example.com", Region: "us-west2"}, d)
	require.Equal(t, "iam.example.com/us-west2", d.String())
	require.False(t, d.IsZero())
	require.True(t, schema.DeploymentID{}.IsZero())
	k, err := schema.ParseKindID("iam.example.com/ServiceAccount")
	require.NoError(t, err)
	require.Equal(t, "iam.example.com/ServiceAccount", k.String())
	v, err := schema.ParseServiceVersion("iam.example.com@v2beta1")
	require.NoError(t, err)
	require.Equal(t, "iam.example.com@v2beta1", v.String())

	for _, bad := range []string{
		"", "/", "iam.example.com", "iam.example.com/", "/us", "iam/us", "Iam.example.com/us",
		"iam.example.com/US", "iam.example.com/us/x", "iam.example.com/-us", "iam.example.com/us-", "iam..com/us",
		"iam.example.com./us", "-iam.example.com/us",
	} {
		_, err := schema.ParseDeploymentID(bad)
		require.Error(t, err, bad)
	}
	for _, bad := range []string{
		"", "iam.example.com", "iam.example.com/project", "iam.example.com/", "iam/Project",
		"iam.example.com/Pro-ject", "iam.example.com/" + strings.Repeat("P", 64),
	} {
		_, err := schema.ParseKindID(bad)
		require.Error(t, err, bad)
	}
	for _, bad := range []string{
		"", "iam.example.com", "iam.example.com@", "iam.example.com@1", "iam.example.com@v0",
		"iam.example.com@v1alpha", "iam.example.com@v1gamma1", "iam.example.com@v01", "iam@v1", "iam.example.com@V1",
		"iam.example.com@v1 ",
	} {
		_, err := schema.ParseServiceVersion(bad)
		require.Error(t, err, bad)
	}
	for _, good := range []string{"v1", "v12", "v1alpha1", "v2beta10", "v999999"} {
		require.NoError(t, schema.CheckVersion(good), good)
	}
	require.NoError(t, schema.CheckService(strings.Repeat("a", 60)+".example.com"))
	require.Error(t, schema.CheckService(strings.Repeat("a.", 130)+"com"), "a domain name has 253 bytes at most")
	require.NoError(t, schema.CheckRegion(strings.Repeat("r", 63)))
	require.Error(t, schema.CheckRegion(strings.Repeat("r", 64)))
}

// Untrusted text does not make messages long.
func TestMessagesShortenUntrustedText(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 5000)
	for name, check := range map[string]func(string) error{
		"service": schema.CheckService, "region": schema.CheckRegion, "version": schema.CheckVersion,
		"kind": schema.CheckKind, "name": schema.CheckName,
		"deployment": func(s string) error { _, err := schema.ParseDeploymentID(s); return err },
		"kind id":    func(s string) error { _, err := schema.ParseKindID(s); return err },
		"version id": func(s string) error { _, err := schema.ParseServiceVersion(s); return err },
		"full name":  func(s string) error { _, err := schema.ParseFullName(s); return err },
		"path":       func(s string) error { _, err := schema.ParsePath(s); return err },
		"pattern":    func(s string) error { _, err := schema.ParsePattern(s); return err },
		"id":         func(s string) error { return schema.CheckName("as/" + strings.Repeat("é", 100) + s[:10]) },
		"collection": func(s string) error { return schema.CheckName(strings.Repeat("A", 200) + "/a") },
		"many segments": func(s string) error {
			_, err := schema.ParsePath(strings.Repeat("a.", 500) + s)
			return err
		},
		"variable":       func(s string) error { _, err := schema.ParsePattern("as/" + s); return err },
		"second segment": func(s string) error { _, err := schema.ParsePath("a." + s + "-"); return err },
	} {
		err := check(long)
		require.Error(t, err, name)
		require.Less(t, len(err.Error()), 500, name)
	}
}

func TestFullNamesAreParsedAndPrinted(t *testing.T) {
	t.Parallel()
	n, err := schema.ParseFullName("//devices.example.com/us-west2/projects/acme/devices/d1")
	require.NoError(t, err)
	require.Equal(t, schema.FullName{Deployment: schema.DeploymentID{
		Service: "devices.example.com",
		Region:  "us-west2",
	}, Name: "projects/acme/devices/d1"}, n)
	for in, says := range map[string]string{
		"projects/acme":                      "want //service/region/name",
		"/iam.example.com/us/projects/acme":  "want //service/region/name",
		"//iam.example.com":                  "want //service/region/name",
		"//iam/us/projects/acme":             "want a domain name in lower case",
		"//iam.example.com/US/projects/acme": "want lower-case letters, digits and hyphens",
		"//iam.example.com/us/":              "name is empty",
		"//iam.example.com/us/projects/a b":  "write a%20b",
	} {
		_, err := schema.ParseFullName(in)
		require.ErrorContains(t, err, says, in)
	}
	self := schema.DeploymentID{Service: "iam.example.com", Region: "us"}
	for in, want := range map[string]string{
		"projects/a":              "//iam.example.com/us/projects/a",
		"//b.example.com/eu/as/a": "//b.example.com/eu/as/a",
	} {
		got, err := schema.ResolveName(self, in)
		require.NoError(t, err)
		require.Equal(t, want, got.String())
	}
	for _, bad := range []string{"", "projects", "//b.example.com/eu"} {
		_, err := schema.ResolveName(self, bad)
		require.Error(t, err, bad)
	}
}

// The shard of a name never changes: processes of different versions share a ring.
func TestShardsOfNamesAreFixed(t *testing.T) {
	t.Parallel()
	require.Equal(t, schema.Shard("projects/acme"), schema.Shard("projects/acme"))
	seen := map[uint32]int{}
	for i := range 64_000 {
		shard := schema.Shard(fmt.Sprintf("projects/p%d", i))
		require.Less(t, shard, uint32(schema.RingSize))
		seen[shard]++
	}
	require.Len(t, seen, schema.RingSize)
	for shard, n := range seen {
		require.InDelta(t, 1000, n, 400, "shard %d", shard)
	}
	require.Equal(t, uint32(0x811c9dc5%schema.RingSize), schema.Shard(""), "FNV-1a")
}

func TestIDsAreEscapedAndUnescaped(t *testing.T) {
	t.Parallel()
	for text, id := range map[string]string{
		"a": "a", "o/1": "o%2F1", "50%": "50%25", "é": "%C3%A9", "a b": "a%20b",
		"user@x.example": "user@x.example", "\x00": "%00", "#?": "%23%3F",
	} {
		require.Equal(t, id, schema.EscapeID(text))
		back, err := schema.UnescapeID(id)
		require.NoError(t, err)
		require.Equal(t, text, back)
	}
	for id, says := range map[string]string{
		"":     "an id is empty",
		".":    "programs that handle paths remove it",
		"..":   "programs that handle paths remove it",
		"a/b":  "write a%2Fb",
		"%2f":  "write %2F",
		"%41":  "write A",
		"%":    "write %25",
		"%4":   "write %254",
		"100%": "write 100%25",
	} {
		_, err := schema.UnescapeID(id)
		require.ErrorContains(t, err, says, id)
	}
}

func TestPositionsArePrinted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pos  schema.Pos
		want string
	}{
		{schema.Pos{}, ""},
		{schema.Pos{File: "f.yaml"}, "f.yaml:"},
		{schema.Pos{File: "f.yaml", Line: 3}, "f.yaml:3:"},
		{schema.Pos{File: "f.yaml", Line: 3, Path: "kinds[A]"}, "f.yaml:3: kinds[A]:"},
		{schema.Pos{Path: "kinds[A]"}, "kinds[A]:"},
	} {
		require.Equal(t, c.want, c.pos.String())
	}
	require.Equal(t, "f.yaml:3: bad; correct it", schema.Problem{
		Pos:     schema.Pos{File: "f.yaml", Line: 3},
		Message: "bad", Remedy: "correct it",
	}.String())
	require.Equal(t, "bad", schema.Problem{Message: "bad"}.String())
	require.EqualError(t, schema.Problems{{Message: "a"}, {Message: "b", Remedy: "c"}}, "a\nb; c")
}

func pattern(t testing.TB, text string) schema.Pattern {
	t.Helper()
	p, err := schema.ParsePattern(text)
	require.NoError(t, err)
	require.Equal(t, text, p.String())
	return p
}

func TestPatternsMatchNames(t *testing.T) {
	t.Parallel()
	p := pattern(t, "projects/{project}/devices/{device}")
	for name, want := range map[string]bool{
		"projects/a/devices/b": true, "projects/%2F/devices/..a": true,
		"projects/a": false, "projects/a/devices/b/parts/c": false, "projects/a/robots/b": false, "devices/b": false,
		"projects/a/devices": false,
	} {
		require.Equal(t, want, p.Match(name), name)
	}
	require.Equal(t, "projects/*/devices/*", p.Shape())
	require.Equal(t, p.Shape(), pattern(t, "projects/{p}/devices/{d}").Shape(),
		"the names of variables are not part of the shape")
	require.NotEqual(t, p.Shape(), pattern(t, "projects/{p}/robots/{d}").Shape())
	for bad, says := range map[string]string{
		"":                               "want collections and {variables} in turn",
		"projects":                       "want collections and {variables} in turn",
		"projects/{p}/devices":           "want collections and {variables} in turn",
		"Projects/{p}":                   `collection "Projects": want lower camel case`,
		"projects/p":                     `"p": want a variable in braces`,
		"projects/{}":                    `"{}": want a variable in braces`,
		"projects/{p":                    `"{p": want a variable in braces`,
		"projects/{p}/ds/{p}":            "variable {p} is used twice",
		"{p}/projects":                   `collection "{p}": want lower camel case`,
		"pro-jects/{p}":                  "want lower camel case",
		"projects/{p}//{d}":              `collection "": want lower camel case`,
		strings.Repeat("a", 64) + "/{a}": "want lower camel case",
	} {
		_, err := schema.ParsePattern(bad)
		require.ErrorContains(t, err, says, bad)
	}
}

func TestValuesAtAPath(t *testing.T) {
	t.Parallel()
	body := map[string]any{
		"one": "as/a", "empty": "", "null": nil, "number": 3.0, "bool": true, "int": 7,
		"list": []any{"as/b", "", nil, "as/b", "as/c"}, "map": map[string]any{"y": "as/y", "x": "as/x", "n": nil},
		"deep": []any{map[string]any{"who": "as/d"}, nil, map[string]any{}, map[string]any{"who": "as/e"}},
	}
	values := func(path string) ([]string, error) {
		p, err := schema.ParsePath(path)
		require.NoError(t, err)
		require.Equal(t, path, p.String())
		return p.Values(body)
	}
	for path, want := range map[string][]string{
		"one": {"as/a"}, "empty": nil, "null": nil, "missing": nil, "missing.below": nil, "null.below": nil,
		"list.*": {"as/b", "as/c"}, "map.*": {"as/x", "as/y"}, "map.y": {"as/y"}, "deep.*.who": {"as/d", "as/e"},
		"deep.*.missing": nil,
	} {
		got, err := values(path)
		require.NoError(t, err, path)
		require.Equal(t, want, got, path)
	}
	for path, says := range map[string]string{
		"number":       "field number: want the name of a resource as a string, got a number",
		"int":          "got a number",
		"bool":         "field bool: want the name of a resource as a string, got a bool",
		"list":         "field list: want the name of a resource as a string, got a list",
		"map":          "field map: want the name of a resource as a string, got a message",
		"one.below":    "field one: want a message, list or map, got a string",
		"number.*":     "field number: want a message, list or map, got a number",
		"list.below":   `field list: is a list, and the descriptor's path has the field "below" here`,
		"deep.*":       "field deep[0]: want the name of a resource as a string, got a message",
		"deep.*.who.*": "field deep[0].who: want a message, list or map, got a string",
	} {
		_, err := values(path)
		require.ErrorContains(t, err, says, path)
	}
	for _, bad := range []string{
		"", ".", "*", "a.", ".a", "a..b", "a-b", "1a", "a b", "@parent", "a.**",
		strings.Repeat("a.", 16) + "a", strings.Repeat("a", 64),
	} {
		_, err := schema.ParsePath(bad)
		require.Error(t, err, bad)
	}
	_, err := schema.ParsePath(strings.Repeat("a.", 15) + "a")
	require.NoError(t, err)
}

// A resource has at most MaxReferences references; further values are an error, and not cut off.
func TestReferencesOfOneResourceAreBounded_I21(t *testing.T) {
	t.Parallel()
	p, err := schema.ParsePath("list.*")
	require.NoError(t, err)
	list := make([]any, schema.MaxReferences+1)
	for i := range list {
		list[i] = fmt.Sprintf("as/a%d", i)
	}
	got, err := p.Values(map[string]any{"list": list[1:]})
	require.NoError(t, err)
	require.Len(t, got, schema.MaxReferences)
	_, err = p.Values(map[string]any{"list": list})
	require.ErrorContains(t, err, "more than 1000 references")
	got, err = p.Values(map[string]any{"list": append(list[1:], "as/a1", "as/a2")})
	require.NoError(t, err, "equal values are one reference")
	require.Len(t, got, schema.MaxReferences)
}

func TestFieldErrorsNameTheirPlace(t *testing.T) {
	t.Parallel()
	err := violation.Errorf("%d is too much", 5)
	err = violation.UnderIndex(3, err)
	err = violation.Under("b", err)
	err = violation.Under("a", err)
	require.EqualError(t, err, "field a.b[3]: 5 is too much")
	plain := errors.New("plain")
	require.Equal(t, plain, violation.Under("a", violation.UnderIndex(1, plain)))
	require.Less(t, len(violation.Under(strings.Repeat("k", 10_000), violation.Errorf("bad")).Error()), 200)
}
