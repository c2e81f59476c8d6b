package handlers_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

var (
	// there is the other deployment.
	there = schema.DeploymentID{Service: "a.example.com", Region: "us-west2"}

	errDatabase    = errors.New("the database failed")
	errUnreachable = errors.New("the deployment does not answer")

	epoch, laterEpoch = uuid.Must(uuid.NewV7()), uuid.Must(uuid.NewV7())
)

// steps are the calls that a handler made, in their order.
type steps []string

func (s *steps) add(what string, args ...any) {
	for _, a := range args {
		what += " " + fmt.Sprint(a)
	}
	*s = append(*s, what)
}

// messageStore has messages, and notes the calls.
type messageStore struct {
	*steps
	messages  peer.Messages
	read      error
	delivered error
	repair    error
}

func (s *messageStore) Messages(_ context.Context, _ schema.DeploymentID, seqs []int64) (*peer.Messages, error) {
	s.add("read", seqs)
	m := s.messages
	m.Epoch, m.Seqs = epoch, seqs
	return &m, s.read
}

func (s *messageStore) RepairAttempts(_ context.Context, _ schema.DeploymentID, attempts []peer.AttemptID) error {
	s.add("repair", len(attempts))
	return s.repair
}

func (s *messageStore) Delivered(_ context.Context, m *peer.Messages) error {
	s.add("delivered", m.Seqs)
	return s.delivered
}
