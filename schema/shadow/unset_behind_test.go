package shadow_test

import (
	"context"
	"math"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/attach"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

// A relative value of soft and near names a resource of another service in v1.
const movedTargets = `
service: a.example.com
version: v1
kinds: [{ kind: Target, patterns: ["targets/{target}"] }]
---
service: b.example.com
version: v1
imports: [a.example.com@v1]
kinds:
  - { kind: Target, patterns: ["targets/{target}"] }
  - kind: Holder
    patterns: ["holders/{holder}"]
    references:
      - { path: soft, targets: [Target], behaviour: UNSET }
      - { path: near, targets: [a.example.com/Target], behaviour: UNSET }
---
service: b.example.com
version: v2
imports: [a.example.com@v1]
kinds:
  - { kind: Target, patterns: ["targets/{target}"] }
  - kind: Holder
    patterns: ["holders/{holder}"]
    references:
      - { path: soft, targets: [a.example.com/Target], behaviour: UNSET }
      - { path: near, targets: [Target], behaviour: UNSET }
`

// A process that has not heard of a switch does not look for values by its own version: it would drop the
// reference, and leave the value.
func TestAProcessBehindASwitchUnsetsNothing_I1_I26(t *testing.T) {
	t.Parallel()
	b, ctx := harness.NewBox(t, movedTargets, nil, aWest, bWest), context.Background()
	id := b.ID(bWest)
	behind := b.SecondProcess(bWest, shadow.Config{Delegations: true})
	b.Switch(bWest, "v2")
	nearTarget := "//" + bWest + "/targets/t"
	b.MustPut(target, nil)
	b.MustPut(nearTarget, nil)
	b.MustPut("//"+bWest+"/holders/h", body{"soft": "targets/t", "near": "targets/t"})
	b.Settle()
	require.Equal(t, 2, b.Count(bWest, "reference"))

	_, err := behind.Deletions.Delete(ctx, shadow.DeleteRequest{Name: "targets/t"})
	require.ErrorIs(t, err, peer.ErrAborted)
	require.Equal(t, peer.Active, b.Get(nearTarget).State)

	b.MustDelete(target)
	deletions, _ := b.Seen(id, b.ID(aWest))
	require.Len(t, deletions, 1)
	failed, err := behind.Follow.ActFor(ctx, b.ID(aWest), deletions, math.MaxInt64)
	require.NoError(t, err)
	require.ErrorIs(t, failed[deletions[0].UID], peer.ErrAborted)
	require.Equal(t, 2, b.Count(bWest, "reference"))
	select {
	case <-behind.Gate.Superseded():
	default:
		t.Error("the node manager is not notified")
	}

	require.NoError(t, behind.Admin.Adopt(ctx, b.Stores[id].Model()))
	_, err = behind.Deletions.Delete(ctx, shadow.DeleteRequest{Name: "targets/t"})
	require.NoError(t, err)
	b.Settle()
	b.Gone(target)
	b.Gone(nearTarget)
	require.Zero(t, b.Count(bWest, "reference"))
	left := b.Get("//" + bWest + "/holders/h")
	require.Empty(t, value(t, left, "soft"))
	require.Empty(t, value(t, left, "near"))
	b.Audit()
}

const tabledLater = `
service: crm.example.com
version: v1
kinds: [{ kind: Group, patterns: ["groups/{group}"] }]
---
service: crm.example.com
version: v2
kinds:
  - { kind: Group, patterns: ["groups/{group}"] }
  - kind: Customer
    table: public.customers
    key: [id]
    patterns: ["customers/{customer}"]
    references:
      - { columns: [group_id], targets: [Group], region: eu, behaviour: CASCADE_DELETE }
      - { columns: [club_id], targets: [Group], region: eu, behaviour: ASYNC_CASCADE_DELETE }
  - kind: Note
    patterns: ["notes/{note}"]
    references: [{ path: customer, targets: [Customer], behaviour: BLOCK }]
`

// A process that has not heard of a switch deletes rows of tables that are attached since: it would delete
// the resource and leave the row.
func TestAProcessBehindASwitchLeavesNoRow_I1_I26(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	a := &attached{Box: harness.NewBox(t, tabledLater, func(cfg *shadow.Config) { cfg.Delegations = true }, crm), t: t}
	id := a.ID(crm)
	a.crm = a.connect(crm, `
CREATE TABLE customers (id bigint PRIMARY KEY, group_id text, club_id text);
CREATE INDEX ON customers (group_id);
CREATE INDEX ON customers (club_id);
GRANT ALL ON customers TO dbcontroller_box_serving`)
	behind, another := a.SecondProcess(crm, shadow.Config{Delegations: true}),
		a.SecondProcess(crm, shadow.Config{Delegations: true})
	a.Switch(crm, "v2")
	plans, err := attach.Prepare(ctx, a.crm, a.Stores[id].Model(), false)
	require.NoError(t, err)
	for _, p := range plans {
		require.False(t, p.Refused(), "%v", p.Findings)
		require.NoError(t, attach.Apply(ctx, a.crm, p, func(err error) { t.Log(err) }))
	}
	group, customer := "//"+crm+"/groups/g", "//"+crm+"/customers/1"
	a.MustPut(group, nil)
	a.Capture(id)
	a.exec(a.crm, `INSERT INTO customers VALUES (1, 'g')`)
	a.Settle()
	require.NotNil(t, a.Get(customer))
	_, err = behind.Deletions.Delete(ctx, shadow.DeleteRequest{Name: "groups/g"})
	require.NoError(t, err)
	a.Settle()
	a.Gone(group, customer)
	require.Empty(t, a.rows(a.crm, `SELECT id::text FROM customers`))

	// The same when the last blocker of a resource in DELETING goes.
	a.MustPut(group, nil)
	a.exec(a.crm, `INSERT INTO customers VALUES (2, NULL, 'g')`)
	a.Settle()
	a.MustDelete(group)
	note := "//" + crm + "/notes/n"
	a.MustPut(note, body{"customer": "customers/2"})
	_, err = a.Act(id, id)
	require.NoError(t, err)
	require.Equal(t, peer.Deleting, a.Get("//"+crm+"/customers/2").State)
	a.MustDelete(note)
	for _, w := range a.Work(id) {
		if w.Action == schema.Finalise {
			_, err = another.Cascade.Finalise(ctx, []int64{w.Seq})
			require.NoError(t, err)
		}
	}
	a.Settle()
	a.Gone("//" + crm + "/customers/2")
	require.Empty(t, a.rows(a.crm, `SELECT id::text FROM customers`))
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// The names of a kind become names of another one: a process that has not heard of that says of no resource
// that it is gone.
func TestAProcessBehindASwitchKnowsNothingToBeGone_I15_I26(t *testing.T) {
	t.Parallel()
	b, ctx := harness.NewBox(t, movedNames, nil, aWest), context.Background()
	behind := b.SecondProcess(aWest, shadow.Config{Delegations: true})
	b.Switch(aWest, "v2")
	uid := b.MustPut(target, nil).UID
	for _, request := range []uuid.UUID{uuid.Nil, uuid.New()} {
		_, err := behind.Deletions.Delete(ctx, shadow.DeleteRequest{Name: "targets/t", UID: uid, RequestID: request})
		require.ErrorIs(t, err, peer.ErrAborted)
	}
	require.NoError(t, behind.Admin.Adopt(ctx, b.Stores[b.ID(aWest)].Model()))
	result, err := behind.Deletions.Delete(ctx, shadow.DeleteRequest{Name: "targets/t", UID: uid})
	require.NoError(t, err)
	require.True(t, result.Removed)
	_, err = behind.Deletions.Delete(ctx, shadow.DeleteRequest{Name: "targets/t", UID: uid})
	require.ErrorIs(t, err, peer.ErrNotFound)
}
