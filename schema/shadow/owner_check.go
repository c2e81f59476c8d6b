package shadow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
)

// OwnerQuestion asks the deployment of an owner whether the owner exists.
type OwnerQuestion struct {
	Kind string
	Name string
	UID  uuid.UUID // zero: unknown
	// RequiredBy is the uid of the ownee when the owner has to refer to the ownee (OwnerReference.Requires); else zero.
	RequiredBy uuid.UUID
}

// OwnerVerdict answers an OwnerQuestion.
type OwnerVerdict int

// OwnerUnknown decides nothing: the question is repeated (I15).
const (
	OwnerUnknown OwnerVerdict = iota
	OwnerExists
	OwnerAbsent
	OwnerNotReferring
	OwnerCannotOwn
)

// OwnerAnswer is the state of one owner in its deployment.
type OwnerAnswer struct {
	Verdict OwnerVerdict
	UID     uuid.UUID // of an owner that exists
	Kind    string    // by its name in the version of the owner's deployment
	Noted   bool      // the ownee's deployment had an ownee entry before the question
	// Cause of the deletion of an absent owner; nil when it is unknown.
	Cause *schema.Cause
}

// OwnerAnswers are the answers to several questions, in order.
type OwnerAnswers struct {
	Answers []OwnerAnswer
	// Version that the owner's deployment runs, and the generation of its switch.
	Version    string
	Generation int64
}

const (
	// Shared lock: a concurrent delete of the owner waits for us and then sees the new ownee entry.
	lockOwnersSQL = `
SELECT id, uid, kind_id, name, state FROM dbcontroller.shadow WHERE uid = ANY ($1) ORDER BY id FOR SHARE`

	ownersByNameSQL = `
SELECT s.uid FROM unnest($1::int[], $2::text[]) AS i (kind_id, name)
JOIN dbcontroller.shadow s ON s.kind_id = i.kind_id AND s.name = i.name`

	selectReferringSQL = `
SELECT i.n - 1
FROM unnest($1::bigint[], $2::uuid[]) WITH ORDINALITY AS i (owner_id, ownee_uid, n)
WHERE EXISTS (
    SELECT FROM dbcontroller.reference r JOIN dbcontroller.foreign_target f ON f.id = r.target_id
    WHERE r.holder_id = i.owner_id AND f.uid = i.ownee_uid AND f.deployment_id = $3
) OR $3 = $4 AND EXISTS (
    SELECT FROM dbcontroller.reference r JOIN dbcontroller.shadow t ON t.id = r.target_id
    WHERE r.holder_id = i.owner_id AND t.uid = i.ownee_uid
)`

	insertOwneeEntriesSQL = `
INSERT INTO dbcontroller.ownee_entry (owner_id, deployment_id) SELECT DISTINCT unnest($1::bigint[]), $2::int ON CONFLICT DO NOTHING`

	selectNotedSQL = `SELECT owner_id FROM dbcontroller.ownee_entry WHERE owner_id = ANY ($1) AND deployment_id = $2`

	selectVersionSQL = `SELECT version, generation FROM dbcontroller.meta`

	selectCausesSQL = `
SELECT s.n - 1, ` + causeColumnsSQL + ` FROM unnest($1::text[], $2::uuid[]) WITH ORDINALITY AS s (name, uid, n) ` + causeOfSQL + `WHERE x.id IS NOT NULL`
)

// CheckOwners reports which owners exist here to the deployment of their ownees, and writes an ownee entry for each that exists: it
// makes the owner's deletion send DropOwners there. An owner in DELETING counts as absent, since DELETING is final. While the
// database recovers from lost commits, absent owners are OwnerUnknown. It fails with ErrDecommissioned when the ownee's deployment was
// decommissioned, and with an UnavailableError when the epoch changed.
func (s *Store) CheckOwners(ctx context.Context, ownee schema.DeploymentID, questions []OwnerQuestion) (*OwnerAnswers, error) {
	return s.checkOwners(ctx, ownee, questions, false)
}

// WouldCheckOwners is CheckOwners without writing ownee entries.
func (s *Store) WouldCheckOwners(ctx context.Context, ownee schema.DeploymentID, questions []OwnerQuestion) (*OwnerAnswers, error) {
	return s.checkOwners(ctx, ownee, questions, true)
}

