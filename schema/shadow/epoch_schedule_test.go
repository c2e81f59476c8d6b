package shadow_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/rounds"
	"github.com/db-controller/db-controller/test/wait"
)

// recovering returns a deployment's work of some actions with another deployment.
func recovering(b *harness.Box, at, with string, actions ...schema.Action) (out []schema.Work) {
	for _, w := range b.Work(b.ID(at)) {
		for _, a := range actions {
			if w.Deployment == b.ID(with) && w.Action == a {
				out = append(out, w)
			}
		}
	}
	return out
}

func unconfirmed(t *testing.T, b *harness.Box, deployment string) []schema.DeploymentID {
	t.Helper()
	e, err := b.Stores[b.ID(deployment)].Operate.Epoch(t.Context())
	require.NoError(t, err)
	return e.Unconfirmed
}

func announced(t *testing.T, b *harness.Box, deployment string) {
	t.Helper()
	_, err := b.Do(b.ID(deployment), schema.AnnounceEpoch)
	require.NoError(t, err)
}

// Two deployments fail over one after the other, each to a state before a reference that they shared; the
// second one before it has compared with the first.
func TestTwoFailoversOneAfterTheOther_I1_I2_I8(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	b.MustPut(target2, nil)
	b.MustPut(holder, body{"block": target})
	b.Settle()
	restoreTargets, restoreHolders := b.Backup(aWest), b.Backup(bEast)
	b.MustPut(holder2, body{"block": target2}) // lost at both
	b.MustPut(holder, nil)                     // the backup still has the reference
	b.Settle()
	restoreTargets()
	b.Recover(aWest)
	announced(t, b, aWest) // the holders' deployment has not compared yet
	restoreHolders()
	b.Recover(bEast)
	b.Settle()
	require.Empty(t, unconfirmed(t, b, aWest))
	require.Empty(t, unconfirmed(t, b, bEast))
	b.Audit()
	b.MustDelete(target2)
	_, err := b.Delete(target)
	require.ErrorAs(t, err, new(*peer.BlockedError))
}

// A node's queue may name work that is done or was replaced by newer work: it delays no other work.
func TestAPassThatIsGoneKeepsNoOtherBack_I20(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"block": target})
	b.Settle()
	b.Renew(aWest)
	announced(t, b, aWest)
	h := b.Handlers(b.ID(bEast), b.Stores[b.ID(bEast)])
	queue := recovering(b, bEast, aWest, schema.ConfirmAgain, schema.VerifyBlockades)
	require.Len(t, queue, 2)
	b.SetDown(aWest, true)
	_, err := h.Handle(t.Context(), b.ID(aWest), queue)
	require.Error(t, err)
	b.SetDown(aWest, false)
	b.Renew(aWest) // a second epoch
	announced(t, b, aWest)
	queue = append(queue, recovering(b, bEast, aWest, schema.ConfirmAgain, schema.VerifyBlockades)...)
	require.Len(t, queue, 4)
	_, err = b.Do(b.ID(aWest), schema.VerifyBlockades) // it tells again of deletions
	require.NoError(t, err)
	_, err = h.Handle(t.Context(), b.ID(aWest), queue)
	require.NoError(t, err)
	require.NotContains(t, unconfirmed(t, b, aWest), b.ID(bEast))
}

// A process that has not noticed the new epoch announces nothing, and leaves the work in place.
func TestAProcessThatHasNotNoticedAnnouncesNothing(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	second := b.SecondProcess(bEast, shadow.Config{})
	b.Renew(bEast)
	work := recovering(b, bEast, aWest, schema.AnnounceEpoch)
	require.Len(t, work, 1)
	_, err := b.Handlers(b.ID(bEast), second).Handle(t.Context(), b.ID(aWest), work)
	require.Error(t, err)
	require.Len(t, recovering(b, bEast, aWest, schema.AnnounceEpoch), 1)
	_, err = second.Gate.NoticeEpoch(t.Context())
	require.NoError(t, err)
	_, err = b.Handlers(b.ID(bEast), second).Handle(t.Context(), b.ID(aWest), work)
	require.NoError(t, err)
	require.Empty(t, recovering(b, bEast, aWest, schema.AnnounceEpoch))
}

