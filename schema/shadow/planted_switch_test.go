package shadow_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

// A page of large bodies ends before its number of resources: it is not the last one.
func TestAPassGoesOnBehindLargeBodies_I26(t *testing.T) {
	t.Parallel()
	b := newVersions(t, nil)
	b.MustPut(targetName("t"), nil)
	for i := range 7 {
		b.MustPut(fmt.Sprintf("//%s/holders/h%d", bEast, i),
			body{"added": targetName("t"), "text": strings.Repeat("x", 900<<10)})
	}
	b.Switch(bEast, "v2")
	b.Settle()
	require.Equal(t, 7, b.Count(bEast, "reference"))
	require.Zero(t, b.Count(bEast, "work"))
	b.Audit()
}

// A pass whose last page was full ends, though nothing is left for another page; so does a resource that was
// set aside and is deleted.
func TestAPassOfWholePagesEnds_I26_I28(t *testing.T) {
	t.Parallel()
	b := newVersions(t, nil)
	writes := []peer.Write{{Name: "holders/h000", Body: body{"added": targetName("missing")}}}
	for i := 1; i < 500; i++ {
		writes = append(writes, peer.Write{Name: fmt.Sprintf("holders/h%03d", i)})
	}
	_, err := b.Stores[b.ID(bEast)].Write.Save(t.Context(), writes)
	require.NoError(t, err)
	b.Switch(bEast, "v2")
	b.Settle()
	require.Equal(t, 1, b.Count(bEast, "work"), "the one that is set aside")
	b.MustDelete("//" + bEast + "/holders/h000")
	b.Settle()
	require.Zero(t, b.Count(bEast, "work"))
}

// A derivation that a user's write has overtaken is not done.
func TestADerivationThatWasOvertakenIsNotDone_I26(t *testing.T) {
	t.Parallel()
	b := newVersions(t, nil)
	b.MustPut(targetName("t"), nil)
	b.MustPut(holder, body{"added": targetName("t")})
	b.Settle()
	b.Switch(bEast, "v2")
	work := b.Work(b.ID(bEast))
	i := 0
	for work[i].Action != schema.Derive {
		i++
	}
	b.AfterEstablish = func() {
		b.AfterEstablish = nil
		b.MustPut(holder, body{"added": targetName("t"), "n": 1})
	}
	derived, err := b.Stores[b.ID(bEast)].Admin.Derive(t.Context(), work[i].Seq)
	require.NoError(t, err)
	require.Equal(t, peer.DerivedNot, derived)
	b.Settle()
	require.Zero(t, b.Count(bEast, "work"))
	b.Audit()
}

const switched = `
service: a.example.com
version: v1
kinds: [{ kind: Target, patterns: ["targets/{target}"] }]
---
service: b.example.com
version: v1
imports: [a.example.com@v1]
kinds: [{ kind: Holder, patterns: ["holders/{holder}"] }]
---
service: b.example.com
version: v2
imports: [a.example.com@v1]
kinds:
  - kind: Holder
    patterns: ["holders/{holder}"]
    references: [{ path: added, targets: [a.example.com/Target], behaviour: BLOCK }]
---
service: b.example.com
version: v3
imports: [a.example.com@v1]
kinds:
  - kind: Holder
    patterns: ["holders/{holder}"]
    references: [{ path: added, targets: [a.example.com/Target], behaviour: UNSET }]
`

// A switch replaces the outstanding derivations of the switch before, also derivations that were set aside.
func TestASwitchReplacesTheDerivationsOfTheOneBefore_I26(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, switched, nil, aWest, bEast)
	b.MustPut(holder, body{"added": targetName("missing")})
	b.MustPut(holder2, body{"added": targetName("missing")})
	b.Switch(bEast, "v2")
	require.Equal(t, 1, b.Count(bEast, "work"))
	b.Switch(bEast, "v3")
	require.Equal(t, 1, b.Count(bEast, "work"), "one pass")
	b.Settle()
	require.Equal(t, 2, b.Count(bEast, "work"), "both are set aside")
	b.Switch(bEast, "v2")
	require.Equal(t, 1, b.Count(bEast, "work"), "a pass, which sets them aside once more")
	b.Settle()
	require.Equal(t, 2, b.Count(bEast, "work"))
	b.MustPut(targetName("missing"), nil)
	b.Settle()
	require.Zero(t, b.Count(bEast, "work"))
	b.Audit()
}

