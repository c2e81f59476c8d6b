package schema_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
)

func TestRightsAreCheckedWithLineAndRemedy(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"default: perhaps": `f.yaml:2: rights.default: default: "perhaps"; write deny, or allow`,
		"quotas: [{holders: a, targets: '*/*', blocking: 1}]":                `f.yaml:2: rights.quotas[0]: deployment "a"; write service/region, service/*, */region`,
		"quotas: [{holders: '*/*', targets: '*/*'}]":                         `f.yaml:2: rights.quotas[0]: a quota has numbers greater than 0; write blocking: N, tentative: N, or both`,
		"two_operators: [delete]":                                            `f.yaml:2: rights: two_operators: unknown decision "delete"; the decisions are decommission, force-release`,
		"max_removals: 10000":                                                `f.yaml:2: rights.max_removals: max_removals: 10000; write a number of resources, at most 9999, or leave it out for any number`,
		"defalt: deny":                                                       `f.yaml:2: rights: unknown key "defalt"; the keys here are cascade_needs_delete, default, grants`,
		"grants: [{ identity: user/ann, verbs: [read], kinds: A }]":          `unknown key "kinds"; the keys here are group, identity, kind, name, verbs`,
		"grants: [{ identity: user/ann }]":                                   `f.yaml:2: rights.grants[0]: key "verbs" is missing; add verbs: ...`,
		"grants: [{ verbs: [read] }]":                                        "f.yaml:2: rights.grants[0]: want either an identity or a group; write identity: user/NAME, or group: NAME",
		"grants: [{ identity: user/ann, group: a, verbs: [read] }]":          "want either an identity or a group",
		"grants: [{ identity: ann, verbs: [read] }]":                         `identity "ann": unknown form; write user/NAME, operator/NAME, deployment/SERVICE/REGION, or * for everybody`,
		"grants: [{ identity: deployment/a, verbs: [read] }]":                "want service/region",
		"grants: [{ group: 'a b', verbs: [read] }]":                          `group "a b": want letters, digits and`,
		"grants: [{ group: a, verbs: [] }]":                                  "the grant has no verb; add verbs: [read, write, delete, refer, operate], or some of them",
		"grants: [{ group: a, verbs: [reed] }]":                              `unknown verb "reed"; the verbs are read, write, delete, refer, operate`,
		"grants: [{ group: a, verbs: [read], kind: Device }]":                `kind "Device": want service/Kind`,
		"grants: [{ group: a, verbs: [read], kind: x/* }]":                   `service "x": want a domain name`,
		"grants: [{ group: a, verbs: [read], name: projects/ }]":             "an id is empty",
		"grants: [{ group: a, verbs: [read], name: '//a/projects/*' }]":      "no name begins with",
		"grants: [{ group: a, verbs: [read], name: 'projects/*/devices*' }]": "",
	} {
		f, err := schema.ParseFile("f.yaml", strings.NewReader("rights:\n  "+text+"\n"))
		if err == nil {
			err = f.Rights.Check()
		}
		if want == "" {
			require.NoError(t, err, text) // a star is a character of ids
			continue
		}
		require.ErrorContains(t, err, want, text)
	}
}

func TestRightsOfDocumentsAreJoined(t *testing.T) {
	t.Parallel()
	f, err := schema.ParseFile("f.yaml",
		strings.NewReader(
			"rights: { grants: [{ group: a, verbs: [read] }] }\n---\nrights: { default: deny, grants: [{ group: b, verbs: [read] }] }\n"))
	require.NoError(t, err)
	require.True(t, f.Rights.Deny)
	require.Len(t, f.Rights.Grants, 2)
}

func TestAGrantOfAnUnknownKindIsFound(t *testing.T) {
	t.Parallel()
	f, err := schema.ParseFile("f.yaml",
		strings.NewReader("service: a.example.com\nversion: v1\nkinds:\n  - { kind: A, patterns: ['as/{a}'] }\n---\n"+
			"rights:\n  grants:\n    - { group: a, verbs: [read], kind: a.example.com/B }\n    - { group: a, verbs: [read], kind: c.example.com/B }\n"))
	require.NoError(t, err)
	require.EqualError(t, f.Rights.CheckKinds(f.Services),
		"f.yaml:8: rights.grants[0]: a.example.com has no kind B in any version; its kinds are A")
}

