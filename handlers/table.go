package handlers

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/db-controller/db-controller/schema"
)

// Handler does the outstanding work of one action.
type Handler interface {
	// Handle does pieces of work that concern one other deployment, or this one. It returns the pieces that
	// cannot be done yet. Pieces that fail by themselves are a schema.PartError; any other error is of the
	// whole batch, which is handled again.
	Handle(ctx context.Context, deployment schema.DeploymentID, seqs []int64) (waiting []int64, err error)
}

// Actions has the handler of each action. All are needed.
type Actions struct {
	// Owned pending.
	Confirm, Release, ReleaseOwner, CheckOwners, UpgradeOwners, Derive, CleanUpDecommissioned Handler
	AnnounceEpoch, ConfirmAgain, VerifyBlockades, LookAtRight, EndRights, LookAtEntry         Handler
	// Owned deleting.
	Finalise, DropOwners Handler
}

// Table has for each action of outstanding work its task and its handler.
type Table struct{ rows []row }

const (
	confirming = "owned_pending_confirm"
	// confirmPace bounds the cost of confirms: under load, the confirms of many writes share a call and its
	// transactions. A delete of a target asks about references that are not confirmed yet; no other call
	// waits for a confirm.
	confirmPace = 100 * time.Millisecond
)

// row of the table. The work of one task and one deployment is handled one batch at a time, beside all other
// tasks: so work that waits, or takes long, has a task of its own. Of a batch, actions are handled in the
// order of the rows. The names of tasks are labels of metrics.
type row struct {
	action  schema.Action
	task    string
	handler Handler
}

// NewTable makes the table.
func NewTable(a Actions) (*Table, error) {
	t := &Table{rows: []row{
		{schema.Confirm, confirming, a.Confirm},
		{schema.Release, "owned_pending", a.Release},
		{schema.ReleaseOwner, "owned_pending", a.ReleaseOwner},
		{schema.CheckOwners, "owned_pending_owners", a.CheckOwners},
		{schema.UpgradeOwners, "owned_pending_upgrade", a.UpgradeOwners},
		{schema.Derive, "owned_pending_derive", a.Derive},
		{schema.CleanUpDecommissioned, "owned_pending_clean_up_decommissioned", a.CleanUpDecommissioned},
		{schema.AnnounceEpoch, "owned_pending_announce", a.AnnounceEpoch},
		{schema.ConfirmAgain, "owned_pending_recover", a.ConfirmAgain},
		{schema.VerifyBlockades, "owned_pending_recover", a.VerifyBlockades},
		{schema.LookAtRight, "owned_pending", a.LookAtRight},
		{schema.EndRights, "owned_pending_end_rights", a.EndRights},
		{schema.LookAtEntry, "owned_pending_look_at_entry", a.LookAtEntry},
		{schema.Finalise, "owned_deleting", a.Finalise},
		{schema.DropOwners, "owned_deleting_owners", a.DropOwners},
	}}
	var missing []error
	for _, r := range t.rows {
		if r.handler == nil {
			missing = append(missing, fmt.Errorf("no handler for %s", r.action))
		}
	}
	return t, errors.Join(missing...)
}

// Task names the task of an action; empty for an action that this version does not know.
func (t *Table) Task(action schema.Action) string {
	for _, r := range t.rows {
		if r.action == action {
			return r.task
		}
	}
	return ""
}

// Pace is the least time between the beginnings of two batches of a task.
func (t *Table) Pace(task string) time.Duration {
	if task == confirming {
		return confirmPace
	}
	return 0
}

// Handle does a batch of work for one deployment, action by action: as Handler does. An action that fails
// keeps no other one of the batch back (I20). Work of an unknown action is left to a newer version.
func (t *Table) Handle(ctx context.Context, deployment schema.DeploymentID,
	work []schema.Work,
) (waiting []int64, err error) {
	seqs := map[schema.Action][]int64{}
	for _, w := range work {
		seqs[w.Action] = append(seqs[w.Action], w.Seq)
	}
	part := &schema.PartError{}
	var failed *schema.PartError
	for _, r := range t.rows {
		if len(seqs[r.action]) == 0 {
			continue
		}
		more, handlerErr := r.handler.Handle(ctx, deployment, seqs[r.action])
		waiting = append(waiting, more...)
		if errors.As(handlerErr, &failed) {
			part.Failed, part.Cause = append(part.Failed, failed.Failed...), failed.Cause
		} else {
			err = errors.Join(err, handlerErr)
		}
	}
	switch {
	case err != nil: // the whole batch is handled again
		return nil, errors.Join(err, part.Cause)
	case len(part.Failed) > 0:
		return waiting, part
	}
	return waiting, nil
}
