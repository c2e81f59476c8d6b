package write

import (
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/prepare"
)

func reference(target int64, behaviour schema.Behaviour) *prepare.NewReference {
	ref := &prepare.NewReference{Holder: &prepare.Writing{ID: 7}, TargetID: target, KindID: 3, Delegated: true}
	ref.UID = uuid.UUID{15: byte(target)}
	ref.Behaviour, ref.Target = behaviour, schema.FullName{Name: fmt.Sprint("targets/", target)}
	return ref
}

// For any number of writes in a transaction, their rights take a statement for the locks and one for each
// kind of right, and their references one; each row is locked once.
func TestWritesUnderRightsShareStatements(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 200} {
		var savings []*prepare.Saving
		for range n {
			savings = append(savings, &prepare.Saving{Delegated: []*prepare.NewReference{
				reference(1, schema.Unset),
				reference(1, schema.Block), reference(2, schema.CascadeDelete),
			}})
		}
		var l rightLocks
		b := &pgx.Batch{}
		l.queue(b, savings, "")
		require.Equal(t, 3, b.Len())
		require.Equal(t, []any{[]int64{1, 2, 1}}, b.QueuedQueries[0].Arguments)
		require.Equal(t, []any{[]int64{1, 2}, []uuid.UUID{{15: 1}, {15: 2}}}, b.QueuedQueries[1].Arguments)
		require.Equal(t, []any{[]int64{1}, []uuid.UUID{{15: 1}}}, b.QueuedQueries[2].Arguments)
		b = &pgx.Batch{}
		queueDelegated(b, savings)
		require.Equal(t, 1, b.Len())
		require.Len(t, b.QueuedQueries[0].Arguments[0], 3*n)
	}
	b := &pgx.Batch{}
	new(rightLocks).queue(b, []*prepare.Saving{{}}, "")
	queueDelegated(b, []*prepare.Saving{{}})
	require.Zero(t, b.Len())
}

// Each write needs its own rights: the rights of its neighbours in the transaction do not count for it, and
// neither does the other right to its target.
func TestEachWriteNeedsItsOwnRights(t *testing.T) {
	t.Parallel()
	f := newRightFinder(&db.DB{})
	l := &rightLocks{rows: map[int64]bool{1: true, 2: true}, counts: map[right]bool{{uuid.UUID{15: 1}, false}: true}}
	for _, c := range []struct {
		refs  []*prepare.NewReference
		lacks bool
		ends  bool
	}{
		{nil, false, false},
		{[]*prepare.NewReference{reference(1, schema.Unset)}, false, false},
		{[]*prepare.NewReference{reference(1, schema.Block)}, false, true},
		{[]*prepare.NewReference{reference(1, schema.Unset), reference(2, schema.Unset)}, false, true},
		{[]*prepare.NewReference{reference(1, schema.Unset), reference(3, schema.Unset)}, true, true},
	} {
		sv := &prepare.Saving{Delegated: c.refs}
		require.Equal(t, c.lacks, l.lack(sv))
		if err := f.check(l, sv); c.ends {
			require.ErrorIs(t, err, db.ErrStale)
		} else {
			require.NoError(t, err)
		}
	}
}

// A known right is found by name, kind and right, until it turns out not to count.
func TestKnownRights(t *testing.T) {
	t.Parallel()
	var k knownRights
	acting, block := reference(1, schema.Unset), reference(1, schema.Block)
	acting.Rights, block.Rights = []prepare.DelegatedTarget{{ID: 1}}, []prepare.DelegatedTarget{{ID: 1}, {ID: 2}}
	k.add([]*prepare.NewReference{acting, block})
	again, other, renamed := reference(1, schema.AllowDangling), reference(1, schema.Block), reference(1, schema.Unset)
	renamed.KindID = 4
	require.Equal(t, []*prepare.NewReference{other, renamed}, k.find([]*prepare.NewReference{again, other, renamed}),
		"a name with two rights is not known")
	require.Equal(t, acting.Rights, again.Rights)
	k.forget([]*prepare.NewReference{acting})
	require.Len(t, k.find([]*prepare.NewReference{reference(1, schema.Unset)}), 1)
	for i := range int64(mostKnown + 10) {
		ref := reference(i, schema.Unset)
		ref.Rights = []prepare.DelegatedTarget{{ID: i}}
		k.add([]*prepare.NewReference{ref})
	}
	require.LessOrEqual(t, len(k.rights), mostKnown+1, "its memory is bounded")
}
