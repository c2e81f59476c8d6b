package cascade

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
	"github.com/db-controller/db-controller/schema/shadow/internal/plan"
)

const (
	LockMembersSQL = `
SELECT id, uid, kind_id, name, state, shard, block_deletion, hidden, frozen FROM dbcontroller.shadow WHERE id = ANY ($1) ORDER BY id FOR UPDATE`
)

var (
	// For each member: has it asynchronous holders, and holders that may dangle?
	otherReferencesSQL = db.Codes(`
SELECT t, EXISTS (SELECT FROM dbcontroller.reference WHERE target_id = t AND behaviour IN ({async_unset}, {async_cascade_delete})),
    (SELECT count(*) FROM (SELECT FROM dbcontroller.reference WHERE target_id = t AND behaviour = {allow_dangling} LIMIT $2 + 1) AS d)
FROM unnest($1::bigint[]) AS t`)

	// Holders with BLOCK references that no cascade removes, now or later. Read when all members are known:
	// with a limit, references between members could hide an outsider.
	outsidersSQL = db.Codes(`
SELECT r.target_id, r.holder_id, r.field_id, r.behaviour, h.uid, h.name
FROM dbcontroller.reference r JOIN dbcontroller.shadow h ON h.id = r.holder_id
LEFT JOIN unnest($1::bigint[]) AS m ON m = r.holder_id
WHERE r.target_id = ANY ($1) AND r.behaviour = {block} AND h.state = {active} AND m IS NULL
    AND NOT EXISTS (
        SELECT FROM dbcontroller.reference c
        WHERE c.holder_id = r.holder_id AND c.behaviour IN ({cascade_delete}, {async_cascade_delete}) AND c.target_id = ANY ($1)
    )
ORDER BY h.name LIMIT $2`)

	// A holder that cascades asynchronously is ACTIVE until then, and a write may still change it. One in
	// DELETING keeps such references until it is removed.
	blockedMembersSQL = db.Codes(`
SELECT DISTINCT r.target_id
FROM dbcontroller.reference r LEFT JOIN unnest($1::bigint[]) AS m ON m = r.holder_id
WHERE r.target_id = ANY ($1) AND r.behaviour = {block} AND m IS NULL`)

	// References of holders, by fields that they keep in DELETING, to other members.
	keptSQL = db.Codes(`
SELECT r.target_id, r.holder_id
FROM unnest($1::bigint[], $2::int[]) AS h (id, field_id)
JOIN dbcontroller.reference r ON r.holder_id = h.id AND r.field_id = h.field_id AND r.behaviour = {block} AND r.target_id <> h.id AND r.target_id = ANY ($3)`)

	actingReferencesSQL = db.Codes(`
SELECT target_id, holder_id, field_id, behaviour FROM dbcontroller.reference
WHERE target_id = ANY ($1) AND behaviour IN ({unset}, {cascade_delete}) LIMIT $2`)

	// Read after the holders were locked: references that they still have (I11).
	stillActingSQL = db.Codes(`
SELECT target_id, holder_id, field_id, behaviour FROM dbcontroller.reference
WHERE holder_id = ANY ($1) AND target_id = ANY ($2) AND behaviour IN ({unset}, {cascade_delete})`)
)

// ScanEdge reads a reference: target, holder, field, behaviour.
func ScanEdge(row pgx.CollectableRow) (e plan.Edge, err error) {
	err = row.Scan(&e.TargetID, &e.HolderID, &e.FieldID, &e.Behaviour)
	return e, err
}

func scanMember(row pgx.CollectableRow) (*plan.Member, error) {
	m := &plan.Member{}
	return m, row.Scan(&m.ID, &m.UID, &m.Kind, &m.Name, &m.State, &m.Shard, &m.Protected, &m.Hidden, &m.Frozen)
}

// IDsOf returns the ids of members, in their order.
func IDsOf(members []*plan.Member) []int64 {
	ids := make([]int64, len(members))
	for i, m := range members {
		ids[i] = m.ID
	}
	return ids
}

// LockMembers locks resources, in the order of their ids, and returns the existing ones.
func LockMembers(ctx context.Context, tx pgx.Tx, ids []int64) (locked []*plan.Member, err error) {
	b := &pgx.Batch{}
	QueueMembers(b, &locked, LockMembersSQL, ids)
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return nil, fmt.Errorf("lock shadows: %w", err)
	}
	return locked, nil
}

