package approval_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/approval"
	"github.com/db-controller/db-controller/internal/identity"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
)

// Any text is refused unless an operator has signed it, and any text that an operator has signed approves the
// request in it alone.
func FuzzApprovals(f *testing.F) {
	a, now := authority(f), time.Now()
	ada, trusted := load(f, a, identity.RoleOperator, "ada"), load(f, a, identity.RoleOperator, "server")
	omar := identity.Identity{Role: identity.RoleOperator, Name: "omar"}
	request := &adminv1.ForceReleaseRequest{Keys: []string{"a|b"}, Reason: "r"}
	good, err := approval.Sign(ada, server, request, now)
	require.NoError(f, err)
	at := `{"server":"` + server + `","time":"` + now.UTC().Format(time.RFC3339) + `","request":`
	for _, text := range []string{
		good, good[:40], "", ".", "a.b.c", "eyJhbGciOiJub25lIn0.e30.", "{}", "null", at + "null}",
		at + `{"@type":"type.googleapis.com/dbcontroller.admin.v1.ForceReleaseRequest","keys":["a|b"],"reason":"r"}}`,
		at + `{"@type":"type.googleapis.com/google.protobuf.Any"}}`, at + `{"@type":"x"}}`,
		`{"time":"0000-00-00","request":[[[[]]]]}`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if p, err := approval.Open(trusted, text, now); err == nil { // another encoding of the same signature
			require.NoError(t, p.Covers(server, request), text)
		}
		signed, err := ada.Sign("db-controller-approval", []byte(text))
		require.NoError(t, err)
		p, err := approval.Open(trusted, signed, now)
		if err != nil {
			return
		}
		require.Equal(t, "operator/ada", p.By.String())
		other := &adminv1.ForceReleaseRequest{Keys: []string{"c|d"}, Approval: signed}
		if _, err := approval.Verify(trusted, server, omar, other, now); err == nil {
			require.Contains(t, text, "c|d")
		}
	})
}
