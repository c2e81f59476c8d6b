package rights

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/cascade"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/plan"

	"github.com/db-controller/db-controller/schema/shadow/internal/rows"
)

const (
	// lackingEvery is the pause between two looks for values without a right that are due.
	lackingEvery = 200 * time.Millisecond
	// lackingBatch is the number of notes of a look.
	lackingBatch = 5000
	// missingBatch is the number of rows that are deleted, or unset, in one look because their target does
	// not exist. The others wait for a second.
	missingBatch = 1000

	waitSQL = `UPDATE dbcontroller.lacking SET due = now() + interval '1 s' WHERE seq = ANY ($1)`

	walkedSQL = `UPDATE dbcontroller.attachment SET walked = true WHERE kind_id = $1 AND checksum = $2 AND NOT walked`

	// The former references of a table count until each value has its new right, or is asked for in vain.
	endFormerSQL = `
UPDATE dbcontroller.attachment a SET former = '[]' WHERE kind_id = $1 AND walked AND former <> '[]'
    AND NOT EXISTS (SELECT FROM dbcontroller.lacking l WHERE l.kind_id = a.kind_id AND NOT l.missing)`

	// All notes of the values that are due, ordered by value. Each value is looked up by the index: a join
	// would compare it with all values of the reference.
	selectLackingSQL = `
WITH due AS (
    SELECT DISTINCT kind_id, path, texts FROM (SELECT kind_id, path, texts FROM dbcontroller.lacking WHERE due <= now() ORDER BY due LIMIT $1) AS d
)
SELECT l.seq, l.before, due.kind_id, due.path, due.texts FROM due CROSS JOIN LATERAL (
    SELECT seq, before FROM dbcontroller.lacking WHERE kind_id = due.kind_id AND path = due.path AND md5(texts) = md5(due.texts) OFFSET 0
) AS l
ORDER BY due.kind_id, due.path, due.texts, l.seq`

	deleteLackingSQL = `DELETE FROM dbcontroller.lacking WHERE seq = ANY ($1)`

	// The grace begins when a target is found missing, and anew when a later row has named it. A target with
	// a row of foreign_target existed, and a restore has lost it. The statement returns the values whose rows
	// are to be acted upon now.
	lackedSQL = `
UPDATE dbcontroller.lacking l SET problem = i.problem, missing = i.missing, rows = i.rows, tries = tries + 1, since = i.since,
    lost = i.missing AND EXISTS (
        SELECT FROM dbcontroller.foreign_target f JOIN dbcontroller.deployment d ON d.id = f.deployment_id
        WHERE d.service = split_part(l.target, '/', 3) AND d.region = split_part(l.target, '/', 4)
            AND f.name = substr(l.target, length(d.service) + length(d.region) + 5)),
    due = least(now() + least(interval '250 ms' * power(2, least(tries, 20)), CASE WHEN i.missing THEN interval '1 hour' ELSE interval '10 s' END),
        CASE WHEN i.acts AND i.since + @grace::interval > clock_timestamp() THEN i.since + @grace::interval END)
FROM (
    SELECT u.*, CASE WHEN u.missing THEN CASE WHEN o.missing AND NOT u.later THEN least(o.since, now()) ELSE now() END END AS since
    FROM unnest(@seqs::bigint[], @problems::text[], @missing::boolean[], @later::boolean[], @counts::bigint[], @acts::boolean[]) AS u (seq, problem, missing, later, rows, acts)
    JOIN dbcontroller.lacking o ON o.seq = u.seq
) AS i
WHERE l.seq = i.seq
RETURNING l.seq, i.acts AND l.missing AND NOT l.lost AND l.since + @grace::interval <= clock_timestamp()`

	lockMissingSQL = `SELECT FROM dbcontroller.lacking WHERE seq = $1 AND missing AND NOT lost FOR UPDATE`

	// A person confirms that many rows go that were there before: more than ten, and than one per cent.
	mayActSQL = `
SELECT a.confirmed OR a.walked AND NOT EXISTS (SELECT FROM dbcontroller.lacking n WHERE n.kind_id = $1 AND n.path = $2 AND n.before AND n.tries = 0)
    AND COALESCE((SELECT sum(l.rows) FROM dbcontroller.lacking l WHERE l.kind_id = $1 AND l.path = $2 AND l.before AND l.missing AND NOT l.lost), 0) <= greatest(10, c.reltuples / 100)
FROM dbcontroller.attachment a LEFT JOIN pg_catalog.pg_class c ON c.oid = dbcontroller.attached_relation($1) WHERE a.kind_id = $1`
)

