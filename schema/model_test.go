package schema_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
)

// compiled returns the models of all versions in a file.
func compiled(t testing.TB, text string) map[string]*schema.Model {
	t.Helper()
	services, err := parse(t, text)
	require.NoError(t, err)
	models := map[string]*schema.Model{}
	for _, d := range services {
		m, err := schema.NewModel(d.ServiceVersion, services)
		require.NoError(t, err)
		models[d.ServiceVersion.String()] = m
	}
	return models
}

func one(t testing.TB, kinds string) *schema.Model {
	t.Helper()
	return compiled(t, "service: a.example.com\nversion: v1\nkinds:\n"+kinds)["a.example.com@v1"]
}

func TestAModelNeedsItsVersionAndItsImports(t *testing.T) {
	t.Parallel()
	services, err := parse(t, devices)
	require.NoError(t, err)
	version := schema.ServiceVersion{Service: "devices.example.com", Version: "v1"}
	_, err = schema.NewModel(version, nil)
	require.ErrorContains(t, err, "there is no descriptor of devices.example.com@v1")
	_, err = schema.NewModel(version, services[1:])
	require.ErrorContains(t, err, "import iam.example.com@v1: there is no descriptor of this version")
	m, err := schema.NewModel(version,
		append(services, &schema.Descriptor{ServiceVersion: schema.ServiceVersion{Service: "Broken", Version: "x"}}))
	require.NoError(t, err, "a descriptor that it does not import does not matter")
	require.Equal(t, "v1", m.Descriptor.Version)
}

func TestTheKindOfANameIsFound(t *testing.T) {
	t.Parallel()
	m := one(t, `
  - { kind: Project, patterns: ["projects/{p}"] }
  - { kind: Device, patterns: ["projects/{p}/devices/{d}", "devices/{d}"] }
`)
	for name, want := range map[string]string{
		"projects/a": "Project", "projects/a/devices/b": "Device",
		"devices/b": "Device",
	} {
		k, err := m.KindOf(name)
		require.NoError(t, err)
		require.Equal(t, want, k.ID.Kind, name)
	}
	_, err := m.KindOf("robots/r")
	require.EqualError(t, err,
		`name "robots/r" fits no kind of a.example.com@v1: its patterns are projects/{p}, projects/{p}/devices/{d}, devices/{d}`)
	_, err = m.KindOf("robots")
	require.ErrorContains(t, err, "want collections and ids in turn")
	_, err = m.Kind("Robot")
	require.EqualError(t, err, `unknown kind "Robot": kinds of a.example.com@v1 are Project, Device`)
	require.Equal(t, []string{"Project", "Device"}, m.KindNames())
	k, err := m.Kind("Device")
	require.NoError(t, err)
	require.Equal(t, []string{"projects/*/devices/*", "devices/*"}, k.Shapes())
}

func TestAReferenceNamesAKindThatItMay(t *testing.T) {
	t.Parallel()
	kind, err := model(t).KindOf("projects/acme/devices/d1")
	require.NoError(t, err)
	for value, says := range map[string]string{
		"robots/r":             `field owner.project: "robots/r" is not the name of a resource of kind iam.example.com/Project`,
		"projects/a/devices/b": "is not the name of a resource of kind iam.example.com/Project",
		"//devices.example.com/us-west2/projects/a":    "is not the name of a resource of kind iam.example.com/Project",
		"//iam.example.com/us-west2/projects/a/keys/k": "is not the name of a resource of kind iam.example.com/Project",
		"//iam.example.com/us-west2":                   "want //service/region/name",
		"Projects/a":                                   "want lower camel case",
	} {
		_, err := kind.References(self, "projects/acme/devices/d1",
			map[string]any{"owner": map[string]any{"project": value}})
		require.ErrorContains(t, err, says, value)
	}
	_, err = kind.References(self, "projects/acme/devices/d1", map[string]any{"owner": "projects/a"})
	require.ErrorContains(t, err, "field owner: want a message, list or map, got a string")
	_, err = kind.References(self, "projects/acme/devices/d1", map[string]any{"peers": []any{"robots/r"}})
	require.ErrorContains(t, err,
		`field peers.*: "robots/r" is not the name of a resource of kind devices.example.com/Device`)
	_, err = kind.References(self, "projects/acme/devices/d1",
		map[string]any{"roles": map[string]any{"a": map[string]any{"who": "robots/r"}}})
	require.ErrorContains(t, err, "of kind devices.example.com/Device or iam.example.com/Project")
	found, err := kind.References(self, "projects/acme/devices/d1", nil)
	require.NoError(t, err)
	require.Len(t, found, 1, "the parent")
	require.Equal(t, schema.ParentPath, found[0].Path)
}

