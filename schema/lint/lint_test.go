package lint_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/lint"
)

// warnings returns the warnings of a file that are not acknowledged: as ids with paths, and as findings.
func warnings(t *testing.T, text string) (found []string, all []lint.Finding) {
	t.Helper()
	file, err := schema.ParseFile("f.yaml", strings.NewReader(text))
	require.NoError(t, err)
	require.NoError(t, schema.Check(file.Services))
	for _, f := range lint.Services(file.Services, file.Deployments...) {
		if f.Level == lint.Warning && f.Acknowledged == "" {
			found, all = append(found, f.ID+" "+f.Of.String()+" "+f.Pos.Path), append(all, f)
		}
	}
	return found, all
}

const aService = "service: a.example.com\nversion: v1\n"

const lintIam = `
service: iam.example.com
version: v1
kinds:
  - { kind: Organization, patterns: ["organizations/{o}"] }
  - kind: Project
    patterns: ["organizations/{o}/projects/{p}", "projects/{p}"]
    parents: [{ kind: Organization, behaviour: CASCADE_DELETE }]
---
`

// Without the parent no cascade reaches the child, so its blockers are not found any more. The missing parent
// is found instead.
func TestAPatternBelowAnotherKindNeedsAParent(t *testing.T) {
	inventory := func(parents string) string {
		return `
service: inventory.example.com
version: v1
kinds:
  - { kind: Model, patterns: ["models/{m}"] }
  - kind: Image
    patterns: ["models/{m}/images/{i}"]` + parents + `
---
service: devices.example.com
version: v1
imports: [inventory.example.com@v1]
kinds:
  - kind: Device
    patterns: ["devices/{d}"]
    references: [{ path: image, targets: [inventory.example.com/Image], behaviour: BLOCK }]
  - kind: Rollout
    patterns: ["rollouts/{r}"]
    references: [{ path: image, targets: [inventory.example.com/Image], behaviour: BLOCK }]
`
	}
	found, _ := warnings(t, inventory("\n    parents: [{ kind: Model, behaviour: CASCADE_DELETE }]"))
	require.Equal(t, []string{
		"blocked-cascade devices.example.com@v1 kinds[Device].references[image]",
		"blocked-cascade devices.example.com@v1 kinds[Rollout].references[image]",
	}, found)
	found, all := warnings(t, inventory(""))
	require.Equal(t, []string{"pattern-without-parent inventory.example.com@v1 kinds[Image].patterns[models/{m}/images/{i}]"}, found)
	require.Equal(t, "f.yaml:6: kinds[Image].patterns[models/{m}/images/{i}]: warning: models/{m}/images/{i} lies below models/{m} of Model, which is not a parent of Image: "+
		"the lower resource stays when the upper one is deleted, and can be created without it; add parents: [{kind: Model, behaviour: CASCADE_DELETE}], or BLOCK", all[0].String())
}