// QueueMembers reads members by a statement with the columns of LockMembersSQL, in a batch of statements.
func QueueMembers(b *pgx.Batch, members *[]*plan.Member, sql string, args ...any) {
	b.Queue(sql, args...).Query(func(rows pgx.Rows) (err error) {
		*members, err = pgx.CollectRows(rows, scanMember)
		return err
	})
}

// Decision is the decision on a closure, and the closure itself.
type Decision struct {
	Closure *plan.Closure
	Bonds   plan.Bonds
	Verdict plan.Verdict

	recovered *gate.Recovered
}

// decideOn expands the locked roots to their closure, locks it, and decides on it.
func (s *Actor) decideOn(ctx context.Context, tx pgx.Tx, roots []*plan.Member) (d Decision, err error) {
	b := &pgx.Batch{}
	locked := s.QueueLockedRows(tx, b, ByID, IDsOf(roots))
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return d, fmt.Errorf("look at locked resources: %w", err)
	}
	return s.DecideBy(ctx, tx, roots, locked)
}

// DecideBy is decideOn with the LockedRows from behind the locks of the roots. Roots without a holder here
// need no further statement.
func (s *Actor) DecideBy(ctx context.Context, tx pgx.Tx, roots []*plan.Member,
	seen *LockedRows,
) (d Decision, err error) {
	if d.Closure, err = s.expand(ctx, tx, roots, seen); err != nil {
		return d, err
	}
	if len(d.Closure.Members) > len(roots) { // locked since
		b := &pgx.Batch{}
		seen = s.QueueLockedRows(tx, b, ByID, slices.Sorted(maps.Keys(d.Closure.Members)))
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return d, fmt.Errorf("look at locked resources: %w", err)
		}
	}
	d.Bonds, d.recovered = seen.of(d.Closure), seen.Recovered
	if err := kept(ctx, tx, d.Closure, d.Bonds); err != nil {
		return d, err
	}
	d.Verdict = plan.Decide(d.Closure, d.Bonds)
	return d, nil
}

// expand follows the references that act in the same transaction, level by level from locked roots, up to
// Config.Limits.LocalCascade members and maxLevels levels. Holders beyond these limits act later. The caller
// sets the reason of the roots; the reason of another member is the member to which it refers.
func (s *Actor) expand(ctx context.Context, tx pgx.Tx, roots []*plan.Member, seen *LockedRows) (*plan.Closure, error) {
	limit, self := s.Cfg.Limits.LocalCascade, s.SelfID
	c := &plan.Closure{Members: make(map[int64]*plan.Member, len(roots))}
	for _, m := range roots {
		c.Members[m.ID] = m
	}
	if !seen.anyReferred(roots) { // most roots have no holders
		return c, nil
	}
	for level, frontier := 0, roots; len(frontier) > 0; level++ {
		ids := IDsOf(frontier)
		if level == maxLevels {
			limit = 0 // the holders of this level act later
		}
		edges, err := look(ctx, tx, c, frontier, ids, limit)
		if err != nil {
			return nil, err
		}
		if frontier, err = take(ctx, tx, c, self, ids, edges); err != nil {
			return nil, err
		}
	}
	ids := slices.Sorted(maps.Keys(c.Members))
	b := &pgx.Batch{}
	b.Queue(outsidersSQL, ids, plan.MaxBlockers).Query(func(rows pgx.Rows) (err error) {
		c.Blocks, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (o plan.Outsider, err error) {
			err = row.Scan(&o.TargetID, &o.HolderID, &o.FieldID, &o.Behaviour, &o.UID, &o.Name)
			return o, err
		})
		return err
	})
	b.Queue(blockedMembersSQL, ids).Query(func(rows pgx.Rows) (err error) {
		c.Blocked, err = pgx.CollectRows(rows, pgx.RowTo[int64])
		return err
	})
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return nil, fmt.Errorf("read blocking references: %w", err)
	}
	return c, nil
}

// kept reads the references between members that their holders keep. The mark keeps them by the same fields:
// the version may be switched between the two statements.
func kept(ctx context.Context, tx pgx.Tx, c *plan.Closure, bonds plan.Bonds) error {
	c.Kept = nil
	var holders []int64
	var fields []int32
	for id, m := range c.Members {
		for _, field := range bonds.Kept[m.Kind] {
			holders, fields = append(holders, id), append(fields, field)
		}
	}
	if len(holders) == 0 || len(c.Members) == 1 {
		return nil
	}
	rows, err := tx.Query(ctx, keptSQL, holders, fields, slices.Sorted(maps.Keys(c.Members)))
	if err == nil {
		c.Kept, err = pgx.CollectRows(rows, pgx.RowToStructByPos[plan.KeptReference])
	}
	if err != nil {
		return fmt.Errorf("read references that are kept: %w", err)
	}
	return nil
}

