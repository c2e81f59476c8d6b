package attempt

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
)

// One attempt can have as many references as a request has writes. So rows of whole keys are compared with
// their attempts by IS NOT DISTINCT FROM, here and in other statements, which uses no index: the index of
// attempts would give all of them for each. The holder and the target are looked up first: by statistics of
// another moment, PostgreSQL would read all targets of the deployment, or all references to a target, for
// each row.
var (
	selectStillHeldSQL = db.Codes(`
SELECT i.n - 1, false, s.state = {deleting}
FROM unnest($1::uuid[], $2::uuid[], $3::int[], $4::uuid[]) WITH ORDINALITY AS i (attempt, holder_uid, field_id, target_uid, n)
CROSS JOIN LATERAL (SELECT id, state FROM dbcontroller.shadow WHERE uid = i.holder_uid OFFSET 0) AS s
CROSS JOIN LATERAL (SELECT id FROM dbcontroller.foreign_target WHERE uid = i.target_uid AND deployment_id = $5 OFFSET 0) AS f
CROSS JOIN LATERAL (
    SELECT FROM dbcontroller.reference r
    WHERE (r.holder_id, r.field_id, r.target_id) BETWEEN ROW (s.id, i.field_id, f.id) AND ROW (s.id, i.field_id, f.id) AND r.attempt IS NOT DISTINCT FROM i.attempt OFFSET 0
) AS r
UNION ALL
SELECT i.n - 1, COALESCE(i.attempt = f.block_attempt, false) AND f.asked_by IS NOT NULL, false -- a proxy, whose holder uid is that of its target
FROM unnest($1::uuid[], $2::uuid[], $4::uuid[]) WITH ORDINALITY AS i (attempt, holder_uid, target_uid, n)
CROSS JOIN LATERAL (SELECT block_attempt, acting_attempt, asked_by FROM dbcontroller.foreign_target WHERE uid = i.target_uid AND deployment_id = $5 OFFSET 0) AS f
WHERE i.holder_uid = i.target_uid AND i.attempt IN (f.block_attempt, f.acting_attempt)`)
)

// Answer returns a verdict on each blockade that the deployment of its target asks about: held while the
// committed reference exists, or leaving if its holder is in DELETING, gone when the attempt is decided and
// the reference does not exist, undecided otherwise. An undecided attempt whose blockade has expired by the
// target's clock is first decided ABORTED. An atomic deletion is held when it is COMMITTED, and undecided
// while it is scheduled. A right to block that nothing here has used yet is undecided too: it is held, or
// returned, soon.
func (a *Attempts) Answer(ctx context.Context, target schema.DeploymentID,
	questions []peer.Question,
) (*peer.Answers, error) {
	selfEpoch := a.gate.PresentEpoch()
	deployment, err := a.Names.Deployment(ctx, target)
	if err != nil {
		return nil, err
	}
	// The caller has blockades of this deployment, so that this deployment has to watch its deletions.
	if len(questions) == 0 || slices.ContainsFunc(questions, ofReference) {
		if err := a.gate.NoteInterest(ctx, deployment); err != nil {
			return nil, err
		}
	}
	keys := make([]peer.BlockadeKey, len(questions))
	for i, q := range questions {
		keys[i] = q.Key
	}
	k, err := a.KeyColumns(ctx, keys)
	if err != nil {
		return nil, err
	}
	r := &resolution{
		target: deployment, questions: questions, keys: k, verdicts: make([]peer.Verdict, len(questions)),
		unused: make([]bool, len(questions)), unknown: a.gate.Unknown,
	}
	err = a.InTx(ctx, db.NoFeed, func(tx pgx.Tx) error {
		clear(r.verdicts)
		if r.epoch, err = a.gate.EpochOf(ctx, tx); err != nil {
			return err
		}
		if r.epoch != selfEpoch { // the looked-up ids may mean other rows: "not found" would not mean gone
			return a.gate.RecoveringSelf()
		}
		if err := a.announced(ctx, tx, deployment); err != nil {
			return err
		}
		return r.run(ctx, tx)
	})
	if err != nil {
		return nil, fmt.Errorf("resolve attempts: %w", err)
	}
	return &peer.Answers{Verdicts: r.verdicts, Epoch: r.epoch}, nil
}

