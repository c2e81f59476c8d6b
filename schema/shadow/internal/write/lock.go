package write

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"

	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
	"github.com/db-controller/db-controller/schema/shadow/internal/prepare"
	"github.com/db-controller/db-controller/schema/shadow/internal/target"
)

const (
	lockTargetsSQL = `
SELECT s.id, s.kind_id, s.name, s.state, s.frozen, EXISTS (SELECT FROM dbcontroller.closing c WHERE c.target_id = s.id AND ` + target.ClosesSQL + `)
FROM dbcontroller.shadow s
JOIN unnest($1::int[], $2::text[]) AS i (kind_id, name) ON s.kind_id = i.kind_id AND s.name = i.name
ORDER BY s.id
FOR SHARE OF s`

	LockOwnSQL = `
SELECT id, revision, state, derivation, frozen FROM dbcontroller.shadow WHERE id = ANY ($1) ORDER BY id FOR NO KEY UPDATE`

	// For several writes: the rows that no other transaction has locked.
	skipLocked = ` SKIP LOCKED`

	selectExistingSQL = `
SELECT s.kind_id, s.name FROM unnest($1::int[], $2::text[]) AS i (kind_id, name) JOIN dbcontroller.shadow s ON s.kind_id = i.kind_id AND s.name = i.name`

	// Runs after the locks: the revisions of one resource are in the order of its commits.
	takeNumbersSQL = `
SELECT nextval('dbcontroller.revision'), CASE WHEN n <= $2 THEN nextval('dbcontroller.object_id') ELSE 0 END
FROM generate_series(1, $1) AS n`
)

// locked has the rows that writes have locked, and the numbers that they have taken.
type locked struct {
	view      gate.CommitView
	refused   map[*prepare.Saving][]peer.Refusal // because of local targets
	existing  map[localTarget]bool               // resources that were not read before
	selfRows  map[int64]prepare.ShadowRow        // by id
	frozen    map[int64]db.Freeze                // local targets and written resources, by id
	rights    rightLocks
	revisions []int64 // by write
	ids       []int64 // for new resources

	maybeFrozen []int64
}

// lock locks the rows of one saving, waits for them, and checks it.
func (s *Writer) lock(ctx context.Context, tx pgx.Tx, sv *prepare.Saving) (*locked, error) {
	if err := s.ensureRows(ctx, tx, sv); err != nil {
		return nil, err
	}
	l, err := s.lockAll(ctx, tx, []*prepare.Saving{sv}, "")
	if err != nil {
		return nil, err
	}
	if err := s.refuseGoing(ctx, tx, sv, l); err != nil {
		return nil, err
	}
	return l, s.check(ctx, l, sv)
}

// lockAll locks, in this order, the version (shared), the rows of rights (shared), the local targets
// (shared), and the written shadows, each once and in the order of its id, and takes a revision for each
// write and an id for each new resource. suffix is nothing, or skipLocked.
func (s *Writer) lockAll(ctx context.Context, tx pgx.Tx, savings []*prepare.Saving, suffix string) (*locked, error) {
	l := &locked{
		view: gate.CommitView{Present: s.gate.Present(tx)}, refused: map[*prepare.Saving][]peer.Refusal{},
		existing: map[localTarget]bool{}, selfRows: map[int64]prepare.ShadowRow{},
	}
	established, epochs, err := s.epochsAt(ctx, savings)
	if err != nil {
		return nil, err
	}
	b := &pgx.Batch{}
	if suffix == skipLocked {
		b.Queue(shortLockTimeoutSQL, gatheredLockTimeout)
	}
	rows := 0
	for _, wr := range prepare.AllWrites(savings) {
		rows += 1 + len(wr.Add) + len(wr.Drop)
	}
	db.QueuePlans(tx, b, rows)
	b.Queue(gate.ShareVersionSQL, gate.VersionLock)
	b.Queue(gate.SelectNowSQL, established, epochs).QueryRow(l.view.Scan)
	l.rights.queue(b, savings, suffix)
	l.queueTargets(b, s.Self, savings, suffix)
	l.queueUnread(b, savings)
	l.queueWritten(b, savings, suffix)
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return nil, fmt.Errorf("lock the written resources: %w", err)
	}
	if l.frozen, err = db.Frozen(ctx, tx, l.maybeFrozen); err != nil {
		return nil, err
	}
	for _, sv := range savings {
		l.takeNumbers(sv)
	}
	return l, nil
}

