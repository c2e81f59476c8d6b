package operate

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

var (
	awaitedSQL = db.Codes(`
SELECT EXISTS (
    SELECT FROM dbcontroller.notice n JOIN dbcontroller.shadow s ON s.id = n.target_id
    WHERE s.uid = $1 AND s.state = {deleting} AND n.deployment_id = $2 AND n.seq <= $3
)`)

	// The row of the resource is locked: no proxy is established any more, since the resource is in DELETING.
	blockedByRightSQL = `
SELECT EXISTS (
    SELECT FROM dbcontroller.blockade b JOIN dbcontroller.shadow s ON s.id = b.target_id JOIN dbcontroller.deployment d ON d.id = b.deployment_id
    WHERE s.uid = $1 AND b.holder_uid = $1 AND d.service = $2 AND d.region = $3
)`

	errNoEntry   = errors.New("nothing waits for this deployment")
	errRightKept = errors.New(
		"it has not confirmed the end of its rights to refer to the resource: a write under such a right may be in progress, or its processes run an earlier version")
	errBlocksToo  = errors.New("it has the right to block the resource, which it returns when it hears of the deletion")
	errNoResponse = errors.New("its answer is of another question")
)

// close asks the deployment of a holder entry to end its rights to the resource: the acting right rests on
// the entry, and no message would tell the deployment to return the right to block. The resource is in
// DELETING before it asks: nothing is granted from then on, and the answer to an earlier confirm does not fit
// the row there any more. So no reference is written under a right after the answer. The returned check fails
// the transaction that removes the entry when the answer came from a lost database, or this database has
// failed over since.
func (s *Operations) close(ctx context.Context, k key, deployment int32) (still func(context.Context, pgx.Tx) error,
	err error,
) {
	selfEpoch := s.gate.PresentEpoch()
	var awaited bool
	if err := s.Pool.QueryRow(ctx, awaitedSQL, k.uid, deployment, k.notice).Scan(&awaited); err != nil {
		return nil, err
	}
	if !awaited {
		return nil, errNoEntry
	}
	asking, cancel := peer.InPart(ctx, 1, 2)
	defer cancel()
	recalled, err := s.Peers.Recall(asking, k.deployment, []peer.Recall{peer.Close(k.uid)})
	switch {
	case err == nil && len(recalled.Answers) != 1:
		err = errNoResponse
	case err == nil && !recalled.Answers[0].Closed:
		err = errRightKept
	}
	if err != nil {
		return nil, &peer.UnavailableError{Deployments: []schema.DeploymentID{k.deployment}, Err: err}
	}
	return func(ctx context.Context, tx pgx.Tx) error {
		b := &pgx.Batch{}
		s.gate.CheckPeerEpoch(tx, b, deployment, recalled.Epoch, selfEpoch)
		return tx.SendBatch(ctx, b).Close()
	}, nil
}

// insist releases an entry without an answer. Its deployment may go on writing under the acting right, until
// it answers the question that is repeated.
func (s *Operations) insist(k key, deployment int32) (within func(context.Context, pgx.Tx) error) {
	return func(ctx context.Context, tx pgx.Tx) error {
		if err := unblocked(ctx, tx, k); err != nil {
			return err
		}
		_, err := s.recall(ctx, tx, k.uid, deployment)
		return err
	}
}

// unblocked fails when the deployment of an entry has the right to block the resource. It returns that right
// when it hears of the deletion, or closes the resource; without either the resource would wait for ever.
func unblocked(ctx context.Context, tx pgx.Tx, k key) error {
	var blocked bool
	err := tx.QueryRow(ctx, blockedByRightSQL, k.uid, k.deployment.Service, k.deployment.Region).Scan(&blocked)
	if err == nil && blocked {
		err = &peer.UnavailableError{Deployments: []schema.DeploymentID{k.deployment}, Err: errBlocksToo}
	}
	return err
}