// A process adopts the version of its database, and no other one.
func TestOnlyTheRunningVersionIsAdopted_I26(t *testing.T) {
	t.Parallel()
	b := newVersions(t, nil)
	b.Switch(bEast, "v2")
	store := b.Stores[b.ID(bEast)]
	require.ErrorAs(t, store.Admin.Adopt(t.Context(), modelOf(t, versions, "b.example.com", "v1")),
		new(*peer.UnavailableError))
	require.Equal(t, "v2", store.Model().Descriptor.Version)
	require.NoError(t, store.Admin.Adopt(t.Context(), modelOf(t, versions, "b.example.com", "v2")))
}

const twoKinds = `
service: a.example.com
version: v1
kinds: [{ kind: Target, patterns: ["targets/{target}"] }]
---
service: b.example.com
version: v1
imports: [a.example.com@v1]
kinds:
  - { kind: Holder, patterns: ["holders/{holder}"] }
  - { kind: Other, patterns: ["others/{other}"] }
---
service: b.example.com
version: v2
imports: [a.example.com@v1]
kinds:
  - kind: Holder
    patterns: ["holders/{holder}"]
    references: [{ path: block, targets: [a.example.com/Target], behaviour: BLOCK }]
  - { kind: Other, patterns: ["others/{other}"] }
---
service: b.example.com
version: v3
imports: [a.example.com@v1]
kinds:
  - kind: Holder
    patterns: ["holders/{holder}"]
    references: [{ path: block, targets: [a.example.com/Target], behaviour: BLOCK }]
  - kind: Other
    patterns: ["others/{other}"]
    references: [{ path: block, targets: [a.example.com/Target], behaviour: BLOCK }]
---
service: b.example.com
version: v4
imports: [a.example.com@v1]
kinds:
  - { kind: Holder, patterns: ["keepers/{keeper}"] }
  - { kind: Other, patterns: ["others/{other}"] }
---
service: b.example.com
version: v5
imports: [a.example.com@v1]
kinds:
  - { kind: Holder, patterns: ["holders/{holder}"] }
  - { kind: Other, patterns: ["others/{other}"] }
  - { kind: More, patterns: ["mores/{more}"] }
---
service: b.example.com
version: v6
imports: [a.example.com@v1]
kinds: [{ kind: Holder, patterns: ["holders/{holder}"] }]
`

// A switch keeps the outstanding derivations of kinds that it derives as the version before.
func TestASwitchKeepsTheDerivationsOfOtherKinds_I26(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, twoKinds, nil, aWest, bEast)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"block": target})
	b.MustPut("//"+bEast+"/others/o", nil)
	b.Switch(bEast, "v2")
	b.Switch(bEast, "v3")
	require.Equal(t, 2, b.Count(bEast, "work"))
	b.Settle()
	_, err := b.Delete(target)
	require.ErrorAs(t, err, new(*peer.BlockedError))
	b.Audit()
}

// A switch that stops between its two transactions has noted nothing of the new version, with any change:
// another process does not adopt it.
func TestNothingOfAHalfSwitchedVersionIsAdopted_I26(t *testing.T) {
	t.Parallel()
	for version, what := range map[string]string{"v4": "other names", "v5": "a new kind", "v6": "a dropped kind"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := harness.NewBox(t, twoKinds, nil, bEast)
			other, model := b.SecondProcess(bEast, shadow.Config{}), modelOf(t, twoKinds, "b.example.com", version)
			exec(t, b, bEast,
				`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'stopped'; END $$`)
			exec(t, b, bEast,
				`CREATE TRIGGER stop BEFORE INSERT OR UPDATE ON dbcontroller.derivation FOR EACH ROW EXECUTE FUNCTION refuse()`)
			require.ErrorContains(t, b.Stores[b.ID(bEast)].Admin.Switch(t.Context(), model), "stopped")
			require.ErrorContains(t, other.Admin.Adopt(t.Context(), model), "is not complete")
			exec(t, b, bEast, `DROP TRIGGER stop ON dbcontroller.derivation`)
			b.Switch(bEast, version)
			require.NoError(t, other.Admin.Adopt(t.Context(), model))
		})
	}
}
