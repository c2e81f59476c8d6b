package verify

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"

	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
)

const (
	selectPassSQL = `
SELECT w.cursor, d.epoch, ` + gate.EpochNowSQL + `, m.awaiting
FROM dbcontroller.meta m, dbcontroller.work w JOIN dbcontroller.deployment d ON d.id = w.deployment_id
WHERE w.seq = $1 AND w.action = $2`

	savePassSQL = `UPDATE dbcontroller.work SET cursor = $2, progress = progress + 1 WHERE seq = $1`
)

// ownersBegin is the cursor of a pass that has compared all references and begins with the owners.
const ownersBegin = "{}"

// ConfirmAgain compares all references to a deployment's resources, and all owner references to them, with
// the deployment's records, and establishes lost references again. It is one piece of work, and resumes at
// its saved cursor. It returns the epochs in which it compared, and which the caller confirms now: the last
// epoch that the deployment has announced, a zero one when it has announced none, and the epoch of this
// database. It fails at its end when references were refused for reasons that can pass.
func (s *Verifier) ConfirmAgain(ctx context.Context, at schema.DeploymentID,
	seq int64,
) (compared peer.ComparedEpochs, err error) {
	cursor, compared, err := s.pass(ctx, schema.ConfirmAgain, seq)
	if err != nil {
		return compared, err
	}
	if cursor == "" {
		if err := s.claim(ctx, at); err != nil {
			return compared, err
		}
	}
	v := s.recovering(at)
	save := func(c string) error {
		if v.refused != nil { // the next pass compares these references again
			return nil
		}
		return s.savePass(ctx, seq, c)
	}
	if !strings.HasPrefix(cursor, "{") {
		if err := v.references(ctx, cursor, save); err != nil {
			return compared, fmt.Errorf("compare references to %s: %w", at, err)
		}
		if err := save(ownersBegin); err != nil {
			return compared, err
		}
		cursor = ownersBegin
	}
	if err := v.owners(ctx, cursor, save); err != nil {
		return compared, fmt.Errorf("compare owners at %s: %w", at, err)
	}
	if err := v.waits(); err != nil {
		return compared, fmt.Errorf("compare references to %s: %w", at, err)
	}
	return compared, s.lookAtRights(ctx, at)
}

// claim ends the rights of lost epochs, and acquires again the rights that rows of tables need. It fails
// while a transaction may still commit rows under a lost right.
func (s *Verifier) claim(ctx context.Context, at schema.DeploymentID) error {
	id, err := s.Names.Deployment(ctx, at)
	if err != nil {
		return err
	}
	if err := s.endLost(ctx, id); err != nil {
		return fmt.Errorf("end rights of lost epochs: %w", err)
	}
	if err := s.rights.Claim(ctx, at); err != nil {
		return fmt.Errorf("acquire the rights of rows again: %w", err)
	}
	return nil
}

// Rights of lost epochs never count again, and only statements on attached tables may still write under them:
// statements of a transaction that took them before the epoch was known, or whose snapshot is older.
var (
	selectLostSQL = `
SELECT f.id FROM dbcontroller.foreign_target f
WHERE f.deployment_id = $1 AND f.id > $2 AND EXISTS (SELECT FROM dbcontroller.attachment WHERE definition ? 'references')
    AND (f.acting_epoch IS NOT NULL AND NOT (` + db.RightCountsSQL + `) OR f.block_epoch IS NOT NULL AND NOT (` + db.BlockRightCountsSQL + `))
ORDER BY f.id LIMIT 1000`

	endLostActingSQL = `
UPDATE dbcontroller.foreign_target f SET acting_epoch = NULL, acting_own = NULL WHERE f.id = ANY ($1) AND f.acting_epoch IS NOT NULL AND NOT (` + db.RightCountsSQL + `)`

	endLostBlockSQL = `
UPDATE dbcontroller.foreign_target f SET block_epoch = NULL, block_own = NULL WHERE f.id = ANY ($1) AND f.block_epoch IS NOT NULL AND NOT (` + db.BlockRightCountsSQL + `)`
)

