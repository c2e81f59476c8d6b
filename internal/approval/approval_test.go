package approval_test

import (
	"crypto/x509"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/cmd/db-controller/playground"
	"github.com/db-controller/db-controller/internal/approval"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
)

const server = "iam.example.com/us-west2"

func authority(t testing.TB) *playground.Authority {
	t.Helper()
	a, err := playground.NewAuthority()
	require.NoError(t, err)
	return a
}

func load(t testing.TB, a *playground.Authority, role identity.Role, name string,
	changes ...func(*x509.Certificate),
) *identity.Credentials {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, a.Issue(dir, identity.Identity{Role: role, Name: name}, changes...))
	c, err := identity.Load(identity.InDir(dir))
	require.NoError(t, err)
	return c
}

// A request counts as signed only by another operator, whose certificate is trusted now, for this server,
// within the time, and when nothing in it was changed.
func TestASignedRequestCountsForWhatItIs(t *testing.T) {
	t.Parallel()
	a, now := authority(t), time.Now()
	ada, ann, trusted := load(t, a, identity.RoleOperator, "ada"), load(t, a, identity.RoleUser, "ann"),
		load(t, a, identity.RoleOperator, "server")
	stranger := load(t, authority(t), identity.RoleOperator, "ada")
	omar := identity.Identity{Role: identity.RoleOperator, Name: "omar"}
	request := func() *adminv1.ForceReleaseRequest {
		return &adminv1.ForceReleaseRequest{Keys: []string{"a|b", "c|d"}, Reason: "ticket 4711"}
	}
	sign := func(by *identity.Credentials, at string, when time.Time) string {
		text, err := approval.Sign(by, at, request(), when)
		require.NoError(t, err)
		return text
	}
	other, err := ada.Sign("another purpose", []byte("{}"))
	require.NoError(t, err)
	good := sign(ada, server, now)
	for name, c := range map[string]struct {
		text, want string
		sender     identity.Identity
		change     func(*adminv1.ForceReleaseRequest)
	}{
		"signed by another operator": {text: good, sender: omar},
		"for all deployments":        {text: sign(ada, approval.AllDeployments, now), sender: omar},
		"none":                       {text: "", sender: omar},
		"by the sender":              {text: good, sender: ada.Identity, want: "another operator has to send it"},
		"by a user":                  {text: sign(ann, server, now), sender: omar, want: "no operator"},
		"by another authority":       {text: sign(stranger, server, now), sender: omar, want: "unknown authority"},
		"for another deployment": {
			text: sign(ada, "iam.example.com/eastus2", now), sender: omar,
			want: "another request",
		},
		"for the registry": {text: sign(ada, approval.Registry, now), sender: omar, want: "another request"},
		"too old": {
			text: sign(ada, server, now.Add(-approval.Lifetime-time.Minute)), sender: omar,
			want: "sign it again",
		},
		"of the future": {
			text: sign(ada, server, now.Add(time.Hour)), sender: omar,
			want: "compare the clocks",
		},
		"another key": {
			text: good, sender: omar, want: "another request",
			change: func(r *adminv1.ForceReleaseRequest) {
				r.Keys[1] = "e|f"
			},
		},
		"one key less": {
			text: good, sender: omar, want: "another request",
			change: func(r *adminv1.ForceReleaseRequest) {
				r.Keys = r.GetKeys()[:1]
			},
		},
		"more than was signed": {
			text: good, sender: omar, want: "another request",
			change: func(r *adminv1.ForceReleaseRequest) {
				r.Unanswered = true
			},
		},
		"a signature for another use": {text: other, sender: omar, want: "signed as"},
		"a changed text": {
			text: good[:len(good)-8] + "AAAAAAAA", sender: omar,
			want: "signature is wrong",
		},
		"no signature": {text: "yes", sender: omar, want: "no signature"},
	} {
		r := request()
		if r.Approval = c.text; c.change != nil {
			c.change(r)
		}
		by, err := approval.Verify(trusted, server, c.sender, r, now)
		switch {
		case c.want != "":
			require.ErrorContains(t, err, c.want, name)
		case c.text == "":
			require.NoError(t, err, name)
			require.Zero(t, by, name)
		default:
			require.NoError(t, err, name)
			require.Equal(t, ada.Identity, by, name)
		}
	}
	r := request()
	r.Approval = good
	_, err = approval.Verify(nil, server, omar, r, now)
	require.ErrorContains(t, err, "no authorities")
}

// A revoked operator approves nothing, also with an earlier signature.
func TestASignatureOfARevokedCertificateDoesNotCount(t *testing.T) {
	t.Parallel()
	a, dir := authority(t), t.TempDir()
	theirs, ours := filepath.Join(dir, "ada"), filepath.Join(dir, "server")
	require.NoError(t, a.Issue(theirs, identity.Identity{Role: identity.RoleOperator, Name: "ada"}))
	require.NoError(t,
		a.Issue(ours, identity.Deployment(schema.DeploymentID{Service: "iam.example.com", Region: "us-west2"})))
	ada, err := identity.Load(identity.InDir(theirs))
	require.NoError(t, err)
	text, err := approval.Sign(ada, server, &adminv1.WaiveComparisonRequest{Deployment: "x/y"}, time.Now())
	require.NoError(t, err)
	trusted, err := identity.Load(identity.InDir(ours))
	require.NoError(t, err)
	_, err = approval.Open(trusted, text, time.Now())
	require.NoError(t, err)
	require.NoError(t, a.Revoke(dir, []string{filepath.Join(theirs, "tls.crt")}, []string{ours}))
	_, err = trusted.Reload()
	require.NoError(t, err)
	_, err = approval.Open(trusted, text, time.Now())
	require.ErrorContains(t, err, "revoked")
}

// Each request with a field for an approval belongs to a decision, unless it changes nothing.
func TestEachRequestWithAnApprovalIsADecision(t *testing.T) {
	t.Parallel()
	for request, decision := range map[approval.Request]string{
		&adminv1.DecommissionRequest{}:                   "decommission",
		&adminv1.DecommissionRequest{ValidateOnly: true}: "",
		&registryv1.DecommissionDeploymentRequest{}:      "decommission",
		&adminv1.ForceReleaseRequest{}:                   "force-release",
		&adminv1.AcceptDatabaseRequest{}:                 "decommission",
		&registryv1.AcceptDatabaseRequest{}:              "decommission",
		&adminv1.WaiveComparisonRequest{}:                "force-release",
	} {
		require.Equal(t, decision, approval.Decision(request), "%T", request)
	}
}
