package owner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/cascade"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
	"github.com/db-controller/db-controller/schema/shadow/internal/prepare"
	"github.com/db-controller/db-controller/schema/shadow/internal/read"
)

const (
	// Shared lock: a concurrent delete of the owner waits for us and then sees the new ownee entry.
	lockOwnersSQL = `
SELECT id, uid, kind_id, name, state, frozen FROM dbcontroller.shadow WHERE uid = ANY ($1) ORDER BY id FOR SHARE`

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

	selectCausesSQL = `
SELECT s.n - 1, ` + read.CauseColumnsSQL + ` FROM unnest($1::text[], $2::uuid[]) WITH ORDINALITY AS s (name, uid, n) ` + read.CauseOfSQL + `WHERE x.id IS NOT NULL`
)

// CheckOwners reports which owners exist here to the deployment of their ownees, and writes an ownee entry
// for each that exists: it makes the owner's deletion send DropOwners there. An owner in DELETING counts as
// absent, since DELETING is final. While the database recovers from lost commits, absent owners are
// OwnerUnknown. It fails with ErrDecommissioned when the ownee's deployment was decommissioned, and with an
// UnavailableError when the epoch changed.
func (s *Owners) CheckOwners(ctx context.Context, ownee schema.DeploymentID,
	questions []peer.OwnerQuestion,
) (*peer.OwnerAnswers, error) {
	return s.checkOwners(ctx, ownee, questions, false)
}

// WouldCheckOwners is CheckOwners without writing ownee entries.
func (s *Owners) WouldCheckOwners(ctx context.Context, ownee schema.DeploymentID,
	questions []peer.OwnerQuestion,
) (*peer.OwnerAnswers, error) {
	return s.checkOwners(ctx, ownee, questions, true)
}

func (s *Owners) checkOwners(ctx context.Context, ownee schema.DeploymentID, questions []peer.OwnerQuestion,
	validateOnly bool,
) (*peer.OwnerAnswers, error) {
	selfEpoch := s.gate.PresentEpoch()
	v, err := s.Current()
	if err != nil {
		return nil, err
	}
	deployment, err := s.Names.Deployment(ctx, ownee)
	if err != nil {
		return nil, err
	}
	c := &ownerCheck{
		store: s, epoch: selfEpoch, validateOnly: validateOnly, version: v, ownee: deployment,
		questions: questions, kinds: make([]int32, len(questions)), kept: make([]bool, len(questions)),
		out: &peer.OwnerAnswers{Answers: make([]peer.OwnerAnswer, len(questions))},
	}
	for i, q := range questions {
		kind, err := v.Model.Kind(v.Model.Canonical(schema.KindID{Service: s.Self.Service, Kind: q.Kind}).Kind)
		switch {
		case err != nil: // this version does not know the kind: OwnerUnknown, unless the owner is kept
			if c.kinds[i], err = s.keptKind(ctx, v, q); err != nil {
				return nil, err
			}
			c.out.Answers[i].Kind, c.kept[i] = q.Kind, true
			continue
		case kind.Unconstrained:
			c.out.Answers[i].Verdict = peer.OwnerCannotOwn
			continue
		}
		c.out.Answers[i].Kind = kind.ID.Kind
		if c.kinds[i], err = s.Names.Kind(ctx, kind.ID); err != nil {
			return nil, err
		}
	}
	if !validateOnly {
		if err := s.gate.SetFlag(ctx, gate.NoteOwnedSQL, deployment); err != nil {
			return nil, err
		}
	}
	if err := s.InTx(ctx, db.NoFeed, func(tx pgx.Tx) error { return c.run(ctx, tx) }); err != nil {
		return nil, fmt.Errorf("check owners: %w", err)
	}
	return c.out, nil
}

// keptKind returns the id of the kind that a question names and the version lacks, if resources of it may be
// kept; 0 otherwise.
func (s *Owners) keptKind(ctx context.Context, v *db.Version, q peer.OwnerQuestion) (int32, error) {
	if !v.Keeps {
		return 0, nil
	}
	id, err := s.KeptUnder(ctx, s.Pool, q.Name, errNotKept)
	if errors.Is(err, errNotKept) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	kind, err := s.Names.KindOf(ctx, s.Pool, id)
	if err != nil || s.Names.Root(kind) != s.Names.Root(schema.KindID{Service: s.Self.Service, Kind: q.Kind}) {
		return 0, err
	}
	return id, nil
}

var errNotKept = errors.New("no resource of this name is kept")

type ownerCheck struct {
	store        *Owners
	validateOnly bool
	epoch        uuid.UUID   // in which ownee and kinds were looked up
	version      *db.Version // names the kinds in questions and answers
	ownee        int32       // the ownees' deployment
	questions    []peer.OwnerQuestion
	kinds        []int32 // by question; 0: its verdict needs no look at the owner
	kept         []bool  // by question: the version lacks the kind
	out          *peer.OwnerAnswers
}

