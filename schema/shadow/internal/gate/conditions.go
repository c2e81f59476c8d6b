package gate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

// PresentSQL is a select list over a row m of meta: the next number of the sequence mark, and the current
// epoch. Its columns are scanned into EpochCheck.Columns.
const PresentSQL = `nextval('dbcontroller.mark'), ` + EpochNowSQL

// EpochCheck checks the epoch of a transaction by the columns of PresentSQL.
type EpochCheck struct {
	store *Gate
	tx    pgx.Tx
	seen  int64 // the greatest mark seen before the statement was sent
	mark  int64
	found *uuid.UUID // the epoch of the transaction; nil: the server is not the one on which it began
}

// Present returns the check of the epoch of a transaction.
func (s *Gate) Present(tx pgx.Tx) *EpochCheck {
	return &EpochCheck{store: s, tx: tx, seen: s.Rollback.Seen.Load()}
}

// Columns returns the scan targets of PresentSQL.
func (p *EpochCheck) Columns() []any { return []any{&p.mark, &p.found} }

// epoch returns the epoch of the transaction; nil when the server is not the one on which the stored epoch
// began, or the number shows that its database is an older copy. It records the number in the transaction.
func (p *EpochCheck) epoch() *uuid.UUID {
	if p.found == nil {
		return nil
	}
	if p.mark <= p.seen {
		p.store.Rollback.EndedEpoch.Store(p.found)
	}
	if p.store.wentBackIn(*p.found) {
		return nil
	}
	if m, ok := p.tx.(*db.Marked); ok {
		m.Mark = p.mark
	}
	return p.found
}

// wentBackIn reports whether a smaller number was taken in an epoch.
func (s *Gate) wentBackIn(epoch uuid.UUID) bool {
	ended := s.Rollback.EndedEpoch.Load()
	return ended != nil && *ended == epoch
}

// Is reports whether the transaction runs in an epoch.
func (p *EpochCheck) Is(epoch uuid.UUID) bool {
	found := p.epoch()
	return found != nil && *found == epoch
}

// PresentEpoch returns the epoch that this process noticed last; uuid.Nil before the first.
func (s *Gate) PresentEpoch() uuid.UUID {
	if e := s.epoch.Load(); e != nil {
		return *e
	}
	return uuid.Nil
}

// EpochChanged receives after a transaction met a server whose epoch has not been noticed. Capacity one;
// never closed.
func (s *Gate) EpochChanged() <-chan struct{} { return s.epochChanged }

// SignalEpochChanged makes EpochChanged receive.
func (s *Gate) SignalEpochChanged() { signal(s.epochChanged) }

const (
	// Decommissioned deployments are not waited for.
	AwaitedSQL = `(d.unconfirmed OR d.uncompared OR ` + PositionDueSQL +
		`) AND NOT EXISTS (SELECT FROM dbcontroller.decommissioned x WHERE x.deployment_id = d.id)`

	// A deployment d is awaited by deletions of every kind.
	allKindsSQL = `(d.unconfirmed AND d.unconfirmed_kinds IS NULL OR d.uncompared AND d.uncompared_kinds IS NULL OR ` +
		PositionDueSQL + `)`

	// AwaitedOfSQL is AwaitedSQL for deletions of resources of the kinds $1; null: of any kind.
	AwaitedOfSQL = AwaitedSQL + ` AND (` + allKindsSQL + ` OR $1::int[] IS NULL
    OR d.unconfirmed AND d.unconfirmed_kinds && $1 OR d.uncompared AND d.uncompared_kinds && $1)`

	selectAwaitedSQL = `
SELECT m.awaiting, COALESCE(d.service, ''), COALESCE(d.region, ''), COALESCE(d.unconfirmed OR d.uncompared, false), COALESCE(` + allKindsSQL + `, false)
FROM dbcontroller.meta m LEFT JOIN dbcontroller.deployment d ON ` + AwaitedOfSQL + `
WHERE m.awaiting OR d.id IS NOT NULL ORDER BY 2, 3`

	recoveredSQL = `
SELECT ` + PresentSQL + `, NOT m.awaiting AND NOT EXISTS (SELECT FROM dbcontroller.deployment d WHERE ` + AwaitedSQL + `),
    EXISTS (SELECT FROM dbcontroller.deployment d WHERE d.id = $1 AND d.paused), ` + RunningColumns + `
FROM dbcontroller.meta m`
)

