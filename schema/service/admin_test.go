package service

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	"github.com/db-controller/db-controller/schema/shadow"
)

// adminStore is the store of an AdminService: fixed results for Status, functions for the other methods.
type adminStore struct {
	notReady       []NotReady
	pauses         []string
	paused         []shadow.Pause
	failing        map[string]error // by method
	outstanding    []shadow.Outstanding
	decommissioned []shadow.Decommissioned
	steered        []string
	words          []shadow.OperatorDecision
	strangers      []shadow.DatabaseMismatch
	server         shadow.ServerStatus
	epoch          shadow.EpochStatus

	explain      func(name string) (*shadow.Explanation, error)
	removals     func(name string, uid uuid.UUID, limit int) ([]shadow.Removal, error)
	verify       func(ctx context.Context, how shadow.Verification) (shadow.Verified, error)
	decommission func(d shadow.Decommissioned) error
	accept       func(d shadow.AcceptedDatabase) error
	waive        func(of schema.DeploymentID, reason, by string) error
}

func (s *adminStore) Status(context.Context) (string, int64, []shadow.Derivation, error) {
	return "v2", 7, []shadow.Derivation{{Kind: "Device", Done: 3, Total: 9, SetAside: 1}}, s.failing["Status"]
}

func (s *adminStore) Purge(_ context.Context, name string) (changes, requests int64, err error) {
	return int64(len(name)), 1, s.failing["Purge"]
}

func (s *adminStore) Outstanding(context.Context) ([]shadow.Outstanding, error) {
	return s.outstanding, s.failing["Outstanding"]
}

func (s *adminStore) Delegations(context.Context) ([]shadow.Delegations, error) {
	return []shadow.Delegations{{Deployment: other, ActingHeld: 7, BlockHeld: 3}}, s.failing["Delegations"]
}

func (s *adminStore) Waiting(context.Context) (waiting, incomplete int64, err error) {
	return 3, 2, s.failing["Captured"]
}

func (s *adminStore) Kept(context.Context) ([]shadow.Kept, error) {
	return []shadow.Kept{{Kind: "Old", Resources: 4, Sample: "olds/a"}}, s.failing["Kept"]
}

func (s *adminStore) Members(context.Context) ([]peer.Member, error) {
	return []peer.Member{{
		Name: "host:1", Shards: []uint32{1, 2}, JoinedAt: time.Unix(1, 0),
		ExpiresAt: time.Unix(2, 0),
	}}, s.failing["Members"]
}

func (s *adminStore) Decommissioned(context.Context) ([]shadow.Decommissioned, error) {
	return s.decommissioned, s.failing["Decommissioned"]
}

func (s *adminStore) OperatorDecisions(context.Context) ([]shadow.OperatorDecision, error) {
	return s.words, s.failing["Words"]
}

func (s *adminStore) Database() uuid.UUID { return uid(5) }

func (s *adminStore) Epoch(context.Context) (shadow.EpochStatus, error) {
	return s.epoch, s.failing["Epoch"]
}

func (s *adminStore) DatabaseMismatches() []shadow.DatabaseMismatch { return s.strangers }

func (s *adminStore) Server(context.Context) (shadow.ServerStatus, error) { return s.server, nil }

func (s *adminStore) Explain(_ context.Context, name string) (*shadow.Explanation, error) {
	return s.explain(name)
}

func (s *adminStore) Removals(_ context.Context, q shadow.RemovalQuery, token string,
	limit int,
) ([]shadow.Removal, string, error) {
	if q.Deletion != uuid.Nil {
		token = "of " + q.Deletion.String()
	}
	found, err := s.removals(q.Name, q.UID, limit)
	return found, "after " + token, err
}

func (s *adminStore) Verify(ctx context.Context, how shadow.Verification) (shadow.Verified, error) {
	return s.verify(ctx, how)
}

func (s *adminStore) PlanDecommission(_ context.Context, of schema.DeploymentID,
	blocking schema.Behaviour,
) (shadow.DecommissionPlan, error) {
	s.steered = append(s.steered, fmt.Sprint("plan ", of, blocking))
	return shadow.DecommissionPlan{Deleted: 1, Unset: 2, Dangling: 3, Owned: 4, Released: 5}, nil
}

func (s *adminStore) Decommission(_ context.Context, d shadow.Decommissioned) error {
	return s.decommission(d)
}

func (s *adminStore) AcceptDatabase(_ context.Context, d shadow.AcceptedDatabase) error {
	return s.accept(d)
}

func (s *adminStore) WaiveComparison(_ context.Context, of schema.DeploymentID, reason, by string) error {
	return s.waive(of, reason, by)
}

func (s *adminStore) Pause(_ context.Context, of schema.DeploymentID, handler schema.Handler, paused bool, reason,
	by string,
) error {
	s.pauses = append(s.pauses, fmt.Sprint(of, handler, paused, reason, by))
	return nil
}

func (s *adminStore) Retry(_ context.Context, of schema.DeploymentID, reason, by string) error {
	s.steered = append(s.steered, fmt.Sprint("retry ", of, reason, by))
	return nil
}

func (s *adminStore) RetryResource(_ context.Context, name, reason, by string) ([]schema.DeploymentID, error) {
	s.steered = append(s.steered, fmt.Sprint("retry ", name, reason, by))
	return []schema.DeploymentID{other}, nil
}