// The limits of operators name operators, verbs and deployments, and leave an operator that can change them.
func TestTheLimitsOfOperatorsAreChecked(t *testing.T) {
	t.Parallel()
	const ada = "{identity: operator/ada, verbs: [operate, grant]}"
	for operators, want := range map[string]string{
		"[" + ada + "]": "",
		"[" + ada +
			", {identity: operator/o, verbs: [read], deployments: [a.example.com/eu, a.example.com/*, '*/eu', '*/*']}]": "",
		"[{identity: operator/o, verbs: [read]}]":                                  "no operator could change the rights again; give one operator the verbs operate and grant on all deployments",
		"[{identity: operator/o, verbs: [operate, grant], deployments: ['*/eu']}]": "no operator could change the rights again",
		"[" + ada +
			", {identity: user/o, verbs: [read]}]": `identity "user/o": no operator; write operator/NAME`,
		"[" + ada +
			", {identity: operator/o, verbs: [eat]}]": `unknown verb "eat"; the verbs of operators are read, write, delete, refer, operate, grant`,
		"[" + ada +
			", {identity: operator/o, verbs: []}]": "the operator has no verb",
		"[" + ada +
			", {identity: operator/o}]": `key "verbs" is missing`,
		"[" + ada +
			", {identity: operator/o, verbs: [read], deployments: [eu]}]": `deployment "eu"; write service/region, service/*, */region`,
		"[" + ada +
			", {identity: operator/o, verbs: [read], deployments: ['a.example.com/e*']}]": `deployment "a.example.com/e*"`,
		"[" + ada +
			", {identity: operator/o, verbs: [read], deployments: ['*/eu/x']}]": `deployment "*/eu/x"`,
	} {
		f, err := schema.ParseFile("f.yaml", strings.NewReader("rights: {operators: "+operators+"}"))
		if err == nil {
			err = f.Rights.Check()
		}
		if want == "" {
			require.NoError(t, err, operators)
		} else {
			require.ErrorContains(t, err, want, operators)
		}
	}
	f, err := schema.ParseFile("f.yaml", strings.NewReader("rights: {grants: [{identity: user/ann, verbs: [grant]}]}"))
	require.NoError(t, err)
	require.ErrorContains(t, f.Rights.Check(), `unknown verb "grant"`, "no grant gives it")
}

// The lowest numbers of the quotas that fit both deployments count, each for itself.
func TestTheLowestQuotaCounts(t *testing.T) {
	t.Parallel()
	f, err := schema.ParseFile("f", strings.NewReader(`
rights:
  quotas:
    - {holders: "*/*", targets: iam.example.com/*, blocking: 100}
    - {holders: devices.example.com/*, targets: "*/*", blocking: 10, tentative: 7}
    - {holders: devices.example.com/eu, targets: iam.example.com/eu, tentative: 5, blocking: 50}
`))
	require.NoError(t, err)
	of := func(service, region string) schema.DeploymentID {
		return schema.DeploymentID{Service: service + ".example.com", Region: region}
	}
	for _, c := range []struct {
		holder, target      schema.DeploymentID
		blocking, tentative int64
	}{
		{of("devices", "eu"), of("iam", "eu"), 10, 5},
		{of("devices", "us"), of("iam", "eu"), 10, 7},
		{of("billing", "eu"), of("iam", "us"), 100, 0},
		{of("billing", "eu"), of("billing", "us"), 0, 0},
	} {
		blocking, tentative := f.Rights.Quota(c.holder, c.target)
		require.Equal(t, [2]int64{c.blocking, c.tentative}, [2]int64{blocking, tentative}, "%s to %s",
			c.holder, c.target)
	}
	blocking, tentative := (*schema.Rights)(nil).Quota(of("a", "b"), of("c", "d"))
	require.Zero(t, blocking+tentative)
}
