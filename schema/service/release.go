package service

import (
	"cmp"
	"context"
	"errors"

	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	"github.com/db-controller/db-controller/schema/service/outcome"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/schema/wire"
)

// releaser has work tried at once, and releases rows that an operator knows to be wrong.
type releaser interface {
	Retry(ctx context.Context, of schema.DeploymentID, reason, by string) error
	RetryResource(ctx context.Context, name, reason, by string) (waitsFor []schema.DeploymentID, err error)
	Releasable(ctx context.Context, name string, limit int,
		token string) (page []shadow.Releasable, next string, err error)
	Unconfirmed(ctx context.Context, of schema.DeploymentID, limit int,
		token string) (page []shadow.Releasable, next string, err error)
	ForceRelease(ctx context.Context, keys []string, unanswered bool, reason, by string) (released []string, err error)
}

func (a *admin) Retry(ctx context.Context, req *adminv1.RetryRequest) (*adminv1.RetryResponse, error) {
	out, err := a.retry(ctx, req)
	return out, outcome.Status(a.log, err)
}

func (a *admin) retry(ctx context.Context, req *adminv1.RetryRequest) (*adminv1.RetryResponse, error) {
	of, by, err := operatorAction(ctx, cmp.Or(req.GetOf(), a.self.String()))
	switch {
	case err != nil:
		return nil, err
	case req.GetName() == "" && req.GetOf() == "":
		return &adminv1.RetryResponse{}, a.releaser.Retry(ctx, schema.DeploymentID{}, req.GetReason(), by)
	case req.GetName() == "":
		return &adminv1.RetryResponse{}, a.releaser.Retry(ctx, of, req.GetReason(), by)
	}
	name, err := ownName(a.self, req.GetName())
	if err != nil {
		return nil, err
	}
	waitsFor, err := a.releaser.RetryResource(ctx, name, req.GetReason(), by)
	return &adminv1.RetryResponse{WaitsFor: wire.DeploymentNames(waitsFor)}, err
}

func (a *admin) ListReleasable(ctx context.Context,
	req *adminv1.ListReleasableRequest,
) (*adminv1.ListReleasableResponse, error) {
	out, err := a.listReleasable(ctx, req)
	return out, outcome.Status(a.log, err)
}

func (a *admin) listReleasable(ctx context.Context,
	req *adminv1.ListReleasableRequest,
) (*adminv1.ListReleasableResponse, error) {
	found, next, err := a.releasable(ctx, req)
	if err != nil {
		return nil, err
	}
	out := &adminv1.ListReleasableResponse{NextPageToken: next}
	for _, r := range found {
		p := &adminv1.Releasable{
			Key: r.Key, What: r.What, Resource: schema.FullName{Deployment: a.self, Name: r.Name}.String(),
			Other: r.Other, Path: r.Path, Breaks: r.Breaks, Refused: r.Refused,
		}
		p.Since = optionalTime(r.Since)
		out.Releasable = append(out.Releasable, p)
	}
	return out, nil
}

func (a *admin) releasable(ctx context.Context,
	req *adminv1.ListReleasableRequest,
) ([]shadow.Releasable, string, error) {
	if req.GetUnconfirmedOf() == "" {
		name, err := ownName(a.self, req.GetName())
		if err != nil {
			return nil, "", err
		}
		return a.releaser.Releasable(ctx, name, pageSize(req.GetPageSize()), req.GetPageToken())
	}
	of, err := schema.ParseDeploymentID(req.GetUnconfirmedOf())
	switch {
	case err != nil:
		return nil, "", outcome.Invalid("unconfirmed_of", err)
	case req.GetName() != "":
		return nil, "", outcome.Invalid("name", errNameAndDeployment)
	}
	return a.releaser.Unconfirmed(ctx, of, pageSize(req.GetPageSize()), req.GetPageToken())
}

var errNameAndDeployment = errors.New("want a name, or unconfirmed_of, and not both")

func (a *admin) ForceRelease(ctx context.Context,
	req *adminv1.ForceReleaseRequest,
) (*adminv1.ForceReleaseResponse, error) {
	_, by, err := operatorAction(ctx, a.self.String())
	if err != nil {
		return nil, err
	}
	released, err := a.releaser.ForceRelease(ctx, req.GetKeys(), req.GetUnanswered(), req.GetReason(), by)
	return &adminv1.ForceReleaseResponse{Released: released}, outcome.Status(a.log, err)
}