// endLost ends rights of lost epochs. It waits for the transactions that share their rows, as prepared ones
// do until they are decided; one whose snapshot is older than the end fails with 40001 when it takes such a
// right.
func (s *Verifier) endLost(ctx context.Context, deployment int32) error {
	for last := int64(0); ; {
		rows, err := s.Pool.Query(ctx, selectLostSQL, deployment, last)
		if err != nil {
			return err
		}
		ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil || len(ids) == 0 {
			return err
		}
		last = ids[len(ids)-1]
		if _, err := s.Pool.Exec(ctx, db.BeginEndingSQL, ids); err != nil {
			return err
		}
		err = s.InTx(ctx, db.NoFeed, func(tx pgx.Tx) error {
			b := &pgx.Batch{}
			b.Queue(db.EndingLockTimeoutSQL)
			for _, sql := range []string{db.LockRightsSQL, endLostActingSQL, endLostBlockSQL, db.DoneEndingSQL} {
				b.Queue(sql, ids)
			}
			return tx.SendBatch(ctx, b).Close()
		})
		if err != nil {
			return err
		}
	}
}

// Rights of lost epochs do not count any more.
var lookAtLostSQL = db.LookAtRights(
	`dbcontroller.foreign_target f WHERE f.deployment_id = $1 AND f.block_attempt IS NOT NULL AND NOT (` +
		db.BlockRightCountsSQL + `)`)

func (s *Verifier) lookAtRights(ctx context.Context, at schema.DeploymentID) error {
	id, err := s.Names.Deployment(ctx, at)
	if err != nil {
		return err
	}
	err = s.InTx(ctx, db.WorkFeed, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, lookAtLostSQL, id)
		return err
	})
	if err != nil {
		return fmt.Errorf("look at rights to block resources of %s: %w", at, err)
	}
	return nil
}

// blockadesBegin is the cursor of a pass that has delivered all deletions again and begins with the
// blockades.
const blockadesBegin = "blockades"

// VerifyBlockades delivers the deletions that concern a deployment to it again, and then compares its
// blockades here with its references, and removes blockades without a reference. It is one piece of work, and
// resumes at its saved cursor.
func (s *Verifier) VerifyBlockades(ctx context.Context, of schema.DeploymentID, seq int64) error {
	cursor, _, err := s.pass(ctx, schema.VerifyBlockades, seq)
	if err != nil {
		return err
	}
	if cursor == "" || strings.HasPrefix(cursor, gate.TellsAgain) {
		if err := s.tellAgain(ctx, of, seq, cursor); err != nil {
			return fmt.Errorf("send deletions to %s again: %w", of, err)
		}
		cursor = blockadesBegin
	}
	if cursor == blockadesBegin {
		cursor = ""
	}
	if err := s.recovering(of).blockades(ctx, cursor, func(c string) error {
		return s.savePass(ctx, seq, c)
	}); err != nil {
		return fmt.Errorf("compare blockades of %s: %w", of, err)
	}
	if err := s.remindOfEntries(ctx, of); err != nil {
		return err
	}
	return s.Recovered(ctx, seq)
}

// tellPage is the number of resources in DELETING that one transaction looks at.
const tellPage = 10_000

var (
	// Finalise waits for these locks, or has removed the shadows before the next statement.
	keepDeletingSQL = db.Codes(
		`SELECT id FROM dbcontroller.shadow WHERE state = {deleting} AND id > $1 ORDER BY id LIMIT $2 FOR KEY SHARE`)

	// New notices, which only an acknowledgement of a later position covers, for entries and for the
	// blockades of proxies.
	tellAgainSQL = `
INSERT INTO dbcontroller.notice (target_id, deployment_id)
SELECT s.id, $1 FROM dbcontroller.shadow s WHERE s.id = ANY ($2) AND (
    EXISTS (SELECT FROM dbcontroller.holder_entry e WHERE e.target_id = s.id AND e.deployment_id = $1)
    OR EXISTS (SELECT FROM dbcontroller.blockade b WHERE b.target_id = s.id AND b.holder_uid = s.uid AND b.deployment_id = $1)
)`
)