// check checks that nothing has changed since a saving was prepared, under the locks of all that it relies
// on.
func (s *Writer) check(ctx context.Context, l *locked, sv *prepare.Saving) error {
	if err := s.checkView(sv, &l.view); err != nil {
		s.ran.Store(nil)
		return err
	}
	s.sawRunning(sv)
	if err := l.unchanged(sv); err != nil {
		return err
	}
	if err := s.rights.check(&l.rights, sv); err != nil {
		return err
	}
	adoptBatchTargets(sv)
	if err := s.refuseDecommissioned(ctx, sv, l.view.Decommissioned); err != nil {
		return err
	}
	if refused := slices.Concat(l.refused[sv], missingTargets(s.Self, sv), l.frozenTargets(s.Self, sv)); len(
		refused) > 0 {
		return (&peer.RefusedError{Refusals: refused}).Sorted()
	}
	return nil
}

// queueTargets locks the local targets of new references.
func (l *locked) queueTargets(b *pgx.Batch, self schema.DeploymentID, savings []*prepare.Saving, suffix string) {
	kinds, rels, wanted := localTargets(self, savings)
	if len(kinds) == 0 {
		return
	}
	b.Queue(lockTargetsSQL+suffix, kinds, rels).Query(func(rows pgx.Rows) error { return l.takeTargets(rows, wanted) })
}

// queueUnread looks for resources that are to be created and were not read before. One that another
// transaction creates meanwhile makes the insert fail.
func (l *locked) queueUnread(b *pgx.Batch, savings []*prepare.Saving) {
	var kinds []int32
	var names []string
	for sv, wr := range prepare.AllWrites(savings) {
		if sv.Unread {
			kinds, names = append(kinds, wr.KindID), append(names, wr.Name)
		}
	}
	if len(names) == 0 {
		return
	}
	b.Queue(selectExistingSQL, kinds, names).Query(func(rows pgx.Rows) error {
		var k localTarget
		_, err := pgx.ForEachRow(rows, []any{&k.kindID, &k.name}, func() error { l.existing[k] = true; return nil })
		return err
	})
}

// queueWritten locks the written resources that exist, and then takes revisions, and ids for the others.
func (l *locked) queueWritten(b *pgx.Batch, savings []*prepare.Saving, suffix string) {
	var before []int64
	writes := 0
	for _, sv := range savings {
		writes += len(sv.Writes)
		for _, wr := range sv.Writes {
			if wr.Before != nil {
				before = append(before, wr.Before.ID)
			}
		}
	}
	if len(before) > 0 {
		b.Queue(LockOwnSQL+suffix, before).Query(func(rows pgx.Rows) error {
			var r prepare.ShadowRow
			_, err := pgx.ForEachRow(rows, []any{&r.ID, &r.Revision, &r.State, &r.Derivation, &r.Frozen}, func() error {
				if l.selfRows[r.ID] = r; r.Frozen {
					l.maybeFrozen = append(l.maybeFrozen, r.ID)
				}
				return nil
			})
			return err
		})
	}
	b.Queue(takeNumbersSQL, writes, writes-len(before)).Query(func(rows pgx.Rows) error {
		var revision, id int64
		_, err := pgx.ForEachRow(rows, []any{&revision, &id}, func() error {
			l.revisions, l.ids = append(l.revisions, revision), append(l.ids, id)
			return nil
		})
		return err
	})
}