func (s *adminStore) Unconfirmed(_ context.Context, of schema.DeploymentID, limit int,
	token string,
) ([]shadow.Releasable, string, error) {
	return []shadow.Releasable{{
		Key: fmt.Sprint(limit, token), What: "BLOCKADE", Name: "devices/d",
		Other: of.String(),
	}}, "next", nil
}

func (s *adminStore) Releasable(_ context.Context, name string, limit int,
	token string,
) ([]shadow.Releasable, string, error) {
	if token != "" {
		return nil, "", nil
	}
	return []shadow.Releasable{{
		Key: fmt.Sprint(name, limit), What: "HOLDER_ENTRY", Name: name, Other: other.String(),
		Breaks: "x", Refused: "y", Since: time.Unix(9, 0),
	}, {}}, "next", nil
}

func (s *adminStore) ForceRelease(_ context.Context, keys []string, unanswered bool, reason,
	by string,
) ([]string, error) {
	s.steered = append(s.steered, fmt.Sprint("release ", keys, unanswered, reason, by))
	return keys[:1], nil
}

func (s *adminStore) Pauses(context.Context) ([]shadow.Pause, error) {
	return s.paused, s.failing["Pauses"]
}

func (s *adminStore) Stuck(_ context.Context, longer time.Duration, token string, limit int) (shadow.StuckPage, error) {
	stuck := shadow.Stuck{
		Kind: "Device", Name: fmt.Sprint("devices/", longer, limit), UID: uid(1),
		Conditions: []shadow.Condition{{Type: "BLOCKED", Message: "by x"}},
	}
	return shadow.StuckPage{Resources: []shadow.Stuck{stuck}, Next: "after " + token, Total: 301}, s.failing["Stuck"]
}

func (s *adminStore) DeletionProgress(_ context.Context, id uuid.UUID) ([]shadow.DeletionProgress, error) {
	return []shadow.DeletionProgress{{ID: id, Root: "//a.example.com/us-west2/devices/d"}},
		s.failing["DeletionProgress"]
}

func (s *adminStore) RunningDeletions(_ context.Context, limit int) ([]shadow.DeletionProgress, error) {
	d := shadow.DeletionProgress{ID: uid(8)}
	d.Found, d.Removed, d.Unset, d.Expected, d.ExpectedUnset, d.Left = int64(limit), 2, 3, 40, 50, 6*time.Second
	return []shadow.DeletionProgress{d}, s.failing["RunningDeletions"]
}

func (s *adminStore) ListDeletions(_ context.Context, token string,
	limit int,
) ([]shadow.DeletionProgress, string, error) {
	return []shadow.DeletionProgress{{ID: uid(byte(limit))}}, "after " + token, s.failing["ListDeletions"]
}

func (s *adminStore) EndedDeletions(_ context.Context, token string,
	limit int,
) ([]shadow.DeletionProgress, string, error) {
	return []shadow.DeletionProgress{{ID: uid(byte(limit + 1))}}, "ended " + token, s.failing["EndedDeletions"]
}

func (s *adminStore) ListScheduled(context.Context, int) ([]shadow.ScheduledDeletion, int64, error) {
	return []shadow.ScheduledDeletion{{Root: "//a.example.com/us-west2/devices/old", Resources: 2, Reason: "blocked"}},
		1, s.failing["ListScheduled"]
}

func (s *adminStore) DeletionsLeft(context.Context) (shadow.DeletionsLeft, error) {
	return shadow.DeletionsLeft{Running: 21}, s.failing["DeletionsLeft"]
}

func newAdminService(store *adminStore, failures ...Failure) *admin {
	return &admin{
		self: self, administrator: store, databases: store, decisions: store, delegations: store, inspector: store,
		kept: store, processes: store, progress: store, scheduled: store, purger: store, releaser: store, rows: store,
		verifier: store,
		watches: func() []Watch {
			return []Watch{{
				Name: "deletions", Deployment: other.String(), Primed: true,
				Heard: time.Unix(9, 0), Lost: 4,
			}}
		},
		notReady: func() []NotReady {
			return store.notReady
		}, failures: func() []Failure { return failures }, log: zap.NewNop(),
	}
}

