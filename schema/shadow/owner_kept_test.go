package shadow_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The look-ahead must not excuse a blocker that another owner keeps.
func TestAnOwneeThatIsKeptByAnotherOwnerBlocks(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder2, nil)
	mustOwn(t, b, holder, body{"block": target}, owner(t, target, "Target"), owner(t, holder2, "Holder"))
	b.Settle()
	_, err := b.Delete(target)
	require.Error(t, err)
}

func TestAnOwneeWithUnsetOnDeleteBlocks(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	o := owner(t, target, "Target")
	o.UnsetOnDelete = true
	mustOwn(t, b, holder, body{"block": target}, o)
	b.Settle()
	_, err := b.Delete(target)
	require.Error(t, err)
}

func TestAnOwneeInItsOwnersDatabaseThatRefersToIt(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(holder2, nil)
	mustOwn(t, b, holder, body{"near": body{"block": holder2}}, owner(t, holder2, "Holder"))
	b.Settle()
	_, err := b.Delete(holder2)
	require.NoError(t, err)
	b.Settle()
	b.Gone(holder, holder2)
}

func TestARequiredOwnerInTheSameDatabase(t *testing.T) {
	t.Parallel()
	b := newBox(t, graceless)
	b.MustPut(holder2, nil)
	b.MustPut(holder, body{"near": body{"unset": holder2}})
	r := owner(t, holder, "Holder")
	r.Requires = true
	mustOwn(t, b, holder2, nil, r)
	b.Settle()
	require.NotNil(t, b.Get(holder2))
	b.MustPut(holder, nil)
	b.Settle()
	b.Gone(holder2)
	b.Audit()
}
