package resources

import (
	"strings"
	"testing"

	"github.com/db-controller/db-controller/schema"
)

// A file of resources has resources with names, or is refused with the line.
func FuzzResourceFiles(f *testing.F) {
	for _, seed := range []string{
		"name: //a.example.com/eu/as/a\nkind: A\nbody: { a: [1, null, 2001-01-01, 0x10, .inf] }\n",
		"[{name: as/a, deployment: a.example.com/eu, revision: \"7\"}]", "---\n---\nname: x\n",
		`{"name":"//a.example.com/eu/as/a","ownerReferences":[{"name":"//b.example.com/eu/bs/b","uid":"u"}],"labels":{"a":"b"},"status":{}}`,
		"a: &a [*a]\n", "name: &n //a.example.com/eu/as/a\nbody: { 1: 2, ? [x] : y }\n", "bodi: {}\n", "- - x\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		found, err := parseResources("f", raw)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "f:") {
				t.Fatalf("%q: %v", raw, err)
			}
			return
		}
		for _, r := range found {
			full := schema.FullName{Deployment: r.id, Name: r.GetName()}
			if again, err := schema.ParseFullName(full.String()); err != nil || again != full {
				t.Fatalf("%q has the name %q: %v", raw, full, err)
			}
		}
	})
}

// An element of a list is a path and an index, or a path and a value, as it is written.
func FuzzElements(f *testing.F) {
	for _, seed := range []string{
		"policies[0]", "spec.policies[=//iam.example.com/eu/policies/p]", "a[-1]", "a[+1]",
		"[0]", "a[", "a[]", "a[=]", "a[[0]]", "a.[1]",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		e, err := parseElement(text)
		if err != nil {
			return
		}
		list := strings.Join(e.list, ".")
		if !strings.HasPrefix(text, list+"[") || list == "" || e.index < 0 {
			t.Fatalf("%q is %+v", text, e)
		}
		if e.value != nil && text != list+"[="+*e.value+"]" {
			t.Fatalf("%q is the value %q", text, *e.value)
		}
	})
}
