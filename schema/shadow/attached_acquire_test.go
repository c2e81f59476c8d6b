package shadow_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/test/wait"
)

// A question without an answer, because no process was there, is a new one when it is asked again: it is
// neither forgotten with the age of the first one nor answered as too late.
func TestAQuestionThatIsAskedAgainBeginsAnew(t *testing.T) {
	t.Parallel()
	a := newStrict(t)
	for _, age := range []string{"6 min", "30 s"} {
		right := []string{"ACT " + customer(strings.Fields(age)[0][:1])}
		a.exec(a.shop, `SELECT dbcontroller.acquire($1)`, right)
		a.exec(a.shop, `UPDATE dbcontroller.right_request SET asked_at = now() - $1::text::interval`, age)
		a.acquire(right)
	}
	// While a process is there, a question that is repeated grows old: it is answered in the end.
	a.SetDown(crm, true)
	right := []string{"ACT " + customer("8")}
	a.exec(a.shop, `SELECT dbcontroller.acquire($1)`, right)
	a.exec(a.shop, `UPDATE dbcontroller.right_request SET asked_at = now() - interval '9 s' WHERE NOT answered`)
	a.exec(a.shop, `SELECT dbcontroller.acquire($1)`, right)
	a.AnswerRequests(shop)
	require.Equal(t, []string{"true"},
		a.rows(a.shop, `SELECT answered::text FROM dbcontroller.right_request WHERE target = '`+right[0]+`'`))
}

// The call has the results of dbcontroller.acquire and dbcontroller.acquired, and the caller's right to
// refer.
func TestRightsAreAcquiredByACall(t *testing.T) {
	t.Parallel()
	a := newStrict(t)
	store := a.Stores[a.ID(shop)]
	ctx, stop := context.WithCancel(context.Background())
	answering := make(chan error, 1)
	go func() { answering <- store.RightRequests.RunRequests(ctx, func() bool { return true }) }()
	call := func(ctx context.Context, rights ...string) error {
		return store.RightRequests.AcquireDelegations(ctx, "user/ann", rights)
	}

	require.NoError(t, call(ctx))
	lacking := a.lacks(`INSERT INTO invoices VALUES ('i', 1, 'a,b', 1)`)
	require.NoError(t, call(ctx, append(lacking, lacking...)...))
	a.exec(a.shop, `INSERT INTO invoices VALUES ('i', 1, 'a,b', 1)`)

	var refused *peer.RefusedError
	require.ErrorAs(t, call(ctx, "BLOCK "+customer("77"), "BLOCK "+customer("2")), &refused)
	require.True(t, refused.Only(peer.TargetMissing), "%v", refused)
	require.Equal(t, customer("77")+" does not exist", refused.Error())

	asked := a.rows(a.shop, `SELECT target FROM dbcontroller.right_request`)
	only := peer.WithPerson(ctx, peer.Person{Refer: func(_ context.Context, names []schema.FullName) ([]bool, error) {
		may := make([]bool, len(names))
		for i, name := range names {
			may[i] = name.Name == "customers/3"
		}
		return may, nil
	}})
	require.NoError(t, call(only, "BLOCK "+customer("3")))
	require.ErrorAs(t, call(only, "BLOCK "+customer("3"), "BLOCK "+customer("4")), &refused)
	require.True(t, refused.Only(peer.ReferDenied), "%v", refused)
	require.Len(t, a.rows(a.shop, `SELECT target FROM dbcontroller.right_request`), len(asked)+1,
		"what is denied is not asked for")

	var invalid *peer.InvalidError
	for _, line := range []string{
		"", "BLOCK", "HOLD " + customer("1"), "BLOCK //" + crm + "/",
		"BLOCK //elsewhere.example.com/eu/customers/1",
	} {
		require.ErrorAs(t, call(ctx, "BLOCK "+customer("3"), line), &invalid, "%q", line)
		require.Equal(t, "rights[1]", invalid.Resource)
	}

	// Shares are counted by the whole identity.
	long := "user/" + strings.Repeat("x", 80)
	a.exec(a.shop,
		`INSERT INTO dbcontroller.right_request (target, answered, asked_by) SELECT 'BLOCK ' || g, true, $1 FROM generate_series(1, 60000) g`, long)
	require.ErrorIs(t, store.RightRequests.AcquireDelegations(ctx, long, []string{"BLOCK " + customer("5")}),
		postgres.ErrTooMany)
	var err error
	for end := time.Now().Add(wait.Limit); time.Now().Before(end); { // a busy machine answers later than a call waits
		if err = store.RightRequests.AcquireDelegations(ctx, long+"y", []string{"BLOCK " + customer("5")}); !errors.Is(
			err, context.DeadlineExceeded) {
			break
		}
	}
	require.NoError(t, err)

	// No process answers.
	stop()
	require.NoError(t, <-answering)
	short, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, call(short, "BLOCK "+customer("6")), context.DeadlineExceeded)
}

// The region that asks for a right goes dark before it has released the question: one for the right to block
// refuses the delete of the row until it is back, as a reference would; one for the right to act refuses
// none.
func TestAQuestionForARightToActRefusesNoDelete_I13(t *testing.T) {
	t.Parallel()
	for right, refuses := range map[string]bool{"ACT ": false, "BLOCK ": true} {
		a := newStrict(t)
		a.exec(a.shop, `SELECT dbcontroller.acquire($1)`, []string{right + customer("5")})
		a.AnswerRequests(shop)
		a.SetDown(shop, true) // its releases stay
		if refuses {
			_ = a.refused(a.crm, `DELETE FROM customers WHERE id = 5`)
			continue
		}
		a.exec(a.crm, `DELETE FROM customers WHERE id = 5`)
	}
}