// tellAgain inserts notices for the deletions on which a deployment may have lost its work, page by page.
// Nothing to which it refers is removed meanwhile, since the deployment is waited for, and it is not
// confirmed before (MarkReferencesConfirmed).
func (s *Verifier) tellAgain(ctx context.Context, of schema.DeploymentID, seq int64, cursor string) error {
	id, err := s.Names.Deployment(ctx, of)
	if err != nil {
		return err
	}
	var after int64
	if cursor != "" {
		if _, err := fmt.Sscanf(cursor, gate.TellsAgain+"%d", &after); err != nil {
			return fmt.Errorf("cursor %q: %w", cursor, err)
		}
	}
	for next := ""; next != blockadesBegin; {
		err := s.InTx(ctx, db.NoticeFeed|db.WorkFeed, func(tx pgx.Tx) error {
			rows, err := tx.Query(ctx, keepDeletingSQL, after, tellPage)
			if err != nil {
				return err
			}
			page, err := pgx.CollectRows(rows, pgx.RowTo[int64])
			if err != nil {
				return err
			}
			if next = blockadesBegin; len(page) > 0 {
				next = fmt.Sprintf(gate.TellsAgain+"%d", page[len(page)-1])
			}
			b := &pgx.Batch{}
			b.Queue(tellAgainSQL, id, page)
			b.Queue(savePassSQL, seq, next)
			return tx.SendBatch(ctx, b).Close()
		})
		if err != nil {
			return err
		}
		_, _ = fmt.Sscanf(next, gate.TellsAgain+"%d", &after) // at the end there is no number
	}
	return nil
}

const hasEntriesSQL = `
SELECT EXISTS (SELECT FROM dbcontroller.holder_entry WHERE deployment_id = $1) OR EXISTS (SELECT FROM dbcontroller.notice WHERE deployment_id = $1)`

// remindOfEntries sends an empty ResolveBlockades to a deployment with holder entries or notices here. The
// receiver records that this deployment's deletions concern it, which its database may have lost. Without the
// record it would not watch them, and they would wait for its acknowledgement forever (I13).
func (s *Verifier) remindOfEntries(ctx context.Context, of schema.DeploymentID) error {
	id, err := s.Names.Deployment(ctx, of)
	if err != nil {
		return err
	}
	var has bool
	if err := s.Pool.QueryRow(ctx, hasEntriesSQL, id).Scan(&has); err != nil {
		return fmt.Errorf("read entries of %s: %w", of, err)
	}
	if !has {
		return nil
	}
	if _, err := s.Peers.Resolve(ctx, of, nil); err != nil {
		return fmt.Errorf("remind %s of its entries: %w", of, err)
	}
	return nil
}

// Recovered removes the work of a pass that has ended.
func (s *Verifier) Recovered(ctx context.Context, seq int64) error {
	return s.Finish(ctx, []int64{seq})
}

// recovering returns a verification that repairs at once: repairing a difference that a message under way
// settles anyway has no effect.
func (s *Verifier) recovering(with schema.DeploymentID) *verifying {
	return s.verifying(Verification{With: []schema.DeploymentID{with}, Repair: true, Settle: time.Millisecond})
}

// pass reads a pass, and the epochs that it is of. Passes from before the recovery of an epoch began are of
// none that others know, and the recovery replaces them. They fail with *UnavailableError, and so do all
// passes in a process that has not noticed the epoch.
func (s *Verifier) pass(ctx context.Context, action schema.Action,
	seq int64,
) (cursor string, of peer.ComparedEpochs, err error) {
	var there, own *uuid.UUID
	var awaiting bool
	err = s.Pool.QueryRow(ctx, selectPassSQL, seq, action).Scan(&cursor, &there, &own, &awaiting)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return "", of, fmt.Errorf("%s: %w", action, peer.ErrPassGone)
	case err != nil:
		return "", of, fmt.Errorf("read the cursor of a pass: %w", err)
	case own == nil || *own != s.gate.PresentEpoch():
		return "", of, s.gate.RecoveringSelf()
	case awaiting:
		return "", of, &peer.UnavailableError{Deployments: []schema.DeploymentID{s.Self}, Err: peer.ErrRecovering}
	}
	if of.Own = *own; there != nil {
		of.There = *there
	}
	return cursor, of, nil
}

func (s *Verifier) savePass(ctx context.Context, seq int64, cursor string) error {
	return s.InTx(ctx, db.NoFeed, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, savePassSQL, seq, cursor)
		return err
	})
}