func TestTheNearestKindAboveANameCounts(t *testing.T) {
	devices := func(kinds string) string {
		return lintIam + "service: devices.example.com\nversion: v1\nimports: [iam.example.com@v1]\nkinds:\n" +
			"  - { kind: Ref, patterns: [\"refs/{r}\"], references: [{ path: p, targets: [iam.example.com/Project], behaviour: UNSET }] }\n" + kinds
	}
	for kinds, want := range map[string][]string{
		// the parent's own parent is reached over the parent
		`  - { kind: D, patterns: ["organizations/{a}/projects/{b}/ds/{d}"], parents: [{ kind: iam.example.com/Project, behaviour: CASCADE_DELETE }] }`: nil,
		// a parent further up is not enough
		`  - { kind: D, patterns: ["organizations/{a}/projects/{b}/ds/{d}"], parents: [{ kind: iam.example.com/Organization, behaviour: CASCADE_DELETE }] }`: {
			"pattern-without-parent devices.example.com@v1 kinds[D].patterns[organizations/{a}/projects/{b}/ds/{d}]",
		},
		// each pattern is checked
		`  - { kind: D, patterns: ["ds/{d}", "projects/{p}/ds/{d}", "organizations/{o}/ds/{d}"], parents: [{ kind: iam.example.com/Project, behaviour: CASCADE_DELETE }] }`: {
			"pattern-without-parent devices.example.com@v1 kinds[D].patterns[organizations/{o}/ds/{d}]",
		},
		// a collection in between
		`  - { kind: D, patterns: ["projects/{p}/regions/{region}/ds/{d}"] }`: {
			"pattern-without-parent devices.example.com@v1 kinds[D].patterns[projects/{p}/regions/{region}/ds/{d}]",
		},
		`  - { kind: D, patterns: ["projects/{p}/ds/{d}"], constraints_disabled: true }`: nil,
		`  - { kind: D, patterns: ["others/{p}/ds/{d}"] }`:                               nil,
	} {
		found, _ := warnings(t, devices(kinds))
		require.Equal(t, want, found, kinds)
	}
}

func TestBlockersThatFormACycleAreFound(t *testing.T) {
	const head = "service: a.example.com\nversion: v1\nkinds:\n"
	kind := func(name, path, target, behaviour string) string {
		return "  - kind: " + name + "\n    patterns: [\"" + strings.ToLower(name) + "s/{x}\"]\n    references: [{ path: " + path + ", targets: [" + target + "], behaviour: " + behaviour + " }]\n"
	}
	found, all := warnings(t, head+kind("A", "a", "A", "BLOCK"))
	require.Equal(t, []string{"block-within-kind a.example.com@v1 kinds[A].references[a]"}, found)
	require.Contains(t, all[0].Message, "A.a blocks within its own kind")

	require.NotContains(t, all[0].Message, "does not end")
	kept := strings.NewReplacer("BLOCK", "BLOCK, until: removed")
	_, all = warnings(t, kept.Replace(head+kind("A", "a", "A", "BLOCK")))
	require.Contains(t, all[0].Message, "a deletion of all of them does not end either")
	_, all = warnings(t, kept.Replace(head+kind("A", "b", "B", "BLOCK")+kind("B", "a", "A", "BLOCK")))
	require.Contains(t, all[0].Message, "a deletion of all of them does not end either")

	// The same ring, in any order of the kinds.
	ring := []string{kind("A", "b", "B", "BLOCK"), kind("B", "c", "C", "BLOCK"), kind("C", "a", "A", "BLOCK")}
	for i := range ring {
		found, all = warnings(t, head+ring[i]+ring[(i+1)%3]+ring[(i+2)%3])
		require.Equal(t, []string{"block-cycle a.example.com@v1 kinds[C].references[a]"}, found)
		require.Contains(t, all[0].Message, "A <- C.a <- B.c <- A.b")
	}
	found, _ = warnings(t, head+kind("A", "b", "B", "BLOCK")+kind("B", "a", "A", "UNSET"))
	require.Empty(t, found)
	// A child that blocks its parent, while the parent refers to the child.
	found, _ = warnings(t, head+kind("A", "first", "B", "BLOCK")+"  - { kind: B, patterns: [\"as/{a}/bs/{b}\"], parents: [{ kind: A, behaviour: BLOCK }] }\n")
	require.Equal(t, []string{"block-cycle a.example.com@v1 kinds[B].parents[A]"}, found)
}

