package wishes

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
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/rights"
	"github.com/db-controller/db-controller/schema/shadow/internal/rows"
)

const (
	// lackingEvery is the pause between two looks for values without a right that are due.
	lackingEvery = 500 * time.Millisecond
	// lackingBatch is the number of values of a look.
	lackingBatch = 5000
	// missingBatch is the number of rows that are deleted, or unset, in one transaction because their target does not exist.
	missingBatch = 1000

	walkedSQL = `UPDATE dbcontroller.attachment SET walked = true WHERE kind_id = $1 AND checksum = $2 AND NOT walked`

	selectLackingSQL = `SELECT kind_id, path, digest, texts FROM dbcontroller.lacking WHERE due <= now() ORDER BY due LIMIT $1`

	deleteLackingSQL = `
DELETE FROM dbcontroller.lacking l USING unnest($1::int[], $2::text[], $3::uuid[]) AS i (kind_id, path, digest)
WHERE l.kind_id = i.kind_id AND l.path = i.path AND l.digest = i.digest`

	// A target that something here has referred to existed, and a restore has lost it.
	lackedSQL = `
UPDATE dbcontroller.lacking l SET problem = i.problem, missing = i.missing, tries = tries + 1,
    lost = i.missing AND l.target IS NOT NULL AND EXISTS (
        SELECT FROM dbcontroller.foreign_target f JOIN dbcontroller.deployment d ON d.id = f.deployment_id
        WHERE d.service = split_part(l.target, '/', 3) AND d.region = split_part(l.target, '/', 4)
            AND f.name = substr(l.target, length(d.service) + length(d.region) + 5)),
    due = now() + least(interval '250 ms' * power(2, least(tries, 20)), CASE WHEN i.missing THEN interval '1 hour' ELSE interval '10 s' END)
FROM unnest($1::int[], $2::text[], $3::uuid[], $4::text[], $5::boolean[]) AS i (kind_id, path, digest, problem, missing)
WHERE l.kind_id = i.kind_id AND l.path = i.path AND l.digest = i.digest`

	lockMissingSQL = `SELECT FROM dbcontroller.lacking WHERE kind_id = $1 AND path = $2 AND digest = $3 AND missing AND NOT lost FOR UPDATE`
)

// walk notes the values of the strict references of tables that were attached, or attached anew, whose right is not there. A table that cannot be read keeps no
// other one back.
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
			lacking, err := s.rights.WithoutRight(ctx, r, page)
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

// lackedKey is the primary key of a value without a right: two references may have values of the same texts.
type lackedKey struct {
	kind   int32
	path   string
	digest uuid.UUID
}

// lacked is a value without a right.
type lacked struct {
	lackedKey
	reference rows.Reference
	value     rows.Value
}