func TestTheStatusHasAllThatAnOperatorLooksAt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		a := newAdminService(&adminStore{
			outstanding: []shadow.Outstanding{{Group: "confirm", Deployment: other.String(), Count: 12, Oldest: 90}},
			decommissioned: []shadow.Decommissioned{{
				Deployment: sibling, Blocking: schema.Unset, Reason: "closed",
				By: "operator/eve", At: began, Working: true,
			}},
			paused: []shadow.Pause{{
				Of: self, Handler: schema.OwnedPending, Reason: "why", By: "operator/eve",
				At: began,
			}, {Of: other}},
			words: []shadow.OperatorDecision{{
				Deployment: other, What: "COMPARISON_WAIVED", Reason: "lost",
				By: "operator/eve", At: began,
			}},
			strangers: []shadow.DatabaseMismatch{{Err: &peer.DatabaseError{
				Deployment: other, Known: uid(1),
				Spoken: uid(2),
			}, At: began}},
			epoch: shadow.EpochStatus{
				ID: uid(6), Since: began, Ordinal: 2, Awaiting: true,
				Unconfirmed: []schema.DeploymentID{other}, Dangling: 3,
			},
			notReady: []NotReady{{Check: "writes", Reason: "the disk is full"}},
		}, Failure{Handler: "owned pending", Deployment: sibling, Error: "no answer", Time: began})
		got, err := a.Status(as(t, operator), &adminv1.StatusRequest{})
		require.NoError(t, err)
		require.Equal(t, self.String(), got.GetDeployment())
		require.Equal(t, "v2", got.GetVersion())
		require.Equal(t, int64(7), got.GetGeneration())

		require.Len(t, got.GetOutstanding(), 1)
		require.Equal(t, int64(12), got.GetOutstanding()[0].GetCount())
		require.Equal(t, began.Add(-90*time.Second).UTC(), got.GetOutstanding()[0].GetOldestTime().AsTime())
		require.Equal(t, int64(1), got.GetDerivations()[0].GetSetAside())
		require.Equal(t, "olds/a", got.GetKept()[0].GetSample())
		require.Equal(t, []int64{7, 3}, []int64{
			got.GetDelegations()[0].GetActingHeld(),
			got.GetDelegations()[0].GetBlockHeld(),
		})
		require.Equal(t, []int64{3, 2}, []int64{
			got.GetAttachedRows().GetWaiting(),
			got.GetAttachedRows().GetIncomplete(),
		})
		require.Equal(t, []uint32{1, 2}, got.GetProcesses()[0].GetShards())
		require.Equal(t, int64(2), got.GetProcesses()[0].GetExpireTime().GetSeconds())

		require.Equal(t, uid(5).String(), got.GetDatabase())
		require.Equal(t, uid(6).String(), got.GetEpoch().GetId())
		require.Equal(t, []string{other.String()}, got.GetEpoch().GetUnconfirmed())
		require.True(t, got.GetEpoch().GetAwaitingRegistry())
		require.Equal(t, int64(3), got.GetDanglingReferences())

		require.Equal(t, "UNSET", got.GetDecommissioned()[0].GetBlocking())
		require.True(t, got.GetDecommissioned()[0].GetWorking())
		require.Equal(t, "COMPARISON_WAIVED", got.GetWords()[0].GetWhat())

		require.Equal(t, []string{other.String()}, got.GetPaused(), "deletions alone")
		require.Len(t, got.GetPauses(), 2)
		require.Equal(t, []string{self.String(), "OWNED_PENDING", "why", "operator/eve"},
			[]string{
				got.GetPauses()[0].GetOf(), got.GetPauses()[0].GetHandler(), got.GetPauses()[0].GetReason(),
				got.GetPauses()[0].GetActor(),
			})
		require.Equal(t, int64(2), got.GetDeletions()[0].GetRemoved())
		require.Equal(t, int64(40), got.GetDeletions()[0].GetExpected())
		require.Equal(t, int64(50), got.GetDeletions()[0].GetExpectedUnset())
		require.Equal(t, 6*time.Second, got.GetDeletions()[0].GetLeft().AsDuration())
		require.Equal(t, int64(21), got.GetDeletionsTotal())
		require.Equal(t, []string{"writes", "the disk is full"}, []string{
			got.GetNotReady()[0].GetCheck(),
			got.GetNotReady()[0].GetReason(),
		})
		require.Equal(t, int64(9), got.GetWatches()[0].GetHeardTime().GetSeconds())
		require.Equal(t, int64(4), got.GetWatches()[0].GetLost())

		require.Len(t, got.GetFailures(), 2, "databases first, then handlers")
		require.Equal(t, "database", got.GetFailures()[0].GetHandler())
		require.Contains(t, got.GetFailures()[0].GetError(), uid(2).String())
		require.Equal(t, "owned pending", got.GetFailures()[1].GetHandler())
	})
}

func TestEachPartOfTheStatusCanFail(t *testing.T) {
	t.Parallel()
	for _, method := range []string{
		"Status", "Outstanding", "Kept", "Captured", "Members", "Decommissioned", "Words",
		"Epoch", "Pauses", "RunningDeletions", "DeletionsLeft", "ListScheduled",
	} {
		a := newAdminService(&adminStore{failing: map[string]error{method: peer.ErrAborted}})
		got, err := a.Status(as(t, operator), &adminv1.StatusRequest{})
		require.Equal(t, codes.Aborted, status.Code(err), method)
		require.Nil(t, got)
	}
}