// ofReference reports whether a question is about a blockade, and not about an atomic deletion.
func ofReference(q peer.Question) bool {
	return q.Key.Path != peer.DeletionPath && q.Key.Path != peer.FrozenPath
}

var unannouncedSQL = db.Codes(`
SELECT m.awaiting OR EXISTS (SELECT FROM dbcontroller.work w WHERE w.action = {announce_epoch} AND w.deployment_id = $1),
    EXISTS (SELECT FROM dbcontroller.deployment d WHERE d.id = $1 AND ` + gate.PositionDueSQL + `)
FROM dbcontroller.meta m`)

var errUnannounced = errors.New("it has not announced the epoch of its restored database yet")

// announced fails with *UnavailableError while another deployment has not been told the epoch of this
// database, or has not shown its position after a start of the server. The database may have lost attempts,
// and have earlier ones again: "gone" would be true of the asked attempt, and false of the reference. A
// deployment that knows the epoch deletes nothing until the references are compared.
func (a *Attempts) announced(ctx context.Context, tx pgx.Tx, to int32) error {
	var not, due bool
	err := tx.QueryRow(ctx, unannouncedSQL, to).Scan(&not, &due)
	switch {
	case err == nil && not:
		err = &peer.UnavailableError{Deployments: []schema.DeploymentID{a.Self}, Err: errUnannounced}
	case err == nil && due:
		err = &peer.UnavailableError{Deployments: []schema.DeploymentID{a.Self}, Err: peer.ErrStarted}
	}
	return err
}

// resolution is a call of Answer.
type resolution struct {
	target    int32
	questions []peer.Question
	keys      db.KeyColumns
	verdicts  []peer.Verdict // by question
	unused    []bool         // by question; it is about a right that nothing has used
	epoch     uuid.UUID
	unknown   *gate.Allowance
}

func (r *resolution) run(ctx context.Context, tx pgx.Tx) (err error) {
	if err := r.findHeld(ctx, tx); err != nil {
		return err
	}
	taken, err := r.takeUnknown(ctx, tx)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			r.unknown.Return(r.target, taken)
		}
	}()
	// Waits for a concurrent commit of the same attempt; the next statements then see its rows.
	if _, err := tx.Exec(ctx, decideAbortedSQL, r.expired()); err != nil {
		return err
	}
	// Decisions before references: the references of an attempt that commits between the two statements are
	// seen.
	decided, err := decisions(ctx, tx, r.keys.Attempts)
	if err != nil {
		return err
	}
	if err := r.findHeld(ctx, tx); err != nil {
		return err
	}
	if err := r.findFrozen(ctx, tx); err != nil {
		return err
	}
	for i := range r.verdicts {
		committed, known := decided[r.keys.Attempts[i]]
		switch {
		case r.verdicts[i] != peer.Undecided || r.unused[i] || !known || r.questions[i].Key.Path == peer.FrozenPath:
		case committed == nil: // scheduled
		case *committed && r.questions[i].Key.Path == peer.DeletionPath:
			r.verdicts[i] = peer.Held
		default:
			r.verdicts[i] = peer.GoneVerdict
		}
	}
	return nil
}