// walk notes the values of the references of tables that were attached, or attached anew, whose right is not
// there. A table that cannot be read keeps no other one back.
func (s *Granter) walk(ctx context.Context) (walked bool, failed error) {
	for _, t := range s.rows.Tables() {
		if !t.Walked {
			err := s.walkTable(ctx, t)
			walked, failed = walked || err == nil, errors.Join(failed, err)
		}
	}
	if walked {
		failed = errors.Join(failed, s.rows.Load(ctx))
	}
	return walked, failed
}

func (s *Granter) walkTable(ctx context.Context, t *rows.Table) error {
	for _, r := range t.References() {
		err := s.rows.WalkValues(ctx, r, func(page []rows.Value) error {
			lacking, err := s.rights.withoutRight(ctx, r, page)
			if err != nil {
				return err
			}
			return s.rights.Lack(ctx, r, lacking)
		})
		if err != nil {
			return err
		}
	}
	if _, err := s.Pool.Exec(ctx, walkedSQL, t.KindID, t.Definition.Checksum()); err != nil {
		return fmt.Errorf("end the walk of %s: %w", t.Definition.Table, err)
	}
	return nil
}

// lacked is a value without a right.
type lacked struct {
	seq       int64   // of its first note, which stays while the right is not there
	others    []int64 // its other notes that were read before it is asked for
	before    bool    // each note is of a walk
	reference rows.Reference
	value     rows.Value
}

// AcquireForRows asks for the rights of values that rows have without one, and acts upon rows whose targets
// do not exist as it is declared. It reports whether there may be more.
func (s *Granter) AcquireForRows(ctx context.Context) (more bool, err error) {
	walked, failed := s.walk(ctx)
	failed = errors.Join(failed, s.endFormer(ctx), s.pauses.End(ctx, s.Pool))
	due, gone, err := s.lacking(ctx)
	if err != nil {
		return false, errors.Join(failed, err)
	}
	more = walked || len(due)+len(gone) == lackingBatch
	by := map[rows.Reference][]lacked{}
	for _, l := range due {
		by[l.reference] = append(by[l.reference], l)
	}
	asked := map[schema.DeploymentID][]lacked{}
	problems := map[int64]error{}
	var left []lacked
	for r, of := range by {
		needed, err := s.needed(ctx, r, of)
		if err != nil {
			failed = errors.Join(failed, err)
		}
		for i, l := range of {
			switch {
			case err != nil:
				left, problems[l.seq] = append(left, l), err
			case !needed[i]:
				gone = append(gone, l)
			case !l.value.Named:
				left, problems[l.seq] = append(left, l), errUnnamed
			default:
				left, asked[l.value.Target.Deployment] = append(left, l), append(asked[l.value.Target.Deployment], l)
			}
		}
	}
	maps.Copy(problems, s.askAll(ctx, asked))
	return more, errors.Join(failed, s.forget(ctx, gone), s.note(ctx, left, problems))
}

// needed reports of each value whether a row has it, and the right is not there.
func (s *Granter) needed(ctx context.Context, r rows.Reference, of []lacked) ([]bool, error) {
	values := make([]rows.Value, len(of))
	for i, l := range of {
		values[i] = l.value
	}
	present, err := r.Present(ctx, s.Pool, values)
	if err != nil {
		return nil, err
	}
	lacking, err := s.rights.withoutRight(ctx, r, values)
	if err != nil {
		return nil, err
	}
	without := map[string]bool{}
	for _, v := range lacking {
		without[v.Texts()] = true
	}
	for i, v := range values {
		present[i] = present[i] && without[v.Texts()]
	}
	return present, nil
}

// endFormer ends the former references of tables.
func (s *Granter) endFormer(ctx context.Context) error {
	for _, t := range s.rows.Tables() {
		if !t.Former || !t.Walked {
			continue
		}
		if _, err := s.Pool.Exec(ctx, endFormerSQL, t.KindID); err != nil {
			return fmt.Errorf("end the former references of %s: %w", t.Definition.Table, err)
		}
	}
	return nil
}

