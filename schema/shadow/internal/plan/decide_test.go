package plan

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/peer"
)

// closureOf returns a closure with the members 1 to n.
func closureOf(n int64, change func(c *Closure)) *Closure {
	c := &Closure{Members: map[int64]*Member{}}
	for id := int64(1); id <= n; id++ {
		c.Members[id] = &Member{ID: id, State: peer.Active}
	}
	if change != nil {
		change(c)
	}
	return c
}

func TestAMemberThatWaitsForNothingIsRemoved(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		closure *Closure
		bonds   Bonds
		remove  []int64
		mark    []int64
		visible []int64
		notify  []int64
	}{
		"alone": {closure: closureOf(2, nil), remove: []int64{1, 2}},
		"another deployment acts": {
			closure: closureOf(2, nil), bonds: Bonds{Entered: []int64{1}}, remove: []int64{2},
			mark: []int64{1},
		},
		"ownees elsewhere": {
			closure: closureOf(2, nil), bonds: Bonds{Owns: []int64{2}}, remove: []int64{1},
			mark: []int64{2},
		},
		"a blockade": {
			closure: closureOf(1, nil), bonds: Bonds{Blockaded: []int64{1}}, mark: []int64{1},
			visible: []int64{1},
		},
		"a later member blocks": {closure: closureOf(2, func(c *Closure) {
			c.Blocked = []int64{2}
		}), remove: []int64{1}, mark: []int64{2}, visible: []int64{2}},
		"holders act later": {closure: closureOf(1, func(c *Closure) {
			c.Members[1].Later = true
		}), mark: []int64{1}, notify: []int64{1}},
		"block_deletion": {closure: closureOf(1, func(c *Closure) {
			c.Members[1].Protected = true
		}), mark: []int64{1}, visible: []int64{1}},
		"later, and blocked by one": {closure: closureOf(1, func(c *Closure) {
			c.Members[1].Later, c.Blocked = true, []int64{1}
		}), mark: []int64{1}, notify: []int64{1}, visible: []int64{1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := Decide(c.closure, c.bonds)
			require.Equal(t, c.remove, v.Remove)
			require.Equal(t, c.mark, v.Mark)
			require.Equal(t, c.visible, v.Visible)
			require.Equal(t, c.notify, v.Notify)
		})
	}
}

// The holder of a reference that is unset may turn out to be a member: then there is nothing to write. The
// others are sorted, so that each body is written once.
func TestOnlyHoldersOutsideTheDeletionAreUnset(t *testing.T) {
	t.Parallel()
	c := closureOf(2, func(c *Closure) {
		c.Unsets = []Edge{
			{TargetID: 1, HolderID: 9, FieldID: 2},
			{TargetID: 1, HolderID: 2, FieldID: 1},
			{TargetID: 2, HolderID: 9, FieldID: 1},
			{TargetID: 1, HolderID: 8, FieldID: 5},
		}
	})
	v := Decide(c, Bonds{})
	require.Equal(t, []Edge{
		{TargetID: 1, HolderID: 8, FieldID: 5},
		{TargetID: 2, HolderID: 9, FieldID: 1},
		{TargetID: 1, HolderID: 9, FieldID: 2},
	}, v.Unset)
}

func TestTheCallerLearnsWhatRefuses(t *testing.T) {
	t.Parallel()
	outsider := Outsider{Edge: Edge{TargetID: 1, HolderID: 7}, Name: "holders/h"}
	c := closureOf(2, func(c *Closure) { c.Blocks = []Outsider{outsider}; c.Members[2].Protected = true })
	v := Decide(c, Bonds{Blockaded: []int64{1}})
	require.Equal(t, []Outsider{outsider}, v.Blocks)
	require.Equal(t, []int64{1}, v.Blockaded)
	require.Equal(t, []*Member{c.Members[2]}, v.Protected)
}