type ownerFound struct {
	id     int64
	uid    uuid.UUID
	kindID int32
	name   string
	state  peer.State
	frozen bool
}

func (c *ownerCheck) run(ctx context.Context, tx pgx.Tx) error {
	if err := c.admit(ctx, tx); err != nil {
		return err
	}
	found, err := c.lock(ctx, tx)
	if err != nil {
		return err
	}
	if err := findFrozen(ctx, tx, found); err != nil {
		return err
	}
	owners, required := c.judge(found)
	referring, err := c.referring(ctx, tx, required)
	if err != nil {
		return err
	}
	if err := c.note(ctx, tx, found, append(owners, referring...)); err != nil {
		return err
	}
	if err := c.doubt(ctx, tx); err != nil {
		return err
	}
	if err := c.causes(ctx, tx); err != nil {
		return err
	}
	var stored gate.Running
	if err := tx.QueryRow(ctx, gate.SelectRunningSQL).Scan(stored.Into()...); err != nil {
		return err
	}
	c.out.Version, c.out.Generation = stored.Version, stored.Generation
	return c.store.gate.CheckVersion(c.version, stored)
}

// admit checks the epoch, and that the ownees' deployment is not decommissioned.
func (c *ownerCheck) admit(ctx context.Context, tx pgx.Tx) error {
	// Shared version lock: a concurrent switch waits for us, and then sends the new version to every
	// deployment with an ownee entry.
	if _, err := tx.Exec(ctx, gate.ShareVersionSQL, gate.VersionLock); err != nil {
		return err
	}
	if epoch, err := c.store.gate.EpochOf(ctx, tx); err != nil || epoch != c.epoch {
		return cmp.Or(err, c.store.gate.RecoveringSelf())
	}
	var decommissioned bool
	if err := tx.QueryRow(ctx, gate.IsDecommissionedSQL, c.ownee).Scan(&decommissioned); err != nil {
		return err
	}
	if decommissioned {
		return peer.ErrDecommissioned
	}
	return nil
}

// requiredOwners are the owners that have to refer to their ownees, as columns.
type requiredOwners struct {
	owners []int64
	ownees []uuid.UUID
	at     []int // by question
}

// judge sets the verdicts by the owners that were found. It returns the owners that exist, and apart from
// them the owners that have to refer to their ownees, whose verdict is OwnerNotReferring so far.
func (c *ownerCheck) judge(found []ownerFound) (owners []int64, required requiredOwners) {
	for i, q := range c.questions {
		if c.kinds[i] == 0 {
			continue
		}
		a := &c.out.Answers[i]
		if a.Verdict = peer.OwnerAbsent; c.kept[i] && q.UID == uuid.Nil {
			a.Verdict = peer.OwnerUnknown // a later version may have the kind again, and the owner may come
		}
		for _, f := range found {
			if f.uid == q.UID && f.name == q.Name && f.kindID != c.kinds[i] {
				a.Verdict = peer.OwnerUnknown // the owner exists, and the two sides disagree about its kind
			}
			if !f.is(q, c.kinds[i]) {
				continue
			}
			if f.frozen { // by an atomic deletion: the answer is known when it is decided
				a.Verdict = peer.OwnerUnknown
				continue
			}
			a.Verdict, a.UID = peer.OwnerExists, f.uid
			if q.RequiredBy == uuid.Nil {
				owners = append(owners, f.id)
				continue
			}
			a.Verdict = peer.OwnerNotReferring
			required.owners, required.ownees, required.at = append(required.owners, f.id),
				append(required.ownees, q.RequiredBy), append(required.at, i)
		}
	}
	return owners, required
}

// is reports whether a question is about this owner, and the owner is active.
func (f *ownerFound) is(q peer.OwnerQuestion, kind int32) bool {
	return f.state == peer.Active && f.kindID == kind && f.name == q.Name && (q.UID == uuid.Nil || f.uid == q.UID)
}

// referring sets the verdicts on required owners that refer to their ownees, and returns these owners.
func (c *ownerCheck) referring(ctx context.Context, tx pgx.Tx, required requiredOwners) (owners []int64, err error) {
	if len(required.owners) == 0 {
		return nil, nil
	}
	rows, err := tx.Query(ctx, selectReferringSQL, required.owners, required.ownees, c.ownee, c.store.SelfID)
	if err != nil {
		return nil, err
	}
	var n int
	_, err = pgx.ForEachRow(rows, []any{&n}, func() error {
		c.out.Answers[required.at[n]].Verdict = peer.OwnerExists
		owners = append(owners, required.owners[n])
		return nil
	})
	return owners, err
}

