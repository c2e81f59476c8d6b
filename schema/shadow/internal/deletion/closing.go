package deletion

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
	"github.com/db-controller/db-controller/schema/shadow/internal/target"
)

const closingNamedSQL = `SELECT id FROM dbcontroller.shadow WHERE kind_id = $1 AND name = $2`

const (
	closingKindsSQL = `SELECT ARRAY(SELECT DISTINCT kind_id FROM dbcontroller.shadow WHERE id = ANY ($1))`

	// One row for each delete, so that none ends the closing of another.
	closeTargetsSQL = `
INSERT INTO dbcontroller.closing (target_id, delete_id, until) SELECT id, $2, now() + $3 FROM unnest($1::bigint[]) AS id`

	openTargetsSQL = `DELETE FROM dbcontroller.closing WHERE target_id = ANY ($1) AND delete_id = $2`
)

// closing has the targets that one delete has closed to new references, so that a busy resource can be
// deleted.
type closing struct {
	gate    *gate.Gate
	id      uuid.UUID
	targets []int64
}

// newClosing returns the closing of a delete, which has closed nothing yet.
func newClosing(g *gate.Gate) *closing { return &closing{gate: g, id: uuid.New()} }

// close closes targets to new references until one second after the deadline of ctx. A target that is closed
// already keeps its end.
func (c *closing) close(ctx context.Context, targets []int64) error {
	var more []int64
	for _, id := range targets {
		if !slices.Contains(c.targets, id) {
			more = append(more, id)
		}
	}
	if len(more) == 0 {
		return nil
	}
	// Not during recovery: nothing can be deleted then, and lost references have to be established again.
	err := c.gate.InTx(ctx, db.NoFeed, func(tx pgx.Tx) error {
		var kinds []int32
		if err := tx.QueryRow(ctx, closingKindsSQL, more).Scan(&kinds); err != nil {
			return err
		}
		return c.gate.CheckRecovered(ctx, tx, kinds)
	})
	if err != nil {
		return err
	}
	deadline, _ := ctx.Deadline()
	if _, err := c.gate.Pool.Exec(ctx, closeTargetsSQL, more, c.id, min(time.Until(deadline)+time.Second,
		target.MaxClosing)); err != nil {
		return fmt.Errorf("close targets to new references: %w", err)
	}
	c.targets = append(c.targets, more...)
	return nil
}

// closeNamed closes the resource with a name, if there is one.
func (c *closing) closeNamed(ctx context.Context, kindID int32, name string) error {
	var id int64
	err := c.gate.Pool.QueryRow(ctx, closingNamedSQL, kindID, name).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("close targets to new references: %w", err)
	}
	return c.close(ctx, []int64{id})
}

// end opens the targets.
func (c *closing) end(ctx context.Context) {
	if len(c.targets) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_, _ = c.gate.Pool.Exec(ctx, openTargetsSQL, c.targets, c.id) // on an error the closing ends by its time
}