func (s *Store) checkOwners(ctx context.Context, ownee schema.DeploymentID, questions []OwnerQuestion, validateOnly bool) (*OwnerAnswers, error) {
	selfEpoch := s.PresentEpoch()
	v, err := s.current()
	if err != nil {
		return nil, err
	}
	deployment, err := s.names.deployment(ctx, ownee)
	if err != nil {
		return nil, err
	}
	c := &ownerCheck{store: s, epoch: selfEpoch, validateOnly: validateOnly, version: v, ownee: deployment, questions: questions, kinds: make([]int32, len(questions)), out: &OwnerAnswers{Answers: make([]OwnerAnswer, len(questions))}}
	for i, q := range questions {
		kind, err := v.model.Kind(v.model.Canonical(schema.KindID{Service: s.self.Service, Kind: q.Kind}).Kind)
		switch {
		case err != nil:
			continue // this version does not know the kind: OwnerUnknown
		case kind.Unconstrained:
			c.out.Answers[i].Verdict = OwnerCannotOwn
			continue
		}
		c.out.Answers[i].Kind = kind.ID.Kind
		if c.kinds[i], err = s.names.kind(ctx, kind.ID); err != nil {
			return nil, err
		}
	}
	if !validateOnly {
		if err := s.setFlag(ctx, noteOwnedSQL, deployment); err != nil {
			return nil, err
		}
	}
	if err := s.inTx(ctx, noFeed, func(tx pgx.Tx) error { return c.run(ctx, tx) }); err != nil {
		return nil, fmt.Errorf("check owners: %w", err)
	}
	return c.out, nil
}

type ownerCheck struct {
	store        *Store
	validateOnly bool
	epoch        uuid.UUID // in which ownee and kinds were looked up
	version      *version  // names the kinds in questions and answers
	ownee        int32     // the ownees' deployment
	questions    []OwnerQuestion
	kinds        []int32 // by question; 0: its verdict needs no look at the owner
	out          *OwnerAnswers
}

type ownerFound struct {
	id     int64
	uid    uuid.UUID
	kindID int32
	name   string
	state  State
}

func (c *ownerCheck) run(ctx context.Context, tx pgx.Tx) error {
	// Shared version lock: a concurrent switch waits for us, and then sends the new version to every deployment with an ownee entry.
	if _, err := tx.Exec(ctx, shareVersionSQL, versionLock); err != nil {
		return err
	}
	if epoch, err := c.store.epochOf(ctx, tx); err != nil || epoch != c.epoch {
		return cmp.Or(err, c.store.recoveringSelf())
	}
	var decommissioned bool
	if err := tx.QueryRow(ctx, isDecommissionedSQL, c.ownee).Scan(&decommissioned); err != nil {
		return err
	}
	if decommissioned {
		return ErrDecommissioned
	}
	found, err := c.lock(ctx, tx)
	if err != nil {
		return err
	}
	var owners, required []int64
	var requiredBy []uuid.UUID
	var at []int // question index, parallel to required
	for i, q := range c.questions {
		if c.kinds[i] == 0 {
			continue
		}
		a := &c.out.Answers[i]
		a.Verdict = OwnerAbsent
		for _, f := range found {
			if f.uid == q.UID && f.name == q.Name && f.kindID != c.kinds[i] {
				a.Verdict = OwnerUnknown // the owner exists, and the two sides disagree about its kind
			}
			if f.state != Active || f.kindID != c.kinds[i] || f.name != q.Name || q.UID != uuid.Nil && f.uid != q.UID {
				continue
			}
			a.Verdict, a.UID = OwnerExists, f.uid
			if q.RequiredBy == uuid.Nil {
				owners = append(owners, f.id)
				continue
			}
			a.Verdict = OwnerNotReferring
			required, requiredBy, at = append(required, f.id), append(requiredBy, q.RequiredBy), append(at, i)
		}
	}
	if len(required) > 0 {
		rows, err := tx.Query(ctx, selectReferringSQL, required, requiredBy, c.ownee, c.store.selfID)
		if err != nil {
			return err
		}
		var n int
		if _, err := pgx.ForEachRow(rows, []any{&n}, func() error {
			c.out.Answers[at[n]].Verdict = OwnerExists
			owners = append(owners, required[n])
			return nil
		}); err != nil {
			return err
		}
	}
	if err := c.note(ctx, tx, found, owners); err != nil {
		return err
	}
	// While commits may be lost, a missing owner is unknown, not absent (I15).
	if err := c.store.checkRecovered(ctx, tx); errors.Is(err, errRecovering) {
		for i := range c.out.Answers {
			if a := &c.out.Answers[i]; a.Verdict == OwnerAbsent || a.Verdict == OwnerNotReferring {
				a.Verdict = OwnerUnknown
			}
		}
	} else if err != nil {
		return err
	}
	if err := c.causes(ctx, tx); err != nil {
		return err
	}
	var stored running
	if err := tx.QueryRow(ctx, selectRunningSQL).Scan(stored.into()...); err != nil {
		return err
	}
	c.out.Version, c.out.Generation = stored.version, stored.generation
	return c.store.checkVersion(c.version, stored)
}