// A full and a relative name of one target are one reference in each field.
func TestRepeatedTargetsAreOneReference(t *testing.T) {
	t.Parallel()
	kind, err := model(t).KindOf("projects/acme/devices/d1")
	require.NoError(t, err)
	found, err := kind.References(self, "projects/acme/devices/d1", map[string]any{
		"peers": []any{
			"projects/a/devices/b", "//devices.example.com/us-west2/projects/a/devices/b",
			"//devices.example.com/eastus2/projects/a/devices/b",
		},
		"roles": []any{map[string]any{"who": "projects/a/devices/b"}, map[string]any{"who": "projects/a/devices/b"}},
	})
	require.NoError(t, err)
	var got []string
	for _, f := range found {
		got = append(got, f.Path+" "+f.Target.String())
	}
	require.Equal(t, []string{
		"peers.* //devices.example.com/us-west2/projects/a/devices/b",
		"peers.* //devices.example.com/eastus2/projects/a/devices/b",
		"roles.*.who //devices.example.com/us-west2/projects/a/devices/b",
		"@parent //iam.example.com/us-west2/projects/acme",
	}, got)
}

func TestMoreReferencesThanAllowedAreAnError_I21(t *testing.T) {
	t.Parallel()
	kind, err := model(t).KindOf("projects/acme/devices/d1")
	require.NoError(t, err)
	body := func(peers, roles int) map[string]any {
		var p, r []any
		for i := range peers {
			p = append(p, fmt.Sprintf("projects/a/devices/p%d", i))
		}
		for i := range roles {
			r = append(r, map[string]any{"who": fmt.Sprintf("projects/a/devices/r%d", i)})
		}
		return map[string]any{"peers": p, "roles": r}
	}
	found, err := kind.References(self, "projects/acme/devices/d1", body(500, 499)) // and the parent
	require.NoError(t, err)
	require.Len(t, found, schema.MaxReferences)
	_, err = kind.References(self, "projects/acme/devices/d1", body(500, 500))
	require.ErrorContains(t, err, "more than 1000 references, at most 1000 are allowed in one resource")
}

// The region in a relative name, as in regions/{region}, is the region of the target.
func TestARelativeNameCanContainItsRegion(t *testing.T) {
	t.Parallel()
	m := one(t, `
  - { kind: Node, patterns: ["regions/{region}/nodes/{n}"] }
  - { kind: Disk, patterns: ["regions/{region}/nodes/{n}/disks/{d}"], parents: [{ kind: Node, behaviour: CASCADE_DELETE }] }
  - { kind: Pool, patterns: ["pools/{p}"], references: [{ path: "nodes.*", targets: [Node], behaviour: UNSET }] }
`)
	us := schema.DeploymentID{Service: "a.example.com", Region: "us"}
	pool, err := m.Kind("Pool")
	require.NoError(t, err)
	found, err := pool.References(us, "pools/p",
		map[string]any{"nodes": []any{"regions/eu/nodes/n", "//a.example.com/us/regions/eu/nodes/n"}})
	require.NoError(t, err)
	require.Equal(t, "//a.example.com/eu/regions/eu/nodes/n", found[0].Target.String())
	require.Equal(t, "//a.example.com/us/regions/eu/nodes/n", found[1].Target.String(), "a full name counts as it is")
	_, err = pool.References(us, "pools/p", map[string]any{"nodes": []any{"regions/EU/nodes/n"}})
	require.ErrorContains(t, err, `region "EU"`)
	disk, err := m.Kind("Disk")
	require.NoError(t, err)
	found, err = disk.References(us, "regions/eu/nodes/n/disks/d", nil)
	require.NoError(t, err)
	require.Equal(t, "//a.example.com/eu/regions/eu/nodes/n", found[0].Target.String())
	require.NoError(t, disk.CheckRegion(us, "regions/us/nodes/n/disks/d"))
	require.ErrorContains(t, disk.CheckRegion(us, "regions/eu/nodes/n/disks/d"),
		"contains region eu, and this is a.example.com/us: use the full name")
	require.NoError(t, pool.CheckRegion(us, "pools/p"), "a name without a region is in every region")
}