// doubt makes missing owners unknown while commits may be lost (I15).
func (c *ownerCheck) doubt(ctx context.Context, tx pgx.Tx) error {
	err := c.store.gate.CheckRecovered(ctx, tx, nil)
	if !errors.Is(err, peer.ErrRecovering) {
		return err
	}
	for i := range c.out.Answers {
		if a := &c.out.Answers[i]; a.Verdict == peer.OwnerAbsent || a.Verdict == peer.OwnerNotReferring {
			a.Verdict = peer.OwnerUnknown
		}
	}
	return nil
}

// causes fills in the causes of the deletions of absent owners.
func (c *ownerCheck) causes(ctx context.Context, tx pgx.Tx) error {
	var at []int
	var names []string
	var uids []uuid.UUID
	for i, q := range c.questions {
		if c.out.Answers[i].Verdict == peer.OwnerAbsent && q.UID != uuid.Nil {
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
	var cause read.CauseRow
	_, err = pgx.ForEachRow(rows, append([]any{&n}, cause.Dest()...), func() error {
		c.out.Answers[at[n]].Cause = cause.Cause()
		return nil
	})
	return err
}

// note writes an ownee entry for each existing owner, and sets Noted in the answers whose entry was already
// there.
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
		a.Noted = a.Verdict == peer.OwnerExists && known[a.UID]
	}
	if c.validateOnly || len(noted) == len(owners) {
		return nil
	}
	_, err = tx.Exec(ctx, insertOwneeEntriesSQL, owners, c.ownee)
	return err
}

// lock finds the owners and locks them. An owner that is created between the two statements counts as absent;
// its question has no uid, and such an answer is repeated during the grace period.
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
		err = row.Scan(&f.id, &f.uid, &f.kindID, &f.name, &f.state, &f.frozen)
		return f, err
	})
}

// findFrozen leaves frozen set for the owners that are members of an atomic deletion.
func findFrozen(ctx context.Context, tx pgx.Tx, owners []ownerFound) error {
	var maybe []int64
	for _, o := range owners {
		if o.frozen && o.state == peer.Active {
			maybe = append(maybe, o.id)
		}
	}
	frozen, err := db.Frozen(ctx, tx, maybe)
	for i := range owners {
		owners[i].frozen = frozen[owners[i].id] != db.NotFrozen
	}
	return err
}

var selectCheckSQL = db.Codes(`
SELECT w.seq, w.target_id, s.uid FROM dbcontroller.work w
LEFT JOIN dbcontroller.shadow s ON s.id = w.target_id AND s.state = {active}
WHERE w.seq = ANY ($1) AND w.action = {check_owners}`)

// askedOwners are the owner references of the questions: an answer counts only for a reference that is
// unchanged.
type askedOwners struct {
	service string
	rows    []prepare.OwnerRow // one for each question
	pieces  map[int64][]int64  // ownee → work
}

// OwnersToCheck reads the owner references to a deployment of the ownees of some pieces of work.
func (s *Owners) OwnersToCheck(ctx context.Context, at schema.DeploymentID, seqs []int64) (*peer.OwnersToCheck, error) {
	deployment, err := s.Names.Deployment(ctx, at)
	if err != nil {
		return nil, err
	}
	c, asked := &peer.OwnersToCheck{}, &askedOwners{service: at.Service, pieces: map[int64][]int64{}}
	c.Settle = func(ctx context.Context, answers *peer.OwnerAnswers) ([]int64, error) {
		return s.settleOwners(ctx, asked, answers)
	}
	rows, err := s.Pool.Query(ctx, selectCheckSQL, seqs)
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
	if rows, err = s.Pool.Query(ctx, cascade.SelectOwnerRowsSQL, ownees, deployment, s.Tuning.Load().OwnerGrace,
		s.Now()); err != nil {
		return nil, fmt.Errorf("read owners to check: %w", err)
	}
	if asked.rows, err = pgx.CollectRows(rows, cascade.ScanOwnerRow); err != nil {
		return nil, fmt.Errorf("read owners to check: %w", err)
	}
	for _, r := range asked.rows {
		kind, err := s.Names.KindOf(ctx, s.Pool, r.KindID)
		if err != nil {
			return nil, err
		}
		q := peer.OwnerQuestion{Kind: kind.Kind, Name: r.Name, UID: r.UID}
		if r.Flags&peer.FlagRequires != 0 {
			q.RequiredBy = uids[r.OwneeID]
		}
		c.Questions = append(c.Questions, q)
	}
	return c, nil
}