// maxLevels is the depth that one transaction follows. Each level takes two round trips, under the locks of
// all levels before it. A chain that one transaction could not follow within its deadline could never be
// deleted. (Deleting a chain of a hundred takes 34 ms beside the database. With 10 ms of latency, a longer
// one, which is walked twice and looked ahead, takes just the default 5 s.)
const maxLevels = 100

// fewDangling is a number of references with ALLOW_DANGLING that each member may have in a deletion of many.
// A member with more than its part of the limit is marked: they are removed a batch at a time, before it is
// (Finalise).
const fewDangling = 10

// look reads the references to a level, and returns the ones to follow.
func look(ctx context.Context, tx pgx.Tx, c *plan.Closure, frontier []*plan.Member, ids []int64,
	limit int,
) ([]plan.Edge, error) {
	var acting []plan.Edge
	b := &pgx.Batch{}
	most := max(fewDangling, limit/len(ids))
	b.Queue(otherReferencesSQL, ids, most).Query(func(rows pgx.Rows) error {
		var id int64
		var async bool
		var dangling int
		_, err := pgx.ForEachRow(rows, []any{&id, &async, &dangling}, func() error {
			c.Members[id].Later = c.Members[id].Later || async || dangling > most
			c.Dangling = c.Dangling || dangling > 0
			return nil
		})
		return err
	})
	room := max(0, limit-len(c.Members)-len(c.Unsets))
	b.Queue(actingReferencesSQL, ids, room+1).Query(func(rows pgx.Rows) (err error) {
		acting, err = pgx.CollectRows(rows, ScanEdge)
		return err
	})
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return nil, fmt.Errorf("read references: %w", err)
	}
	if len(acting) > room {
		for _, m := range frontier {
			m.Later = true // too many for one transaction (I21)
		}
		return nil, nil
	}
	return acting, nil
}

// take locks the holders of a level and returns the new members among them.
func take(ctx context.Context, tx pgx.Tx, c *plan.Closure, self int32, ids []int64,
	edges []plan.Edge,
) ([]*plan.Member, error) {
	if len(edges) == 0 {
		return nil, nil
	}
	var holders []int64
	for _, e := range edges {
		if c.Members[e.HolderID] == nil {
			holders = append(holders, e.HolderID)
		}
	}
	slices.Sort(holders)
	holders = slices.Compact(holders)
	var locked []*plan.Member
	var still []plan.Edge
	b := &pgx.Batch{} // two statements: the snapshot of the second is taken after the locks
	QueueMembers(b, &locked, LockMembersSQL, holders)
	b.Queue(db.OfMany(stillActingSQL, len(ids)), holders, ids).Query(func(rows pgx.Rows) (err error) {
		still, err = pgx.CollectRows(rows, ScanEdge)
		return err
	})
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return nil, fmt.Errorf("lock holders, and read references again: %w", err)
	}
	candidates := make(map[int64]*plan.Member, len(locked))
	for _, m := range locked {
		candidates[m.ID] = m
	}
	var next []*plan.Member
	for _, e := range still {
		m := candidates[e.HolderID]
		switch {
		case m == nil: // removed before it was locked
		case e.Behaviour.Unsets():
			c.Unsets = append(c.Unsets, e)
		case c.Members[m.ID] == nil:
			with := c.Members[e.TargetID]
			m.Why = plan.Reason{How: peer.Cascaded, Cause: with.Why.Cause, Via: &plan.Link{
				DeploymentID: self,
				UID:          with.UID, Name: with.Name,
			}}
			c.Members[m.ID] = m
			next = append(next, m)
		}
	}
	return next, nil
}

// LockedRows has the rows that a transaction reads right behind the statement that locks them, in the same
// round trip: each statement has a snapshot of its own, which is newer than the locks. It may cover more
// resources than were locked; the others do not count.
type LockedRows struct {
	Recovered *gate.Recovered

	referred map[int64]bool
	bonds    plan.Bonds
}

// Selection is a subquery of ids, with the statements of LockedRows of them.
type Selection struct{ ReferredSQL, bondsSQL string }

