package schema_test

import (
	"encoding/json"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
)

func TestFullNamesInFieldsWithoutAReferenceAreFound(t *testing.T) {
	kind, err := model(t).KindOf("projects/acme/devices/d1")
	require.NoError(t, err)
	const project, device = `"//iam.example.com/us-west2/projects/p"`,
		`"//devices.example.com/us-west2/projects/p/devices/d"`
	long := "//iam.example.com/us-west2/projects/" + strings.Repeat("%C3%A9", 80)
	for body, want := range map[string]string{
		`{"ownr": {"project": ` + project +
			`}}`: "field ownr.project: did you mean owner.project",
		`{"owner": {"projct": ` + project +
			`}}`: "field owner.projct: did you mean owner.project",
		`{"owner.project": ` + project +
			`}`: "field owner.project: did you mean owner.project",
		`{"project": ` + project +
			`}`: "field project: did you mean owner.project",
		`{"peer": [` + device + `]}`:                    "field peer[0]: did you mean peers.*",
		`{"peers": [], "piers": {"a": ` + device + `}}`: "field piers.a: did you mean peers.*",
		`{"roles": {"a": {"who": null, "whom": ` + device +
			`}}}`: "field roles.a.whom: did you mean roles.*.who",
		`{"rolls": [{"who": "x"}, {"who": ` + device +
			`}]}`: "field rolls[1].who: did you mean roles.*.who",
		`{"a": [[{"b": {"c": [1, true, null, ` + project + `]}}]]}`: "field a[0][0].b.c[3]: did you mean",
		`{"owner": {"project": "", "more": {"` + `project": ` + project +
			`}}}`: "field owner.more.project: did you mean owner.project",
	} {
		var v map[string]any
		require.NoError(t, json.Unmarshal([]byte(body), &v))
		err := kind.CheckUndeclared(v, nil)
		var undeclared *schema.UndeclaredError
		require.ErrorAs(t, err, &undeclared, body)
		require.True(t, strings.HasPrefix("field "+undeclared.Field+": did you mean "+undeclared.Closest, want),
			"%s: %v", body, err)
		require.NoError(t, kind.CheckUndeclared(v, v), "what is stored may stay: %s", body)
		require.ErrorAs(t,
			kind.CheckUndeclared(v,
				map[string]any{
					"owner": map[string]any{"project": "//iam.example.com/us-west2/projects/p"},
				}), &undeclared, body)
	}
	for _, body := range []string{
		`{"owner": {"project": ` + project + `}, "peers": {"x": ` + device + `}, "roles": [{"who": ` + project + `}]}`,
		`{"ownr": "projects/p", "note": "see //iam.example.com/us-west2/projects/p", "url": "//iam.example.com/us-west2", "n": 1e300}`,
		`{"//iam.example.com/us-west2/projects/p": 1}`,
	} {
		var v map[string]any
		require.NoError(t, json.Unmarshal([]byte(body), &v))
		require.NoError(t, kind.CheckUndeclared(v, nil), body)
	}
	for body, want := range map[string]string{ // the right field with another shape
		`{"owner": {"project": [` + project + `]}}`: "field owner.project[0]: " + project +
			" is the name of a resource, and Device has no reference there; owner.project has one name",
		`{"owner": {"project": {"name": ` + project + `}}}`: "field owner.project.name: " + project +
			" is the name of a resource, and Device has no reference there; owner.project has one name",
		`{"x": "` + long + `"}`: long, // whole: the writer may not read a part of a name
	} {
		var v map[string]any
		require.NoError(t, json.Unmarshal([]byte(body), &v))
		require.ErrorContains(t, kind.CheckUndeclared(v, nil), want)
	}
	// The body of a write in another program's transaction can have other Go types than JSON has.
	require.Error(t, kind.CheckUndeclared(map[string]any{"tags": []string{"//iam.example.com/us-west2/projects/p"}},
		nil))
}

// A body of the greatest size, in which each name would cost as much as the whole body if paths were joined.
func TestALongBodyIsCheckedInLinearTime(t *testing.T) {
	kind, err := model(t).KindOf("projects/acme/devices/d1")
	require.NoError(t, err)
	var names []any
	for range 12_000 {
		names = append(names, "//iam.example.com/us-west2/projects/p")
	}
	body := map[string]any{strings.Repeat("k", 500_000): names}
	began := processorTime(t)
	require.Error(t, kind.CheckUndeclared(body, nil))
	require.NoError(t, kind.CheckUndeclared(body, body))
	require.Less(t, processorTime(t)-began, 2*time.Second)
}

// processorTime returns the processor time of this process, which does not depend on other processes of the
// machine.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