// checkView checks that the write was prepared in these epochs and this version, and that its attempt may
// still commit.
func (s *Writer) checkView(sv *prepare.Saving, view *gate.CommitView) error {
	if !view.InEpoch(sv.Epoch) { // ids that were looked up before may be of lost rows
		s.gate.SignalEpochChanged()
		return fmt.Errorf("%w: a database failed over or was restored", peer.ErrAborted)
	}
	if view.TooLate(sv.Attempt) {
		return fmt.Errorf("%w: the attempt began more than %s ago", peer.ErrAborted, peer.MaxAttemptAge)
	}
	if err := s.gate.CheckVersion(sv.Version, view.Running); err != nil {
		return err
	}
	if view.Generation != sv.Version.Generation { // switched away and back: prepare again with the new generation
		return db.ErrStale
	}
	return nil
}

// takeNumbers gives each write a revision, and each new resource an id.
func (l *locked) takeNumbers(sv *prepare.Saving) {
	for _, wr := range sv.Writes {
		wr.NewRevision, l.revisions = l.revisions[0], l.revisions[1:]
		if wr.Before == nil {
			wr.ID, l.ids = l.ids[0], l.ids[1:]
		}
	}
}

// unchanged fails when one of the stored resources has changed since prepare.
func (l *locked) unchanged(sv *prepare.Saving) error {
	for _, wr := range sv.Writes {
		if l.existing[localTarget{wr.KindID, wr.Name}] && sv.Unread {
			return db.ErrStale
		}
		if wr.Before == nil {
			continue
		}
		if row, ok := l.selfRows[wr.Before.ID]; !ok || row.Revision != wr.Before.Revision ||
			row.Derivation != wr.Before.Derivation || row.State != peer.Active {
			return db.ErrStale
		}
		if how := l.frozen[wr.Before.ID]; how != db.NotFrozen {
			return how.Refuse(wr.Name)
		}
	}
	return nil
}

// QueueDecision decides attempts COMMITTED. The batch fails when one of them was decided ABORTED, also when
// that decision is forgotten, independent of clocks: began was taken from the sequence mark before the first
// attempt began, so each decision on one has a greater number. Undecided returns the meaning of the failure.
func QueueDecision(b *pgx.Batch, began int64, attempts ...peer.AttemptID) {
	b.Queue(commitAttemptsSQL, attempts)
	b.Queue(notForgottenSQL, began)
}

// QueueScheduled records that a deletion is decided later, in the place of a decision. The batch fails as by
// QueueDecision.
func QueueScheduled(b *pgx.Batch, began int64, deletion peer.AttemptID) {
	b.Queue(scheduleAttemptSQL, deletion)
	b.Queue(notForgottenSQL, began)
}

// Undecided returns ErrAborted for a transaction that failed because of a forgotten decision, and any other
// error as it is. It needs a connection, so that it runs after the transaction.
func Undecided(ctx context.Context, d *db.DB, err error) error {
	if !db.HasCode(err, db.CodeDivisionByZero) {
		return err
	}
	var forgotten int64
	if err := d.Pool.QueryRow(ctx, selectForgottenSQL).Scan(&forgotten); err != nil {
		return err
	}
	d.Rollback.Observe(forgotten) // so that the next attempt begins with a greater number
	return fmt.Errorf("%w: the attempt began before a decision that is no longer stored", peer.ErrAborted)
}

// epochsAt returns the deployments of established references, and the epochs of their databases at that time.
func (s *Writer) epochsAt(ctx context.Context, savings []*prepare.Saving) (at []int32, epochs []uuid.UUID, err error) {
	for _, sv := range savings {
		for d, refs := range sv.Foreign {
			id, err := s.Names.Deployment(ctx, d)
			if err != nil {
				return nil, nil, err
			}
			at, epochs = append(at, id), append(epochs, refs[0].Epoch)
		}
	}
	return at, epochs, nil
}

