package shadow_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
)

// One backup is restored a second time, after it has been written to: both times the numbers in it are the
// same. A client that has read a resource in between changes nothing by the revision that it has read:
// another value has another one.
func TestABackupThatIsRestoredTwiceRepeatsNoRevision_I10(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.Settle()
	once, twice := b.Backup(aWest), b.Backup(aWest)
	put := func(restore func(), label string) peer.Resource {
		restore()
		b.Recover(aWest)
		b.Settle()
		return b.MustPut(target, body{"label": label})
	}
	first := put(once, "first")
	second := put(twice, "second")
	require.Greater(t, second.Revision, first.Revision)
	_, err := b.Stores[b.ID(aWest)].Write.Save(t.Context(),
		[]peer.Write{{
			Name: "targets/t", Body: body{"label": "third"}, Mode: peer.Update, UID: first.UID,
			Revision: first.Revision,
		}})
	require.ErrorIs(t, err, peer.ErrConflict)
}

// The owners' deployment has switched its version several times after the second backup: its answers count
// all the same.
func TestOwnersOfADatabaseThatIsRestoredTwice_I17_I28(t *testing.T) {
	t.Parallel()
	b := newVersions(t, nil)
	once, twice := b.Backup(bEast), b.Backup(bEast)
	once()
	b.Recover(bEast)
	b.Settle()
	for _, version := range []string{"v2", "v1", "v2", "v1"} {
		b.Switch(bEast, version)
		b.Settle()
	}
	owned := targetName("owned")
	b.MustPut(holder, nil)
	mustOwn(t, b, owned, nil, owner(t, holder, "Holder"))
	b.Settle()
	twice()
	b.Recover(bEast)
	b.Settle()
	b.Gone(holder, owned)
	require.Zero(t, b.Count(aWest, "work"))
	b.Audit()
}

// A process knows a version by a generation that another version has after the second restore: it writes
// nothing by its own one.
func TestAGenerationOfALostEpochIsOfNoOtherVersion_I26(t *testing.T) {
	t.Parallel()
	b := newVersions(t, nil)
	b.MustPut(targetName("added"), nil)
	b.Settle()
	other := b.SecondProcess(bEast, shadow.Config{})
	once, twice := b.Copy(bEast), b.Copy(bEast)
	store := b.Stores[b.ID(bEast)]
	notice := func(s *shadow.Store) {
		_, err := s.Gate.NoticeEpoch(t.Context())
		require.NoError(t, err)
		require.NoError(t, s.Gate.Recover(t.Context(), b.Environment()))
	}
	once()
	notice(store)
	b.Settle()
	b.Switch(bEast, "v3")
	b.Settle()
	twice()
	notice(other)
	model, err := schema.NewModel(schema.ServiceVersion{Service: "b.example.com", Version: "v2"},
		b.Environment().Services)
	require.NoError(t, err)
	require.NoError(t, other.Admin.Switch(t.Context(), model))
	notice(store)
	soon, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	// of version v2 alone
	_, err = store.Write.Save(soon, []peer.Write{{Name: "holders/h", Body: body{"added": targetName("added")}}})
	require.ErrorIs(t, err, peer.ErrAborted)
}