// A reason without an error of its own has the last failure of a handler for its deployment.
func TestAnExplanationHasTheLastErrors(t *testing.T) {
	t.Parallel()
	since := time.Unix(1_700_000_000, 0).UTC()
	e := &shadow.Explanation{
		Kind: "Device", Name: "devices/d", UID: uid(1), State: peer.Deleting, Pending: true, UpdatedAt: since,
		Reasons: []shadow.ExplainedReason{
			{Type: "BLOCKED", Message: "by as/a", Since: since},
			{Type: "release", Message: "owed to other", Deployment: other},
			{Type: "confirm", Message: "owed to other", Deployment: other, Error: "its own"},
			{Type: "confirm", Message: "owed to sibling", Deployment: sibling},
		},
	}
	a := newAdminService(&adminStore{explain: func(name string) (*shadow.Explanation, error) {
		require.Equal(t, "devices/d", name)
		return e, nil
	}, paused: []shadow.Pause{
		{Of: self, Handler: schema.OwnedDeleting, Reason: "look", By: "operator/eve"},
		{Of: other, Handler: schema.OwnedPending, Reason: "slow", By: "operator/eve"},
		{Of: schema.DeploymentID{Service: "c.example.com", Region: "r"}, Reason: "of no work here"},
	}, removals: func(string, uuid.UUID, int) ([]shadow.Removal, error) {
		return []shadow.Removal{{Cause: &schema.Cause{ID: uid(7)}}}, nil
	}}, Failure{Deployment: other, Error: "first"}, Failure{Deployment: other, Error: "second"})
	got, err := a.Explain(as(t, ann), &adminv1.ExplainRequest{Name: "//a.example.com/us-west2/devices/d"})
	require.NoError(t, err)
	require.Equal(t, "//a.example.com/us-west2/devices/d", got.GetName())
	require.Equal(t, uid(1).String(), got.GetUid())
	require.Equal(t, uid(7).String(), got.GetDeletion().GetId(), "the progress of its deletion")
	require.Equal(t, "DELETING", got.GetState())
	require.True(t, got.GetPending())
	require.Equal(t, since, got.GetReasons()[0].GetSince().AsTime())
	require.Nil(t, got.GetReasons()[1].GetSince())
	var errs []string
	for _, r := range got.GetReasons() {
		errs = append(errs, r.GetLastError())
	}
	require.Equal(t, []string{"", "first", "its own", "", "", ""}, errs)
	require.Equal(t, "PAUSED", got.GetReasons()[4].GetType())
	require.Equal(t, "operator/eve has paused owned-deleting here: look", got.GetReasons()[4].GetMessage())
	require.Equal(t, "operator/eve has paused owned-pending for "+other.String()+" here: slow",
		got.GetReasons()[5].GetMessage())

	e.UID, e.State, e.Pending = uuid.Nil, peer.Active, false
	got, err = a.Explain(as(t, ann), &adminv1.ExplainRequest{Name: "devices/d"})
	require.NoError(t, err)
	require.Empty(t, got.GetUid())
	require.Equal(t, "ACTIVE", got.GetState())
	require.Len(t, got.GetReasons(), 4, "nothing of it waits, whatever is paused")
	_, err = a.Explain(as(t, ann), &adminv1.ExplainRequest{Name: "//b.example.com/us-west2/devices/d"})
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	a = newAdminService(&adminStore{explain: func(string) (*shadow.Explanation, error) {
		return nil, peer.ErrNotFound
	}})
	_, err = a.Explain(as(t, ann), &adminv1.ExplainRequest{Name: "devices/d"})
	require.Equal(t, codes.NotFound, status.Code(err))
}

func TestADecommissioningNamesItsOperator(t *testing.T) {
	t.Parallel()
	store := &adminStore{}
	store.decommission = func(d shadow.Decommissioned) error {
		d.Working = true
		store.decommissioned = []shadow.Decommissioned{{Deployment: other}, d}
		return nil
	}
	a := newAdminService(store)
	for blocking, want := range map[string]string{"": "UNSET", "UNSET": "UNSET", "CASCADE_DELETE": "CASCADE_DELETE"} {
		got, err := a.Decommission(as(t, operator), &adminv1.DecommissionRequest{
			Deployment: sibling.String(),
			Blocking:   blocking, Reason: "closed",
		})
		require.NoError(t, err)
		require.Equal(t, sibling.String(), got.GetDecommissioned().GetDeployment())
		require.Equal(t, want, got.GetDecommissioned().GetBlocking())
		require.Equal(t, "operator/eve", got.GetDecommissioned().GetSaidBy())
		require.Equal(t, "closed", got.GetDecommissioned().GetReason())
		require.True(t, got.GetDecommissioned().GetWorking())
	}
	planned, err := a.Decommission(as(t, operator), &adminv1.DecommissionRequest{
		Deployment: sibling.String(),
		Blocking:   "CASCADE_DELETE", ValidateOnly: true,
	})
	require.NoError(t, err)
	require.Nil(t, planned.GetDecommissioned())
	require.Equal(t, "1 2 3 4 5", fmt.Sprint(planned.GetPlan().GetDeleted(), planned.GetPlan().GetUnset(),
		planned.GetPlan().GetDangling(), planned.GetPlan().GetOwned(), planned.GetPlan().GetReleased()))
	require.Equal(t, []string{fmt.Sprint("plan ", sibling, schema.CascadeDelete)}, store.steered)
	for says, req := range map[string]*adminv1.DecommissionRequest{
		"deployment: ": {Deployment: "sibling"},
		"blocking: ":   {Deployment: sibling.String(), Blocking: "DROP"},
	} {
		_, err := a.Decommission(as(t, operator), req)
		require.Equal(t, codes.InvalidArgument, status.Code(err))
		require.ErrorContains(t, err, says)
	}
	_, err = a.Decommission(t.Context(), &adminv1.DecommissionRequest{Deployment: sibling.String()})
	require.Equal(t, codes.Unauthenticated, status.Code(err))
	for name, broken := range map[string]*adminStore{
		"the store refuses": {decommission: func(shadow.Decommissioned) error { return peer.ErrAborted }},
		"it cannot be read back": {decommission: func(shadow.Decommissioned) error {
			return nil
		}, failing: map[string]error{"Decommissioned": peer.ErrAborted}},
		"it is missing in the list": {decommission: func(shadow.Decommissioned) error { return nil }},
	} {
		_, err := newAdminService(broken).Decommission(as(t, operator),
			&adminv1.DecommissionRequest{Deployment: sibling.String()})
		require.Contains(t, []codes.Code{codes.Aborted, codes.Internal}, status.Code(err), name)
	}
}