// To unset a value the store has to recognise it, in every spelling, also in a field that the version does
// not declare.
func TestAValueThatNamesATargetIsRecognised(t *testing.T) {
	t.Parallel()
	m := model(t)
	target := schema.FullName{Deployment: self, Name: "projects/a/devices/b"}
	for _, path := range []string{"peers.*", "removed", "roles.*.who"} {
		for value, want := range map[string]bool{
			"projects/a/devices/b": true, "//devices.example.com/us-west2/projects/a/devices/b": true,
			"//devices.example.com/eastus2/projects/a/devices/b": false, "projects/a/devices/c": false,
			"projects/a": false, "": false, "nonsense": false,
		} {
			require.Equal(t, want, m.Names(self, "Device", path, value, target), "%s in %s", value, path)
		}
	}
	require.True(t, m.Names(self, "Robot", "x", "projects/a/devices/b", target),
		"a kind that the version does not have")
	project := schema.FullName{
		Deployment: schema.DeploymentID{Service: "iam.example.com", Region: "us-west2"},
		Name:       "projects/a",
	}
	require.True(t, m.Names(self, "Device", "removed", "projects/a", project),
		"the service of a relative name is that of its target")
	regional := schema.FullName{
		Deployment: schema.DeploymentID{Service: "iam.example.com", Region: "eu"},
		Name:       "regions/eu/nodes/n",
	}
	require.True(t, m.Names(self, "Device", "removed", "regions/eu/nodes/n", regional))
	require.False(t, m.Names(self, "Device", "removed", "regions/us/nodes/n", regional))
}

func TestAKindListsWhatItRefersTo(t *testing.T) {
	t.Parallel()
	kind, err := model(t).Kind("Device")
	require.NoError(t, err)
	var kinds []string
	for _, id := range kind.Kinds() {
		kinds = append(kinds, id.String())
	}
	require.Equal(t, []string{
		"devices.example.com/Device", "iam.example.com/Project", "devices.example.com/Device",
		"devices.example.com/Device", "iam.example.com/Project", "iam.example.com/Project",
	}, kinds)
	require.Equal(t, []string{"owner.project", "peers.*", "roles.*.who", "@parent"}, kind.Paths())
	m := one(t, `
  - { kind: A, patterns: ["as/{a}"], hide_while_deleting: true, referable_by: [b.example.com] }
  - { kind: B, patterns: ["bs/{b}"], constraints_disabled: true, references: [{ path: a, targets: [A], behaviour: BLOCK }] }
`)
	a, err := m.Kind("A")
	require.NoError(t, err)
	require.True(t, a.Hides)
	require.False(t, a.Unconstrained)
	require.Equal(t, []string{"b.example.com"}, a.ReferableBy)
	require.Empty(t, a.Paths())
	b, err := m.Kind("B")
	require.NoError(t, err)
	require.True(t, b.Unconstrained)
	found, err := b.References(self, "bs/b", map[string]any{"a": "as/a"})
	require.NoError(t, err)
	require.Empty(t, found, "the references of a kind without constraints have no effect")
}

// A reference that any version allowed stays allowed.
func TestServicesThatMayReferAreThoseOfAllVersions(t *testing.T) {
	t.Parallel()
	version := func(v, referable string) string {
		return "service: a.example.com\nversion: " + v + "\nkinds:\n  - { kind: A, patterns: [\"as/{a}\"]" + referable +
			" }\n---\n"
	}
	for _, c := range []struct {
		text string
		want []string
	}{
		{
			version("v1", ", referable_by: [b.example.com]") + version("v2", ", referable_by: [c.example.com]"),
			[]string{"b.example.com", "c.example.com"},
		},
		{version("v1", "") + version("v2", ", referable_by: [c.example.com]"), nil},
		{version("v1", ", referable_by: [b.example.com]"), []string{"b.example.com"}},
	} {
		for name, m := range compiled(t, c.text) {
			k, err := m.Kind("A")
			require.NoError(t, err)
			require.Equal(t, c.want, k.EverReferableBy, name)
		}
	}
}

