package peer

import (
	"context"

	"github.com/db-controller/db-controller/schema"
)

// Referrer reports for each of some resources whether the person who writes may refer to it. About resources of other deployments
// it knows the grants of the environment alone: a reference that these allow may still be denied by its deployment.
type Referrer func(ctx context.Context, names []schema.FullName) ([]bool, error)

type referrerKey struct{}

// WithReferrer stores in ctx the right to refer of the person who writes. Writes without it, such as derivations after a version
// switch, may refer to everything here.
func WithReferrer(ctx context.Context, may Referrer) context.Context {
	return context.WithValue(ctx, referrerKey{}, may)
}

// ReferrerFrom returns the value of WithReferrer, or nil.
func ReferrerFrom(ctx context.Context) Referrer {
	may, _ := ctx.Value(referrerKey{}).(Referrer)
	return may
}