// A user drops a reference while the recovery establishes it again.
func TestWhatIsDroppedWhileItIsEstablishedAgainLeavesNothing_I8(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	b.Settle()
	restore := b.Backup(aWest)
	b.MustPut(holder, body{"block": target})
	b.Settle()
	restore()
	b.Recover(aWest)
	once := true
	b.AfterEstablish = func() {
		if once {
			once = false
			b.MustPut(holder, body{})
		}
	}
	b.Settle()
	require.False(t, once)
	b.Expire(aWest)
	b.Settle()
	require.Zero(t, b.Count(aWest, "blockade"))
	b.Audit()
}

// The epoch recorded of another deployment survives a failover of the recorder.
func TestAnOldEpochDoesNotCountAgainAfterTheTargetsOwnFailover_I5_I8(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	h := b.MustPut(holder, body{"block": target})
	b.Settle()
	ctx := context.Background()
	var attempt uuid.UUID
	require.NoError(t, b.Pools[b.ID(aWest)].QueryRow(ctx, `SELECT attempt FROM dbcontroller.blockade`).Scan(&attempt))
	key := peer.BlockadeKey{Attempt: attempt, HolderUID: h.UID, Path: "block", TargetUID: b.Get(target).UID}
	restore := b.Backup(bEast)
	old := b.Stores[b.ID(bEast)].Gate.PresentEpoch()
	b.MustPut(holder, body{}) // its release is not delivered yet
	restore()
	b.Recover(bEast)
	b.Settle()
	b.Renew(aWest)
	b.Settle()
	require.ErrorIs(t, b.Stores[b.ID(aWest)].Targets.Release(ctx, b.ID(bEast), old, []peer.BlockadeKey{key}, nil),
		peer.ErrStaleEpoch)
	b.Settle()
	b.Audit()
	_, err := b.Delete(target)
	require.ErrorAs(t, err, new(*peer.BlockedError))
}

// A deployment and a field path were first stored in the lost commits: the process caches numbers of rows
// that do not exist.
func TestNamesThatWereLostAreLookedUpAgain_I1_I3(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]body{"deployment": nil, "path": {"unset": target2}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBox(t, nil)
			b.MustPut(target, nil)
			b.MustPut(target2, nil)
			if before != nil {
				b.MustPut(holder2, before)
				b.Settle()
			}
			takeOver := b.Copy(aWest)
			b.MustPut(holder, body{"block": target})
			b.Settle()
			takeOver()
			b.Recover(aWest)
			b.Settle()
			_, err := b.Delete(target)
			require.ErrorAs(t, err, new(*peer.BlockedError))
			_, err = b.SecondProcess(aWest, shadow.Config{}).Deletions.Delete(t.Context(),
				shadow.DeleteRequest{Name: "targets/t"})
			require.ErrorAs(t, err, new(*peer.BlockedError))
			b.Audit()
		})
	}
}

// An older copy of the files takes the place of the database of a running process, which has seen a later
// epoch.
func TestAnEpochOfBeforeThatComesBackIsNoticed(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	b.Settle()
	ctx := context.Background()
	pool := b.Pools[b.ID(aWest)]
	var epoch, server, timeline string
	require.NoError(t, pool.QueryRow(ctx, `SELECT epoch, server, timeline FROM dbcontroller.meta`).Scan(&epoch, &server,
		&timeline))
	b.Renew(aWest)
	b.Settle()
	_, err := pool.Exec(ctx, `UPDATE dbcontroller.meta SET epoch = $1, server = $2, timeline = $3`, epoch,
		server, timeline)
	require.NoError(t, err)
	b.Recover(aWest)
	b.Settle()
	b.MustPut(holder, body{"block": target})
}

// The commit of a version switch was lost: a process of the new version switches again.
func TestASwitchThatWasLostIsMadeAgain_I26(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	_, err := b.Pools[b.ID(aWest)].Exec(t.Context(),
		`UPDATE dbcontroller.meta SET generation = generation - 1, version = 'before'`)
	require.NoError(t, err)
	b.Renew(aWest)
	b.Settle()
	store := b.Stores[b.ID(aWest)]
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = store.Write.Save(short, []peer.Write{{Name: "targets/t"}})
	require.Error(t, err)
	require.NoError(t, store.Admin.Switch(t.Context(), store.Model())) // as the node manager does with a new epoch
	b.MustPut(target, nil)
}

