package schema_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
)

func TestTheRegionOfAParentIsDeclared(t *testing.T) {
	const head = "service: a.example.com\nversion: v1\nkinds:\n  - { kind: P, patterns: [\"ps/{p}\"] }\n"
	child := func(region string) string {
		return head +
			"  - kind: C\n    patterns: [\"ps/{p}/regions/{region}/cs/{c}\"]\n    parents: [{ kind: P, behaviour: BLOCK" + region + " }]\n"
	}
	for region, want := range map[string]string{
		"":                                  "//a.example.com/us/ps/x",
		", region: eu":                      "//a.example.com/eu/ps/x",
		", region: { field: spec.home }":    "//a.example.com/asia/ps/x",
		", region: { field: spec.nowhere }": "//a.example.com/us/ps/x",
	} {
		services, err := parse(t, child(region))
		require.NoError(t, err)
		m, err := schema.NewModel(services[0].ServiceVersion, services)
		require.NoError(t, err)
		kind, err := m.Kind("C")
		require.NoError(t, err)
		found, err := kind.References(schema.DeploymentID{Service: "a.example.com", Region: "us"},
			"ps/x/regions/us/cs/y", map[string]any{"spec": map[string]any{"home": "asia"}})
		require.NoError(t, err)
		require.Equal(t, want, found[0].Target.String(), region)
		require.NoError(t, kind.CheckRegion(schema.DeploymentID{Service: "a.example.com", Region: "us"},
			"ps/x/regions/us/cs/y"))
		require.ErrorContains(t, kind.CheckRegion(schema.DeploymentID{Service: "a.example.com", Region: "us"},
			"ps/x/regions/eu/cs/y"),
			`name "ps/x/regions/eu/cs/y" contains region eu, and this is a.example.com/us: use the full name, //a.example.com/eu/...`)
		_, err = kind.References(schema.DeploymentID{}, "ps/x/regions/us/cs/y",
			map[string]any{"spec": map[string]any{"home": "A/B", "nowhere": "A/B"}})
		require.Equal(t, region != "" && region != ", region: eu", err != nil, region)
	}
	for region, says := range map[string]string{
		", region: EU":                  `region "EU": want lower-case letters`,
		", region: { field: a..b }":     `path "a..b"`,
		", region: { field: a.* }":      `the field a.* can have many values; name one field, without a star`,
		", region: {}":                  `kinds[C].parents[P].region: key "field" is missing`,
		", region: [eu]":                `want a string, got a list`,
		", region: { field: a, of: b }": `unknown key "of"`,
	} {
		_, err := parse(t, child(region))
		require.ErrorContains(t, err, says, region)
	}
	_, err := parse(t,
		"service: a.example.com\nversion: v1\nkinds:\n  - { kind: P, patterns: [\"regions/{region}/ps/{p}\"] }\n"+
			"  - { kind: C, patterns: [\"regions/{region}/ps/{p}/cs/{c}\"], parents: [{ kind: P, behaviour: BLOCK, region: eu }] }\n")
	require.ErrorContains(t, err, "names of P contain their region; remove region")
}
