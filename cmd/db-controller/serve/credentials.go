package serve

import (
	"context"
	"fmt"
	"time"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/internal/identity/workload"
)

// loadCredentials reads the certificates of --certs: files of a folder, or the certificates of the identity
// that a Workload API sends within a time. The function ends their renewal.
func loadCredentials(ctx context.Context, certs string, who identity.Identity,
	patience time.Duration,
) (c *identity.Credentials, end func(), err error) {
	if !workload.IsAddress(certs) {
		c, err = identity.Load(identity.InDir(certs))
		return c, func() {}, err
	}
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	source, err := workload.Open(waiting, certs, who)
	if ctx.Err() != nil && err != nil {
		return nil, nil, errInterrupted
	}
	if err != nil {
		return nil, nil, fmt.Errorf("--certs: %w", err)
	}
	if c, err = identity.Load(source); err != nil {
		source.Close()
		return nil, nil, err
	}
	return c, source.Close, nil
}
