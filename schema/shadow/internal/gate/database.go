package gate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/internal/requestid"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

// Database returns the identity of this deployment's database.
func (s *Gate) Database() uuid.UUID { return *s.database.Load() }

// TokenKeys returns the keys of the tokens of this database. The first one makes tokens, the other ones open
// them.
func (s *Gate) TokenKeys(ctx context.Context) (keys [][]byte, err error) {
	if err = s.Pool.QueryRow(ctx, `SELECT token_keys FROM dbcontroller.meta`).Scan(&keys); err != nil {
		return nil, fmt.Errorf("read the keys of tokens: %w", err)
	}
	return keys, nil
}

const (
	// The last columns: the recovery of the present epoch did not know the deployment; this database may have
	// lost rows of it, and whether the environment of its recovery is awaited.
	selectPeerDatabaseSQL = `
SELECT d.database_id, ` + relatedSQL + `, d.counted_in IS DISTINCT FROM m.epoch AND NOT d.unconfirmed AND ` + mayHaveLostSQL + `,
    ` + mayHaveLostSQL + `, m.awaiting
FROM dbcontroller.deployment d, dbcontroller.meta m WHERE d.id = $1`

	// Flags that are never reset: a missing reference may be one of the lost rows.
	relatedSQL = `(d.referred OR d.owned OR d.pointed_to OR d.unconfirmed OR d.uncompared
    OR EXISTS (SELECT FROM dbcontroller.owner_reference o WHERE o.deployment_id = d.id))`

	// Nothing depended on these databases when a backup was made: one may have been an empty one, and another
	// one has taken its place before the references that are lost now. They are met anew.
	forgetDatabasesSQL = `UPDATE dbcontroller.deployment d SET database_id = NULL, epoch = NULL WHERE database_id IS NOT NULL AND NOT ` + relatedSQL

	// The stored epoch is forgotten with the database to which it belongs.
	recordDatabaseSQL = `
UPDATE dbcontroller.deployment d SET epoch = CASE WHEN database_id IS NULL THEN epoch END, database_id = $2
WHERE id = $1 AND (database_id IS NULL OR NOT ` + relatedSQL + `)`
)

// CheckDatabase compares the identity of another deployment's database, as it reports it, with the recorded
// one, and records the first. When they differ and nothing is at stake, it records the new one; otherwise it
// fails with *DatabaseError. It fails as CheckCaller does.
func (s *Gate) CheckDatabase(ctx context.Context, with schema.DeploymentID, database uuid.UUID) error {
	if known, ok := s.checkedDatabases.Load(with); ok && known == database {
		return nil
	}
	if err := s.CheckCaller(ctx, with); err != nil {
		return err
	}
	id, err := s.Names.Deployment(ctx, with)
	if err != nil {
		return err
	}
	met, err := s.peerDatabase(ctx, id)
	if err == nil && met.known == nil && met.mayHaveLost {
		if err := s.checkFirst(ctx, with, database, met.awaiting); err != nil {
			return err
		}
	}
	if err == nil && (met.known == nil || *met.known != database && !met.related) {
		err = s.InTx(ctx, db.NoFeed, func(tx pgx.Tx) error {
			// Transactions that make this database depend on the other one hold the lock shared.
			if _, err := tx.Exec(ctx, LockVersionSQL, VersionLock); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, recordDatabaseSQL, id, database)
			return err
		})
		if err == nil {
			met.known, err = s.knownDatabase(ctx, id)
		}
	}
	if err != nil {
		return fmt.Errorf("meet %s: %w", with, err)
	}
	if *met.known != database {
		return s.recordMismatch(ctx, &peer.DatabaseError{Deployment: with, Known: *met.known, Spoken: database})
	}
	if met.leftOut {
		if err := s.awaitIfConcerned(ctx, with, id); err != nil {
			return fmt.Errorf("wait for %s: %w", with, err)
		}
	}
	s.checkedDatabases.Store(with, database)
	s.mismatches.Delete(with)
	return nil
}

// metDatabase is the stored record of another deployment's database.
type metDatabase struct {
	known                                   *uuid.UUID
	related, leftOut, mayHaveLost, awaiting bool
}

func (s *Gate) peerDatabase(ctx context.Context, id int32) (met metDatabase, err error) {
	err = s.Pool.QueryRow(ctx, selectPeerDatabaseSQL, id).Scan(&met.known, &met.related, &met.leftOut, &met.mayHaveLost,
		&met.awaiting)
	return met, err
}

