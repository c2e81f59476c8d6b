package shadow_test

import (
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/test/harness"
)

// A confirm does not wait for the disk, so a crash of PostgreSQL may forget it, and its number is taken
// again: that is no older copy of the database. One that grants rights does wait, so that its number counts:
// rights elsewhere rest on its entries.
func TestAForgottenConfirmIsNoOlderCopy_I8_I31(t *testing.T) {
	t.Parallel()
	for _, delegable := range []bool{false, true} {
		b := delegating(t)
		b.MustPut(target, nil)
		store, from := b.Stores[b.ID(aWest)], b.ID(bEast)
		establish := func() (peer.AttemptID, error) {
			attempt := newAttempt()
			_, err := store.Targets.Establish(t.Context(), from, attempt,
				[]peer.EstablishReference{reference("cascade", schema.CascadeDelete, uuid.New())})
			return attempt, err
		}
		attempt, err := establish()
		require.NoError(t, err)
		var mark int64
		require.NoError(t, b.Pools[b.ID(aWest)].QueryRow(t.Context(), `SELECT last_value FROM dbcontroller.mark`).Scan(
			&mark))
		_, err = store.Targets.Confirm(t.Context(), from, peer.Confirm{
			Attempts:  []peer.AttemptID{attempt},
			Delegable: delegable,
		})
		require.NoError(t, err)
		exec(t, b, aWest, `SELECT setval('dbcontroller.mark', `+fmt.Sprint(mark)+`)`)
		_, err = establish()
		if delegable {
			require.ErrorAs(t, err, new(*peer.UnavailableError))
		} else {
			require.NoError(t, err)
		}
	}
}

// An end of work waits for the disk: a watch that goes on after a crash would not deliver work that is there
// again.
func TestAnEndOfWorkIsNotForgotten_I8(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	exec(t, b, bEast, `CREATE TABLE public.ends (waits text)`)
	exec(t, b, bEast, `CREATE FUNCTION public.note_end() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
AS $$ BEGIN INSERT INTO public.ends VALUES (current_setting('synchronous_commit')); RETURN OLD; END $$`)
	exec(t, b, bEast,
		`CREATE TRIGGER note BEFORE DELETE ON dbcontroller.work FOR EACH ROW EXECUTE FUNCTION public.note_end()`)
	b.MustPut(holder, body{"cascade": target})
	b.Settle()
	var ends, waiting int
	require.NoError(t, b.Pools[b.ID(bEast)].QueryRow(t.Context(),
		`SELECT count(*), count(*) FILTER (WHERE waits = 'on') FROM public.ends`).Scan(&ends, &waiting))
	require.Equal(t, [2]int{1, 1}, [2]int{ends, waiting})
}

// remember returns a function that restores the tables that a confirm changes to their present state.
func remember(t *testing.T, b *harness.Box, deployment string) (forget func()) {
	t.Helper()
	for _, table := range []string{"blockade", "holder_entry", "work"} {
		exec(t, b, deployment, `CREATE TABLE dbcontroller.before_`+table+` AS TABLE dbcontroller.`+table)
	}
	return func() {
		for _, table := range []string{"blockade", "holder_entry", "work"} {
			exec(t, b, deployment, `DELETE FROM dbcontroller.`+table)
			exec(t, b, deployment, `INSERT INTO dbcontroller.`+table+
				` OVERRIDING SYSTEM VALUE TABLE dbcontroller.before_`+table)
		}
	}
}

// A crash forgets a confirm of which the holder's deployment was told, or comes before the end of the work
// there: the tentative blockade is resolved, the confirm is sent again, and the references are as before.
func TestAForgottenConfirmIsDoneAgain_I1_I8(t *testing.T) {
	t.Parallel()
	for _, forgets := range []string{aWest, bEast} {
		b := newPair(t, nil)
		b.MustPut(target, nil)
		b.MustPut(target2, nil)
		b.MustPut(holder, body{"cascade": target, "block": target2})
		forget := remember(t, b, forgets)
		b.Settle()
		b.Audit()
		forget()
		_, err := b.Delete(target2)
		require.Error(t, err, "it counts all the time")
		b.Expire(aWest)
		b.Settle()
		b.Audit()
		require.Equal(t, 1, b.Count(aWest, "blockade"))
		require.Equal(t, 1, b.Count(aWest, "holder_entry"))
		require.Empty(t, b.Work(b.ID(bEast)))
		b.MustDelete(target)
		b.Settle()
		b.Gone(target, holder)
		b.MustDelete(target2)
		b.Audit()
	}
}

// A crash forgets that the row of a deleted target went, but not the acknowledgement of its deletion: nothing
// refers to it, and tidying removes it.
func TestAForgottenTargetIsTidied_I8(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"cascade": target})
	b.Settle()
	exec(t, b, bEast, `CREATE TABLE dbcontroller.before_target AS TABLE dbcontroller.foreign_target`)
	b.MustDelete(target)
	b.Settle()
	b.Gone(target, holder)
	require.Zero(t, b.Count(bEast, "foreign_target"))
	exec(t, b, bEast, `INSERT INTO dbcontroller.foreign_target TABLE dbcontroller.before_target`)
	b.Audit()
	tidied(t, b, bEast)
	require.Zero(t, b.Count(bEast, "foreign_target"))
	b.MustPut(target, nil)
	b.MustPut(holder, body{"cascade": target})
	b.Settle()
	b.Audit()
}