// A service may run another version than the imported one: the references of both form a cycle then.
func TestCyclesOverVersionsAreFound(t *testing.T) {
	for behaviour, id := range map[string]string{"BLOCK": "block-cycle", "CASCADE_DELETE": "cascade-cycle"} {
		services := func(second string) string {
			return `
service: a.example.com
version: v1
imports: [b.example.com@v1]
kinds: [{ kind: A, patterns: ["as/{a}"], references: [{ path: b, targets: [b.example.com/B], behaviour: ` + behaviour + ` }] }]
---
service: b.example.com
version: v1
kinds: [{ kind: B, patterns: ["bs/{b}"] }]
---
service: b.example.com
version: v2
imports: [a.example.com@v1]
kinds: [{ kind: B, patterns: ["bs/{b}"], references: [{ path: a, targets: [a.example.com/A], behaviour: ` + second + ` }] }]
`
		}
		found, all := warnings(t, services(behaviour))
		require.Contains(t, found, id+" b.example.com@v2 kinds[B].references[a]")
		require.True(t, slices.ContainsFunc(all, func(f lint.Finding) bool {
			return strings.Contains(f.Message, "where a.example.com@v1 and b.example.com@v2 run beside one another: A <- b.example.com/B.a <- A.b")
		}), all)
		found, _ = warnings(t, services("UNSET"))
		require.NotContains(t, strings.Join(found, "\n"), id)
		// Versions that have the same ring are reported one by one, and nothing else.
		both := `
service: a.example.com
version: V
kinds:
  - { kind: A, patterns: ["as/{a}"], references: [{ path: b, targets: [B], behaviour: ` + behaviour + ` }] }
  - { kind: B, patterns: ["bs/{b}"], references: [{ path: a, targets: [A], behaviour: ` + behaviour + ` }] }
`
		found, _ = warnings(t, strings.Replace(both, "V", "v1", 1)+"---"+strings.Replace(both, "V", "v2", 1))
		require.Equal(t, []string{id + " a.example.com@v1 kinds[B].references[a]", id + " a.example.com@v2 kinds[B].references[a]"}, found)
	}
}

// A reference within a kind does not hide a larger ring of the kind.
func TestARingIsNotHiddenByAKindThatCascadesToItself(t *testing.T) {
	found, _ := warnings(t, `
service: a.example.com
version: v1
kinds:
  - kind: A
    patterns: ["as/{a}"]
    references: [{ path: up, targets: [A], behaviour: CASCADE_DELETE }, { path: b, targets: [B], behaviour: CASCADE_DELETE }]
  - kind: B
    patterns: ["bs/{b}"]
    references: [{ path: a, targets: [A], behaviour: CASCADE_DELETE }]
`)
	require.Equal(t, []string{"cascade-cycle a.example.com@v1 kinds[B].references[a]"}, found)
}

func TestUnusedImportsCyclesOfImportsAndMissingDeploymentsAreFound(t *testing.T) {
	found, all := warnings(t, lintIam+`
service: a.example.com
version: v1
imports: [iam.example.com@v1, b.example.com@v1]
kinds:
  - { kind: A, patterns: ["as/{a}"], references: [{ path: b, targets: [b.example.com/B], behaviour: UNSET }] }
---
service: b.example.com
version: v1
kinds: [{ kind: B, patterns: ["bs/{b}"] }]
---
service: b.example.com
version: v2
imports: [a.example.com@v1]
kinds: [{ kind: B, patterns: ["bs/{b}"], references: [{ path: a, targets: [a.example.com/A], behaviour: UNSET }] }]
---
regions: [us, eu, asia]
deployments:
  - { deployment: iam.example.com/us, version: v1 }
  - { deployment: iam.example.com/eu, version: v1 }
  - { deployment: a.example.com/us, version: v1 }
  - { deployment: a.example.com/eu, version: v1 }
  - { deployment: a.example.com/asia, version: v1 }
  - { deployment: b.example.com/us, version: v1 }
`)
	require.Equal(t, []string{
		"unused-import a.example.com@v1 imports[iam.example.com]",
		"import-cycle a.example.com@v1 imports[b.example.com]",
		"no-deployment-in-region a.example.com@v1 imports[iam.example.com]",
		"no-deployment-in-region a.example.com@v1 imports[b.example.com]",
	}, found)
	require.Equal(t, 13, all[0].Pos.Line)
	require.Contains(t, all[1].Message, "a.example.com@v1 imports b.example.com@v1, b.example.com@v2 imports a.example.com@v1")
	require.Contains(t, all[2].Message, "a.example.com@v1 runs in asia, where iam.example.com does not")
	require.Contains(t, all[3].Message, "a.example.com@v1 runs in eu, asia, where b.example.com does not")
}