// AcquireForRows asks for the rights of values that rows have without one, and acts upon rows whose targets do not exist as it is declared. It reports whether there
// may be more.
func (s *Granter) AcquireForRows(ctx context.Context) (more bool, err error) {
	walked, failed := s.walk(ctx)
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
	problems := map[lackedKey]error{}
	var left []lacked
	for r, of := range by {
		needed, err := s.needed(ctx, r, of)
		if err != nil {
			failed = errors.Join(failed, err)
		}
		for i, l := range of {
			switch {
			case err != nil:
				left, problems[l.lackedKey] = append(left, l), err
			case !needed[i]:
				gone = append(gone, l)
			case !l.value.Named:
				left, problems[l.lackedKey] = append(left, l), errUnnamed
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
	lacking, err := s.rights.WithoutRight(ctx, r, values)
	if err != nil {
		return nil, err
	}
	without := map[string]bool{}
	for _, v := range lacking {
		without[textsOf(v)] = true
	}
	for i, v := range values {
		present[i] = present[i] && without[textsOf(v)]
	}
	return present, nil
}

func textsOf(v rows.Value) string {
	raw, _ := json.Marshal(v.Values)
	return string(raw)
}

// lacking returns the values that are due, and those of references that are strict no more.
func (s *Granter) lacking(ctx context.Context) (due, gone []lacked, err error) {
	found, err := s.Pool.Query(ctx, selectLackingSQL, lackingBatch)
	if err != nil {
		return nil, nil, fmt.Errorf("read values without a right: %w", err)
	}
	var l lacked
	var raw string
	_, err = pgx.ForEachRow(found, []any{&l.kind, &l.path, &l.digest, &raw}, func() error {
		var texts []string
		if err := json.Unmarshal([]byte(raw), &texts); err != nil {
			return err
		}
		var strict bool
		if l.reference, strict = s.rows.ReferenceOf(l.kind, l.path); strict && len(texts) == l.reference.Columns() {
			l.value = l.reference.Value(s.Self, texts)
			due = append(due, l)
		} else {
			gone = append(gone, l)
		}
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("read values without a right: %w", err)
	}
	return due, gone, nil
}

// askedAtOnce is the maximum number of deployments that are asked at one time.
const askedAtOnce = 8

// askAll asks deployments for the rights of values, and returns the problems: one that does not answer delays few others. Values whose right is given have no
// problem: the next look finds the right.
func (s *Granter) askAll(ctx context.Context, asked map[schema.DeploymentID][]lacked) map[lackedKey]error {
	var g errgroup.Group
	g.SetLimit(askedAtOnce)
	var mu sync.Mutex
	problems := map[lackedKey]error{} // guarded by mu
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
func (s *Granter) askFor(ctx context.Context, at schema.DeploymentID, of []lacked) map[lackedKey]error {
	problems := map[lackedKey]error{}
	away := s.gate.CheckNamed(ctx, at)
	for part := range slices.Chunk(of, batchOfOne) {
		var refused map[string]error
		if away == nil {
			refused, away = s.askOnce(ctx, at, part)
		}
		for _, l := range part {
			if why := cmp.Or(refused[l.value.Target.Name], away); why != nil {
				problems[l.lackedKey] = why
			}
		}
	}
	return problems
}

func (s *Granter) askOnce(ctx context.Context, at schema.DeploymentID, part []lacked) (map[string]error, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	asked := make([]rights.Asked, len(part))
	for i, l := range part {
		asked[i] = rights.AskedOf(l.reference, l.value)
	}
	return s.rights.AcquireAsked(ctx, at, asked)
}

func columnsOf(of []lacked) (kinds []int32, paths []string, digests []uuid.UUID) {
	for _, l := range of {
		kinds, paths, digests = append(kinds, l.kind), append(paths, l.path), append(digests, l.digest)
	}
	return kinds, paths, digests
}

func (s *Granter) forget(ctx context.Context, gone []lacked) error {
	if len(gone) == 0 {
		return nil
	}
	kinds, paths, digests := columnsOf(gone)
	if _, err := s.Pool.Exec(ctx, deleteLackingSQL, kinds, paths, digests); err != nil {
		return fmt.Errorf("forget values without a right: %w", err)
	}
	return nil
}

// note stores why rights are not there, and acts upon the rows whose targets do not exist.
func (s *Granter) note(ctx context.Context, left []lacked, problems map[lackedKey]error) error {
	if len(left) == 0 {
		return nil
	}
	texts, missing := make([]*string, len(left)), make([]bool, len(left))
	for i, l := range left {
		var named *peer.RefusedError
		switch err := problems[l.lackedKey]; {
		case err == nil:
		case errors.Is(err, errUnnamed), errors.As(err, &named) && named.All(func(r peer.Reason) bool { return r == peer.TargetMissing }):
			text := l.value.Target.FullName.String() + " does not exist"
			texts[i], missing[i] = &text, true
		default:
			text := err.Error()
			texts[i] = &text
		}
	}
	kinds, paths, digests := columnsOf(left)
	if _, err := s.Pool.Exec(ctx, lackedSQL, kinds, paths, digests, texts, missing); err != nil {
		return fmt.Errorf("note values without a right: %w", err)
	}
	var failed error
	for i, l := range left {
		if missing[i] && l.reference.Acts() {
			failed = errors.Join(failed, s.actOn(ctx, l))
		}
	}
	return failed
}

// actOn deletes, or unsets, the rows with a value whose target does not exist.
func (s *Granter) actOn(ctx context.Context, l lacked) error {
	for {
		n := 0
		err := s.InTx(ctx, db.NoFeed, func(tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, lockMissingSQL, l.kind, l.path, l.digest)
			if err != nil || tag.RowsAffected() == 0 {
				return err
			}
			if n, err = l.reference.ActOnMissing(ctx, tx, l.value, missingBatch); err != nil || n == missingBatch {
				return err
			}
			there, err := l.reference.Present(ctx, tx, []rows.Value{l.value})
			if err != nil || there[0] { // a trigger of the application keeps a row
				return err
			}
			_, err = tx.Exec(ctx, deleteLackingSQL, []int32{l.kind}, []string{l.path}, []uuid.UUID{l.digest})
			return err
		})
		if err != nil || n < missingBatch {
			return err
		}
	}
}
