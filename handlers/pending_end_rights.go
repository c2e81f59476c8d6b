package handlers

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// RightsToEndStore has the resources here whose rights of another deployment have to end.
type RightsToEndStore interface {
	// RightsToEnd returns the uids of resources, by piece of work.
	RightsToEnd(ctx context.Context, seqs []int64) (map[int64]uuid.UUID, error)
	// RightsEnded removes pieces of work.
	RightsEnded(ctx context.Context, seqs []int64) error
}

// RecallPeers asks another deployment about rights that it has.
type RecallPeers interface {
	Recall(ctx context.Context, at schema.DeploymentID, asked []peer.Recall) (*peer.Recalled, error)
}

// EndRights asks a deployment to end its rights to resources here. The question is repeated until it is
// answered: a late or repeated question ends rights that are asked for again. A database that fails over on
// either side has none of them in its new epoch.
type EndRights struct {
	Store RightsToEndStore
	Peers RecallPeers
}

// mostEnded is the number of resources in one question. Each may wait a third of a second for writes under
// its right, and all have to be answered in time.
const mostEnded = 10

// Handle is Handler.
func (h *EndRights) Handle(ctx context.Context, at schema.DeploymentID, seqs []int64) (waiting []int64, err error) {
	for part := range slices.Chunk(seqs, mostEnded) {
		uids, err := h.Store.RightsToEnd(ctx, part)
		if err != nil {
			return nil, err
		}
		kept, err := h.ask(ctx, at, uids)
		if err != nil {
			return nil, fmt.Errorf("end rights of %s: %w", at, err)
		}
		waiting = append(waiting, kept...)
	}
	return waiting, nil
}

// ask asks once, and returns the pieces whose rights have not ended: a write may be under way under one, or a
// process there does not know the question.
func (h *EndRights) ask(ctx context.Context, at schema.DeploymentID,
	uids map[int64]uuid.UUID,
) (kept []int64, err error) {
	seqs := slices.Sorted(maps.Keys(uids))
	asked := make([]peer.Recall, len(seqs))
	for i, seq := range seqs {
		asked[i] = peer.Close(uids[seq])
	}
	if len(asked) == 0 {
		return nil, nil
	}
	recalled, err := h.Peers.Recall(ctx, at, asked)
	if err != nil {
		return nil, err
	}
	if len(recalled.Answers) != len(asked) {
		return nil, fmt.Errorf("%d answers to %d questions", len(recalled.Answers), len(asked))
	}
	var ended []int64
	for i, answer := range recalled.Answers {
		if answer.Closed {
			ended = append(ended, seqs[i])
		} else {
			kept = append(kept, seqs[i])
		}
	}
	return kept, h.Store.RightsEnded(ctx, ended)
}