func TestAnAcceptedDatabaseIsNamedWithItsEpoch(t *testing.T) {
	t.Parallel()
	epoch := newAttempt(t)
	a := newAdminService(&adminStore{accept: func(d shadow.AcceptedDatabase) error {
		require.Equal(t, shadow.AcceptedDatabase{
			Deployment: other, Database: uid(1), Epoch: epoch,
			Reason: "the disk burnt", By: "operator/eve",
		}, d)
		return nil
	}})
	valid := func() *adminv1.AcceptDatabaseRequest {
		return &adminv1.AcceptDatabaseRequest{
			Deployment: other.String(), Database: uid(1).String(),
			Epoch: epoch.String(), Reason: "the disk burnt",
		}
	}
	_, err := a.AcceptDatabase(as(t, operator), valid())
	require.NoError(t, err)
	for says, change := range map[string]func(*adminv1.AcceptDatabaseRequest){
		"deployment: ":           func(r *adminv1.AcceptDatabaseRequest) { r.Deployment = "" },
		"database: ":             func(r *adminv1.AcceptDatabaseRequest) { r.Database = "1" },
		"epoch: invalid":         func(r *adminv1.AcceptDatabaseRequest) { r.Epoch = "1" },
		"epoch: want a UUIDv7":   func(r *adminv1.AcceptDatabaseRequest) { r.Epoch = uid(1).String() },
		"epoch: invalid UUID le": func(r *adminv1.AcceptDatabaseRequest) { r.Epoch = "" },
	} {
		req := valid()
		change(req)
		_, err := a.AcceptDatabase(as(t, operator), req)
		require.Equal(t, codes.InvalidArgument, status.Code(err), says)
		require.ErrorContains(t, err, says)
	}
	_, err = a.AcceptDatabase(t.Context(), valid())
	require.Equal(t, codes.Unauthenticated, status.Code(err))
}

func TestAComparisonIsWaivedByAnOperator(t *testing.T) {
	t.Parallel()
	failing := error(nil)
	a := newAdminService(&adminStore{waive: func(of schema.DeploymentID, reason, by string) error {
		require.Equal(t, []string{other.String(), "lost", "operator/eve"}, []string{of.String(), reason, by})
		return failing
	}})
	_, err := a.WaiveComparison(as(t, operator), &adminv1.WaiveComparisonRequest{
		Deployment: other.String(),
		Reason:     "lost",
	})
	require.NoError(t, err)
	failing = peer.ErrNotFound
	_, err = a.WaiveComparison(as(t, operator), &adminv1.WaiveComparisonRequest{
		Deployment: other.String(),
		Reason:     "lost",
	})
	require.Equal(t, codes.NotFound, status.Code(err))
	_, err = a.WaiveComparison(as(t, operator), &adminv1.WaiveComparisonRequest{Deployment: "other"})
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	_, err = a.WaiveComparison(t.Context(), &adminv1.WaiveComparisonRequest{Deployment: other.String()})
	require.Equal(t, codes.Unauthenticated, status.Code(err))
}

