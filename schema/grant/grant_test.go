package grant_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/grant"
)

const services = `
service: devices.example.com
version: v1
kinds:
  - { kind: Gadget, patterns: ["projects/{project}/devices/{device}"] }
  - { kind: Project, patterns: ["projects/{project}"] }
---
service: devices.example.com
version: v2
kinds:
  - { kind: Device, previous_name: Gadget, patterns: ["projects/{project}/devices/{device}"] }
  - { kind: Project, patterns: ["projects/{project}"] }
---
service: iam.example.com
version: v1
kinds:
  - { kind: Account, patterns: ["projects/{project}/accounts/{account}"] }
`

var devices = schema.DeploymentID{Service: "devices.example.com", Region: "us-west2"}

func environment(t require.TestingT, rights string) *schema.Environment {
	f, err := schema.ParseFile("f.yaml", strings.NewReader(services+"---\n"+rights))
	require.NoError(t, err)
	require.NoError(t, f.Rights.Check())
	return &schema.Environment{Services: f.Services, Rights: f.Rights, Deployments: []schema.Deployment{
		{DeploymentID: devices, Version: "v2"},
		{DeploymentID: schema.DeploymentID{Service: "iam.example.com", Region: "us-west2"}, Version: "v1"},
	}}
}

const declared = `
rights:
  default: deny
  grants:
    - { identity: user/ann, verbs: [read, write], kind: devices.example.com/Device, name: projects/acme }
    - { identity: user/old, verbs: [read], kind: devices.example.com/Gadget }
    - { group: sre, verbs: [delete, operate], kind: "devices.example.com/*", name: "projects/team-*" }
    - { identity: "*", verbs: [refer], name: projects/shared }
    - { identity: deployment/devices.example.com/us-west2, verbs: [refer], kind: iam.example.com/Account }
`

func TestAuthorize(t *testing.T) {
	t.Parallel()
	ann := grant.Subject{Identity: "user/ann"}
	sre := grant.Subject{Identity: "user/bob", Groups: []string{"other", "sre"}}
	old := grant.Subject{Identity: "user/old"}
	operator := grant.Subject{Identity: "operator/olga"}
	for _, c := range []struct {
		who  grant.Subject
		verb schema.Verb
		name string
		want bool
	}{
		{ann, schema.Read, "projects/acme/devices/d1", true},
		{ann, schema.Write, "projects/acme/devices/d1", true},
		{ann, schema.Delete, "projects/acme/devices/d1", false},
		{ann, schema.Read, "projects/acme", false},              // a project
		{ann, schema.Read, "projects/acme2/devices/d1", false},  // not below projects/acme
		{ann, schema.Read, "projects/acme-x/devices/d1", false}, // before projects/acme/
		{ann, schema.Read, "projects/acm/devices/d1", false},
		{ann, schema.Read, "things/acme", false},          // of no kind
		{old, schema.Read, "projects/x/devices/d1", true}, // by the former name of the kind
		{old, schema.Read, "projects/x", false},
		{sre, schema.Delete, "projects/team-a", true},
		{sre, schema.Delete, "projects/team-a/devices/d", true},
		{sre, schema.Delete, "projects/team", false},
		{sre, schema.Delete, "projects/teamx", false},
		{sre, schema.Operate, "projects/team-a", true},
		{sre, schema.Read, "projects/team-a", false},
		{grant.Subject{Identity: "user/sre"}, schema.Delete, "projects/team-a", false}, // a user, not the group
		{
			grant.Subject{Identity: "user/x", Groups: []string{"user/ann"}},
			schema.Read, "projects/acme/devices/d1",
			false,
		},
		{grant.Subject{Identity: "user/x"}, schema.Refer, "projects/shared", true},
		{grant.Subject{Identity: "user/x"}, schema.Refer, "projects/shared/devices/d", true},
		{grant.Subject{Identity: "user/x"}, schema.Refer, "projects/other", false},
		{operator, schema.Delete, "projects/acme", true},
		{operator, schema.Operate, "projects/acme", true},
		{grant.Subject{}, schema.Read, "projects/acme/devices/d1", false},
	} {
		rights := grant.Compile(environment(t, declared))
		require.Equal(t, c.want, rights.Authorize(c.who, c.verb, schema.FullName{Deployment: devices, Name: c.name}),
			"%+v", c)
	}
}

// The rights of a kind do not count for a kind of the same pattern in another service.
func TestAGrantIsOfOneService(t *testing.T) {
	t.Parallel()
	rights := grant.Compile(environment(t, declared))
	account := schema.FullName{
		Deployment: schema.DeploymentID{Service: "iam.example.com", Region: "us-west2"},
		Name:       "projects/acme/accounts/a",
	}
	require.False(t, rights.Authorize(grant.Subject{Identity: "user/ann"}, schema.Read, account))
	require.True(t, rights.Authorize(grant.Subject{Identity: "deployment/devices.example.com/us-west2"},
		schema.Refer, account))
	require.False(t, rights.Authorize(grant.Subject{Identity: "deployment/devices.example.com/eastus2"},
		schema.Refer, account))
}