func TestAParentsRegionHasADeploymentOfItsService(t *testing.T) {
	const text = `
service: a.example.com
version: v1
kinds:
  - { kind: Root, patterns: ["roots/{root}"] }
  - kind: Child
    patterns: ["roots/{root}/children/{child}"]
    parents: [{ kind: Root, behaviour: CASCADE_DELETE, region: us }]
`
	found, _ := warnings(t, text)
	require.Empty(t, found, "where it runs is not known")
	const deployed = text + "---\nregions: [us, eu]\ndeployments: [{ deployment: a.example.com/eu, version: v1 }"
	found, all := warnings(t, deployed+"]\n")
	require.Equal(t, []string{"no-deployment-in-region a.example.com@v1 kinds[Child].parents[Root]"}, found)
	require.Contains(t, all[0].Message, "the parent's region is us, where a.example.com has no deployment: no Child can be created")
	found, _ = warnings(t, deployed+", { deployment: a.example.com/us, version: v1 }]\n")
	require.Empty(t, found)
}

// The version that a deployment runs counts, not the imported one.
func TestAnImportedKindIsInTheRunningVersion(t *testing.T) {
	const text = `
service: a.example.com
version: v1
kinds: [{ kind: A, patterns: ["as/{a}"] }, { kind: B, patterns: ["bs/{b}"] }]
---
service: a.example.com
version: v2
kinds: [{ kind: Renamed, previous_name: A, patterns: ["as/{a}"] }, { kind: B, constraints_disabled: true, patterns: ["bs/{b}"] }]
---
service: a.example.com
version: v3
kinds: [{ kind: C, patterns: ["cs/{c}"] }, { kind: Renamed, referable_by: [c.example.com], patterns: ["as/{a}"] }]
---
service: c.example.com
version: v1
kinds: [{ kind: C, patterns: ["cs/{c}"] }]
---
service: b.example.com
version: v1
imports: [a.example.com@v1]
kinds:
  - kind: Holder
    patterns: ["holders/{holder}"]
    references: [{ path: a, targets: [a.example.com/A], behaviour: BLOCK }, { path: b, targets: [a.example.com/A, a.example.com/B], behaviour: UNSET }]
---
regions: [us, eu]
deployments:
  - { deployment: a.example.com/us, version: v1 }
  - { deployment: a.example.com/eu, version: %s }
`
	found, _ := warnings(t, fmt.Sprintf(text, "v3"))
	require.Empty(t, found, "nothing runs the importing version")
	const runs = "  - { deployment: b.example.com/us, version: v1 }\n"
	found, _ = warnings(t, fmt.Sprintf(text, "v1")+runs)
	require.NotContains(t, strings.Join(found, "\n"), "import-not-run")
	for version, kinds := range map[string]string{"v2": "B", "v3": "A, B"} {
		_, all := warnings(t, fmt.Sprintf(text, version)+runs)
		require.Equal(t, lint.ImportNotRun, all[0].ID)
		require.Contains(t, all[0].Message, "b.example.com@v1 refers to "+kinds+" of a.example.com@v1, but a.example.com/eu runs "+version)
	}
}