func TestPatternsThatAVersionDropsAreFound(t *testing.T) {
	t.Parallel()
	models := compiled(t, `
service: a.example.com
version: v1
kinds:
  - { kind: A, patterns: ["as/{a}", "old/{o}/as/{a}"] }
  - { kind: B, patterns: ["bs/{b}"] }
---
service: a.example.com
version: v2
kinds:
  - { kind: New, previous_name: A, patterns: ["as/{other}", "more/{a}"] }
`)
	before, after := models["a.example.com@v1"], models["a.example.com@v2"]
	dropped := func(kind string) (out []string) {
		k, err := before.Kind(kind)
		require.NoError(t, err)
		for _, p := range k.Dropped(after) {
			out = append(out, p.String())
		}
		return out
	}
	require.Equal(t, []string{"old/{o}/as/{a}"}, dropped("A"), "a renamed kind and renamed variables drop nothing")
	require.Equal(t, []string{"bs/{b}"}, dropped("B"))
	k, err := before.Kind("A")
	require.NoError(t, err)
	require.Empty(t, k.Dropped(before))
}

func TestRenamedKindsHaveOneRoot(t *testing.T) {
	t.Parallel()
	models := compiled(t, `
service: a.example.com
version: v1
kinds: [{ kind: One, patterns: ["ones/{x}"] }]
---
service: a.example.com
version: v2
kinds: [{ kind: Two, previous_name: One, patterns: ["ones/{x}"] }]
---
service: b.example.com
version: v1
imports: [a.example.com@v2]
kinds: [{ kind: One, patterns: ["ones/{x}"] }]
`)
	a := func(kind string) schema.KindID { return schema.KindID{Service: "a.example.com", Kind: kind} }
	for name, m := range models {
		require.Equal(t, a("One"), m.Root(a("One")), name)
		require.Equal(t, a("One"), m.Root(a("Two")), name)
		require.Equal(t, a("Three"), m.Root(a("Three")), name)
	}
	require.Equal(t, map[string]string{"Two": "One"}, models["a.example.com@v1"].Renamed())
	require.Equal(t, map[string]string{"One": "Two"}, models["a.example.com@v2"].Renamed())
	require.Empty(t, models["b.example.com@v1"].Renamed(), "kinds of other services are not its own")
	require.Equal(t, a("Two"), models["b.example.com@v1"].Canonical(a("One")))
	b := schema.KindID{Service: "b.example.com", Kind: "One"}
	require.Equal(t, b, models["b.example.com@v1"].Canonical(b))
}

