package shadow_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

// A switch that stops between its two transactions has not noted the derivations of the new version. If the
// deployment goes back, nothing is derived anew: so no other process writes under the version before.
func TestAHalfSwitchedVersionIsNotAdopted_I26(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, switched, nil, aWest, bEast)
	b.MustPut(target, nil)
	b.Switch(bEast, "v2")
	b.Settle()
	other := b.SecondProcess(bEast, shadow.Config{})
	exec(t, b, bEast,
		`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'stopped'; END $$`)
	exec(t, b, bEast, `CREATE TRIGGER stop BEFORE INSERT ON dbcontroller.derivation EXECUTE FUNCTION refuse()`)
	v1 := modelOf(t, switched, "b.example.com", "v1") // has no reference
	require.ErrorContains(t, b.Stores[b.ID(bEast)].Admin.Switch(t.Context(), v1), "stopped")
	require.ErrorContains(t, other.Admin.Adopt(t.Context(), v1), "its switch to version v1 is not complete")
	exec(t, b, bEast, `DROP TRIGGER stop ON dbcontroller.derivation`)
	soon, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := other.Write.Save(soon, []peer.Write{{Name: "holders/h", Body: body{"added": target}}})
	require.ErrorIs(t, err, peer.ErrAborted)
	b.Switch(bEast, "v2")
	_, err = other.Write.Save(t.Context(), []peer.Write{{Name: "holders/h", Body: body{"added": target}}})
	require.NoError(t, err)
	b.Settle()
	_, err = b.Delete(target)
	require.ErrorAs(t, err, new(*peer.BlockedError))
	b.Switch(bEast, "v1")
	require.NoError(t, other.Admin.Adopt(t.Context(), v1))
	b.Settle()
	b.Audit()
}

const lent = `
service: a.example.com
version: v1
kinds: [{ kind: Item, patterns: ["items/{item}"] }]
---
service: a.example.com
version: v2
kinds: [{ kind: Item, patterns: ["things/{thing}"] }, { kind: Extra, patterns: ["items/{item}"] }]
`

// A process that slept while another one switched the version and back knows that there may be kept
// resources: it creates none of their names.
func TestAProcessThatMissedASwitchAndBackKnowsWhatIsKept_I26(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, lent, nil, aWest)
	other := b.SecondProcess(aWest, shadow.Config{})
	const name = "items/i"
	b.Switch(aWest, "v2")
	b.MustPut("//"+aWest+"/"+name, nil)
	b.Switch(aWest, "v1")
	_, err := other.Write.Save(t.Context(), []peer.Write{{Name: name}})
	require.ErrorIs(t, err, peer.ErrExists)
	require.ErrorContains(t, err, "an earlier version stored it as Extra")
	page, _, err := other.Read.List(t.Context(), shadow.ListRequest{Limit: 10})
	require.NoError(t, err)
	require.Len(t, page, 1)
	b.Audit()
}
