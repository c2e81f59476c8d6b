package deletion

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/gather"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/cascade"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/plan"
	"github.com/db-controller/db-controller/schema/shadow/internal/read"
	"github.com/db-controller/db-controller/schema/shadow/internal/rows"
)

const (
	mostGathered = 200 // deletes in one transaction
	mostWaiting  = 256 // of one caller
	// pace is the time for which deletes wait for a transaction that is delayed, by a lock or by the
	// database.
	pace            = 20 * time.Millisecond
	gatheredTimeout = 10 * time.Second
)

// Close returns when no transaction runs in the background. Nothing may delete any more.
func (s *Deleter) Close() { s.tries.Wait() }

// together runs the try in a transaction that it shares with tries that come at the same time, or alone.
func (t *try) together(ctx context.Context) error {
	d, alone := t.of, func() error { return t.alone(ctx) }
	if d.within || d.alone || len(d.wanted) > 1 || db.IsFenced(ctx) || d.store.rows.Of(d.wanted[0].kindID) != nil {
		return alone()
	}
	caller := postgres.CallerOf(ctx)
	err := d.store.tries.Do(ctx, caller.Who, t, alone)
	switch {
	case errors.Is(err, gather.ErrLeft):
		return fmt.Errorf("%w: %w", peer.ErrUnknown, context.Cause(ctx))
	case errors.Is(err, gather.ErrTooMany):
		if caller.Refused != nil {
			caller.Refused()
		}
		return postgres.ErrTooMany
	}
	return err
}

// tryAll runs one transaction for several tries, and returns their outcomes. It waits for no row, and leaves
// out tries that need more than the commonest statements: of resources that are locked, missing, marked,
// blocked, referred to inside this database, or not as their requests want them. All run alone when it fails.
func (s *Deleter) tryAll(tries []*try) []error {
	ctx, cancel := context.WithTimeout(postgres.WithCaller(context.Background(),
		postgres.Caller{Lane: postgres.Writes}), gatheredTimeout)
	defer cancel()
	errs := make([]error, len(tries))
	err := s.InTx(ctx, db.ChangeFeed, func(tx pgx.Tx) error {
		ready, err := s.decideAll(ctx, tx, tries, errs)
		if err != nil {
			return err
		}
		return s.carryOutAll(ctx, tx, ready)
	})
	if err == nil || errors.Is(err, errObstacle) {
		return errs
	}
	if !errors.Is(err, peer.ErrUnknown) {
		err = gather.ErrAlone
	}
	return slices.Repeat([]error{err}, len(tries))
}

// decided are the tries of a transaction that are carried out, by the ids of their resources, with the
// references and blockades of these.
type decided struct {
	roots []*plan.Member
	tries []*try
	seen  *cascade.LockedRows
}

// decideAll locks and reads the roots of tries, and decides about each by itself. It sets the outcomes of
// tries that are not carried out.
func (s *Deleter) decideAll(ctx context.Context, tx pgx.Tx, tries []*try, errs []error) (*decided, error) {
	index, kinds, names := map[rows.Key]int{}, make([]int32, len(tries)), make([]string, len(tries))
	for i, t := range tries {
		t.begin() // forget an earlier try
		errs[i] = gather.ErrAlone
		kinds[i], names[i] = t.of.wanted[0].kindID, t.of.wanted[0].Name
		// two deletes of one resource run one after the other
		if k := (rows.Key{Kind: kinds[i], Name: names[i]}); index[k] == 0 {
			index[k] = i + 1
		}
	}
	ready, b, locked := &decided{}, &pgx.Batch{}, []*plan.Member(nil)
	b.Queue(shortWaitSQL)
	db.QueuePlans(tx, b, len(tries))
	b.Queue(lockRootsSQL+` SKIP LOCKED`, kinds, names).Query(func(found pgx.Rows) error {
		for found.Next() {
			root := &plan.Member{}
			revision, err := scanRoot(found, root)
			if err != nil {
				return err
			}
			i := index[rows.Key{Kind: root.Kind, Name: root.Name}] - 1
			if tries[i].of.wanted[0].fits(root, revision) == nil {
				locked = append(locked, root)
			}
		}
		return found.Err()
	})
	ready.seen = s.cascade.QueueLockedRows(tx, b, byNames, kinds, names)
	members := read.Queued[read.Member](b, read.NamedMembersSQL, kinds, names)
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return nil, err
	}
	for _, root := range locked {
		i := index[rows.Key{Kind: root.Kind, Name: root.Name}] - 1
		t, own := tries[i], slices.DeleteFunc(slices.Clone(*members), func(m read.Member) bool {
			return m.ID != root.ID
		})
		if root.State != peer.Active || !ready.seen.Leaf(root) || ready.seen.Blockaded(root) {
			continue
		}
		if _, t.found, errs[i] = t.of.decide(ctx, tx, []*plan.Member{root}, ready.seen, &own); errs[i] == nil &&
			t.found == nil {
			ready.roots, ready.tries = append(ready.roots, root), append(ready.tries, t)
		}
	}
	return ready, nil
}

// carryOutAll carries out several deletes, and commits. None of their resources refers to another one, or has
// members of its own.
func (s *Deleter) carryOutAll(ctx context.Context, tx pgx.Tx, ready *decided) error {
	if len(ready.tries) == 0 {
		return errObstacle
	}
	all, err := s.cascade.DecideBy(ctx, tx, ready.roots, ready.seen)
	if err != nil {
		return err
	}
	also, after := &pgx.Batch{}, &pgx.Batch{}
	marked := map[int]**peer.Resource{}
	for i, t := range ready.tries {
		root := ready.roots[i]
		result := &t.results[0]
		result.Deletion, result.Removed = t.of.wanted[0].cause.ID, slices.Contains(all.Verdict.Remove, root.ID)
		if result.Removed {
			t.of.request.Queue(also, outcomeOf(t.results))
			continue
		}
		kind, err := s.Names.KindOf(ctx, tx, root.Kind)
		if err != nil {
			return err
		}
		marked[i] = read.QueueLookUp(also, root.Kind, kind.Kind, root.Name)
	}
	if len(marked) == 0 {
		return s.cascade.CarryOutAnd(ctx, tx, all, also, db.CommitWith)
	}
	if err := s.cascade.CarryOutAnd(ctx, tx, all, also, db.Stay); err != nil {
		return err
	}
	for i, found := range marked {
		t := ready.tries[i]
		t.results[0].Resource, t.results[0].Removed = *found, *found == nil // its kind hides it from now on
		t.of.request.Queue(after, outcomeOf(t.results))
	}
	return db.CommitWith(ctx, tx, after)
}
