package write

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/crash"
	"github.com/db-controller/db-controller/internal/feed"
	"github.com/db-controller/db-controller/internal/retry"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/read"
	"github.com/db-controller/db-controller/schema/shadow/internal/rows"
)

// MaxNewReferences is the maximum number of new references to one other deployment in a write.
const MaxNewReferences = 10_000

// saveTimeout bounds a write whose caller gives no deadline.
const saveTimeout = 10 * time.Second

// Save creates or updates resources, all or nothing (I6), and returns them in the order of writes. References to other deployments
// are established there first, under one attempt id; then one transaction decides the attempt and writes everything. The resources
// may refer to one another in any order. Temporary failures (a target that a delete is closing, a concurrent write) are retried
// until the deadline of ctx, 10 s by default. It fails with *InvalidError, *RefusedError, ErrNotFound, ErrExists, ErrConflict,
// ErrDeleting, ErrAborted, or ErrUnknown when the answer to the commit was lost.
func (s *Writer) Save(ctx context.Context, writes []peer.Write) ([]peer.Resource, error) {
	return s.save(ctx, nil, writes)
}

func (s *Writer) save(ctx context.Context, req *Request, writes []peer.Write) ([]peer.Resource, error) {
	ctx, cancel := db.WithDefaultTimeout(ctx, saveTimeout)
	defer cancel()
	unread := allCreate(writes)
	var last error // the temporary failure of the previous try
	for pauses := (retry.Backoff{First: 5 * time.Millisecond, Max: 200 * time.Millisecond}); ; {
		saved, err := s.saveOnce(ctx, req, writes, unread)
		if unread && (errors.Is(err, db.ErrStale) || peer.Definite(err)) {
			unread = false // a resource may exist: that is told first
			continue
		}
		if last != nil && db.GaveUp(err) {
			return nil, last // says more than an exceeded deadline
		}
		if err == nil || !passes(err) {
			return saved, err
		}
		if last = err; errors.Is(err, db.ErrStale) {
			last = peer.ErrAborted
		}
		if pauses.Wait(ctx) != nil {
			return nil, last
		}
	}
}

func passes(err error) bool {
	var refused *peer.RefusedError
	return errors.Is(err, db.ErrStale) || errors.Is(err, peer.ErrAborted) ||
		errors.As(err, &refused) && refused.All(peer.Stands(peer.Again))
}

// allCreate reports whether all writes create resources. They are expected not to exist, so that they are not read before: the
// transaction finds those that do exist.
func allCreate(writes []peer.Write) bool {
	return !slices.ContainsFunc(writes, func(w peer.Write) bool { return w.Mode != peer.Create })
}

// saveOnce tries once. unread: stored resources are not read, and the transaction fails with ErrStale when one exists.
func (s *Writer) saveOnce(ctx context.Context, req *Request, writes []peer.Write, unread bool) ([]peer.Resource, error) {
	sv, err := s.prepare(ctx, s.Pool, writes, unread)
	if err != nil {
		return nil, err
	}
	sv.request = req
	return s.commit(ctx, sv, nil)
}

// commit establishes the new references to other deployments, and then decides the attempt in the transaction that writes
// everything. also, when it is not nil, runs in the same transaction.
func (s *Writer) commit(ctx context.Context, sv *saving, also func(pgx.Tx) error) ([]peer.Resource, error) {
	if err := s.delegate(ctx, s.Pool, sv); err != nil {
		return nil, err
	}
	if len(sv.foreign) > 0 {
		if err := s.stillRuns(ctx, sv); err != nil { // before other deployments establish references that could not commit
			return nil, err
		}
		if err := s.noteTargets(ctx, sv); err != nil {
			return nil, err
		}
		if err := s.establishAll(ctx, sv); err != nil {
			return nil, err
		}
		crash.At("crash-save-established")
	}
	err := s.transact(ctx, sv, also)
	if len(sv.foreign) > 0 {
		crash.At("crash-save-committed")
	}
	if err == nil {
		s.delegatedWrites.Add(int64(len(sv.delegated)))
	}
	if err != nil && len(sv.foreign) > 0 {
		committed, aerr := s.abandon(ctx, sv, slices.Collect(maps.Keys(sv.foreign)), nil)
		if committed {
			return sv.saved, nil // the commit's answer was lost, not the commit
		}
		if aerr == nil && errors.Is(err, peer.ErrUnknown) {
			return nil, peer.ErrAborted
		}
	}
	if err != nil {
		return nil, err
	}
	return sv.saved, nil
}

