package handlers

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/internal/crash"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow"
)

// resolveBatch is how many expired blockades are asked about in one call.
const resolveBatch = 1000

// PendingStore has the messages that this deployment owes, and the blockades whose time is over.
type PendingStore interface {
	Messages(ctx context.Context, to schema.DeploymentID, seqs []int64) (*shadow.Messages, error)
	Delivered(ctx context.Context, m *shadow.Messages) error
	// RepairAttempts establishes again what the attempts refer to there, as far as it is lost there.
	RepairAttempts(ctx context.Context, at schema.DeploymentID, attempts []shadow.AttemptID) error
	Expired(ctx context.Context, holder schema.DeploymentID, limit int) ([]shadow.Question, error)
	ExpiredHolders(ctx context.Context) ([]schema.DeploymentID, error)
	Settle(ctx context.Context, holder schema.DeploymentID, questions []shadow.Question, answers *shadow.Answers) error
	OwnersToCheck(ctx context.Context, at schema.DeploymentID, seqs []int64) (*shadow.OwnersToCheck, error)
	SettleOwners(ctx context.Context, c *shadow.OwnersToCheck, answers *shadow.OwnerAnswers) (left []int64, err error)
	Upgrade(ctx context.Context, seqs []int64) (*shadow.Upgrade, error)
	Upgraded(ctx context.Context, seqs []int64) error
	Derive(ctx context.Context, seq int64) (shadow.Derived, error)
	Retire(ctx context.Context, deployment schema.DeploymentID) error
	RecoveringStore
}

// PendingPeers takes the messages to other deployments.
type PendingPeers interface {
	// Confirm answers the attempts of which the target's deployment has no blockade.
	Confirm(ctx context.Context, target schema.DeploymentID, epoch uuid.UUID, attempts []shadow.AttemptID) (unknown []shadow.AttemptID, err error)
	Release(ctx context.Context, target schema.DeploymentID, epoch uuid.UUID, keys []shadow.BlockadeKey, attempts []shadow.AttemptID) error
	Resolve(ctx context.Context, holder schema.DeploymentID, questions []shadow.Question) (*shadow.Answers, error)
	CheckOwners(ctx context.Context, at schema.DeploymentID, questions []shadow.OwnerQuestion) (*shadow.OwnerAnswers, error)
	// DropOwners answers what failed and whether there is more to do, and UpgradeOwners how much.
	DropOwners(ctx context.Context, at schema.DeploymentID, epoch uuid.UUID, deleted []schema.Deletion, letGo []shadow.LetGo) (failed []uuid.UUID, more bool, err error)
	UpgradeOwners(ctx context.Context, at schema.DeploymentID, u *shadow.Upgrade) (remaining int64, err error)
	RecoveringPeers
}

// OwnedPending settles what resources of this deployment have outstanding with another one.
type OwnedPending struct {
	Store PendingStore
	Peers PendingPeers
}

// Handle does some work for a deployment. It answers the pieces that are not done and not in error either: what they
// wait for has not come yet. Pieces that fail by themselves are a schema.PartError.
func (h *OwnedPending) Handle(ctx context.Context, to schema.DeploymentID, work []schema.Work) (left []int64, err error) {
	by := map[schema.Action][]int64{}
	var messages []int64
	var recovering []schema.Work
	for _, w := range work {
		switch w.Action {
		case schema.AnnounceEpoch, schema.ConfirmAgain, schema.VerifyBlockades:
			recovering = append(recovering, w)
		case schema.CheckOwners, schema.UpgradeOwners, schema.Derive, schema.Retire:
			by[w.Action] = append(by[w.Action], w.Seq)
		default:
			messages = append(messages, w.Seq)
		}
	}
	if len(messages) > 0 {
		if err := h.deliver(ctx, to, messages); err != nil {
			return nil, err
		}
	}
	if seqs := by[schema.CheckOwners]; len(seqs) > 0 {
		if left, err = h.checkOwners(ctx, to, seqs); err != nil {
			return left, err
		}
	}
	if seqs := by[schema.UpgradeOwners]; len(seqs) > 0 {
		if err := h.upgradeOwners(ctx, to, seqs); err != nil {
			return nil, err
		}
	}
	if len(by[schema.Retire]) > 0 {
		if err := h.Store.Retire(ctx, to); err != nil {
			return nil, err
		}
	}
	if err := h.recover(ctx, to, recovering); err != nil {
		return nil, err
	}
	aside, err := h.derive(ctx, by[schema.Derive])
	return append(left, aside...), err
}

