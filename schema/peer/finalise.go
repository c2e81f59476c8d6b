package peer

import (
	"github.com/google/uuid"
)

// Messages are the messages of pieces of work: what this deployment owes to another one now.
type Messages struct {
	// Epoch of the database in which they were read.
	Epoch   uuid.UUID
	Confirm []AttemptID
	Release []BlockadeKey
	Abandon []AttemptID
	LetGo   []LetGo
	// Seqs are the pieces of work of these messages, which Delivered removes.
	Seqs []int64
}