// CheckRecovered fails with *UnavailableError while blockades and entries of resources of some kinds may be
// lost here, and while an operator has paused deletions; kinds may be nil: of any kind. A transaction that
// marks or removes resources calls it after it has locked them: establishing again waits for these locks, and
// is confirmed later.
func (s *Gate) CheckRecovered(ctx context.Context, tx pgx.Tx, kinds []int32) error {
	b := &pgx.Batch{}
	r := s.QueueRecovered(tx, b)
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return err
	}
	return r.Check(ctx, kinds)
}

// Recovered is the answer to QueueRecovered.
type Recovered struct {
	// Behind: the database runs another version than this process.
	Behind bool

	store           *Gate
	present         *EpochCheck
	settled, paused bool
}

// QueueRecovered is CheckRecovered in a batch of statements: behind the statement that locks the resources.
// Check is called when the batch has been sent.
func (s *Gate) QueueRecovered(tx pgx.Tx, b *pgx.Batch) *Recovered {
	r := &Recovered{store: s, present: s.Present(tx)}
	b.Queue(recoveredSQL, s.SelfID).QueryRow(func(row pgx.Row) error {
		var stored Running
		err := row.Scan(slices.Concat(r.present.Columns(), []any{&r.settled, &r.paused}, stored.Into())...)
		v := s.Version.Load()
		r.Behind = v == nil || err == nil && s.CheckVersion(v, stored) != nil
		return err
	})
	return r
}

