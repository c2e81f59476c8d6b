package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
	"github.com/db-controller/db-controller/schema/shadow/internal/prepare"
	"github.com/db-controller/db-controller/schema/shadow/internal/read"
	"github.com/db-controller/db-controller/schema/shadow/internal/write"
)

// derivePage is the number of resources that one transaction derives.
const derivePage = 500

const (
	// Only from the cursor that was read: another process may have advanced the pass, or a switch replaced
	// it.
	advanceSQL     = `UPDATE dbcontroller.work SET cursor = $2, progress = progress + $3 WHERE seq = $1 AND cursor = $4`
	endPassSQL     = `DELETE FROM dbcontroller.work WHERE seq = $1 AND cursor = $2`
	explainWorkSQL = `UPDATE dbcontroller.work SET reason = $2 WHERE seq = $1 AND reason IS DISTINCT FROM $2`
)

var (
	selectDeriveSQL = db.Codes(`
SELECT w.kind_id, w.target_id, w.cursor, ` + gate.RunningColumns + ` FROM dbcontroller.work w CROSS JOIN dbcontroller.meta m
WHERE w.seq = $1 AND w.action = {derive}`)

	selectPageSQL = db.Codes(prepare.ShadowColumns + `
FROM dbcontroller.shadow s LEFT JOIN dbcontroller.resource r ON r.id = s.id
WHERE s.kind_id = $1 AND s.name > $2 AND s.state = {active} ORDER BY s.name LIMIT $3`)

	selectOneSQL = db.Codes(prepare.ShadowColumns + `
FROM dbcontroller.shadow s LEFT JOIN dbcontroller.resource r ON r.id = s.id
WHERE s.id = $1 AND s.state = {active}`)

	setAsideSQL = db.Codes(`
INSERT INTO dbcontroller.work (action, shard, deployment_id, kind_id, target_id, reason)
SELECT {derive}, i.shard, $1, $2, i.id, i.reason FROM unnest($3::bigint[], $4::smallint[], $5::text[]) AS i (id, shard, reason)`)
)

// Deriver derives references anew after a switch of the version.
type Deriver struct {
	*db.DB
	gate     *gate.Gate
	preparer *prepare.Preparer
	write    *write.Writer
	// page is the number of resources that the next page of a derivation asks for; 0: the greatest.
	page atomic.Int64
}

// newDeriver joins the parts.
func newDeriver(g *gate.Gate, p *prepare.Preparer, w *write.Writer) *Deriver {
	return &Deriver{DB: g.DB, gate: g, preparer: p, write: w}
}

// Derive derives the references of some resources from their bodies by the running version: of a page of a
// kind's pass, or of one resource that was set aside. A new form of a reference is established at the
// target's deployment before the holder's transaction, which drops the old form; the old form is released
// afterwards. A resource whose references cannot be derived now (a target is missing, or its deployment does
// not answer) is set aside by itself, and the others of the page are derived.
func (s *Deriver) Derive(ctx context.Context, seq int64) (peer.Derived, error) {
	v, err := s.Current()
	if err != nil {
		return peer.DerivedNot, err
	}
	d := &deriving{store: s, seq: seq, sv: s.preparer.NewSaving(v)}
	var cursor *string
	var stored gate.Running
	err = s.Pool.QueryRow(ctx, selectDeriveSQL, seq).
		Scan(append([]any{&d.kindID, &d.one, &cursor}, stored.Into()...)...)
	if cursor != nil {
		d.cursor = *cursor
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return peer.DerivedAll, nil
	}
	if err != nil {
		return peer.DerivedNot, fmt.Errorf("read the derivation: %w", err)
	}
	// Checked before blockades are established: otherwise each try would establish some that it could not
	// commit.
	if err := s.gate.CheckVersion(v, stored); err != nil {
		return peer.DerivedNot, err
	}
	asked := int(cmp.Or(s.page.Load(), derivePage))
	sql, args := selectOneSQL, []any{d.one}
	if d.one == nil {
		sql, args = selectPageSQL, []any{d.kindID, cursor, asked}
	}
	rows, err := s.Pool.Query(ctx, sql, args...)
	if err != nil {
		return peer.DerivedNot, fmt.Errorf("read the derivation: %w", err)
	}
	var cut bool
	if d.page, cut, err = prepare.CollectShadows(rows); err != nil {
		return peer.DerivedNot, fmt.Errorf("read the derivation: %w", err)
	}
	d.last = len(d.page) < asked && !cut
	s.page.Store(int64(prepare.PageSize(asked, len(d.page), cut, derivePage)))
	return d.run(ctx)
}

// deriving is the derivation of one page or one resource.
type deriving struct {
	store  *Deriver
	seq    int64
	kindID int32
	one    *int64 // null: a pass over the kind
	cursor string
	page   []*prepare.ShadowRow
	last   bool // the page is the last one
	sv     *prepare.Saving
	aside  []setAside
}

type setAside struct {
	id     int64
	shard  int16
	reason string
}

