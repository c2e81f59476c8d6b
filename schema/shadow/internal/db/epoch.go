package db

import (
	"errors"

	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// failsWholeBatch reports whether every part of a batch would fail with the error, so that halving the batch is useless.
func failsWholeBatch(err error) bool {
	return errors.Is(err, peer.ErrRecovering) || errors.Is(err, peer.ErrStaleEpoch) || errors.Is(err, schema.ErrFenced) || postgres.Unavailable(err)
}
