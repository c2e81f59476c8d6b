package handlers

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// EntryStore has the holder entries of other deployments here.
type EntryStore interface {
	// EntriesToLookAt begins looks at entries, by pieces of work, and removes the work that has none.
	EntriesToLookAt(ctx context.Context, of schema.DeploymentID, seqs []int64) (peer.EntryLooks, error)
	// EntriesLookedAt ends looks, and removes the entries that are not used.
	EntriesLookedAt(ctx context.Context, of schema.DeploymentID, looks peer.EntryLooks, there uuid.UUID,
		unused []bool) error
}

// LookAtEntry asks a deployment whether it still refers to resources here by acting references, and removes
// its holder entries if not. An entry that is used stays, and its work ends: the deployment says so again
// when its last reference is gone.
type LookAtEntry struct {
	Store EntryStore
	Peers RecallPeers
}

// Handle is Handler.
func (h *LookAtEntry) Handle(ctx context.Context, of schema.DeploymentID, seqs []int64) ([]int64, error) {
	for part := range slices.Chunk(seqs, mostEnded) {
		if err := h.look(ctx, of, part); err != nil {
			return nil, fmt.Errorf("look at holder entries of %s: %w", of, err)
		}
	}
	return nil, nil
}

func (h *LookAtEntry) look(ctx context.Context, of schema.DeploymentID, seqs []int64) error {
	looks, err := h.Store.EntriesToLookAt(ctx, of, seqs)
	if err != nil || len(looks.Entries) == 0 {
		return err
	}
	asked, unused := make([]peer.Recall, len(looks.Entries)), make([]bool, len(looks.Entries))
	for i, e := range looks.Entries {
		asked[i] = peer.IfUnused(e.Target)
	}
	recalled, err := h.Peers.Recall(ctx, of, asked)
	if err != nil {
		return err
	}
	if len(recalled.Answers) != len(asked) {
		return fmt.Errorf("%d answers to %d questions", len(recalled.Answers), len(asked))
	}
	for i, a := range recalled.Answers {
		unused[i] = a.Closed
	}
	return h.Store.EntriesLookedAt(ctx, of, looks, recalled.Epoch, unused)
}
