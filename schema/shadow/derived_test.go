package shadow_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
)

// A derivation changes references without a new revision: a user's write that was compared with the former
// references is compared again.
func TestAWriteComparedBeforeADerivationIsComparedAgain_I26(t *testing.T) {
	t.Parallel()
	b := newVersions(t, nil)
	b.MustPut(targetName("t"), nil)
	b.MustPut(holder, body{"added": targetName("t"), "dropped": targetName("t")})
	b.Settle()
	b.Switch(bEast, "v2")
	b.AfterEstablish = func() {
		b.AfterEstablish = nil
		done, err := b.Do(b.ID(bEast), schema.Derive)
		require.NoError(t, err)
		require.Equal(t, 1, done)
	}
	b.MustPut(holder, body{"added": targetName("t"), "title": "by a user"})
	b.Settle()
	require.Equal(t, 1, b.Count(bEast, "reference"))
	require.Equal(t, 1, b.Count(aWest, "blockade"))
	b.Audit()
}
