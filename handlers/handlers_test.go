package handlers_test

import (
	"errors"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
)

var (
	// there is the other deployment.
	there = schema.DeploymentID{Service: "a.example.com", Region: "us-west2"}

	errDatabase    = errors.New("the database failed")
	errUnreachable = errors.New("the deployment does not answer")

	epoch = uuid.Must(uuid.NewV7())
)

// steps are the calls that a handler made, in their order.
type steps []string

func (s *steps) add(step string) { *s = append(*s, step) }