func TestRemovalsAreListedWithTheirRoot(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_700_000_000, 0).UTC()
	found := []shadow.Removal{
		{
			Kind: "Device", Name: "devices/d", UID: uid(1), How: peer.Cascaded, DecidedAt: at, Gone: true,
			Via: schema.FullName{Deployment: other, Name: "ps/p"}, ViaUID: uid(2),
			Cause: &schema.Cause{
				ID: uid(3), Root: "//b.example.com/us-west2/ps/p", RootUID: uid(4), Actor: "user/ann",
				RequestID: uid(5), At: at,
			},
		},
		{
			Kind: "Device", Name: "devices/d", UID: uid(6), How: peer.Requested, DecidedAt: at,
			Cause: &schema.Cause{ID: uid(7), Root: "r", Actor: "user/ann", At: at},
		},
		{Kind: "Device", Name: "devices/d", UID: uid(8), How: peer.Requested, DecidedAt: at},
		{
			Kind: "Device", Name: "devices/d", UID: uid(9), How: peer.Cascaded, DecidedAt: at,
			Via:   schema.FullName{Deployment: other, Name: "ps/lost"},
			Cause: &schema.Cause{ID: uid(7), Root: "//" + other.String(), Actor: "operator/eve", At: at},
		},
	}
	a := newAdminService(&adminStore{removals: func(name string, id uuid.UUID, limit int) ([]shadow.Removal, error) {
		require.Equal(t, "devices/d", name)
		require.Equal(t, uid(1), id)
		require.Equal(t, 3, limit)
		return found, nil
	}})
	got, err := a.ListRemovals(as(t, operator), &adminv1.ListRemovalsRequest{
		Name: "//a.example.com/us-west2/devices/d",
		Uid:  uid(1).String(), PageSize: 3,
	})
	require.NoError(t, err)
	first, second, third := got.GetRemovals()[0], got.GetRemovals()[1], got.GetRemovals()[2]
	require.Equal(t, "//a.example.com/us-west2/devices/d", first.GetName())
	require.Equal(t, "CASCADED", first.GetHow())
	require.True(t, first.GetGone())
	require.Equal(t, "//b.example.com/us-west2/ps/p", first.GetVia())
	require.Equal(t, []string{uid(2).String(), uid(4).String(), uid(5).String()},
		[]string{first.GetViaUid(), first.GetRootUid(), first.GetRequestId()})
	require.Equal(t, "user/ann", first.GetActor())
	require.Equal(t, []string{other.String(), ""}, []string{first.GetToldBy(), second.GetToldBy()})
	require.Equal(t, at, first.GetRequestTime().AsTime())
	require.Equal(t, []string{"", "", "", "", "r"}, []string{
		second.GetVia(), second.GetViaUid(), second.GetRootUid(),
		second.GetRequestId(), second.GetRoot(),
	})
	require.Equal(t, []string{"", ""}, []string{third.GetRoot(), third.GetActor()}, "the cause is not kept any more")
	require.Nil(t, third.GetRequestTime())
	require.Equal(t, []string{"", "operator/eve"}, []string{
		got.GetRemovals()[3].GetToldBy(),
		got.GetRemovals()[3].GetActor(),
	}, "the decision was recorded here")

	require.Equal(t, uid(3).String(), first.GetDeletion())
	all := newAdminService(&adminStore{removals: func(string, uuid.UUID, int) ([]shadow.Removal, error) {
		return found, nil
	}})
	got, err = all.ListRemovals(as(t, operator), &adminv1.ListRemovalsRequest{Deletion: uid(3).String()})
	require.NoError(t, err)
	require.Equal(t, "after of "+uid(3).String(), got.GetNextPageToken())
	for says, req := range map[string]*adminv1.ListRemovalsRequest{
		"name: want one of: a name, a deletion, a request, since": {Name: "devices/d", Deletion: uid(3).String()},
		"name: want one of":           {Since: "token", Request: uid(3).String()},
		"request: invalid":            {Request: "x"},
		"deletion: invalid":           {Deletion: "x"},
		"uid: ":                       {Name: "devices/d", Uid: "1"},
		"name: name is empty":         {},
		"name: name \"devices\"":      {Name: "devices"},
		"belongs to b.example.com/us": {Name: "//b.example.com/us-west2/devices/d"},
	} {
		_, err := a.ListRemovals(as(t, operator), req)
		require.Equal(t, codes.InvalidArgument, status.Code(err), says)
		require.ErrorContains(t, err, says)
	}
	a = newAdminService(&adminStore{removals: func(string, uuid.UUID, int) ([]shadow.Removal, error) {
		return nil, peer.ErrAborted
	}})
	_, err = a.ListRemovals(as(t, operator), &adminv1.ListRemovalsRequest{Name: "devices/d"})
	require.Equal(t, codes.Aborted, status.Code(err))
}

func TestAPurgeIsOfRemovedResourcesHere(t *testing.T) {
	t.Parallel()
	a := newAdminService(&adminStore{})
	got, err := a.Purge(as(t, operator), &adminv1.PurgeRequest{Name: "//a.example.com/us-west2/devices/d"})
	require.NoError(t, err)
	require.Equal(t, []int64{9, 1}, []int64{got.GetChanges(), got.GetRequests()}, "of devices/d")
	for _, name := range []string{"", "devices", "//b.example.com/us-west2/devices/d"} {
		_, err = a.Purge(as(t, operator), &adminv1.PurgeRequest{Name: name})
		require.Equal(t, codes.InvalidArgument, status.Code(err), name)
	}
	a = newAdminService(&adminStore{failing: map[string]error{"Purge": peer.ErrExists}})
	_, err = a.Purge(as(t, operator), &adminv1.PurgeRequest{Name: "devices/d"})
	require.Equal(t, codes.AlreadyExists, status.Code(err))
}

// The decision about dangling references has the calling operator.
func TestDanglingReferencesAreActedUponByAnOperator(t *testing.T) {
	t.Parallel()
	var asked *shadow.Decision
	a := newAdminService(&adminStore{verify: func(_ context.Context, how shadow.Verification) (shadow.Verified, error) {
		asked = how.Dangling
		return shadow.Verified{ActedUpon: 2},
			how.Report(shadow.Difference{
				Kind: shadow.TargetGone, Behaviour: schema.CascadeDelete, Repaired: true,
				ActedUpon: true,
			})
	}})
	stream := newServerStream[adminv1.VerifyResponse](as(t, operator))
	require.NoError(t, a.Verify(&adminv1.VerifyRequest{
		Repair: true, Dangling: adminv1.VerifyRequest_DANGLING_ACT,
		Reason: "lost",
	}, stream))
	sent := stream.messages(t)
	require.Equal(t, &shadow.Decision{Reason: "lost", By: "operator/eve"}, asked)
	require.Equal(t, "CASCADE_DELETE", sent[0].GetDifference().GetBehaviour())
	require.True(t, sent[0].GetDifference().GetDangling())
	require.True(t, sent[0].GetDifference().GetActedUpon())
	require.Equal(t, "the holder was deleted, as at a deletion of the target", sent[0].GetDifference().GetRemedy())
	require.Equal(t, int64(2), sent[1].GetProgress().GetActedUpon())
	require.NoError(t, a.Verify(&adminv1.VerifyRequest{Repair: true}, stream))
	require.Nil(t, asked)
	err := a.Verify(&adminv1.VerifyRequest{Repair: true, Dangling: 7}, stream)
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	err = a.Verify(&adminv1.VerifyRequest{Dangling: adminv1.VerifyRequest_DANGLING_ACT},
		newServerStream[adminv1.VerifyResponse](t.Context()))
	require.Equal(t, codes.Unauthenticated, status.Code(err))
}