func TestAWarningIsAcknowledgedInItsFileWithAReason(t *testing.T) {
	const text = `
service: a.example.com
version: v1
kinds:
  - kind: A
    patterns: ["as/{a}"]
    references: [{ path: up, targets: [A], behaviour: BLOCK }]
acknowledge:
  - { warning: block-within-kind, at: "kinds[A].references[up]", reason: they form a tree }
`
	found, _ := warnings(t, text)
	require.Empty(t, found)
	file, err := schema.ParseFile("f.yaml", strings.NewReader(text))
	require.NoError(t, err)
	require.Equal(t, "f.yaml:7: kinds[A].references[up]: acknowledged: A.up blocks within its own kind: two resources that refer to one another cannot be deleted before one of the references is removed; they form a tree",
		lint.Services(file.Services)[0].String())

	// An acknowledgement is for one finding of one version; one without a finding is a finding itself.
	found, _ = warnings(t, strings.ReplaceAll(text, "path: up", "path: over"))
	require.Equal(t, []string{"block-within-kind a.example.com@v1 kinds[A].references[over]", "nothing-acknowledged a.example.com@v1 acknowledge[0]"}, found)
	found, _ = warnings(t, text+"---\nservice: a.example.com\nversion: v2\nkinds: [{ kind: A, patterns: [\"as/{a}\"], references: [{ path: up, targets: [A], behaviour: BLOCK }] }]\n")
	require.Equal(t, []string{"block-within-kind a.example.com@v2 kinds[A].references[up]"}, found)

	for bad, says := range map[string]string{
		`{ warning: block-within-kind, at: "kinds[A].references[up]" }`: `acknowledge[0]: key "reason" is missing`,
		`{ warning: block-within-kind, at: x, reason: "" }`:             `acknowledge[0].reason: the reason is empty; add why the finding is intended`,
		`{ warning: block-within-kind, at: x, reason: y, line: 5 }`:     `unknown key "line"; the keys here are at, reason, warning`,
	} {
		_, err := schema.ParseFile("f.yaml", strings.NewReader("service: a.example.com\nversion: v1\nacknowledge: ["+bad+"]\n"))
		require.ErrorContains(t, err, says)
	}
}

func TestLintFindsBlockedCascadesAndCycles(t *testing.T) {
	services, err := parse(t, `
service: iam.example.com
version: v1
kinds:
  - kind: Project
    patterns: ["projects/{project}"]
  - kind: Account
    patterns: ["projects/{project}/accounts/{account}"]
    parents: [{ kind: Project, behaviour: CASCADE_DELETE }]
  - kind: Key
    patterns: ["projects/{project}/keys/{key}"]
    parents: [{ kind: Project, behaviour: CASCADE_DELETE }]
    references:
      - { path: account, targets: [Account], behaviour: BLOCK } # goes with the project as well
  - kind: Folder
    patterns: ["folders/{folder}"]
    references:
      - { path: up, targets: [Folder], behaviour: CASCADE_DELETE }
  - kind: Log
    patterns: ["logs/{log}"]
    constraints_disabled: true
    references:
      - { path: account, targets: [Account], behaviour: BLOCK }
---
service: devices.example.com
version: v1
imports: [iam.example.com@v1]
kinds:
  - kind: Device
    patterns: ["devices/{device}"]
    references:
      - { path: account, targets: [iam.example.com/Account], behaviour: BLOCK }
      - { path: backup, targets: [iam.example.com/Account], behaviour: UNSET }
      - { path: later, targets: [iam.example.com/Account], behaviour: ASYNC_UNSET }
      - { path: set, targets: [Set], behaviour: CASCADE_DELETE }
  - kind: Set
    patterns: ["sets/{set}"]
    references:
      - { path: first, targets: [Device], behaviour: ASYNC_CASCADE_DELETE }
`)
	require.NoError(t, err)
	var got []string
	for _, f := range lint.Services(services) {
		got = append(got, f.String())
	}
	require.Equal(t, []string{
		`f.yaml:32: kinds[Device].references[account]: warning: Device.account blocks iam.example.com/Account, which is deleted with iam.example.com/Project, and Device is not deleted with it: such a delete is refused, or waits as BLOCKED; acknowledge it if it is intended; otherwise let Device be deleted as well, or use UNSET`,
		`f.yaml:39: kinds[Set].references[first]: warning: cascades form a cycle: Device <- Set.first <- Device.set: deleting one resource can delete all resources of these kinds; acknowledge it if it is intended; otherwise use another behaviour in one of them`,
		`f.yaml:18: kinds[Folder].references[up]: note: Folder.up cascades within its own kind: deleting one resource deletes all that refer to it, directly or not, level by level`,
		`f.yaml:19: kinds[Log]: note: constraints of Log are disabled: its references and parents have no effect`,
		`f.yaml:25: note: devices.example.com@v1: UNSET and CASCADE_DELETE act after the target's transaction where the target is in another database: Device.backup`,
	}, got)
}

