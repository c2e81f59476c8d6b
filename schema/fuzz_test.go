package schema_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/lint"
)

func FuzzNames(f *testing.F) {
	for _, seed := range []string{
		"//iam.example.com/us-west2/projects/a", "//a/b/c/d", "///", "//iam.example.com/us-west2/projects/../x",
		"//iam.example.com/us-west2/projects/a\x00",
		"//iam.example.com//projects/a", "//IAM.example.com/us-west2/projects/a",
		"//iam.example.com/us-west2/projects/" + strings.Repeat("a", 600),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		name, err := schema.ParseFullName(s)
		if err != nil {
			if len(err.Error()) > 1000 {
				t.Fatalf("an error of %d bytes", len(err.Error()))
			}
			return
		}
		if name.String() != s {
			t.Fatalf("%q was read as %q", s, name)
		}
		if len(name.Name) > schema.MaxNameBytes || strings.ContainsAny(s, " \t\r\n\x00\"\\|?#<>`^{}[]") {
			t.Fatalf("%q is a name", s)
		}
		if err := schema.CheckName(name.Name); err != nil {
			t.Fatalf("%q is one in full, and none alone: %v", s, err)
		}
	})
}

// Each text has one id, and each id one text; no id can be confused with the separators around it.
func FuzzIDs(f *testing.F) {
	for _, seed := range []string{
		"a", ".", "..", "", "a/b", "50%", "%2F", "é", "\x00\xff", "auth0|5f", "a@b.example",
		"!$&'()*+,;=:@", "//x", "...", "a b",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		id := schema.EscapeID(text)
		name := "as/" + id + "/bs/b"
		if len(name) > schema.MaxNameBytes {
			return
		}
		err := schema.CheckName(name)
		if text == "" || text == "." || text == ".." {
			if err == nil {
				t.Fatalf("%q is an id", text)
			}
			return
		}
		if err != nil {
			t.Fatalf("%q is written %q: %v", text, id, err)
		}
		if back, err := schema.UnescapeID(id); err != nil || back != text {
			t.Fatalf("%q is written %q, and read %q, %v", text, id, back, err)
		}
		full, err := schema.ParseFullName("//a.example.com/us/" + name)
		if err != nil || full.Name != name || strings.Count(id, "/") > 0 {
			t.Fatalf("%q: %v, %v", name, full, err)
		}
		if inner, err := schema.UnescapeID(text); err == nil && schema.EscapeID(inner) != text {
			t.Fatalf("%q is an id, and %q another one of the same text", text, schema.EscapeID(inner))
		}
	})
}

func FuzzParseFile(f *testing.F) {
	f.Add(devices)
	f.Add("service: [")
	f.Add(
		"service: a.example.com\nversion: v1\nkinds:\n  - {kind: A, patterns: ['as/{a}'], referable_by: [b.example.com], previous_name: B}\n")
	f.Add("regions: [a]\ndeployments:\n  - {service: a.example.com, region: a, version: v1}\n")
	f.Add("a: &a [*a]\n")
	f.Fuzz(func(_ *testing.T, s string) {
		if file, err := schema.ParseFile("f", strings.NewReader(s)); err == nil {
			_ = schema.Check(file.Services)
			_ = lint.Services(file.Services)
		}
	})
}

// Any paths, and the references that they find in any body.
func FuzzReferences(f *testing.F) {
	m := model(f)
	for path, body := range map[string]string{
		"spec.account": `{"spec":{"account":"projects/p/accounts/a"}}`,
		"list.*":       `{"list":["//iam.example.com/us-west2/projects/p"]}`,
		"a.*.b":        `{"a":{"x":{"b":"projects/p"}}}`, "*": `{}`, "a..b": `{"a":null}`, "": `[]`,
		"`a.b`.c": `{"a.b":{"c":"x"}}`,
	} {
		f.Add(path, body)
	}
	kinds := m.Descriptor.Kinds
	f.Fuzz(func(t *testing.T, text, body string) {
		var content map[string]any
		if json.Unmarshal([]byte(body), &content) != nil {
			return
		}
		if path, err := schema.ParsePath(text); err == nil {
			path.Unset(content, func(value string) bool { return strings.HasPrefix(value, "//") })
		}
		for _, k := range kinds {
			kind, err := m.Kind(k.Name)
			if err != nil {
				t.Fatal(err)
			}
			found, err := kind.References(schema.DeploymentID{Service: m.Descriptor.Service, Region: "us-west2"},
				"projects/p/devices/d", content)
			for _, r := range found {
				if err == nil && schema.CheckName(r.Target.Name) != nil {
					t.Fatalf("%q refers to %q", body, r.Target)
				}
			}
		}
	})
}

// The words of descriptors, flags and messages: what is read is written as it was.
func FuzzWords(f *testing.F) {
	for _, seed := range []string{
		"iam.example.com/us-west2", "iam.example.com/Project", "iam.example.com@v1",
		"projects/{project}/devices/{device}", "a/{b}/c/{b}", "spec.members.*", "`a.b`.c", "BLOCK", "/", "@",
		"a/{}", "a//b",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for what, parse := range map[string]func() (fmt.Stringer, error){
			"deployment": func() (fmt.Stringer, error) { return schema.ParseDeploymentID(text) },
			"kind":       func() (fmt.Stringer, error) { return schema.ParseKindID(text) },
			"version":    func() (fmt.Stringer, error) { return schema.ParseServiceVersion(text) },
			"pattern":    func() (fmt.Stringer, error) { return schema.ParsePattern(text) },
			"path":       func() (fmt.Stringer, error) { return schema.ParsePath(text) },
			"behaviour":  func() (fmt.Stringer, error) { return schema.ParseBehaviour(text) },
		} {
			read, err := parse()
			if err == nil && read.String() != text {
				t.Fatalf("the %s %q is written %q", what, text, read)
			}
			if err != nil && len(err.Error()) > 1000 {
				t.Fatalf("the %s of %d bytes has an error of %d bytes", what, len(text), len(err.Error()))
			}
		}
		if p, err := schema.ParsePattern(text); err == nil && (!p.Match(p.Shape()) || len(p.Segments)%2 != 0) {
			t.Fatalf("%q does not match its own shape %q", p, p.Shape())
		}
		if h, err := schema.ParseHandler(text); err == nil {
			if again, err := schema.ParseHandler(h.Text()); err != nil || again != h {
				t.Fatalf("the handler %q is read as %q", h, again)
			}
		}
	})
}

// The name of a table is one table: what is written is read as the same, and what is no name is refused.
func FuzzTableNames(f *testing.F) {
	for _, seed := range []string{
		"invoices", "public.invoices", `public."odd.name"`, `"a""b"."c"`, `"a"`, `".`, `"a"b`,
		"a.b.c", "a.", ".a", `""`, "x\x00",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		name, err := schema.ParseTableName(text)
		if err != nil {
			return
		}
		if name.Schema == "" || name.Name == "" {
			t.Fatalf("%q is %#v", text, name)
		}
		if again, err := schema.ParseTableName(name.String()); err != nil || again != name {
			t.Fatalf("%q is %#v, which is written %q, and read as %#v, %v", text, name, name, again, err)
		}
		if again, err := schema.ParseTableName(name.SQL()); err != nil || again != name {
			t.Fatalf("%q is %#v, and in SQL %s, which is %#v, %v", text, name, name.SQL(), again, err)
		}
	})
}
