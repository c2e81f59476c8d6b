package harness

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// The auditor finds each kind of violation that is planted.
func TestTheAuditorFindsWhatIsWrong(t *testing.T) {
	t.Parallel()
	const targets, holders = "a.example.com/east", "b.example.com/west"
	const target, holder, blocker = "//" + targets + "/targets/t", "//" + holders + "/holders/h",
		"//" + holders + "/holders/b"
	for name, c := range map[string]struct{ at, sql, found string }{
		"a target is lost": {
			targets, `DELETE FROM dbcontroller.shadow WHERE name = 'targets/t'`,
			"I1: b.example.com/west: cascade of holders/h refers to",
		},
		"a local target is lost": {
			holders, `DELETE FROM dbcontroller.foreign_target`,
			"I1: b.example.com/west: cascade of holders/h refers to",
		},
		"an entry is lost": {
			targets, `DELETE FROM dbcontroller.holder_entry`,
			"has no entry of this deployment",
		},
		"a blockade is lost": {targets, `DELETE FROM dbcontroller.blockade`, "has no blockade"},
		"a reference is lost": {
			holders, `DELETE FROM dbcontroller.reference WHERE behaviour = 1`,
			"of no reference",
		},
		"a blockade is tentative": {
			targets, `UPDATE dbcontroller.blockade SET expires_at = now()`,
			"tentative blockade",
		},
		"an owner is lost": {
			holders, `DELETE FROM dbcontroller.shadow WHERE name = 'holders/o'`,
			"is owned by holders/o at b.example.com/west, which is not there",
		},
		"an owner knows nothing": {
			holders, `DELETE FROM dbcontroller.ownee_entry`,
			"which does not know that it has ownees here",
		},
		"an owner is seen no more": {
			targets, `UPDATE dbcontroller.resource SET owners = NULL`,
			"are not those that users see",
		},
		"a holder is lost": {
			holders, `DELETE FROM dbcontroller.shadow WHERE name = 'holders/b'`,
			"1 rows of resource belong to nothing",
		},
		"a removal has no reason": {targets, `DELETE FROM dbcontroller.removal`, "has no removal with a cause"},
		"what lives was removed": {
			targets,
			`UPDATE dbcontroller.removal r SET name = s.name, uid = s.uid FROM dbcontroller.shadow s WHERE s.name = 'targets/t'`, "but it lives",
		},
		"a finalizer is not due": {
			targets,
			`UPDATE dbcontroller.shadow SET finalizers = '{badge}' WHERE name = 'targets/t'`,
			"I33: a.example.com/east: targets/t has finalizers",
		},
		"a cascade came from nowhere": {
			holders,
			`UPDATE dbcontroller.cause SET via_uid = gen_random_uuid() WHERE how = 2`,
			"the removal of which is not noted there",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := NewBox(t, `
service: a.example.com
version: v1
kinds: [{ kind: Target, patterns: ["targets/{target}"] }]
---
service: b.example.com
version: v1
imports: [a.example.com@v1]
kinds:
  - kind: Holder
    patterns: ["holders/{holder}"]
    references:
      - { path: block, targets: [a.example.com/Target], behaviour: BLOCK }
      - { path: cascade, targets: [a.example.com/Target], behaviour: CASCADE_DELETE }
`, nil, targets, holders)
			b.MustPut(target, nil)
			b.MustPut(holder, Body{"cascade": target})
			b.MustPut(blocker, Body{"block": target})
			b.MustPut("//"+holders+"/holders/o", nil)
			owner, err := schema.ParseFullName("//" + holders + "/holders/o")
			require.NoError(t, err)
			_, err = b.PutOwned("//"+targets+"/targets/owned", nil, peer.OwnerReference{Owner: owner, Kind: "Holder"})
			require.NoError(t, err)
			b.MustPut("//"+targets+"/targets/gone", nil)
			b.MustPut("//"+holders+"/holders/gone", Body{"cascade": "//" + targets + "/targets/gone"})
			b.Settle()
			b.MustDelete("//" + targets + "/targets/gone")
			b.Settle()
			b.Audit()
			tag, err := b.Pools[b.ID(c.at)].Exec(t.Context(), c.sql)
			require.NoError(t, err)
			require.Positive(t, tag.RowsAffected())
			found := AuditDatabases(t, b.Pools)
			require.Contains(t, strings.Join(found, "\n"), c.found)
		})
	}
}