// saving is a write under way.
type saving struct {
	version *db.Version
	request *Request // nil: without an id
	writes  []*writing
	unread  bool            // stored resources were not read: none is expected
	saved   []peer.Resource // set by the transaction
	// New references to other deployments, by deployment, and the attempt that they are established under.
	attempt peer.AttemptID
	epoch   uuid.UUID // of this database when the attempt began
	began   int64     // a number of the sequence mark from before the attempt began: a decision on the attempt has a greater one
	foreign map[schema.DeploymentID][]*newReference
	// New references to other deployments that are written without asking: no attempt is decided for them.
	delegated []*newReference
	// ofRows: the writes are of rows of attached tables. first runs at the beginning of their transaction; nil: nothing does.
	ofRows bool
	first  func(pgx.Tx) error
	// localRows are the local targets, and absent those of them that are rows of attached tables and do not exist.
	localRows, absent []rows.Key
}

func (s *Writer) newSaving(v *db.Version) *saving {
	return &saving{version: v, epoch: s.gate.PresentEpoch(), began: s.Rollback.Seen.Load(), attempt: s.newAttempt(), foreign: map[schema.DeploymentID][]*newReference{}}
}

// touches returns the feeds that the write adds rows to.
func (sv *saving) touches() feed.Topics {
	touched := db.ChangeFeed
	for _, wr := range sv.writes {
		if len(sv.foreign) > 0 || len(wr.drop) > 0 || len(wr.addOwners) > 0 {
			touched |= db.WorkFeed
		}
		if len(wr.drop) > 0 && len(wr.add) > 0 {
			touched |= db.NoticeFeed // see newReference.late
		}
	}
	return touched
}

type writing struct {
	peer.Write
	kind   schema.KindID
	kindID int32
	// derives: a derivation, which writes only the references; the body stays unchanged.
	derives bool
	body    string // JSON
	labels  *string
	owners  *string    // JSON
	before  *ShadowRow // nil: the resource does not exist
	// Of the shadow; that of a new one is set when it is written.
	id       int64
	revision int64 // set when it is written
	uid      uuid.UUID
	add      []*newReference
	drop     []read.HeldReference
	// Owner references that are new or have other flags, and those that are dropped.
	addOwners, dropOwners []OwnerRow
}

type newReference struct {
	schema.Found
	fieldID  int32
	kindID   int32
	holder   *writing
	targetID int64 // of a local target; set when it is locked
	// late: the local target is DELETING, and the reference replaces a blocking one of the same field.
	late  bool
	uid   uuid.UUID // of a foreign target; set when it is established
	epoch uuid.UUID // of the foreign target's database when it was established
	// rights to the foreign target's name that delegate has found.
	rights []delegatedTarget
}

// replacesBlock reports whether a reference that does not block replaces one of the same holder and field that blocks a local
// target. The target may then be DELETING: the holder already keeps it, so the reference is not a new one (I4), and acting upon the
// deletion releases the target.
func (r *newReference) replacesBlock(target int64) bool {
	return r.Behaviour != schema.Block && slices.ContainsFunc(r.holder.drop, func(h read.HeldReference) bool {
		return h.TargetID == target && h.FieldID == r.fieldID && h.Behaviour == schema.Block
	})
}
