package write

import (
	"errors"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/prepare"
)

var errRightEnded = errors.New("a delegation has ended")

// right is one of the two rights to a target: to block it, or to refer to it by acting references. Targets
// are compared by uid: in an older copy of the database, a number that this process remembers may belong to
// another target.
type right struct {
	target uuid.UUID
	blocks bool
}

func rightOf(ref *prepare.NewReference) right {
	return right{ref.UID, ref.Behaviour == schema.Block}
}

// rightLocks are the rights of the writes of one transaction.
type rightLocks struct {
	rows   map[int64]bool // locked ones, by target
	counts map[right]bool
}

// queue locks the row of each target once, in the order of ids, and then reads which rights count. With the
// suffix SKIP LOCKED it waits for no row.
func (l *rightLocks) queue(b *pgx.Batch, savings []*prepare.Saving, suffix string) {
	l.rows, l.counts = map[int64]bool{}, map[right]bool{}
	var acting, blocking wantedRights
	for _, sv := range savings {
		for _, ref := range sv.Delegated {
			if ref.Behaviour == schema.Block {
				blocking.add(ref)
			} else {
				acting.add(ref)
			}
		}
	}
	if len(acting.ids)+len(blocking.ids) == 0 {
		return
	}
	b.Queue(lockRightsSQL+suffix, slices.Concat(acting.ids, blocking.ids)).Query(each(func(id int64) {
		l.rows[id] = true
	}))
	if len(acting.ids) > 0 {
		b.Queue(selectActingSQL, acting.ids, acting.uids).Query(each(func(uid uuid.UUID) {
			l.counts[right{uid, false}] = true
		}))
	}
	if len(blocking.ids) > 0 {
		b.Queue(selectBlockingSQL, blocking.ids, blocking.uids).Query(each(func(uid uuid.UUID) {
			l.counts[right{uid, true}] = true
		}))
	}
}

// wantedRights are the targets of rights, once each.
type wantedRights struct {
	ids  []int64
	uids []uuid.UUID
	once map[uuid.UUID]bool
}

func (w *wantedRights) add(ref *prepare.NewReference) {
	if w.once[ref.UID] {
		return
	}
	if w.once == nil {
		w.once = map[uuid.UUID]bool{}
	}
	w.once[ref.UID] = true
	w.ids, w.uids = append(w.ids, ref.TargetID), append(w.uids, ref.UID)
}

func each[T any](do func(T)) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		var value T
		_, err := pgx.ForEachRow(rows, []any{&value}, func() error { do(value); return nil })
		return err
	}
}

// lack reports whether a row that a saving needs was not locked: it is gone, about to end, or locked by
// another transaction.
func (l *rightLocks) lack(sv *prepare.Saving) bool {
	for _, ref := range sv.Delegated {
		if !l.rows[ref.TargetID] {
			return true
		}
	}
	return false
}

// check fails with ErrStale when a right of a saving has ended or is about to end: the write is prepared
// again, and asks the target's deployment.
func (f *rightFinder) check(l *rightLocks, sv *prepare.Saving) error {
	for _, ref := range sv.Delegated {
		if !l.rows[ref.TargetID] || !l.counts[rightOf(ref)] {
			f.known.forget(sv.Delegated)
			return errors.Join(db.ErrStale, errRightEnded)
		}
	}
	return nil
}

// queueDelegated stores the references.
func queueDelegated(b *pgx.Batch, savings []*prepare.Saving) {
	var holders, targets []int64
	var fields []int32
	var behaviours []int16
	var attempts []peer.AttemptID
	for _, sv := range savings {
		for _, ref := range sv.Delegated {
			holders, targets, fields = append(holders, ref.Holder.ID), append(targets, ref.TargetID),
				append(fields, ref.FieldID)
			behaviours, attempts = append(behaviours, int16(ref.Behaviour)), append(attempts, sv.Attempt)
		}
	}
	if len(holders) > 0 {
		b.Queue(insertReferencesSQL, holders, targets, fields, behaviours, attempts)
	}
}