// Without a default users read, write and delete by their grants alone, and everybody may refer to resources.
func TestADefaultThatIsNotDeclaredGivesUsersNothing(t *testing.T) {
	t.Parallel()
	name := schema.FullName{Deployment: devices, Name: "projects/acme"}
	for text, deployments := range map[string]bool{
		"": true, "rights: { grants: [{ identity: user/ann, verbs: [read] }] }\n": true,
		"rights: { default: deny }\n":                                  false,
		"rights: { default: allow }\n---\nrights: { default: deny }\n": false, "rights: { default: allow }\n": true,
	} {
		rights := grant.Compile(environment(t, text))
		for _, verb := range schema.Verbs {
			allowed := text == "rights: { default: allow }\n" && verb != schema.Operate || verb == schema.Refer &&
				deployments
			require.Equal(t, allowed, rights.Authorize(grant.Subject{Identity: "user/bob"}, verb, name), "%s %s",
				text, verb)
			require.Equal(t, allowed || verb == schema.Read && strings.Contains(text, "ann"),
				rights.Authorize(grant.Subject{Identity: "user/ann"}, verb, name), "%s %s", text, verb)
			require.True(t, rights.Authorize(grant.Subject{Identity: "operator/olga"}, verb, name))
		}
		require.Equal(t, deployments, rights.Authorize(grant.Subject{Identity: "deployment/b.example.com/eu"},
			schema.Refer, name), text)
	}
}

func TestWithDefaultAllowOnlyTheRightToOperateNeedsAGrant(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"rights: { default: allow, grants: [{ identity: user/ann, verbs: [operate] }] }\n",
		"rights: { default: allow }\n",
	} {
		rights := grant.Compile(environment(t, text))
		name := schema.FullName{Deployment: devices, Name: "projects/acme"}
		for _, verb := range []schema.Verb{schema.Read, schema.Write, schema.Delete, schema.Refer} {
			require.True(t, rights.Authorize(grant.Subject{Identity: "user/bob"}, verb, name))
			require.Nil(t, rights.Within(grant.Subject{Identity: "user/bob"}, verb, devices))
		}
		require.False(t, rights.Authorize(grant.Subject{Identity: "user/bob"}, schema.Operate, name))
		require.True(t, rights.Authorize(grant.Subject{Identity: "operator/olga"}, schema.Operate, name))
		require.Equal(t, strings.Contains(text, "ann"), rights.Authorize(grant.Subject{Identity: "user/ann"},
			schema.Operate, name))
	}
}

// The ranges of a list are the names that Authorize allows.
func TestRangesAreWhatAuthorizeAllows(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		// Ids with characters on both sides of the slash, and the ends of the alphabet.
		id := rapid.StringMatching(`[a!~0-]{1,2}`)
		project := rapid.Custom(func(t *rapid.T) string { return "projects/" + id.Draw(t, "project") })
		device := rapid.Custom(func(t *rapid.T) string {
			return project.Draw(t, "in") + "/devices/" + id.Draw(t, "device")
		})
		name := rapid.OneOf(project, device)
		granted := rapid.OneOf(name, rapid.Just(""), rapid.Just("*"), rapid.Custom(func(t *rapid.T) string {
			whole := name.Draw(t, "whole")
			return whole[:rapid.IntRange(1, len(whole)).Draw(t, "cut")] + "*"
		}))
		env := environment(t, "rights: { default: deny }\n")
		for range rapid.IntRange(0, 5).Draw(t, "grants") {
			g := schema.AccessGrant{
				Verbs: rapid.SliceOfN(rapid.SampledFrom(schema.Verbs), 1, 2).Draw(t, "verbs"),
				Kind: rapid.SampledFrom([]string{
					"", "*", "devices.example.com/*", "devices.example.com/Device",
					"devices.example.com/Gadget", "devices.example.com/Project", "iam.example.com/Account",
				}).
					Draw(t, "kind"),
				Name: granted.Draw(t, "name"),
			}
			if rapid.Bool().Draw(t, "of a group") {
				g.Group = rapid.SampledFrom([]string{"a", "b"}).Draw(t, "group")
			} else {
				g.Identity = rapid.SampledFrom([]string{"user/ann", "user/bob", "*"}).Draw(t, "identity")
			}
			env.Rights.Grants = append(env.Rights.Grants, g)
		}
		require.NoError(t, env.Rights.Check())
		rights, who := grant.Compile(env), grant.Subject{Identity: "user/ann", Groups: []string{"a"}}
		for _, n := range rapid.SliceOfN(name, 10, 30).Draw(t, "names") {
			kind := "Project"
			if strings.Contains(n, "/devices/") {
				kind = "Device"
			}
			verb := rapid.SampledFrom(schema.Verbs).Draw(t, "verb")
			ranges := rights.Within(who, verb, devices).Of(kind)
			in := slices.ContainsFunc(ranges, func(r grant.NameRange) bool { return r.Has(n) })
			require.Equal(t, rights.Authorize(who, verb, schema.FullName{Deployment: devices, Name: n}), in,
				"%s %s in %q", verb, n, ranges)
			for i := 1; i < len(ranges); i++ {
				require.Less(t, ranges[i-1].Below, ranges[i].From, "disjoint and in order")
			}
		}
	})
}

func TestCommonRanges(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		some := rapid.Custom(func(t *rapid.T) []grant.NameRange {
			var out []grant.NameRange
			for range rapid.IntRange(0, 4).Draw(t, "n") {
				ends := rapid.SliceOfN(rapid.StringMatching(`[a-d]{1,2}`), 2, 2).Draw(t, "ends")
				out = append(out, grant.NameRange{From: min(ends[0], ends[1]), Below: max(ends[0], ends[1])})
			}
			return grant.JoinedRanges(out)
		})
		a, b := some.Draw(t, "a"), some.Draw(t, "b")
		both := grant.CommonRanges(a, b)
		for _, n := range rapid.SliceOfN(rapid.StringMatching(`[a-d]{1,3}`), 20, 20).Draw(t, "names") {
			has := func(in []grant.NameRange) bool {
				return slices.ContainsFunc(in, func(r grant.NameRange) bool { return r.Has(n) })
			}
			require.Equal(t, has(a) && has(b), has(both), n)
		}
	})
}
