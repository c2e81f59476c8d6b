package identity_test

import (
	"strings"
	"testing"

	"github.com/db-controller/db-controller/internal/identity"
)

// Identities are written into logs, headers and rows: the text of an identity is parsed to the same identity everywhere.
func FuzzIdentities(f *testing.F) {
	for _, seed := range []string{"/deployment/iam.example.com/us-west2", "/user/ann", "/operator/eve@example.org", "/registry", "", "/", "/user/", "/user/../operator", "/user/a\nb", "/deployment//", "//registry"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, path string) {
		id, err := identity.ParsePath(path)
		if err != nil {
			return
		}
		if again, err := identity.ParsePath(id.Path()); err != nil || again != id {
			t.Fatalf("%q is %v, which is read as %v: %v", path, id, again, err)
		}
		if strings.ContainsAny(id.Path(), " \t\r\n\x00'\"\\%$") || len(id.Path()) > 500 {
			t.Fatalf("%q is an identity", path)
		}
	})
}