// Differences are sent at once, the progress once a second at most, and the last message has the totals.
func TestAVerificationReportsItsProgress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		total := shadow.Verified{
			References: 10, Blockades: 20, Owners: 30, Bodies: 40, Differences: 1, Repaired: 1,
			Unreachable: map[schema.DeploymentID]error{other: errors.New("no answer")},
		}
		a := newAdminService(
			&adminStore{verify: func(ctx context.Context, how shadow.Verification) (shadow.Verified, error) {
				require.True(t, how.Repair)
				require.NoError(t, how.Report(shadow.Difference{
					Kind: shadow.TargetGone, Holder: schema.FullName{Deployment: self, Name: "hs/h"},
					Target: schema.FullName{Deployment: other, Name: "ts/t"}, Path: "p",
				}))
				for range 25 {
					time.Sleep(100 * time.Millisecond)
					require.NoError(t, how.Progress(ctx, shadow.Verified{References: 5}))
				}
				return total, nil
			}})
		stream := newServerStream[adminv1.VerifyResponse](as(t, operator))
		require.NoError(t, a.Verify(&adminv1.VerifyRequest{Repair: true}, stream))
		sent := stream.messages(t)
		require.Len(t, sent, 4)
		d := sent[0].GetDifference()
		require.Equal(t, "TARGET_GONE", d.GetKind())
		require.Equal(t, "//b.example.com/us-west2/ts/t", d.GetTarget())
		require.NotEmpty(t, d.GetCause())
		require.NotEmpty(t, d.GetRemedy())
		require.False(t, sent[2].GetProgress().GetDone())
		last := sent[3].GetProgress()
		require.True(t, last.GetDone())
		require.Equal(t, []int64{10, 20, 30, 40, 1, 1}, []int64{
			last.GetReferences(), last.GetBlockades(),
			last.GetOwners(), last.GetBodies(), last.GetDifferences(), last.GetRepaired(),
		})
		require.Equal(t, []string{other.String()}, last.GetUnreachable())
	})
	a := newAdminService(&adminStore{verify: func(context.Context, shadow.Verification) (shadow.Verified, error) {
		return shadow.Verified{}, peer.ErrAborted
	}})
	err := a.Verify(&adminv1.VerifyRequest{}, newServerStream[adminv1.VerifyResponse](as(t, operator)))
	require.Equal(t, codes.Aborted, status.Code(err))
}

func TestStuckDeletionsAndPausesAreThoseOfTheStore(t *testing.T) {
	t.Parallel()
	store := &adminStore{outstanding: []shadow.Outstanding{
		{Group: "confirm", Deployment: other.String(), Count: 12, Oldest: 90},
		{Group: "release", Deployment: other.String(), Oldest: 10},
		{Group: "check_owners", Deployment: self.String(), Count: 1, Oldest: 90},
	}}
	again := time.Now().Add(time.Minute)
	a := newAdminService(store, Failure{Deployment: other, Error: "release at x: refused"},
		Failure{Deployment: other, Error: "confirm at x: no answer", Next: again},
		Failure{Deployment: other, Error: "announce the epoch: refused"})
	stuck, err := a.ListStuck(as(t, ann), &adminv1.ListStuckRequest{})
	require.NoError(t, err)
	require.Equal(t, "//a.example.com/us-west2/devices/1m0s 100", stuck.GetResources()[0].GetName())
	require.Equal(t, []string{"BLOCKED by x"}, stuck.GetResources()[0].GetReasons())
	require.Equal(t, int64(301), stuck.GetTotalSize())
	next, err := a.ListStuck(as(t, ann), &adminv1.ListStuckRequest{PageToken: stuck.GetNextPageToken()})
	require.NoError(t, err)
	require.Equal(t, "after after ", next.GetNextPageToken())
	require.Empty(t, next.GetWork(), "the first page has it")
	require.Len(t, stuck.GetWork(), 2, "the other waits for less than a minute")
	require.Equal(t, "confirm at x: no answer", stuck.GetWork()[0].GetLastError(),
		"the failure of this work, not of other work for the deployment")
	require.True(t, again.Equal(stuck.GetWork()[0].GetNextTime().AsTime()))
	require.Empty(t, stuck.GetWork()[0].GetReason())
	require.Contains(t, stuck.GetWork()[1].GetReason(), "--owner-grace")
	require.Nil(t, stuck.GetWork()[1].GetNextTime())

	running, err := a.ListDeletions(as(t, ann), &adminv1.ListDeletionsRequest{PageSize: 7})
	require.NoError(t, err)
	require.Equal(t, uid(7).String(), running.GetDeletions()[0].GetId())
	require.Equal(t, int64(21), running.GetTotalSize())
	require.Equal(t, "after ", running.GetNextPageToken())
	ended, err := a.ListDeletions(as(t, ann), &adminv1.ListDeletionsRequest{Ended: true, PageSize: 7})
	require.NoError(t, err)
	require.Equal(t, uid(8).String(), ended.GetDeletions()[0].GetId())
	require.Equal(t, "ended ", ended.GetNextPageToken())
	require.Zero(t, ended.GetTotalSize())
	one, err := a.ListDeletions(as(t, ann), &adminv1.ListDeletionsRequest{Deletion: uid(3).String()})
	require.NoError(t, err)
	require.Equal(t, uid(3).String(), one.GetDeletions()[0].GetId())
	require.Nil(t, one.GetDeletions()[0].GetLeft(), "no estimate")
	_, err = a.ListDeletions(as(t, ann), &adminv1.ListDeletionsRequest{Deletion: "x"})
	require.Equal(t, codes.InvalidArgument, status.Code(err))

	_, err = a.Pause(as(t, operator), &adminv1.PauseRequest{Reason: "why"})
	require.NoError(t, err)
	_, err = a.Resume(as(t, operator), &adminv1.ResumeRequest{Of: other.String(), Reason: "done"})
	require.NoError(t, err)
	_, err = a.Pause(as(t, operator), &adminv1.PauseRequest{Of: "nothing", Reason: "why"})
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	_, err = a.Pause(as(t, operator), &adminv1.PauseRequest{
		Of: other.String(), Handler: "owned-pending",
		Reason: "why",
	})
	require.NoError(t, err)
	_, err = a.Resume(as(t, operator), &adminv1.ResumeRequest{Handler: "everything", Reason: "why"})
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	require.ErrorContains(t, err, "want one of owned-pending, owned-deleting, subscribed-deleting")
	require.Equal(t, []string{
		fmt.Sprint(self, "", true, "why", "operator/eve"), fmt.Sprint(other, "", false, "done", "operator/eve"),
		fmt.Sprint(other, schema.OwnedPending, true, "why", "operator/eve"),
	}, store.pauses)
}

