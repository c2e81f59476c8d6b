package grant_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/grant"
)

const limited = `
rights:
  default: allow
  grants: [{identity: "*", verbs: [delete]}, {identity: operator/olga, verbs: [write], kind: devices.example.com/Device, name: projects/acme}]
  operators:
    - {identity: operator/ada, verbs: [read, write, delete, refer, operate, grant]}
    - {identity: operator/olga, verbs: [read]}
    - {identity: operator/omar, verbs: [read, operate], deployments: [iam.example.com/*]}
    - {identity: operator/eva, verbs: [read, operate], deployments: ["*/us-west2"]}
`

// Where operators are listed, each has the rights of the list and of grants to that identity, and no more,
// also where everything is allowed by default.
func TestOperatorsHaveTheirLimits(t *testing.T) {
	t.Parallel()
	rights := grant.Compile(environment(t, limited))
	iam, east := schema.DeploymentID{Service: "iam.example.com", Region: "us-west2"},
		schema.DeploymentID{Service: "devices.example.com", Region: "eastus2"}
	for _, c := range []struct {
		who, verb string
		at        schema.DeploymentID
		name      string
		want      bool
	}{
		{"ada", "delete", devices, "projects/acme", true},
		{"olga", "read", devices, "projects/acme", true},
		{"olga", "write", devices, "projects/acme", false},
		{"olga", "write", devices, "projects/acme/devices/d", true}, // by the grant
		{"olga", "operate", devices, "projects/acme", false},
		{"olga", "delete", devices, "projects/acme", false}, // which every user may
		{"omar", "operate", iam, "projects/acme/accounts/a", true},
		{"omar", "operate", devices, "projects/acme", false},
		{"eva", "read", devices, "projects/acme", true},
		{"eva", "read", east, "projects/acme", false},
		{"nobody", "read", devices, "projects/acme", false},
	} {
		who := grant.Subject{Identity: "operator/" + c.who}
		require.Equal(t, c.want, rights.Authorize(who, schema.Verb(c.verb), schema.FullName{
			Deployment: c.at,
			Name:       c.name,
		}), "%+v", c)
		if within := rights.Within(who, schema.Verb(c.verb), c.at); c.want && within != nil {
			require.NotEmpty(t, within.Of("Device"), "%+v", c)
		}
	}
	require.True(t, rights.Authorize(grant.Subject{Identity: "user/bob"}, schema.Write,
		schema.FullName{Deployment: devices, Name: "projects/acme"}), "users are no operators")
	require.True(t, rights.Operator(grant.Subject{Identity: "operator/ada"}, schema.GrantRights, schema.DeploymentID{}))
	require.False(t, rights.Operator(grant.Subject{Identity: "operator/omar"}, schema.Operate,
		schema.DeploymentID{Region: "us-west2"}), "a region with all services")
	require.True(t, rights.Operator(grant.Subject{Identity: "operator/eva"}, schema.Operate,
		schema.DeploymentID{Region: "us-west2"}))
	require.False(t, rights.Operator(grant.Subject{Identity: "operator/eva"}, schema.Operate,
		schema.DeploymentID{Service: "iam.example.com"}), "a service in all regions")
	require.False(t, rights.Operator(grant.Subject{Identity: "user/ada"}, schema.Read, devices))

	holders, _ := grant.Holders(environment(t, limited), schema.Operate, schema.FullName{
		Deployment: iam,
		Name:       "projects/acme/accounts/a",
	})
	var who []string
	for _, h := range holders {
		who = append(who, h.Who)
	}
	require.Equal(t, []string{"operator/ada", "operator/omar", "operator/eva"}, who)
	require.Equal(t, []string{
		"operators lose everything but what the list gives them",
		"operator/ada has now read, operate, grant at all deployments", "operator/o has now read at */eu",
	},
		grant.Differences(environment(t, "rights: {default: deny}"),
			environment(t,
				"rights: {default: deny, operators: [{identity: operator/ada, verbs: [read, operate, grant]}, {identity: operator/o, verbs: [read], deployments: ['*/eu']}]}")))
}