// Select returns the statements for a subquery of ids.
func Select(ids string) Selection {
	return Selection{
		// A look-up for each id in the index of targets. With an equality the planner, which has statistics
		// of one hot target, expects every row to fit, and reads any index from its start, with dead rows,
		// for each batch of holders.
		ReferredSQL: `
SELECT t FROM (` + ids + `) AS x (t)
CROSS JOIN LATERAL (SELECT FROM dbcontroller.reference WHERE target_id BETWEEN t AND t ORDER BY target_id LIMIT 1) AS r`,
		bondsSQL: `
SELECT t, EXISTS (SELECT FROM dbcontroller.blockade WHERE target_id = t),
    EXISTS (SELECT FROM dbcontroller.holder_entry WHERE target_id = t),
    EXISTS (SELECT FROM dbcontroller.ownee_entry WHERE owner_id = t)
FROM (` + ids + `) AS x (t)
WHERE EXISTS (SELECT FROM dbcontroller.blockade WHERE target_id = t)
    OR EXISTS (SELECT FROM dbcontroller.holder_entry WHERE target_id = t)
    OR EXISTS (SELECT FROM dbcontroller.ownee_entry WHERE owner_id = t)`,
	}
}

// ByID selects the ids of an array.
var ByID = Select(`SELECT unnest($1::bigint[])`)

// finalizersSQL reads the finalizers, and the fields of references that are kept, of the version that runs in
// the database: this process may not have heard of it yet.
const finalizersSQL = `SELECT id, COALESCE(finalizers, '{}'), COALESCE(until_removed, '{}') FROM dbcontroller.kind WHERE finalizers IS NOT NULL OR until_removed IS NOT NULL`

// QueueLockedRows adds the statements of LockedRows to a batch, behind the locking statement. Its fields are
// set when the batch has been sent.
func (s *Actor) QueueLockedRows(tx pgx.Tx, b *pgx.Batch, of Selection, args ...any) *LockedRows {
	seen := &LockedRows{referred: map[int64]bool{}}
	b.Queue(of.ReferredSQL, args...).Query(func(rows pgx.Rows) error {
		var id int64
		_, err := pgx.ForEachRow(rows, []any{&id}, func() error { seen.referred[id] = true; return nil })
		return err
	})
	// Blockades and entries in one statement: a Confirm replaces blockades by entries in between.
	b.Queue(of.bondsSQL, args...).Query(func(rows pgx.Rows) error { return scanBonds(rows, &seen.bonds) })
	b.Queue(finalizersSQL).Query(func(rows pgx.Rows) error { return scanFinalizers(rows, &seen.bonds) })
	seen.Recovered = s.gate.QueueRecovered(tx, b)
	return seen
}

// Leaf reports whether no reference here has a locked resource as its target: nothing cascades with it inside
// this database.
func (s *LockedRows) Leaf(m *plan.Member) bool { return !s.referred[m.ID] }

// Blockaded reports whether another deployment has a blockade of a locked resource.
func (s *LockedRows) Blockaded(m *plan.Member) bool { return slices.Contains(s.bonds.Blockaded, m.ID) }

// anyReferred reports whether a reference here has one of some resources as its target.
func (s *LockedRows) anyReferred(members []*plan.Member) bool {
	for _, m := range members {
		if s.referred[m.ID] {
			return true
		}
	}
	return false
}

// of returns the bonds of the members of a closure.
func (s *LockedRows) of(c *plan.Closure) plan.Bonds {
	members := func(ids []int64) (out []int64) {
		for _, id := range ids {
			if c.Members[id] != nil {
				out = append(out, id)
			}
		}
		return out
	}
	return plan.Bonds{
		Blockaded: members(s.bonds.Blockaded), Entered: members(s.bonds.Entered), Owns: members(s.bonds.Owns),
		Finalizers: s.bonds.Finalizers, Kept: s.bonds.Kept,
	}
}

func scanFinalizers(rows pgx.Rows, b *plan.Bonds) error {
	var kind int32
	var names []string
	var fields []int32
	_, err := pgx.ForEachRow(rows, []any{&kind, &names, &fields}, func() error {
		if b.Finalizers == nil {
			b.Finalizers, b.Kept = map[int32][]string{}, map[int32][]int32{}
		}
		if len(names) > 0 {
			b.Finalizers[kind] = slices.Clone(names)
		}
		if len(fields) > 0 {
			b.Kept[kind] = slices.Clone(fields)
		}
		return nil
	})
	return err
}

func scanBonds(rows pgx.Rows, b *plan.Bonds) error {
	var id int64
	var blockaded, entered, owns bool
	_, err := pgx.ForEachRow(rows, []any{&id, &blockaded, &entered, &owns}, func() error {
		if blockaded {
			b.Blockaded = append(b.Blockaded, id)
		}
		if entered {
			b.Entered = append(b.Entered, id)
		}
		if owns {
			b.Owns = append(b.Owns, id)
		}
		return nil
	})
	return err
}
