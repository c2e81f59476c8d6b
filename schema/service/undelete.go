package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/schema/service/outcome"
	"github.com/db-controller/db-controller/schema/shadow"
)

// retentionOf returns the retention of a request; 0 for none.
func retentionOf(of deleteOptions) (time.Duration, error) {
	if of.GetRetention() == nil {
		return 0, nil
	}
	if of.GetNow() {
		return 0, outcome.Invalid("now", errors.New("and retention: want one of them"))
	}
	if err := of.GetRetention().CheckValid(); err != nil {
		return 0, outcome.Invalid("retention", err)
	}
	d := of.GetRetention().AsDuration()
	if err := schema.CheckRetention(d); err != nil {
		return 0, outcome.Invalid("retention", err)
	}
	return d, nil
}

// mayDelete checks the right to delete of a caller with the right to operate.
func (r *resources) mayDelete(ctx context.Context, reqs []shadow.DeleteRequest) error {
	person := peer.PersonFrom(ctx)
	if person.Delete == nil {
		return nil
	}
	names := make([]schema.FullName, len(reqs))
	for i, req := range reqs {
		names[i] = schema.FullName{Deployment: r.self, Name: req.Name}
	}
	allowed, err := person.Delete(ctx, names)
	if err != nil {
		return err
	}
	if i := slices.Index(allowed, false); i >= 0 {
		return fmt.Errorf("the caller may not delete %s: %w", names[i].Name, peer.ErrDenied)
	}
	return nil
}

func (r *resources) UndeleteResource(ctx context.Context,
	req *resourcev1.UndeleteResourceRequest,
) (*resourcev1.Resource, error) {
	out, err := r.undelete(ctx, req)
	return out, outcome.Status(r.log, err)
}

func (r *resources) undelete(ctx context.Context,
	req *resourcev1.UndeleteResourceRequest,
) (*resourcev1.Resource, error) {
	name, err := ownName(r.self, req.GetName())
	if err != nil {
		return nil, err
	}
	uid, err := optionalUUID("uid", req.GetUid())
	if err != nil {
		return nil, err
	}
	found, err := r.deleter.Undelete(ctx, name, uid)
	if err != nil {
		return nil, err
	}
	return r.answer(ctx, found, nil)
}