// A refusal that can pass says nothing about the target: the reference is not dangling, its epoch is not
// confirmed, and it is established again when the reason has passed. It keeps no other reference back, and an
// operator can read of it.
func TestARefusalThatCanPassIsNoAnswerAboutTheTarget_I1_I20(t *testing.T) {
	t.Parallel()
	reasons := []peer.Reason{
		peer.NotImported, peer.NotReferable, peer.NotConstrained, peer.UnknownKind,
		peer.QuotaExceeded, "OF_A_LATER_RELEASE",
	}
	for _, reason := range reasons {
		t.Run(string(reason), func(t *testing.T) {
			t.Parallel()
			b := refusing(t, reason)
			waitsForRefused(t, b, reason)
			b.OnEstablish = nil
			b.Settle()
			require.Empty(t, unconfirmed(t, b, aWest))
			for _, name := range []string{target, target2} {
				_, err := b.Delete(name)
				require.ErrorAs(t, err, new(*peer.BlockedError))
			}
			require.Zero(t, b.Count(bEast, "dangling"))
			b.Audit()
		})
	}
}

func waitsForRefused(t *testing.T, b *harness.Box, reason peer.Reason) {
	t.Helper()
	require.Zero(t, b.Count(bEast, "dangling"))
	require.Equal(t, 1, b.Count(aWest, "blockade"), "the other one is known again")
	require.Equal(t, []schema.DeploymentID{b.ID(bEast)}, unconfirmed(t, b, aWest))
	_, err := b.Delete(target)
	require.ErrorAs(t, err, new(*peer.UnavailableError))
	_, err = b.Do(b.ID(bEast), schema.ConfirmAgain)
	require.ErrorContains(t, err, "1 references are refused for now")
	require.ErrorContains(t, err, "holders/h: block: "+target)
	var cursor string
	const sql = `SELECT cursor FROM dbcontroller.work w JOIN dbcontroller.deployment d ON d.id = w.deployment_id WHERE action = $1 AND service = 'a.example.com' AND region = 'us-west2'`
	require.NoError(t, b.Pools[b.ID(bEast)].QueryRow(t.Context(), sql, schema.ConfirmAgain).Scan(&cursor))
	require.Empty(t, cursor, "the next pass begins with it")
	found := verified(t, b, bEast, true)
	require.Len(t, found, 1, reason)
	require.Equal(t, shadow.DifferenceKind("REFERENCE_NOT_ALLOWED"), found[0].Kind)
	require.False(t, found[0].Repaired)
	require.Zero(t, b.Count(bEast, "dangling"))
}

// refusing returns a box in which the target's database was restored to before its references, one of which
// is refused.
func refusing(t *testing.T, reason peer.Reason) *harness.Box {
	t.Helper()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	b.MustPut(target2, nil)
	b.Settle()
	restore := b.Backup(aWest)
	b.MustPut(holder, body{"block": target})
	b.MustPut(holder2, body{"block": target2})
	b.Settle()
	restore()
	b.Recover(aWest)
	// as the service does
	b.OnEstablish = func(_ schema.DeploymentID, _ peer.AttemptID, refs []peer.EstablishReference) error {
		for _, r := range refs {
			if r.TargetName == "targets/t" {
				full := schema.FullName{Deployment: b.ID(aWest), Name: r.TargetName}
				return &peer.RefusedError{Refusals: []peer.Refusal{{
					Holder: r.HolderName, Path: r.Path, Target: full,
					Reason: reason,
				}}}
			}
		}
		return nil
	}
	b.Settle()
	return b
}

// An operator ends the wait for a reference that will never be allowed again: its target can be deleted, and
// then it is dangling.
func TestTheWaitForARefusedReferenceCanBeWaived_I13(t *testing.T) {
	t.Parallel()
	b := refusing(t, peer.NotReferable)
	require.NoError(t, b.Stores[b.ID(aWest)].Operate.WaiveComparison(t.Context(), b.ID(bEast),
		"the kind was closed", "eve"))
	b.MustDelete(target)
	b.OnEstablish = nil
	b.Settle()
	require.Equal(t, 1, b.Count(bEast, "dangling"))
	_, err := b.Delete(target2)
	require.ErrorAs(t, err, new(*peer.BlockedError))
}