// causes fills in the causes of the deletions of absent owners.
func (c *ownerCheck) causes(ctx context.Context, tx pgx.Tx) error {
	var at []int
	var names []string
	var uids []uuid.UUID
	for i, q := range c.questions {
		if c.out.Answers[i].Verdict == OwnerAbsent && q.UID != uuid.Nil {
			at, names, uids = append(at, i), append(names, q.Name), append(uids, q.UID)
		}
	}
	if len(at) == 0 {
		return nil
	}
	rows, err := tx.Query(ctx, selectCausesSQL, names, uids)
	if err != nil {
		return err
	}
	var n int
	var cause causeRow
	_, err = pgx.ForEachRow(rows, append([]any{&n}, cause.dest()...), func() error {
		c.out.Answers[at[n]].Cause = cause.cause()
		return nil
	})
	return err
}

// note writes an ownee entry for each existing owner, and sets Noted in the answers whose entry was already there.
func (c *ownerCheck) note(ctx context.Context, tx pgx.Tx, found []ownerFound, owners []int64) error {
	rows, err := tx.Query(ctx, selectNotedSQL, owners, c.ownee)
	if err != nil {
		return err
	}
	noted, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return err
	}
	known := map[uuid.UUID]bool{}
	for _, f := range found {
		known[f.uid] = slices.Contains(noted, f.id)
	}
	for i := range c.out.Answers {
		a := &c.out.Answers[i]
		a.Noted = a.Verdict == OwnerExists && known[a.UID]
	}
	if c.validateOnly || len(noted) == len(owners) {
		return nil
	}
	_, err = tx.Exec(ctx, insertOwneeEntriesSQL, owners, c.ownee)
	return err
}

// lock finds the owners and locks them. An owner that is created between the two statements counts as absent; its question has
// no uid, and such an answer is repeated during the grace period.
func (c *ownerCheck) lock(ctx context.Context, tx pgx.Tx) ([]ownerFound, error) {
	var uids []uuid.UUID
	var kinds []int32
	var names []string
	for i, q := range c.questions {
		if q.UID != uuid.Nil {
			uids = append(uids, q.UID)
		} else if c.kinds[i] != 0 {
			kinds, names = append(kinds, c.kinds[i]), append(names, q.Name)
		}
	}
	rows, err := tx.Query(ctx, ownersByNameSQL, kinds, names)
	if err != nil {
		return nil, err
	}
	named, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, err
	}
	if rows, err = tx.Query(ctx, lockOwnersSQL, append(uids, named...)); err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (f ownerFound, err error) {
		err = row.Scan(&f.id, &f.uid, &f.kindID, &f.name, &f.state)
		return f, err
	})
}

const selectOwnerRowsSQL = `
SELECT ownee_id, deployment_id, kind_id, name, uid, flags, checked, generation, created_at, created_at + $3 <= now()
FROM dbcontroller.owner_reference WHERE ownee_id = ANY ($1) AND ($2::int IS NULL OR deployment_id = $2)`

var selectCheckSQL = codes(`
SELECT w.seq, w.target_id, s.uid FROM dbcontroller.work w
LEFT JOIN dbcontroller.shadow s ON s.id = w.target_id AND s.state = {active}
WHERE w.seq = ANY ($1) AND w.action = {check_owners}`)

func scanOwnerRow(row pgx.CollectableRow) (r ownerRow, err error) {
	err = row.Scan(&r.owneeID, &r.deploymentID, &r.kindID, &r.name, &r.uid, &r.flags, &r.checked, &r.generation, &r.createdAt, &r.over)
	return r, err
}

// OwnersToCheck are the questions to one owners' deployment that result from some pieces of work.
type OwnersToCheck struct {
	Questions []OwnerQuestion
	// Settle applies the answers, one for each question, in their order. It returns the pieces of work that wait: for an
	// owner whose uid has just become known, for one that is missing and may still come, and for an unknown answer.
	Settle func(ctx context.Context, answers *OwnerAnswers) (waiting []int64, err error)
}

// askedOwners is what the questions were read from: an answer counts only for an owner reference that is still the same.
type askedOwners struct {
	service string
	rows    []ownerRow        // one for each question
	pieces  map[int64][]int64 // ownee → work
}

