package feed

import (
	"strconv"
	"sync"
)

// own is the newest transaction of this process that is on disk, as far as it has told.
type own struct {
	mu    sync.Mutex
	epoch string // guarded by mu; the database's epoch in the transaction
	xid   string // guarded by mu
	next  string // guarded by mu; the id after it
}

// Committed says that a transaction of this process, in an epoch, was committed and is on disk. It comes
// before the watches are woken.
func (l *Log) Committed(epoch, xid string) {
	n, err := strconv.ParseUint(xid, 10, 64)
	if err != nil || epoch == "" {
		return
	}
	o := &l.own
	o.mu.Lock()
	defer o.mu.Unlock()
	next := strconv.FormatUint(n+1, 10)
	if o.epoch == epoch && (Position{xmax: o.next}).ahead(Position{xmax: next}) {
		return
	}
	o.epoch, o.xid, o.next = epoch, xid, next
}

// isOwn reports whether the position of a page, and its rows, are on disk since a transaction of this process
// is: no transaction that has ended has a newer id, so that a crash gives no id before the position out
// again; and the rows are all of that transaction. (The rows of an earlier id may have been committed later,
// and without waiting for the disk.) A page that is not the whole of its window says nothing of the other
// rows. An older copy of the database has not come to the same id.
func (p *page[T]) isOwn(o *own, at Position) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.epoch != "" && o.epoch == p.present.epoch && o.next == at.xmax && !p.full && p.needs == 0 && !p.several &&
		(p.xid == "" || p.xid == o.xid)
}
