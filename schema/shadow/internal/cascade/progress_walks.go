package cascade

import (
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

// Walk counts the holders of one deleted resource that are acted upon page by page.
type Walk struct {
	Deletion uuid.UUID
	Cascades int64 // references that were counted and not passed yet, of holders that are removed
	Unsets   int64 // and of references that are unset
	Passed   int64
	Began    time.Time
}

func (w Walk) ended() bool { return w.Cascades+w.Unsets == 0 }

// Walked notes the progress of a walk over the holders of target. A walk that begins anew, in this process
// or another one, takes the place of the earlier one, so that holders count once.
func (r *Recorder) Walked(cause *schema.Cause, target uuid.UUID, w Walk) {
	w.Deletion = cause.ID
	// a walk is read by way of the row of its deletion
	r.book.take(map[uuid.UUID]*deletionCounts{cause.ID: {root: cause.Root}})
	r.book.mu.Lock()
	defer r.book.mu.Unlock()
	if _, known := r.book.walks[target]; known || len(r.book.walks) < maxNotes {
		r.book.walks[target] = w
	}
}

// WalkSilence is the age of a row whose walk does not go on: its process has ended, and the holders that it
// left were too few for another walk.
const WalkSilence = time.Minute

const (
	walkSilence = `interval '1 min'` // WalkSilence

	flushWalksSQL = `
INSERT INTO dbcontroller.deletion_walk AS w (target, deletion, cascades, unsets, passed, started_at)
SELECT i.target, i.deletion, i.cascades, i.unsets, i.passed, now() - make_interval(secs => i.took)
FROM unnest(@targets::uuid[], @deletions::uuid[], @cascades::bigint[], @unsets::bigint[], @passed::bigint[], @took::float8[])
    AS i (target, deletion, cascades, unsets, passed, took) ORDER BY i.target
ON CONFLICT (target) DO UPDATE SET deletion = EXCLUDED.deletion, cascades = EXCLUDED.cascades, unsets = EXCLUDED.unsets,
    passed = EXCLUDED.passed, started_at = EXCLUDED.started_at, updated_at = now()`

	endWalksSQL = `DELETE FROM dbcontroller.deletion_walk WHERE target = ANY ($1)`

	tidyWalksSQL = `DELETE FROM dbcontroller.deletion_walk WHERE updated_at < now() - interval '1 hour'`
)

func queueWalks(b *pgx.Batch, walks map[uuid.UUID]Walk) {
	var targets, deletions, ended []uuid.UUID
	var cascades, unsets, passed []int64
	var took []float64
	for target, w := range walks {
		if w.ended() {
			ended = append(ended, target)
			continue
		}
		targets, deletions, took = append(targets, target), append(deletions, w.Deletion),
			append(took, time.Since(w.Began).Seconds())
		cascades, unsets, passed = append(cascades, w.Cascades), append(unsets, w.Unsets), append(passed, w.Passed)
	}
	if len(targets) > 0 {
		b.Queue(flushWalksSQL, db.Named{
			"targets": targets, "deletions": deletions, "cascades": cascades, "unsets": unsets, "passed": passed,
			"took": took,
		})
	}
	if len(ended) > 0 {
		b.Queue(endWalksSQL, ended)
	}
}

// putBack keeps walks that could not be stored, unless they went on meanwhile.
func (b *Book) putBack(walks map[uuid.UUID]Walk) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for target, w := range walks {
		if _, newer := b.walks[target]; !newer {
			b.walks[target] = w
		}
	}
	b.wakeStore()
}