func (s *Gate) knownDatabase(ctx context.Context, id int32) (known *uuid.UUID, err error) {
	err = s.Pool.QueryRow(ctx, `SELECT database_id FROM dbcontroller.deployment WHERE id = $1`, id).Scan(&known)
	return known, err
}

// checkFirst fails unless a database that this one meets first may be recorded: this one may have lost that
// it had met another. The registry remembers the database that a deployment registered with.
func (s *Gate) checkFirst(ctx context.Context, with schema.DeploymentID, database uuid.UUID, awaiting bool) error {
	env := s.environment.Load()
	if awaiting || env == nil {
		return &peer.UnavailableError{Deployments: []schema.DeploymentID{s.Self}, Err: peer.ErrRecovering}
	}
	if d, ok := env.Deployment(with); ok && d.Database != uuid.Nil && d.Database != database {
		return s.recordMismatch(ctx, &peer.DatabaseError{Deployment: with, Known: d.Database, Spoken: database})
	}
	return nil
}

const waitForSQL = `UPDATE dbcontroller.deployment SET unconfirmed = true, referred = true WHERE id = $1`

// awaitPeer adds a deployment, which called and was unknown when the recovery of the present epoch started,
// to the deployments that recovery waits for. Before recovery has started, Recover does that.
func (s *Gate) awaitPeer(ctx context.Context, id int32) error {
	return s.InTx(ctx, db.WorkFeed, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, ShareVersionSQL, VersionLock); err != nil {
			return err
		}
		var awaiting, mayHaveLost, decommissioned bool
		if err := tx.QueryRow(ctx, lockAwaitingSQL).Scan(&awaiting, &mayHaveLost); err != nil || !mayHaveLost {
			return err
		}
		if err := tx.QueryRow(ctx, IsDecommissionedSQL, id).Scan(&decommissioned); err != nil || decommissioned {
			return err
		}
		b := &pgx.Batch{}
		b.Queue(waitForSQL, id)
		if !awaiting {
			b.Queue(recoverWorkSQL, []int32{id}, s.SelfID, schema.RingSize)
		}
		return tx.SendBatch(ctx, b).Close()
	})
}

// DatabaseMismatch records that a deployment reported another database than the recorded one.
type DatabaseMismatch struct {
	Err *peer.DatabaseError
	At  time.Time
}

func (s *Gate) recordMismatch(ctx context.Context, e *peer.DatabaseError) error {
	if _, known := s.mismatches.Swap(e.Deployment, DatabaseMismatch{e, time.Now()}); !known {
		s.Log.Warn("a deployment runs over another database than before; its messages are ignored", zap.Error(e),
			requestid.Field(ctx))
	}
	return e
}

// DatabaseMismatches returns the mismatches that no later comparison of this process has ended.
func (s *Gate) DatabaseMismatches() (out []DatabaseMismatch) {
	s.mismatches.Range(func(_, v any) bool {
		if mismatch, ok := v.(DatabaseMismatch); ok {
			out = append(out, mismatch)
		}
		return true
	})
	return out
}

// CheckCallerDatabase fails with *DatabaseError when a call comes from another database than the recorded
// one. It passes when one of the two is unknown.
func CheckCallerDatabase(ctx context.Context, who schema.DeploymentID, known *uuid.UUID) error {
	spoken, ok := ctx.Value(peer.CallerDatabase{}).(uuid.UUID)
	if !ok || known == nil || *known == spoken {
		return nil
	}
	return &peer.DatabaseError{Deployment: who, Known: *known, Spoken: spoken}
}

// Flags in the row of another deployment, set before the first reference or owner entry is stored.
const (
	NoteReferredSQL = `UPDATE dbcontroller.deployment SET referred = true WHERE id = $1 AND NOT referred`
	NoteOwnedSQL    = `UPDATE dbcontroller.deployment SET owned = true WHERE id = $1 AND NOT owned`
)

type deploymentFlag struct {
	sql        string
	deployment int32
}

// SetFlag sets a flag of a deployment, once in each process and epoch.
func (s *Gate) SetFlag(ctx context.Context, sql string, deployment int32) error {
	if _, noted := s.flagged.Load(deploymentFlag{sql, deployment}); noted {
		return nil
	}
	if _, err := s.Pool.Exec(ctx, sql, deployment); err != nil {
		return fmt.Errorf("note the deployments with references or rows here: %w", err)
	}
	s.flagged.Store(deploymentFlag{sql, deployment}, true)
	return nil
}