func (d *deriving) run(ctx context.Context) (peer.Derived, error) {
	if len(d.page) == 0 {
		return peer.DerivedAll, d.store.Finish(ctx, []int64{d.seq})
	}
	if err := d.compare(ctx); err != nil {
		return peer.DerivedNot, err
	}
	// Each round leaves the refused references out of the next attempt.
	for range 5 {
		_, err := write.Commit(ctx, d.store.write, d.sv, func(tx pgx.Tx) error { return d.note(ctx, tx) })
		if err == nil && len(d.aside) > 0 { // the commit of a page without writes wakes no watch of work
			d.store.Touched(db.WorkFeed)
		}
		var refused *peer.RefusedError
		switch {
		case err == nil && d.one == nil && !d.last:
			return peer.DerivedSome, nil
		case err == nil && d.one != nil && len(d.aside) > 0:
			return peer.DerivedNot, nil
		case err == nil:
			return peer.DerivedAll, nil
		case errors.Is(err, db.ErrStale):
			return peer.DerivedNot, nil // a user, or another process, was there meanwhile
		case !errors.As(err, &refused):
			return peer.DerivedNot, err
		}
		d.leaveOut(refused)
	}
	return peer.DerivedNot, peer.ErrAborted
}

func (d *deriving) compare(ctx context.Context) error {
	s := d.store
	id, err := s.Names.KindOf(ctx, s.Pool, d.kindID)
	if err != nil {
		return err
	}
	kind, err := d.sv.Version.Model.Kind(id.Kind)
	if err != nil {
		return nil // the version does not have the kind: the stored references stay, and a later version derives anew
	}
	ids := make([]int64, len(d.page))
	for i, row := range d.page {
		ids[i] = row.ID
	}
	held, err := read.Held(ctx, s.Pool, ids)
	if err != nil {
		return err
	}
	for i, row := range d.page {
		wr := &prepare.Writing{
			Write: peer.Write{Name: row.Name, Body: row.Body}, Kind: kind.ID, KindID: d.kindID,
			Derives: true, Before: row, ID: row.ID, ShadowUID: row.UID,
		}
		if row.Hidden { // until it is undeleted, or removed: the others of the page do not wait for it
			d.setAside(wr, fmt.Sprintf("it %s", peer.ErrDeleted))
			continue
		}
		found, err := kind.References(s.Self, row.Name, row.Body)
		if err != nil {
			d.setAside(wr, err.Error())
			continue
		}
		err = s.preparer.Compare(ctx, s.Pool, d.sv, wr, found, held[row.ID])
		var tooMany *peer.InvalidError
		switch {
		case errors.As(err, &tooMany) && len(d.sv.Writes) > 0:
			d.page, d.last = d.page[:i], false // the next page begins here
			return nil
		case errors.As(err, &tooMany):
			d.setAside(wr, err.Error())
			continue
		case err != nil:
			return err
		}
		if len(wr.Add)+len(wr.Drop) > 0 {
			d.sv.Writes = append(d.sv.Writes, wr)
		}
	}
	return nil
}

func (d *deriving) setAside(wr *prepare.Writing, reason string) {
	if !slices.ContainsFunc(d.aside, func(a setAside) bool { return a.id == wr.ID }) {
		d.aside = append(d.aside, setAside{id: wr.ID, shard: int16(schema.Shard(wr.Name)), reason: reason})
	}
}

// leaveOut starts the attempt anew without the refused references; the stored references that they would
// replace stay. A dangling reference whose behaviour allows that needs no reference row.
func (d *deriving) leaveOut(refused *peer.RefusedError) {
	sv := d.store.preparer.NewSaving(d.sv.Version)
	for _, wr := range d.sv.Writes {
		wr.Add = slices.DeleteFunc(wr.Add, func(ref *prepare.NewReference) bool {
			i := slices.IndexFunc(refused.Refusals, func(r peer.Refusal) bool {
				return r.Holder == wr.Name && r.Path == ref.Path && r.Target == ref.Target
			})
			if i < 0 {
				return false
			}
			if ref.Behaviour != schema.AllowDangling || refused.Refusals[i].Reason != peer.TargetMissing {
				d.setAside(wr, refused.Refusals[i].String())
				wr.Drop = slices.DeleteFunc(wr.Drop, func(h read.HeldReference) bool {
					return h.FieldID == ref.FieldID && h.Target == ref.Target
				})
			}
			return true
		})
		if len(wr.Add)+len(wr.Drop) > 0 && sv.Establish(d.store.Self, wr) == nil { // fewer than before
			sv.Writes = append(sv.Writes, wr)
		}
	}
	d.sv = sv
}

// note stores, in the transaction of the derivation, its progress and the resources set aside.
func (d *deriving) note(ctx context.Context, tx pgx.Tx) error {
	b := &pgx.Batch{}
	switch {
	case d.one != nil && len(d.aside) == 0:
		b.Queue(db.DoneSQL, []int64{d.seq})
	case d.one != nil:
		b.Queue(explainWorkSQL, d.seq, d.aside[0].reason)
	default:
		var ids []int64
		var shards []int16
		var reasons []string
		for _, a := range d.aside {
			ids, shards, reasons = append(ids, a.id), append(shards, a.shard), append(reasons, a.reason)
		}
		if d.last {
			b.Queue(endPassSQL, d.seq, d.cursor).Exec(write.Wrote(1))
		} else {
			b.Queue(advanceSQL, d.seq, d.page[len(d.page)-1].Name, len(d.page), d.cursor).Exec(write.Wrote(1))
		}
		if len(ids) > 0 {
			b.Queue(setAsideSQL, d.store.SelfID, d.kindID, ids, shards, reasons)
		}
	}
	return tx.SendBatch(ctx, b).Close()
}