// findHeld sets the verdicts on references that exist, and finds the rights that nothing has used.
func (r *resolution) findHeld(ctx context.Context, tx pgx.Tx) error {
	clear(r.unused)
	rows, err := tx.Query(ctx, selectStillHeldSQL, r.keys.Attempts, r.keys.Holders, r.keys.Fields,
		r.keys.Targets, r.target)
	if err != nil {
		return err
	}
	var n int
	var unused, deleting bool
	_, err = pgx.ForEachRow(rows, []any{&n, &unused, &deleting}, func() error {
		switch r.unused[n] = unused; {
		case unused:
		case deleting:
			r.verdicts[n] = peer.Leaving
		default:
			r.verdicts[n] = peer.Held
		}
		return nil
	})
	return err
}

// held: the deletion has frozen the resource, or it is marked, and waits for the deployment that asks.
var selectFrozenSQL = db.Codes(`
SELECT i.n - 1, s.id IS NOT NULL AND (s.state = {deleting} AND EXISTS (
        SELECT FROM dbcontroller.holder_entry e WHERE e.target_id = s.id AND e.deployment_id = $4
        UNION ALL SELECT FROM dbcontroller.notice n WHERE n.target_id = s.id AND n.deployment_id = $4
    ) OR EXISTS (SELECT FROM dbcontroller.frozen f WHERE f.target_id = s.id AND f.deletion = i.deletion)),
    s.id IS NULL OR s.state = {deleting}
FROM unnest($1::uuid[], $2::uuid[], $3::boolean[]) WITH ORDINALITY AS i (deletion, uid, asked, n) LEFT JOIN dbcontroller.shadow s ON s.uid = i.uid
WHERE i.asked`)

// findFrozen sets the verdicts on questions of participants of atomic deletions: held while a mark of the
// resource may come, gone when it was marked, or is gone, undecided when it is ACTIVE and no member.
func (r *resolution) findFrozen(ctx context.Context, tx pgx.Tx) error {
	asked := make([]bool, len(r.questions))
	for i, q := range r.questions {
		asked[i] = q.Key.Path == peer.FrozenPath
	}
	if !slices.Contains(asked, true) {
		return nil
	}
	rows, err := tx.Query(ctx, selectFrozenSQL, r.keys.Attempts, r.keys.Targets, asked, r.target)
	if err != nil {
		return err
	}
	var n int
	var held, marked bool
	_, err = pgx.ForEachRow(rows, []any{&n, &held, &marked}, func() error {
		switch {
		case held:
			r.verdicts[n] = peer.Held
		case marked:
			r.verdicts[n] = peer.GoneVerdict
		}
		return nil
	})
	return err
}

// expired returns the undecided attempts whose blockades have expired by the target's clock.
func (r *resolution) expired() (attempts []peer.AttemptID) {
	for i, q := range r.questions {
		if r.verdicts[i] == peer.Undecided && !r.unused[i] && q.Expired && q.Key.Path != peer.FrozenPath {
			attempts = append(attempts, q.Key.Attempt)
		}
	}
	return attempts
}

// takeUnknown counts the attempts without a decision for the deployment that asks: each of them gets a row.
func (r *resolution) takeUnknown(ctx context.Context, tx pgx.Tx) (taken int, err error) {
	expired := r.expired()
	decided, err := decisions(ctx, tx, expired)
	if err != nil {
		return 0, err
	}
	unknown := map[peer.AttemptID]bool{}
	for _, a := range expired {
		if _, known := decided[a]; !known {
			unknown[a] = true
		}
	}
	return len(unknown), r.unknown.Take(r.target, len(unknown))
}

// decisions returns, for each decided attempt, whether it is COMMITTED; nil for a deletion that is scheduled.
func decisions(ctx context.Context, tx pgx.Tx, attempts []peer.AttemptID) (committed map[peer.AttemptID]*bool,
	err error,
) {
	rows, err := tx.Query(ctx, selectDecisionsSQL, attempts)
	if err != nil {
		return nil, err
	}
	committed = map[peer.AttemptID]*bool{}
	var a peer.AttemptID
	var c *bool
	_, err = pgx.ForEachRow(rows, []any{&a, &c}, func() error { committed[a] = c; return nil })
	return committed, err
}
