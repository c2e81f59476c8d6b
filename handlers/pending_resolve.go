package handlers

import (
	"context"
	"fmt"
	"slices"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// resolveBatch is the number of expired blockades in one call.
const resolveBatch = 1000

// ResolveStore has the expired blockades of this deployment, and settles the verdicts on them.
type ResolveStore interface {
	// ExpiredHolders names the holders' deployments that have expired blockades here.
	ExpiredHolders(ctx context.Context) ([]schema.DeploymentID, error)
	// Expired returns up to limit questions about expired blockades of one holders' deployment, the oldest
	// first.
	Expired(ctx context.Context, holder schema.DeploymentID, limit int) ([]peer.Question, error)
	// Settle confirms held blockades, and removes blockades whose references are gone; undecided ones stay.
	Settle(ctx context.Context, holder schema.DeploymentID, questions []peer.Question, answers *peer.Answers) error
}

// ResolvePeers asks the holders' deployment.
type ResolvePeers interface {
	Resolve(ctx context.Context, holder schema.DeploymentID, questions []peer.Question) (*peer.Answers, error)
}

// Resolve asks the holders' deployments about expired blockades, and carries out scheduled deletions. It is
// no action of outstanding work: blockades expire by time, and one node of the deployment looks for them at
// intervals.
type Resolve struct {
	Store ResolveStore
	Peers ResolvePeers
	// Self is this deployment, and Scheduled has the deletions that it has scheduled.
	Self      schema.DeploymentID
	Scheduled ScheduledDeletions
}

// ScheduledDeletions are the deletions of this deployment that are decided later.
type ScheduledDeletions interface {
	// CarryOutDue carries out the deletions whose time has come.
	CarryOutDue(ctx context.Context) error
	// UndeleteLost undeletes a deletion again. One that is decided stays so.
	UndeleteLost(ctx context.Context, deletion peer.AttemptID) error
}

// Expired names the deployments to call Resolve for.
func (h *Resolve) Expired(ctx context.Context) ([]schema.DeploymentID, error) {
	return h.Store.ExpiredHolders(ctx)
}

// Resolve asks a holders' deployment about its expired blockades here, and settles its verdicts. While that
// deployment does not answer, the blockades stay: time alone removes nothing (I5). For this deployment itself
// it then carries out the scheduled deletions whose time has come.
func (h *Resolve) Resolve(ctx context.Context, holder schema.DeploymentID) error {
	if err := h.resolve(ctx, holder); err != nil || holder != h.Self {
		return err
	}
	return h.Scheduled.CarryOutDue(ctx)
}

func (h *Resolve) resolve(ctx context.Context, holder schema.DeploymentID) error {
	for {
		questions, err := h.Store.Expired(ctx, holder, resolveBatch)
		if err != nil || len(questions) == 0 {
			return err
		}
		answers, err := h.Peers.Resolve(ctx, holder, questions)
		if err != nil {
			return fmt.Errorf("resolve at %s: %w", holder, err)
		}
		if len(answers.Verdicts) != len(questions) {
			return fmt.Errorf("resolve at %s: %d answers to %d questions", holder, len(answers.Verdicts),
				len(questions))
		}
		if err := h.Store.Settle(ctx, holder, questions, answers); err != nil {
			return err
		}
		if len(questions) < resolveBatch || !slices.ContainsFunc(answers.Verdicts, decided) {
			return nil
		}
	}
}

func decided(v peer.Verdict) bool { return v != peer.Undecided }