// After a holder's database was restored, and before its comparison, the target's database may lack blockades
// of its references.
func TestADeleteWaitsUntilARestoredHolderHasCompared_I3(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"block": target})
	b.Settle()
	restore := b.Backup(bEast)
	b.MustPut(holder, body{})
	b.MustPut(holder, body{"block": target}) // the same reference, under another attempt
	b.Settle()
	restore()
	b.Recover(bEast)
	announced(t, b, bEast)
	_, err := b.Delete(target)
	require.ErrorAs(t, err, new(*peer.UnavailableError))
	b.Settle()
	_, err = b.Delete(target)
	require.ErrorAs(t, err, new(*peer.BlockedError))
	b.Audit()
}

// A deployment is decommissioned while this one reads which deployments may refer to its resources.
func TestADeploymentThatIsGoneIsNotWaitedForAfterAFailover_I15(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"block": target})
	b.Settle()
	b.SetDown(bEast, true)
	b.Renew(aWest)
	b.Settle()
	require.Equal(t, []schema.DeploymentID{b.ID(bEast)}, unconfirmed(t, b, aWest))
	store := b.Stores[b.ID(aWest)]
	require.NoError(t, store.Admin.Decommission(t.Context(), shadow.Decommissioned{
		Deployment: b.ID(bEast),
		Blocking:   schema.Unset, Reason: "fire", By: "eve",
	}))
	require.Empty(t, unconfirmed(t, b, aWest))
	b.Renew(aWest)
	b.Settle()
	require.Empty(t, unconfirmed(t, b, aWest))
	b.MustDelete(target)
}