// deliver tells a deployment what it is owed: attempts that have committed, references that were dropped, attempts that
// were aborted, owners that let go. Messages of one reference may arrive in any order (I7).
func (h *OwnedPending) deliver(ctx context.Context, to schema.DeploymentID, seqs []int64) error {
	m, err := h.Store.Messages(ctx, to, seqs)
	if err != nil {
		return err
	}
	if len(m.Confirm) > 0 {
		unknown, err := h.Peers.Confirm(ctx, to, m.Epoch, m.Confirm)
		if err != nil {
			return fmt.Errorf("confirm at %s: %w", to, err)
		}
		crash.At("crash-confirm-told")
		if err := h.Store.RepairAttempts(ctx, to, unknown); err != nil {
			return fmt.Errorf("compare what a confirm did not find at %s: %w", to, err)
		}
	}
	if len(m.Release)+len(m.Abandon) > 0 {
		if err := h.Peers.Release(ctx, to, m.Epoch, m.Release, m.Abandon); err != nil {
			return fmt.Errorf("release at %s: %w", to, err)
		}
		crash.At("crash-release-told")
	}
	if len(m.LetGo) > 0 {
		if _, _, err := h.Peers.DropOwners(ctx, to, m.Epoch, nil, m.LetGo); err != nil {
			return fmt.Errorf("let go of ownees at %s: %w", to, err)
		}
	}
	return h.Store.Delivered(ctx, m)
}

// checkOwners asks a deployment whether owners exist there, and does as it says (I16, I17): first by name, where the uid
// is not known, and then by uid.
func (h *OwnedPending) checkOwners(ctx context.Context, at schema.DeploymentID, seqs []int64) (left []int64, err error) {
	left = seqs
	for range 2 {
		c, err := h.Store.OwnersToCheck(ctx, at, left)
		if err != nil {
			return nil, err
		}
		answers := &shadow.OwnerAnswers{}
		if len(c.Questions) > 0 {
			if answers, err = h.Peers.CheckOwners(ctx, at, c.Questions); err != nil {
				return nil, fmt.Errorf("check owners at %s: %w", at, err)
			}
		}
		crash.At("crash-owners-answered")
		left, err = h.Store.SettleOwners(ctx, c, answers)
		if err != nil && len(seqs) > 1 && ctx.Err() == nil && !errors.As(err, new(*shadow.UnavailableError)) {
			return h.checkHalves(ctx, at, seqs)
		}
		if err != nil || len(left) == 0 {
			return left, err
		}
	}
	return left, nil
}

// checkHalves lets the others go on where a single ownee makes the batch fail (I20).
func (h *OwnedPending) checkHalves(ctx context.Context, at schema.DeploymentID, seqs []int64) (left []int64, err error) {
	part := &schema.PartError{}
	for _, half := range [][]int64{seqs[:len(seqs)/2], seqs[len(seqs)/2:]} {
		more, err := h.checkOwners(ctx, at, half)
		left = append(left, more...)
		var failed *schema.PartError
		switch {
		case errors.As(err, &failed):
			part.Failed, part.Cause = append(part.Failed, failed.Failed...), failed.Cause
		case err != nil && len(half) == 1:
			part.Failed, part.Cause = append(part.Failed, half...), err
		case err != nil:
			return nil, err
		}
	}
	if len(part.Failed) == 0 {
		return left, nil
	}
	return left, part
}

// upgradeOwners lets a deployment write the new version into its owner references to resources here.
func (h *OwnedPending) upgradeOwners(ctx context.Context, at schema.DeploymentID, seqs []int64) error {
	u, err := h.Store.Upgrade(ctx, seqs)
	if err != nil || u == nil {
		return err
	}
	for {
		remaining, err := h.Peers.UpgradeOwners(ctx, at, u)
		if err != nil {
			return fmt.Errorf("upgrade owner references at %s: %w", at, err)
		}
		if remaining == 0 {
			return h.Store.Upgraded(ctx, seqs)
		}
	}
}

// derive goes on with the passes over kinds until they end, and tries once what was set aside.
func (h *OwnedPending) derive(ctx context.Context, seqs []int64) (left []int64, err error) {
	for _, seq := range seqs {
		derived := shadow.DerivedSome
		for derived == shadow.DerivedSome && ctx.Err() == nil {
			var failed error
			if derived, failed = h.Store.Derive(ctx, seq); failed != nil { // the others go on (I20)
				err = errors.Join(err, fmt.Errorf("derive references: %w", failed))
				break
			}
		}
		if derived == shadow.DerivedNot {
			left = append(left, seq)
		}
	}
	return left, errors.Join(err, ctx.Err())
}

// Expired names the holders' deployments that have to be asked about blockades here.
func (h *OwnedPending) Expired(ctx context.Context) ([]schema.DeploymentID, error) {
	return h.Store.ExpiredHolders(ctx)
}

// Resolve asks a holder's deployment about its expired blockades here, and does as it says. While it cannot be asked
// they stay: time alone removes nothing (I5).
func (h *OwnedPending) Resolve(ctx context.Context, holder schema.DeploymentID) error {
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
			return fmt.Errorf("resolve at %s: %d answers to %d questions", holder, len(answers.Verdicts), len(questions))
		}
		if err := h.Store.Settle(ctx, holder, questions, answers); err != nil {
			return err
		}
		if len(questions) < resolveBatch || !slices.ContainsFunc(answers.Verdicts, func(v shadow.Verdict) bool { return v != shadow.Undecided }) {
			return nil
		}
	}
}