// lacking returns the values that are due, and the values of references that are declared no more.
func (s *Granter) lacking(ctx context.Context) (due, gone []lacked, err error) {
	found, err := s.Pool.Query(ctx, selectLackingSQL, lackingBatch)
	if err != nil {
		return nil, nil, fmt.Errorf("read values without a right: %w", err)
	}
	type key struct {
		kind        int32
		path, texts string
	}
	var last, k key
	var seq int64
	var before bool
	var all []lacked
	_, err = pgx.ForEachRow(found, []any{&seq, &before, &k.kind, &k.path, &k.texts}, func() error {
		if n := len(all); n > 0 && k == last {
			all[n-1].others, all[n-1].before = append(all[n-1].others, seq), all[n-1].before && before
			return nil
		}
		last = k
		var texts []string
		if err := json.Unmarshal([]byte(k.texts), &texts); err != nil {
			return err
		}
		l := lacked{seq: seq, before: before}
		var declared bool
		if l.reference, declared = s.rows.ReferenceOf(k.kind, k.path); declared && len(texts) == l.reference.Columns() {
			l.value = l.reference.Value(s.Self, texts)
		} else {
			l.reference = rows.Reference{}
		}
		all = append(all, l)
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("read values without a right: %w", err)
	}
	for _, l := range all {
		if l.reference == (rows.Reference{}) {
			gone = append(gone, l)
		} else {
			due = append(due, l)
		}
	}
	return due, gone, nil
}

// askedAtOnce is the maximum number of deployments that are asked at one time.
const askedAtOnce = 8

// askAll asks deployments for the rights of values, and returns the problems: a deployment that does not
// answer delays few others. Values whose right is given have no problem: the next look finds the right.
func (s *Granter) askAll(ctx context.Context, asked map[schema.DeploymentID][]lacked) map[int64]error {
	var g errgroup.Group
	g.SetLimit(askedAtOnce)
	var mu sync.Mutex
	problems := map[int64]error{} // guarded by mu
	for at, of := range asked {
		g.Go(func() error {
			found := s.askFor(ctx, at, of)
			mu.Lock()
			defer mu.Unlock()
			maps.Copy(problems, found)
			return nil
		})
	}
	_ = g.Wait()
	return problems
}

// askFor asks a deployment until it fails to answer.
func (s *Granter) askFor(ctx context.Context, at schema.DeploymentID, of []lacked) map[int64]error {
	problems := map[int64]error{}
	away := s.gate.CheckNamed(ctx, at)
	for part := range slices.Chunk(of, requestsOfOne) {
		var refused map[string]error
		if away == nil {
			refused, away = s.askOnce(ctx, at, part)
		}
		for _, l := range part {
			if why := cmp.Or(refused[l.value.Target.Name], away); why != nil {
				problems[l.seq] = why
			}
		}
	}
	return problems
}

func (s *Granter) askOnce(ctx context.Context, at schema.DeploymentID, part []lacked) (map[string]error, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	asked := make([]Asked, len(part))
	for i, l := range part {
		asked[i] = askedOf(l.reference, l.value)
	}
	return s.rights.acquireAsked(ctx, at, asked, 0)
}

func (s *Granter) forget(ctx context.Context, gone []lacked) error {
	var seqs []int64
	for _, l := range gone {
		seqs = append(append(seqs, l.seq), l.others...)
	}
	if len(seqs) == 0 {
		return nil
	}
	if _, err := s.Pool.Exec(ctx, deleteLackingSQL, seqs); err != nil {
		return fmt.Errorf("forget values without a right: %w", err)
	}
	return nil
}

// ofTarget returns the refusals about a target.
func ofTarget(all *peer.RefusedError, target schema.FullName) (own []peer.Refusal) {
	if all == nil {
		return nil
	}
	for _, r := range all.Refusals {
		if r.Target == target {
			own = append(own, r)
		}
	}
	return own
}

// note stores why rights are not there, and acts upon the rows whose targets do not exist.
func (s *Granter) note(ctx context.Context, left []lacked, problems map[int64]error) error {
	if len(left) == 0 {
		return nil
	}
	n := len(left)
	seqs, texts, missing, later, acts := make([]int64, n), make([]*string, n), make([]bool, n), make([]bool, n),
		make([]bool, n)
	var others []int64
	for i, l := range left {
		seqs[i], others, later[i], acts[i] = l.seq, append(others, l.others...), len(l.others) > 0, l.reference.Acts()
		var named *peer.RefusedError
		switch err := problems[l.seq]; {
		case err == nil:
		case errors.Is(err, errUnnamed), errors.As(err, &named) && named.All(func(r peer.Reason) bool {
			return r == peer.TargetMissing
		}):
			text := l.value.Target.FullName.String() + " does not exist"
			texts[i], missing[i] = &text, true
		default:
			text := err.Error()
			if own := ofTarget(named, l.value.Target.FullName); len(own) > 0 { // a call is about several
				text = (&peer.RefusedError{Refusals: own}).Error()
			}
			texts[i] = &text
		}
	}
	counts, err := s.count(ctx, left, missing)
	if err != nil {
		return err
	}
	ripe := map[int64]bool{}
	b := &pgx.Batch{}
	b.Queue(lackedSQL, pgx.StrictNamedArgs{
		"seqs": seqs, "problems": texts, "missing": missing, "later": later, "counts": counts, "acts": acts,
		"grace": s.Tuning.Load().MissingGrace,
	}).Query(func(found pgx.Rows) error {
		var seq int64
		var act bool
		_, err := pgx.ForEachRow(found, []any{&seq, &act}, func() error { ripe[seq] = act; return nil })
		return err
	})
	b.Queue(deleteLackingSQL, others) // one note of a value is enough
	if err := s.Pool.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("note values without a right: %w", err)
	}
	var failed error
	may := map[rows.Reference]bool{} // act upon rows of before
	acted, waiting := 0, []int64{}
	for _, l := range left {
		if !ripe[l.seq] {
			continue
		}
		if acted >= missingBatch {
			waiting = append(waiting, l.seq)
			continue
		}
		if _, asked := may[l.reference]; l.before && !asked {
			if may[l.reference], err = s.mayAct(ctx, l.reference); err != nil {
				return errors.Join(failed, err)
			}
		}
		if !l.before || may[l.reference] {
			n, err := s.actOn(ctx, l)
			if failed, acted = errors.Join(failed, err), acted+n; n == missingBatch {
				waiting = append(waiting, l.seq)
			}
		}
	}
	if len(waiting) > 0 { // new values do not wait for them
		_, err = s.Pool.Exec(ctx, waitSQL, waiting)
		failed = errors.Join(failed, err)
	}
	return failed
}