// AcceptedDatabase is an operator's decision that a deployment's database was replaced and does not come
// back.
type AcceptedDatabase struct {
	Deployment schema.DeploymentID
	// Database, and the epoch that it is in.
	Database, Epoch uuid.UUID
	Reason, By      string
}

const (
	// Nothing is deleted until the deployment has compared. The epoch of the former database is replaced even
	// by a smaller one, since the former clock may have been ahead. A position of the former one shows the
	// new one nothing.
	acceptSQL = `
WITH former AS (
    UPDATE dbcontroller.position p SET token = '' FROM dbcontroller.deployment d
    WHERE p.deployment_id = $1 AND d.id = $1 AND d.database_id IS DISTINCT FROM $2
)
UPDATE dbcontroller.deployment
SET database_id = $2, epoch = CASE WHEN database_id IS NULL THEN GREATEST(epoch, $3) ELSE $3 END, unconfirmed = true, unconfirmed_kinds = NULL
WHERE id = $1 AND database_id IS DISTINCT FROM $2`

	insertOperatorDecisionSQL = `INSERT INTO dbcontroller.word (deployment_id, what, reason, said_by) VALUES ($1, $2, $3, $4)`
)

// AcceptDatabase applies and records the decision. Both sides compare, as after a failover: commits of the
// former database are lost.
func (s *Gate) AcceptDatabase(ctx context.Context, d AcceptedDatabase) error {
	if d.Deployment == s.Self {
		return &peer.InvalidError{
			Resource: "deployment",
			Err:      errors.New("a deployment does not accept its own database: call the other deployments"),
		}
	}
	if d.Database == uuid.Nil || d.Epoch.Version() != 7 {
		return &peer.InvalidError{
			Resource: "database",
			Err:      errors.New("want the identity of the new database, and its present epoch"),
		}
	}
	id, err := s.Names.Deployment(ctx, d.Deployment)
	if err != nil {
		return err
	}
	err = s.RecordDecision(ctx, id, databaseAccepted, d.Reason, d.By, func(tx pgx.Tx) (bool, error) {
		tag, err := tx.Exec(ctx, acceptSQL, id, d.Database, d.Epoch)
		if err != nil || tag.RowsAffected() == 0 {
			return false, err
		}
		b := &pgx.Batch{}
		b.Queue(askOfSQL, id)
		b.Queue(peerEpochWorkSQL, id, schema.RingSize)
		return true, tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return fmt.Errorf("accept the database of %s: %w", d.Deployment, err)
	}
	s.checkedDatabases.Clear()
	s.mismatches.Delete(d.Deployment)
	return nil
}

const databaseAccepted = "DATABASE_ACCEPTED"

// RecordDecision applies an operator's decision about a deployment and stores it in the same transaction.
// When change returns false, the decision was applied before, and nothing is stored. Writes hold the version
// lock shared until they commit. All watches wake after the commit. It fails with *InvalidError and
// ErrDecommissioned.
func (s *Gate) RecordDecision(ctx context.Context, of int32, what, reason, by string,
	change func(pgx.Tx) (bool, error),
) error {
	if reason == "" || len(reason) > 1000 {
		return &peer.InvalidError{
			Resource: "reason",
			Err:      errors.New("want 1 to 1000 characters; the reason is stored with the decision"),
		}
	}
	return s.InTx(ctx, db.AllFeeds, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, LockVersionSQL, VersionLock); err != nil {
			return err
		}
		var decommissioned bool
		if err := tx.QueryRow(ctx, IsDecommissionedSQL, of).Scan(&decommissioned); err != nil {
			return err
		}
		if decommissioned {
			return peer.ErrDecommissioned
		}
		changed, err := change(tx)
		if err != nil || !changed {
			return err
		}
		_, err = tx.Exec(ctx, insertOperatorDecisionSQL, of, what, reason, by)
		return err
	})
}

const danglingActed = "DANGLING_ACTED"

// RecordDanglingActed records an operator's decision (by) that references to lost resources of a deployment
// act as at deletions of their targets.
func (s *Gate) RecordDanglingActed(ctx context.Context, of int32, reason, by string) error {
	return s.RecordDecision(ctx, of, danglingActed, reason, by, func(pgx.Tx) (bool, error) { return true, nil })
}