// OwnersToCheck reads the owner references to a deployment of the ownees of some pieces of work.
func (s *Store) OwnersToCheck(ctx context.Context, at schema.DeploymentID, seqs []int64) (*OwnersToCheck, error) {
	deployment, err := s.names.deployment(ctx, at)
	if err != nil {
		return nil, err
	}
	c, asked := &OwnersToCheck{}, &askedOwners{service: at.Service, pieces: map[int64][]int64{}}
	c.Settle = func(ctx context.Context, answers *OwnerAnswers) ([]int64, error) {
		return s.settleOwners(ctx, asked, answers)
	}
	rows, err := s.pool.Query(ctx, selectCheckSQL, seqs)
	if err != nil {
		return nil, fmt.Errorf("read owners to check: %w", err)
	}
	var seq, ownee int64
	var uid *uuid.UUID
	var ownees []int64
	uids := map[int64]uuid.UUID{}
	if _, err := pgx.ForEachRow(rows, []any{&seq, &ownee, &uid}, func() error {
		if asked.pieces[ownee] = append(asked.pieces[ownee], seq); uid != nil {
			ownees, uids[ownee] = append(ownees, ownee), *uid
		}
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read owners to check: %w", err)
	}
	if rows, err = s.pool.Query(ctx, selectOwnerRowsSQL, ownees, deployment, s.cfg.OwnerGrace); err != nil {
		return nil, fmt.Errorf("read owners to check: %w", err)
	}
	if asked.rows, err = pgx.CollectRows(rows, scanOwnerRow); err != nil {
		return nil, fmt.Errorf("read owners to check: %w", err)
	}
	for _, r := range asked.rows {
		kind, err := s.names.kindOf(ctx, s.pool, r.kindID)
		if err != nil {
			return nil, err
		}
		q := OwnerQuestion{Kind: kind.Kind, Name: r.name, UID: r.uid}
		if r.flags&flagRequires != 0 {
			q.RequiredBy = uids[r.owneeID]
		}
		c.Questions = append(c.Questions, q)
	}
	return c, nil
}

// settleOwners applies the answers of an owners' deployment to the owner references that are unchanged since the question: an
// owner that exists is pinned; one that is absent, or lacks a required reference, is dropped, and an ownee that has lost its last
// owner is deleted (I17). It returns the pieces of work that are not done: those of ownees with an owner whose uid was just
// stored, that is missing within its grace period, or that is unknown.
func (s *Store) settleOwners(ctx context.Context, c *askedOwners, answers *OwnerAnswers) (left []int64, err error) {
	if len(answers.Answers) != len(c.rows) {
		return nil, fmt.Errorf("the owners' deployment sent %d answers to %d questions", len(answers.Answers), len(c.rows))
	}
	lost := map[ownerKey]bool{}
	pins := map[ownerKey]pin{}
	asked := map[ownerKey]ownerRow{}
	causes := map[uuid.UUID]*schema.Cause{}
	open := map[int64]bool{} // ownees
	ownees := []int64{}
	for i, r := range c.rows {
		asked[r.key()] = r
		switch a := answers.Answers[i]; a.Verdict {
		case OwnerExists:
			kindID, err := s.names.kind(ctx, schema.KindID{Service: c.service, Kind: a.Kind})
			if err != nil {
				return nil, err
			}
			pins[r.key()] = pin{uid: a.UID, kindID: kindID, kind: a.Kind}
			if r.uid == uuid.Nil {
				open[r.owneeID] = true // the next question names its uid
			}
		case OwnerAbsent:
			if r.uid == uuid.Nil && !r.over {
				open[r.owneeID] = true
				continue
			}
			lost[r.key()], causes[r.uid] = true, a.Cause
		case OwnerNotReferring:
			if !r.checked && !r.over {
				open[r.owneeID] = true
				continue
			}
			lost[r.key()] = true
		default:
			open[r.owneeID] = true
			continue
		}
		ownees = append(ownees, r.owneeID)
	}
	err = s.inTx(ctx, allFeeds, func(tx pgx.Tx) error {
		change := ownerChange{causes: causes, version: answers.Version, generation: answers.Generation}
		// An answer does not apply to a reference that was written again, or whose flags changed, after the question, nor when
		// it is older than a switch that is already stored here.
		current := func(r ownerRow) bool {
			a, ok := asked[r.key()]
			if ok && (!a.createdAt.Equal(r.createdAt) || a.flags != r.flags || r.generation > answers.Generation) {
				open[r.owneeID], ok = true, false
			}
			return ok
		}
		change.lost = func(r ownerRow) bool { return lost[r.key()] && current(r) }
		change.pin = func(r ownerRow) (pin, bool) {
			p, ok := pins[r.key()]
			return p, ok && current(r)
		}
		if err := s.changeOwners(ctx, tx, ownees, change); err != nil {
			return err
		}
		var finished []int64
		left = nil // from an earlier attempt of this transaction
		for ownee, seqs := range c.pieces {
			if open[ownee] {
				left = append(left, seqs...)
			} else {
				finished = append(finished, seqs...)
			}
		}
		_, err := tx.Exec(ctx, doneSQL, finished)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("settle owners: %w", err)
	}
	return left, nil
}