type localTarget struct {
	kindID int32
	name   string
}

// localTargets returns the distinct local targets of new references.
func localTargets(self schema.DeploymentID,
	savings []*prepare.Saving,
) (kinds []int32, rels []string, wanted map[localTarget][]wantedTarget) {
	wanted = map[localTarget][]wantedTarget{}
	for _, sv := range savings {
		for _, wr := range sv.Writes {
			for _, ref := range wr.Add {
				if ref.Target.Deployment != self {
					continue
				}
				k := localTarget{ref.KindID, ref.Target.Name}
				if wanted[k] == nil {
					kinds, rels = append(kinds, k.kindID), append(rels, k.name)
				}
				wanted[k] = append(wanted[k], wantedTarget{sv, ref})
				ref.TargetID, ref.Late = 0, false // from an earlier run of the transaction
			}
		}
	}
	return kinds, rels, wanted
}

// wantedTarget is a local target of a new reference.
type wantedTarget struct {
	by  *prepare.Saving
	ref *prepare.NewReference
}

func (l *locked) takeTargets(rows pgx.Rows, wanted map[localTarget][]wantedTarget) error {
	var (
		id      int64
		k       localTarget
		state   peer.State
		closing bool
		frozen  bool
	)
	_, err := pgx.ForEachRow(rows, []any{&id, &k.kindID, &k.name, &state, &frozen, &closing}, func() error {
		if frozen {
			l.maybeFrozen = append(l.maybeFrozen, id)
		}
		for _, w := range wanted[k] {
			ref := w.ref
			ref.TargetID = id
			refusal := peer.Refusal{Holder: ref.Holder.Name, Path: ref.Path, Target: ref.Target}
			switch {
			case state != peer.Active && ref.ReplacesBlock(id):
				ref.Late = true
				continue
			case state != peer.Active:
				refusal.Reason = peer.TargetDeleting
			case closing:
				refusal.Reason = peer.TargetClosing
			default:
				continue
			}
			l.refused[w.by] = append(l.refused[w.by], refusal)
		}
		return nil
	})
	return err
}

// adoptBatchTargets sets the targets of references to resources that the same batch creates.
func adoptBatchTargets(sv *prepare.Saving) {
	created := map[localTarget]int64{}
	for _, wr := range sv.Writes {
		if wr.Before == nil {
			created[localTarget{wr.KindID, wr.Name}] = wr.ID
		}
	}
	for _, wr := range sv.Writes {
		for _, ref := range wr.Add {
			if id, ok := created[localTarget{ref.KindID, ref.Target.Name}]; ok && ref.TargetID == 0 &&
				ref.UID == uuid.Nil {
				ref.TargetID = id
			}
		}
	}
}

// frozenTargets refuses new references to members of atomic deletions.
func (l *locked) frozenTargets(self schema.DeploymentID, sv *prepare.Saving) (refused []peer.Refusal) {
	if len(l.frozen) == 0 {
		return nil
	}
	for _, wr := range sv.Writes {
		for _, ref := range wr.Add {
			if how := l.frozen[ref.TargetID]; ref.Target.Deployment == self && how != db.NotFrozen {
				refused = append(refused, peer.Refusal{
					Holder: wr.Name, Path: ref.Path, Target: ref.Target,
					Reason: how.Reason(),
				})
			}
		}
	}
	return refused
}

func missingTargets(self schema.DeploymentID, sv *prepare.Saving) []peer.Refusal {
	var missing []peer.Refusal
	for _, wr := range sv.Writes {
		for _, ref := range wr.Add {
			if ref.Target.Deployment == self && ref.TargetID == 0 {
				missing = append(missing, peer.Refusal{
					Holder: wr.Name, Path: ref.Path, Target: ref.Target,
					Reason: peer.TargetMissing,
				})
			}
		}
	}
	return missing
}