// Check returns the error of CheckRecovered.
func (r *Recovered) Check(ctx context.Context, kinds []int32) error {
	s, tx := r.store, r.present.tx
	if r.paused {
		return &peer.UnavailableError{Deployments: []schema.DeploymentID{s.Self}, Err: peer.ErrPaused}
	}
	noticed := r.present.epoch() != nil
	if noticed && r.settled {
		return nil
	}
	if !noticed {
		s.SignalEpochChanged()
	}
	rows, err := tx.Query(ctx, selectAwaitedSQL, kinds)
	if err != nil {
		return err
	}
	var awaiting, compares, all bool
	var next schema.DeploymentID
	var comparing, ofKinds, waiting []schema.DeploymentID
	_, err = pgx.ForEachRow(rows, []any{&awaiting, &next.Service, &next.Region, &compares, &all}, func() error {
		switch {
		case next == schema.DeploymentID{}: // whom this deployment waits for is not known yet
		case !all:
			ofKinds = append(ofKinds, next)
		case compares:
			comparing = append(comparing, next)
		default:
			waiting = append(waiting, next)
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case len(comparing) > 0:
		return &peer.UnavailableError{Deployments: comparing, Err: peer.ErrRecovering}
	case len(waiting) > 0:
		return &peer.UnavailableError{Deployments: waiting, Err: peer.ErrStarted}
	case awaiting || !noticed:
		return s.recovering()
	case len(ofKinds) > 0:
		return &peer.UnavailableError{Deployments: ofKinds, Err: peer.ErrKindsRecovering}
	}
	return nil // the awaited deployments refer to no resource of the kinds
}

// AwaitsList records why a recovery does not know the deployments that may refer to resources here yet; nil:
// it does.
func (s *Gate) AwaitsList(why error) {
	if why == nil {
		s.list.Store(nil)
		return
	}
	s.list.Store(&peer.ListError{Err: why})
}

// recovering returns the error of a delete that waits for this deployment itself.
func (s *Gate) recovering() error {
	if list := s.list.Load(); list != nil {
		return &peer.UnavailableError{Deployments: []schema.DeploymentID{s.Self}, Err: list}
	}
	return &peer.UnavailableError{Deployments: []schema.DeploymentID{s.Self}, Err: peer.ErrRecovering}
}

// CheckPeerEpoch makes the batch fail with ErrStaleEpoch when a later epoch than epoch is stored for the
// sender's database; and with *UnavailableError when this database is not in selfEpoch, in which the caller
// looked up its ids.
func (s *Gate) CheckPeerEpoch(tx pgx.Tx, b *pgx.Batch, deployment int32, epoch, selfEpoch uuid.UUID) {
	present := s.Present(tx)
	b.Queue(knownEpochSQL, deployment, epoch).QueryRow(func(row pgx.Row) error {
		var known bool
		err := row.Scan(append([]any{&known}, present.Columns()...)...)
		switch {
		case err == nil && !present.Is(selfEpoch), errors.Is(err, pgx.ErrNoRows):
			return s.RecoveringSelf()
		case err == nil && !known:
			return peer.ErrStaleEpoch
		}
		return err
	})
}

// RecoveringSelf returns the error of a transaction that found another epoch than the noticed one, and
// signals it.
func (s *Gate) RecoveringSelf() error {
	s.SignalEpochChanged()
	return &peer.UnavailableError{Deployments: []schema.DeploymentID{s.Self}, Err: peer.ErrRecovering}
}

// Running is the version stored in the database.
type Running struct {
	Version    string
	Generation int64 // increases with each switch
	Digest     string
}

// Into returns the scan targets of RunningColumns.
func (r *Running) Into() []any { return []any{&r.Version, &r.Generation, &r.Digest} }

// CheckVersion fails with ErrAborted, and signals Superseded, when the version stored in the database is not
// the caller's: another name, or the same name with another digest. The caller's request is retried.
func (s *Gate) CheckVersion(v *db.Version, stored Running) error {
	switch {
	case stored.Generation == v.Generation:
		return nil
	case !v.Model.Says(stored.Version, stored.Digest):
		signal(s.superseded)
		return fmt.Errorf("%w: the deployment switched its version", peer.ErrAborted)
	}
	s.adopt(v, stored.Generation)
	return nil
}

// adopt takes over the generation of the database: another process has switched to another version and back.
// Resources that were stored under that version may be kept.
func (s *Gate) adopt(v *db.Version, generation int64) {
	fresh := *v
	fresh.Generation, fresh.Keeps = generation, true
	s.Version.CompareAndSwap(v, &fresh)
}

// Allowance bounds the rows that each other deployment can make this process store about attempts that have
// nothing here. Such a row keeps a late message of the attempt from taking effect, so that it is needed when
// the attempt is real, and nothing shows that.
type Allowance struct {
	most func() int64 // at once, and in an hour
	now  func() time.Time

	mu   sync.Mutex
	used map[int32]allowed // by deployment; guarded by mu
}

type allowed struct {
	rows float64
	at   time.Time
}

func newAllowance(most func() int64, now func() time.Time) *Allowance {
	return &Allowance{most: most, now: now, used: map[int32]allowed{}}
}

// Take counts rows for a deployment. It fails with peer.ErrQuota, and counts none, when they are too many.
func (a *Allowance) Take(deployment int32, rows int) error {
	if rows == 0 {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	now, u, most := a.now(), a.used[deployment], float64(a.most())
	if past := now.Sub(u.at); past > 0 {
		u.rows, u.at = max(0, u.rows-past.Hours()*most), now
	}
	if u.rows+float64(rows) > most {
		return peer.ErrQuota
	}
	u.rows += float64(rows)
	a.used[deployment] = u
	return nil
}

// Return counts rows less that were taken for a transaction without effect: one whose commit was not begun.
func (a *Allowance) Return(deployment int32, rows int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	u := a.used[deployment]
	u.rows = max(0, u.rows-float64(rows))
	a.used[deployment] = u
}

const selectPausedSQL = `SELECT EXISTS (SELECT FROM dbcontroller.deployment WHERE service = $1 AND region = $2 AND paused)`

// QueueNotPaused makes a batch fail with *UnavailableError while the deletions of another deployment are
// paused here.
func (s *Gate) QueueNotPaused(b *pgx.Batch, from schema.DeploymentID) {
	b.Queue(selectPausedSQL, from.Service, from.Region).QueryRow(func(row pgx.Row) error {
		var paused bool
		err := row.Scan(&paused)
		if err == nil && paused {
			err = &peer.UnavailableError{Deployments: []schema.DeploymentID{from}, Err: peer.ErrPaused}
		}
		return err
	})
}
