package test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// Every behaviour, between databases and in one database, as users see it.
func TestEveryBehaviour(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const target = aWest + "targets/t"

	f.mustPut(target, nil)
	f.mustPut(bEast+"holders/block", fields{"block": target})
	f.mustPut(bEast+"holders/unset", fields{"unset": fields{"list": []any{target}}, "x": 1})
	f.mustPut(bEast+"holders/cascade", fields{"cascade": target})
	f.mustPut(bWest+"holders/asyncUnset", fields{"asyncUnset": target})
	f.mustPut(bWest+"holders/asyncCascade", fields{"asyncCascade": target})
	f.mustPut(bWest+"holders/dangling", fields{"dangling": target})
	f.mustPut(bWest+"targets/t/parts/p", nil) // its parent is in another service
	f.mustPut(aWest+"targets/soon", fields{"soon": target})
	f.mustPut(aWest+"targets/maybe", fields{"maybe": target})
	f.mustPut(aEast+"targets/next", fields{"next": target})
	require.ErrorContains(t, f.delete(target), bEast+"holders/block (block)")
	f.mustPut(bEast+"holders/block", nil)
	f.mustDelete(target)
	f.gone(target, bEast+"holders/cascade", bWest+"holders/asyncCascade", bWest+"targets/t/parts/p",
		aWest+"targets/soon", aEast+"targets/next")
	require.Equal(t, fields{"unset": fields{"list": []any{}}, "x": 1.0}, f.get(bEast+"holders/unset").GetBody().AsMap())
	require.Empty(t, f.get(bWest+"holders/asyncUnset").GetBody().AsMap())
	require.Empty(t, f.get(aWest+"targets/maybe").GetBody().AsMap())
	require.Equal(t, fields{"dangling": target}, f.get(bWest+"holders/dangling").GetBody().AsMap(), "by permission")
	require.NotNil(t, f.get(bEast+"holders/block"))

	// Several target kinds for one field.
	f.mustPut(aWest+"others/o", nil)
	f.mustPut(bEast+"holders/block", fields{"block": aWest + "others/o"})
	f.mustPut(aWest+"targets/t2", fields{"needs": []any{"others/o"}})
	require.ErrorContains(t, f.delete(aWest+"others/o"), aWest+"targets/t2 (needs.*)")
	_, err := f.put(bEast+"holders/x", fields{"block": aWest + "logs/l"})
	require.ErrorContains(t, err,
		"is not the name of a resource of kind a.example.com/Target or a.example.com/Other or a.example.com/Hidden")

	// Hidden while other deployments have to act; disabled constraints.
	f.mustPut(aWest+"hidden/h", nil)
	f.mustPut(bEast+"holders/cascade", fields{"cascade": aWest + "hidden/h"})
	f.mustDelete(aWest + "hidden/h")
	require.Nil(t, f.get(aWest+"hidden/h"), "at once")
	f.gone(bEast + "holders/cascade")
	f.mustPut(aWest+"logs/l", fields{"about": "whatever it is"})
	f.mustDelete(aWest + "logs/l")
	f.settled()
}

func TestBlockDeletionIsForOperators(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const target, holder = aWest + "targets/t", bEast + "holders/h"
	f.mustPut(target, nil)
	f.mustPut(holder, fields{"cascade": target})
	set := &resourcev1.SetBlockDeletionRequest{Name: "holders/h", BlockDeletion: true}
	_, err := resourcev1.NewResourceServiceClient(f.asUser("b.example.com/eastus2")).SetBlockDeletion(t.Context(), set)
	require.Equal(t, codes.PermissionDenied, status.Code(err), "%v", err)
	out, err := run(t, "block-deletion", holder, "--context", f.Context)
	require.NoError(t, err, out)
	require.True(t, f.get(holder).GetBlockDeletion())
	f.mustPut(holder, fields{"cascade": target}) // a user's write leaves it
	require.True(t, f.get(holder).GetBlockDeletion())
	for _, name := range []string{holder, target} {
		err := f.delete(name)
		require.Equal(t, codes.FailedPrecondition, status.Code(err))
		require.ErrorContains(t, err, "block_deletion is set on "+holder)
	}
	out, err = run(t, "block-deletion", holder, "--off", "--context", f.Context)
	require.NoError(t, err, out)
	f.mustDelete(target)
	f.gone(target, holder)
	f.settled()
}

// A holder elsewhere that both blocks and cascades, cycles over regions, diamonds: without an outside blocker
// they are deleted.
func TestADeletionWithoutOutsideBlockersIsAccepted_I14(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const top, left, right, bottom = aWest + "targets/top", aEast + "targets/left", aWest + "targets/right",
		bEast + "holders/bottom"
	f.mustPut(top, nil)
	f.mustPut(left, fields{"next": top})
	f.mustPut(right, fields{"next": top, "needs": []any{left, top}}) // blocks other members of its deletion
	f.mustPut(bottom, fields{"cascade": left, "block": right})
	f.mustPut(top, fields{"next": right}) // and a ring
	f.mustPut(aEast+"targets/self", fields{"needs": []any{aEast + "targets/left"}})
	require.ErrorContains(t, f.delete(top), aEast+"targets/self (needs.*)")
	f.mustPut(aEast+"targets/self", nil)
	f.mustDelete(top)
	f.gone(top, left, right, bottom)
	f.settled()
}