// settleOwners applies the answers of an owners' deployment to the owner references that are unchanged since
// the question: an owner that exists is pinned; an owner that is absent, or lacks a required reference, is
// dropped, and an ownee that has lost its last owner is deleted (I17). It returns the pieces of work that are
// not done: an owner of the ownee has a uid that was just stored, is missing or lacks the reference within
// its grace period, is unknown, or was changed since the question.
func (s *Owners) settleOwners(ctx context.Context, c *askedOwners,
	answers *peer.OwnerAnswers,
) (left []int64, err error) {
	if len(answers.Answers) != len(c.rows) {
		return nil, fmt.Errorf("the owners' deployment sent %d answers to %d questions", len(answers.Answers),
			len(c.rows))
	}
	d := &ownerDecisions{
		asked: map[prepare.OwnerKey]prepare.OwnerRow{}, lost: map[prepare.OwnerKey]bool{},
		pins:   map[prepare.OwnerKey]cascade.Pin{},
		causes: map[uuid.UUID]*schema.Cause{}, open: map[int64]bool{}, generation: answers.Generation,
	}
	for i, r := range c.rows {
		if err := d.add(ctx, s, c.service, r, answers.Answers[i]); err != nil {
			return nil, err
		}
	}
	err = s.InTx(ctx, db.AllFeeds, func(tx pgx.Tx) error {
		change := cascade.OwnerChange{
			Causes: d.causes, Version: answers.Version, Generation: answers.Generation,
			Lost: d.isLost, Pin: d.pin,
		}
		if err := s.cascade.ChangeOwners(ctx, tx, d.ownees, change); err != nil {
			return err
		}
		var finished []int64
		finished, left = d.split(c.pieces)
		_, err := tx.Exec(ctx, db.DoneSQL, finished)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("settle owners: %w", err)
	}
	return left, nil
}

// ownerDecisions are the changes of owner references that some answers cause.
type ownerDecisions struct {
	asked      map[prepare.OwnerKey]prepare.OwnerRow
	lost       map[prepare.OwnerKey]bool
	pins       map[prepare.OwnerKey]cascade.Pin
	causes     map[uuid.UUID]*schema.Cause
	ownees     []int64        // of changed owner references
	open       map[int64]bool // ownees that have to be asked about again
	generation int64          // of the owners' version in the answers
}

// add decides by the answer to the question about one owner reference.
func (d *ownerDecisions) add(ctx context.Context, s *Owners, service string, r prepare.OwnerRow,
	a peer.OwnerAnswer,
) error {
	d.asked[r.Key()] = r
	switch a.Verdict {
	case peer.OwnerExists:
		kind := schema.KindID{Service: service, Kind: a.Kind}
		if err := s.gate.CheckNamedKind(ctx, kind); err != nil {
			return err
		}
		kindID, err := s.Names.Kind(ctx, kind)
		if err != nil {
			return err
		}
		d.pins[r.Key()] = cascade.Pin{UID: a.UID, KindID: kindID, Kind: a.Kind}
		if r.UID == uuid.Nil {
			d.open[r.OwneeID] = true // the next question names its uid
		}
	case peer.OwnerAbsent:
		// A uid that was never seen there, and of whose removal nothing is recorded, may be a mistake, or the
		// uid of an owner in another place: the owner is no more known to be gone than one without a uid.
		if never := r.UID == uuid.Nil || !r.Checked && a.Cause == nil; never && !r.Over {
			d.open[r.OwneeID] = true
			return nil
		}
		d.lost[r.Key()], d.causes[r.UID] = true, a.Cause
	case peer.OwnerNotReferring:
		if !r.Checked && !r.Over {
			d.open[r.OwneeID] = true
			return nil
		}
		d.lost[r.Key()] = true
	default:
		d.open[r.OwneeID] = true
		return nil
	}
	d.ownees = append(d.ownees, r.OwneeID)
	return nil
}

// current reports whether the question was about this owner reference. An answer does not apply to a
// reference that was written again, or whose flags changed, after the question, nor when it is older than a
// switch that is already stored here.
func (d *ownerDecisions) current(r prepare.OwnerRow) bool {
	a, ok := d.asked[r.Key()]
	if ok && (!a.CreatedAt.Equal(r.CreatedAt) || a.Flags != r.Flags || r.Generation > d.generation) {
		d.open[r.OwneeID], ok = true, false
	}
	return ok
}

func (d *ownerDecisions) isLost(r prepare.OwnerRow) bool { return d.lost[r.Key()] && d.current(r) }

func (d *ownerDecisions) pin(r prepare.OwnerRow) (cascade.Pin, bool) {
	p, ok := d.pins[r.Key()]
	return p, ok && d.current(r)
}

// split divides the pieces of work of the ownees into finished and remaining ones.
func (d *ownerDecisions) split(pieces map[int64][]int64) (finished, left []int64) {
	for ownee, seqs := range pieces {
		if d.open[ownee] {
			left = append(left, seqs...)
		} else {
			finished = append(finished, seqs...)
		}
	}
	return finished, left
}