func TestRetriesAndReleasesAreThoseOfTheStore(t *testing.T) {
	t.Parallel()
	store := &adminStore{}
	a := newAdminService(store)
	for _, req := range []*adminv1.RetryRequest{
		{Reason: "r"},
		{Of: other.String(), Reason: "r"},
		{Name: "devices/d", Reason: "r"},
	} {
		got, err := a.Retry(as(t, operator), req)
		require.NoError(t, err)
		require.Len(t, got.GetWaitsFor(), len(req.GetName())/len("devices/d"))
	}
	for _, req := range []*adminv1.RetryRequest{
		{Of: "nothing", Reason: "r"},
		{Name: "//" + other.String() + "/devices/d", Reason: "r"},
	} {
		_, err := a.Retry(as(t, operator), req)
		require.Equal(t, codes.InvalidArgument, status.Code(err))
	}
	listed, err := a.ListReleasable(as(t, operator), &adminv1.ListReleasableRequest{Name: "devices/d"})
	require.NoError(t, err)
	require.Equal(t, "next", listed.GetNextPageToken())
	unconfirmed, err := a.ListReleasable(as(t, operator), &adminv1.ListReleasableRequest{
		UnconfirmedOf: other.String(),
		PageSize:      7, PageToken: "next",
	})
	require.NoError(t, err)
	require.Equal(t, "7next", unconfirmed.GetReleasable()[0].GetKey())
	require.Equal(t, other.String(), unconfirmed.GetReleasable()[0].GetOther())
	for _, req := range []*adminv1.ListReleasableRequest{
		{UnconfirmedOf: "nowhere"},
		{UnconfirmedOf: other.String(), Name: "devices/d"},
	} {
		_, err = a.ListReleasable(as(t, operator), req)
		require.Equal(t, codes.InvalidArgument, status.Code(err))
	}
	last, err := a.ListReleasable(as(t, operator), &adminv1.ListReleasableRequest{Name: "devices/d", PageToken: "next"})
	require.NoError(t, err)
	require.Empty(t, last.GetReleasable())
	first := listed.GetReleasable()[0]
	require.Equal(t, "devices/d100", first.GetKey())
	require.Equal(t, "//a.example.com/us-west2/devices/d", first.GetResource())
	require.Equal(t, []string{"HOLDER_ENTRY", other.String(), "x", "y"}, []string{
		first.GetWhat(), first.GetOther(),
		first.GetBreaks(), first.GetRefused(),
	})
	require.Nil(t, listed.GetReleasable()[1].GetSince())
	done, err := a.ForceRelease(as(t, operator), &adminv1.ForceReleaseRequest{
		Keys: []string{"k", "l"}, Reason: "r",
		Unanswered: true,
	})
	require.NoError(t, err)
	require.Equal(t, []string{"k"}, done.GetReleased())
	require.Equal(t, []string{
		fmt.Sprint("retry ", schema.DeploymentID{}, "r", "operator/eve"), fmt.Sprint("retry ", other, "r",
			"operator/eve"), "retry devices/droperator/eve",
		fmt.Sprint("release ", []string{"k", "l"}, true, "r", "operator/eve"),
	}, store.steered)
}