func TestFindingsArePrintedWithTheirPlace(t *testing.T) {
	t.Parallel()
	f := lint.Finding{Level: lint.Warning, Problem: schema.Problem{Pos: schema.Pos{File: "f.yaml", Line: 3, Path: "kinds[A]"}, Message: "A blocks", Remedy: "unset it"}}
	require.Equal(t, "f.yaml:3: kinds[A]: warning: A blocks; unset it", f.String())
	f.Acknowledged = "they form a tree"
	require.Equal(t, "f.yaml:3: kinds[A]: acknowledged: A blocks; they form a tree", f.String())
	f = lint.Finding{Level: lint.Note, Problem: schema.Problem{Message: "it acts later"}}
	require.Equal(t, "note: it acts later", f.String())
}

// Lint looks at the kinds of each version, and at the versions that it imports.
func TestCascadesOverServicesAreFollowed(t *testing.T) {
	t.Parallel()
	found, _ := warnings(t, lintIam+`
service: a.example.com
version: v1
imports: [iam.example.com@v1]
kinds:
  - { kind: Fleet, patterns: ["fleets/{f}"], references: [{ path: project, targets: [iam.example.com/Project], behaviour: CASCADE_DELETE }] }
  - { kind: Device, patterns: ["fleets/{f}/devices/{d}"], parents: [{ kind: Fleet, behaviour: CASCADE_DELETE }] }
---
service: b.example.com
version: v1
imports: [a.example.com@v1, iam.example.com@v1]
kinds:
  - kind: Order
    patterns: ["orders/{o}"]
    references: [{ path: device, targets: [a.example.com/Device], behaviour: BLOCK }]
  - kind: Note
    patterns: ["notes/{n}"]
    references:
      - { path: device, targets: [a.example.com/Device], behaviour: BLOCK }
      - { path: project, targets: [iam.example.com/Project], behaviour: CASCADE_DELETE }
`)
	require.Equal(t, []string{
		"blocked-cascade b.example.com@v1 kinds[Order].references[device]",
		"blocked-cascade b.example.com@v1 kinds[Note].references[device]", // deleted with the project, and not with the fleet alone
	}, found)
}

func TestFindingsOfDisabledKindsAreNotes(t *testing.T) {
	t.Parallel()
	file, err := schema.ParseFile("f.yaml", strings.NewReader(aService+`kinds:
  - { kind: T, patterns: ["ts/{t}"] }
  - { kind: K, patterns: ["ts/{t}/ks/{k}"], constraints_disabled: true, parents: [{ kind: T, behaviour: BLOCK }] }
  - { kind: L, patterns: ["ls/{l}"], constraints_disabled: true }
`))
	require.NoError(t, err)
	require.NoError(t, schema.Check(file.Services))
	findings := lint.Services(file.Services)
	require.Len(t, findings, 1)
	require.Equal(t, lint.Note, findings[0].Level)
	require.Equal(t, lint.ReferencesIgnored, findings[0].ID)
	require.Equal(t, "kinds[K]", findings[0].Pos.Path)
}

func parse(t testing.TB, text string) ([]*schema.Descriptor, error) {
	t.Helper()
	file, err := schema.ParseFile("f.yaml", strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	return file.Services, schema.Check(file.Services)
}
