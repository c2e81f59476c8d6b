package service

import (
	"context"
	"errors"
	"fmt"

	"github.com/db-controller/db-controller/internal/identity"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/schema/service/outcome"
)

// rightAcquirer acquires rights for rows of attached tables, for a caller.
type rightAcquirer interface {
	AcquireDelegations(ctx context.Context, caller string, rights []string) error
}

func (r *resources) AcquireDelegations(ctx context.Context,
	req *resourcev1.AcquireDelegationsRequest,
) (*resourcev1.AcquireDelegationsResponse, error) {
	switch n := len(req.GetRights()); {
	case n == 0:
		return nil, outcome.Status(r.log,
			outcome.Invalid("rights", errors.New("the list is empty: give the lines of DETAIL of the error RD001")))
	case n > MaxBatch:
		return nil, outcome.Status(r.log, outcome.Invalid("rights", fmt.Errorf("%d rights, more than %d", n, MaxBatch)))
	}
	who, err := identity.CallerFromContext(ctx)
	if err == nil {
		err = r.acquirer.AcquireDelegations(ctx, who.Identity.String(), req.GetRights())
	}
	if err != nil {
		return nil, outcome.Status(r.log, err)
	}
	return &resourcev1.AcquireDelegationsResponse{}, nil
}