// Decommission holds its lock while Recover starts: Recover waits for the lock, and then does not wait for
// the decommissioned deployment.
func TestADecommissionBesideARecovery_I15(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"block": target})
	b.Settle()
	store, pool := b.Stores[b.ID(aWest)], b.Pools[b.ID(aWest)]
	require.NoError(t, store.Gate.ForgetServer(t.Context()))
	_, err := store.Gate.NoticeEpoch(t.Context())
	require.NoError(t, err)
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	for _, sql := range []string{ // the statements of Decommission
		`SELECT pg_advisory_xact_lock(x'646263746c01'::bigint)`,
		`INSERT INTO dbcontroller.decommissioned (deployment_id, blocking, reason, said_by)
		SELECT id, 2, 'fire', 'eve' FROM dbcontroller.deployment WHERE service = 'b.example.com' AND region = 'eastus2'`,
		`UPDATE dbcontroller.deployment SET unconfirmed = false WHERE service = 'b.example.com' AND region = 'eastus2' AND unconfirmed`,
	} {
		_, err := tx.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	recovered := make(chan error, 1)
	go func() { recovered <- store.Gate.Recover(t.Context(), b.Environment()) }()
	require.Eventually(t, func() bool { // Recover waits for the lock, or has returned
		var waits bool
		err := pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`).Scan(&waits)
		return err == nil && (waits || len(recovered) > 0)
	}, wait.Limit, 5*time.Millisecond)
	require.NoError(t, tx.Commit(t.Context()))
	require.NoError(t, <-recovered)
	require.NotContains(t, unconfirmed(t, b, aWest), b.ID(bEast))
}

// A deployment that was described and has never run holds no references: it is not waited for.
func TestADeploymentThatNeverRanIsNotWaitedForAfterAFailover(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	store := b.Stores[b.ID(aWest)]
	require.NoError(t, store.Gate.ForgetServer(t.Context()))
	_, err := store.Gate.NoticeEpoch(t.Context())
	require.NoError(t, err)
	env := b.Environment()
	asia := schema.DeploymentID{Service: "b.example.com", Region: "asia1"}
	env.Deployments = append(env.Deployments, schema.Deployment{DeploymentID: asia, Version: "v1"})
	ran := &schema.Environment{Deployments: []schema.Deployment{{
		DeploymentID: asia, Version: "v1", Address: "x:1",
		Generation: 1,
	}}}
	require.NoError(t, store.Gate.Recover(t.Context(), env))
	require.NotContains(t, unconfirmed(t, b, aWest), asia)
	b.Settle()
	b.MustDelete(target)
	// A deployment that has run is waited for, even if the registry has lost its address.
	require.NoError(t, store.Gate.ForgetServer(t.Context()))
	_, err = store.Gate.NoticeEpoch(t.Context())
	require.NoError(t, err)
	require.NoError(t, store.Gate.Recover(t.Context(), env.With(ran)))
	require.Contains(t, unconfirmed(t, b, aWest), asia)
}

// Random steps; between any two of them, databases are restored, or fail over without a loss.
func TestRecoveriesInRandomSteps_I1_I8_I19(t *testing.T) {
	t.Parallel()
	seeds := rounds.Of(4, 1)
	for seed := range uint64(seeds) {
		b := newBox(t, func(cfg *shadow.Config) { cfg.Times.OwnerGrace = 1 })
		r := &steps{t: t, b: b, random: rand.New(rand.NewPCG(seed, 7)), restores: map[string]func(){}} //nolint:gosec // reproducible
		b.AfterEstablish = r.meddle
		for range 90 {
			r.step()
		}
		b.AfterEstablish = nil
		for range 2 {
			for _, d := range everywhere {
				b.Expire(d)
			}
			b.Settle()
		}
		b.Audit()
		for _, d := range everywhere {
			require.Empty(t, unconfirmed(t, b, d), "seed %d", seed)
			for _, f := range verified(t, b, d, false) {
				require.Equal(t, shadow.TargetGone, f.Kind, "seed %d: %+v", seed, f)
			}
		}
	}
}

var everywhere = []string{aWest, aEast, bWest, bEast}

// steps takes random steps as users, handlers and databases.
type steps struct {
	t        *testing.T
	b        *harness.Box
	random   *rand.Rand
	restores map[string]func()

	mu       sync.Mutex // guards random and meddling: deployments are asked concurrently
	meddling bool
}

func (r *steps) one(of ...string) string { return of[r.random.IntN(len(of))] }

func (r *steps) target() string {
	return fmt.Sprintf("//%s/targets/t%d", r.one(aWest, aEast), r.random.IntN(3))
}

func (r *steps) holder() string {
	return fmt.Sprintf("//%s/holders/h%d", r.one(bWest, bEast), r.random.IntN(4))
}

// meddle drops references, as a user, between another write's establish and its commit.
func (r *steps) meddle() {
	r.mu.Lock()
	begins := !r.meddling && r.random.IntN(6) == 0
	name := r.holder()
	r.meddling = r.meddling || begins
	r.mu.Unlock()
	if begins {
		_, _ = r.b.Put(name, body{})
		r.mu.Lock()
		r.meddling = false
		r.mu.Unlock()
	}
}

func (r *steps) step() {
	b := r.b
	switch r.random.IntN(14) {
	case 0, 1:
		_, _ = b.Put(r.target(), nil)
	case 2, 3, 4:
		content := body{}
		for _, field := range []string{"block", "unset", "cascade", "asyncCascade"} {
			if r.random.IntN(3) == 0 {
				content[field] = r.target()
			}
		}
		_, _ = b.Put(r.holder(), content)
	case 5:
		_, _ = b.PutOwned(r.target(), nil, owner(r.t, r.holder(), "Holder"))
	case 6:
		_, _ = b.Delete(r.target())
	case 7:
		_, _ = b.Delete(r.holder())
	case 8, 9:
		r.fail(r.one(everywhere...))
	case 10:
		if r.random.IntN(4) == 0 {
			b.Settle()
		}
	default:
		for range 5 {
			r.handle(r.one(everywhere...))
		}
	}
}

func (r *steps) fail(d string) {
	switch restore := r.restores[d]; {
	case restore != nil:
		restore()
		delete(r.restores, d)
		r.b.Recover(d)
	case r.random.IntN(3) == 0:
		r.b.Renew(d)
	default:
		r.restores[d] = r.b.Backup(d)
	}
}

// handle is one step of the handlers of one deployment.
func (r *steps) handle(d string) {
	b := r.b
	switch r.random.IntN(6) {
	case 0:
		_, _ = b.Act(b.ID(d), b.ID(r.one(everywhere...)))
	case 1:
		b.Expire(d)
		_ = b.Resolve(b.ID(d))
	default:
		all := []schema.Action{
			schema.Confirm, schema.Release, schema.Finalise, schema.CheckOwners, schema.DropOwners,
			schema.AnnounceEpoch, schema.AnnounceEpoch, schema.ConfirmAgain, schema.ConfirmAgain,
			schema.VerifyBlockades,
		}
		_, _ = b.Do(b.ID(d), all[r.random.IntN(len(all))])
	}
}