// A fingerprint differs when a body may have other references.
func TestFingerprintsDifferWithTheReferences(t *testing.T) {
	t.Parallel()
	const target = "  - { kind: T, patterns: [\"ts/{t}\"] }\n"
	fingerprint := func(kind string) string {
		k, err := one(t, target+kind).Kind("A")
		require.NoError(t, err)
		return k.Fingerprint()
	}
	base := `  - { kind: A, patterns: ["as/{a}"], references: [{ path: x, targets: [T], behaviour: BLOCK }] }`
	same := []string{
		`  - { kind: A, patterns: ["as/{b}", "more/{a}"], references: [{ path: x, targets: [T], behaviour: BLOCK }] }`,
		`  - { kind: A, patterns: ["as/{a}"], hide_while_deleting: true, references: [{ path: x, targets: [T], behaviour: BLOCK }] }`,
	}
	others := []string{
		`  - { kind: A, patterns: ["as/{a}"] }`,
		`  - { kind: A, patterns: ["as/{a}"], references: [{ path: y, targets: [T], behaviour: BLOCK }] }`,
		`  - { kind: A, patterns: ["as/{a}"], references: [{ path: x, targets: [T], behaviour: UNSET }] }`,
		`  - { kind: A, patterns: ["as/{a}"], references: [{ path: x, targets: [A, T], behaviour: BLOCK }] }`,
		`  - { kind: A, patterns: ["as/{a}"], constraints_disabled: true, references: [{ path: x, targets: [T], behaviour: BLOCK }] }`,
		`  - { kind: A, patterns: ["ts/{t}/as/{a}"], parents: [{ kind: T, behaviour: BLOCK }], references: [{ path: x, targets: [T], behaviour: BLOCK }] }`,
		`  - { kind: A, patterns: ["ts/{t}/as/{a}"], parents: [{ kind: T, behaviour: BLOCK, region: eu }], references: [{ path: x, targets: [T], behaviour: BLOCK }] }`,
		`  - { kind: A, patterns: ["ts/{t}/as/{a}"], parents: [{ kind: T, behaviour: BLOCK, region: { field: home } }], references: [{ path: x, targets: [T], behaviour: BLOCK }] }`,
	}
	for _, text := range same {
		require.Equal(t, fingerprint(base), fingerprint(text), text)
	}
	seen := map[string]string{fingerprint(base): base}
	for _, text := range others {
		got := fingerprint(text)
		// it has no references either
		if kind := seen[got]; kind != "" && !strings.Contains(text, "constraints_disabled") {
			t.Errorf("%s\nand\n%s\nhave one fingerprint", kind, text)
		}
		seen[got] = text
	}
}

// Two descriptors under one name are two versions, which the digest tells apart.
func TestDigestsIdentifyTheContentOfAVersion(t *testing.T) {
	t.Parallel()
	const base = `  - { kind: A, patterns: ["as/{a}"] }` + "\n"
	digest := one(t, base).Digest
	require.True(t, strings.HasPrefix(digest, "v1 "))
	require.Equal(t, digest, one(t, base).Digest)
	const second = `  - { kind: B, patterns: ["bs/{b}"] }` + "\n"
	require.Equal(t, one(t, base+second).Digest, one(t, second+base).Digest, "the order of the kinds does not matter")
	for _, changed := range []string{
		`  - { kind: A, patterns: ["as/{b}"] }`, `  - { kind: A, patterns: ["as/{a}", "more/{a}"] }`,
		`  - { kind: A, patterns: ["as/{a}"], hide_while_deleting: true }`,
		`  - { kind: A, patterns: ["as/{a}"], constraints_disabled: true }`,
		`  - { kind: A, patterns: ["as/{a}"], referable_by: [b.example.com] }`,
		`  - { kind: A, patterns: ["as/{a}"], previous_name: Old }`, base + second,
	} {
		require.NotEqual(t, digest, one(t, changed+"\n").Digest, changed)
	}
	m := one(t, base)
	require.True(t, m.Says("v1", digest))
	require.False(t, m.Says("v2", digest))
	require.False(t, m.Says("v1", "v1 0123"), "another content under the same name")
	require.False(t, m.Says("v1", ""), "no version runs yet")
}