// count returns the number of rows with each value whose target does not exist.
func (s *Granter) count(ctx context.Context, left []lacked, missing []bool) ([]int64, error) {
	counts, places := make([]int64, len(left)), map[rows.Reference][]int{}
	for i, l := range left {
		if missing[i] {
			places[l.reference] = append(places[l.reference], i)
		}
	}
	for r, at := range places {
		values := make([]rows.Value, len(at))
		for j, i := range at {
			values[j] = left[i].value
		}
		found, err := r.Count(ctx, s.Pool, values)
		if err != nil {
			return nil, err
		}
		for j, i := range at {
			counts[i] = found[j]
		}
	}
	return counts, nil
}

// mayAct reports whether rows of before may go whose target does not exist by a reference.
func (s *Granter) mayAct(ctx context.Context, r rows.Reference) (may bool, err error) {
	err = s.Pool.QueryRow(ctx, mayActSQL, r.Table.KindID, r.Path()).Scan(&may)
	if errors.Is(err, pgx.ErrNoRows) { // detached
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the attachment of %s: %w", r.Table.Definition.Table, err)
	}
	return may, nil
}

// actOn deletes, or unsets, a batch of the rows with a value whose target does not exist, and records the
// removals. It returns their number.
func (s *Granter) actOn(ctx context.Context, l lacked) (n int, err error) {
	err = s.InTx(ctx, db.ChangeFeed, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, lockMissingSQL, l.seq)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		names, err := l.reference.ActOnMissing(ctx, tx, l.value, l.seq, missingBatch)
		if n = len(names); err != nil {
			return err
		}
		if n > 0 && l.reference.Declared().Missing == schema.MissingDelete {
			if err := s.gate.CheckRecovered(ctx, tx, []int32{l.reference.Table.KindID}); err != nil {
				return err
			}
			if err := s.record(ctx, tx, l, names); err != nil {
				return err
			}
		}
		if n == missingBatch {
			return nil
		}
		there, err := l.reference.Present(ctx, tx, []rows.Value{l.value})
		if err != nil || there[0] { // a trigger of the application keeps a row
			return err
		}
		_, err = tx.Exec(ctx, deleteLackingSQL, []int64{l.seq})
		return err
	})
	return n, err
}

// record records the removal of rows: their cause is the target that does not exist.
func (s *Granter) record(ctx context.Context, tx pgx.Tx, l lacked, names []string) error {
	if len(names) == 0 {
		return nil
	}
	of, err := s.Names.Deployment(ctx, l.value.Target.Deployment)
	if err != nil {
		return err
	}
	uids := make([]uuid.UUID, len(names))
	for i := range names {
		uids[i] = uuid.Must(uuid.NewV7())
	}
	cause := &schema.Cause{
		ID: uuid.Must(uuid.NewV7()), Root: l.value.Target.FullName.String(),
		Actor: "missing: delete", At: time.Now(),
	}
	b := &pgx.Batch{}
	cascade.QueueNoteRows(b, l.reference.Table.KindID, s.SelfID, names, uids,
		plan.Reason{How: peer.Cascaded, Cause: cause, Via: &plan.Link{DeploymentID: of, Name: l.value.Target.Name}})
	return tx.SendBatch(ctx, b).Close()
}