func TestEnvironmentsAreMerged(t *testing.T) {
	t.Parallel()
	id := func(region string) schema.DeploymentID {
		return schema.DeploymentID{Service: "a.example.com", Region: region}
	}
	version := func(v, note string) *schema.Descriptor {
		return &schema.Descriptor{
			ServiceVersion:  schema.ServiceVersion{Service: "a.example.com", Version: v},
			PatternsDropped: note,
		}
	}
	older := &schema.Environment{
		Revision: 3, Regions: []string{"us"},
		Services: []*schema.Descriptor{version("v1", "old")}, Deployments: []schema.Deployment{
			{DeploymentID: id("us"), Generation: 1, Version: "v1", Address: "old"},
			{
				DeploymentID: id("eu"), Generation: 9,
				Version: "v1", Address: "new",
			},
		},
	}
	newer := &schema.Environment{
		Revision: 4, Services: []*schema.Descriptor{version("v1", "new"), version("v2", "")},
		Deployments: []schema.Deployment{
			{DeploymentID: id("us"), Generation: 2, Version: "v2", Address: "new"},
			{
				DeploymentID: id("eu"), Generation: 8,
				Version: "v1", Address: "old",
			},
			{DeploymentID: id("asia")},
		},
	}
	both := older.With(newer)
	require.Equal(t, int64(3), both.Revision)
	require.Len(t, both.Services, 2)
	require.Equal(t, "old", both.Services[0].PatternsDropped, "a descriptor that is known stays")
	require.Len(t, both.Deployments, 3)
	for _, region := range []string{"us", "eu"} {
		d, ok := both.Deployment(id(region))
		require.True(t, ok)
		require.Equal(t, "new", d.Address, "the later registration counts")
	}
	over := older.Over(newer)
	require.Equal(t, int64(3), over.Revision)
	require.Equal(t, []string{"us"}, over.Regions)
	require.Equal(t, "new", over.Services[0].PatternsDropped, "given descriptors replace others")
	eu, _ := over.Deployment(id("eu"))
	require.Equal(t, "old", eu.Address, "given deployments replace others of any generation")
	require.Len(t, over.Deployments, 3)
	require.Len(t, older.Deployments, 2, "the merged environments do not change")
	require.Equal(t, "old", older.Deployments[0].Address)
	_, ok := older.Deployment(id("asia"))
	require.False(t, ok)
}

func TestAnEnvironmentIsChecked(t *testing.T) {
	t.Parallel()
	services, err := parse(t, iam)
	require.NoError(t, err)
	id := schema.DeploymentID{Service: "iam.example.com", Region: "us"}
	env := &schema.Environment{
		Regions: []string{"us"}, Services: services,
		Deployments: []schema.Deployment{{DeploymentID: id, Version: "v1"}},
	}
	require.NoError(t, env.Check())
	m, err := env.Model(id)
	require.NoError(t, err)
	require.Equal(t, []string{"Project"}, m.KindNames())
	_, err = env.Model(schema.DeploymentID{Service: "iam.example.com", Region: "eu"})
	require.ErrorContains(t, err,
		"deployment iam.example.com/eu is not registered; apply a file that lists it under deployments")

	bad := &schema.Environment{
		Regions: []string{"US", "us"}, Services: append(services, services[0]),
		Deployments: []schema.Deployment{
			{DeploymentID: schema.DeploymentID{Service: "iam.example.com", Region: "eu"}, Version: "v1"},
			{DeploymentID: id, Version: "v2"},
			{DeploymentID: schema.DeploymentID{Service: "Iam", Region: "us"}, Version: "v1"},
		},
	}
	err = bad.Check()
	var problems schema.Problems
	require.ErrorAs(t, err, &problems)
	for _, says := range []string{
		`regions: region "US": want lower-case letters`,
		"deployment iam.example.com/eu: unknown region eu; list it under regions",
		"deployment iam.example.com/us: there is no descriptor of iam.example.com@v2; apply its descriptor as well",
		`service "Iam": want a domain name in lower case`, "iam.example.com@v1 is described twice",
	} {
		require.ErrorContains(t, err, says)
	}
	require.GreaterOrEqual(t, len(problems), 5, "all problems at once")
}

func TestServicesMayReferToWhatAnyVersionImports(t *testing.T) {
	t.Parallel()
	services, err := parse(t, devices)
	require.NoError(t, err)
	env := &schema.Environment{Services: services}
	require.True(t, env.MayRefer("devices.example.com", "iam.example.com"))
	require.True(t, env.MayRefer("iam.example.com", "iam.example.com"))
	require.False(t, env.MayRefer("iam.example.com", "devices.example.com"))
	require.False(t, env.MayRefer("x.example.com", "iam.example.com"))
	ids := []schema.DeploymentID{
		{Service: "b.example.com", Region: "us"},
		{Service: "a.example.com", Region: "us"},
		{Service: "a.example.com", Region: "eu"},
		{Service: "b.example.com", Region: "us"},
	}
	require.Equal(t, []schema.DeploymentID{
		{Service: "a.example.com", Region: "eu"},
		{Service: "a.example.com", Region: "us"},
		{Service: "b.example.com", Region: "us"},
	}, schema.SortedDeployments(
		ids))
}
