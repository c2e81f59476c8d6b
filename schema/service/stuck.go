package service

import (
	"cmp"
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	"github.com/db-controller/db-controller/schema/service/outcome"
)

// stuckAfter is how long something waits before it counts as stuck, when the caller does not say.
const stuckAfter = time.Minute

func (a *admin) ListStuck(ctx context.Context, req *adminv1.ListStuckRequest) (*adminv1.ListStuckResponse, error) {
	out, err := a.listStuck(ctx, req)
	return out, outcome.Status(a.log, err)
}

func (a *admin) listStuck(ctx context.Context, req *adminv1.ListStuckRequest) (*adminv1.ListStuckResponse, error) {
	longer := cmp.Or(req.GetLonger().AsDuration(), stuckAfter)
	resources, err := a.pauser.Stuck(ctx, longer, pageSize(req.GetPageSize()))
	if err != nil {
		return nil, err
	}
	out := &adminv1.ListStuckResponse{}
	for _, r := range resources {
		p := &adminv1.ListStuckResponse_Resource{
			Name: schema.FullName{Deployment: a.self, Name: r.Name}.String(), Kind: r.Kind, Uid: r.UID.String(), Since: timestamppb.New(r.Since),
		}
		for _, c := range r.Conditions {
			p.Reasons = append(p.Reasons, c.Type+" "+c.Message)
		}
		out.Resources = append(out.Resources, p)
	}
	return out, a.addStuckWork(ctx, longer, out)
}

func (a *admin) addStuckWork(ctx context.Context, longer time.Duration, out *adminv1.ListStuckResponse) error {
	outstanding, err := a.work.Outstanding(ctx)
	if err != nil {
		return err
	}
	failures := a.failures()
	for _, o := range outstanding {
		waited := time.Duration(o.Oldest * float64(time.Second))
		if waited < longer {
			continue
		}
		w := &adminv1.ListStuckResponse_Work{Group: o.Group, Deployment: o.Deployment, Count: o.Count, Since: timestamppb.New(time.Now().Add(-waited))}
		for _, f := range failures {
			if f.Deployment.String() == o.Deployment {
				w.LastError = f.Error
			}
		}
		out.Work = append(out.Work, w)
	}
	return nil
}

func (a *admin) Pause(ctx context.Context, req *adminv1.PauseRequest) (*adminv1.PauseResponse, error) {
	return &adminv1.PauseResponse{}, outcome.Status(a.log, a.pause(ctx, req.GetOf(), true, req.GetReason()))
}

func (a *admin) Resume(ctx context.Context, req *adminv1.ResumeRequest) (*adminv1.ResumeResponse, error) {
	return &adminv1.ResumeResponse{}, outcome.Status(a.log, a.pause(ctx, req.GetOf(), false, req.GetReason()))
}

func (a *admin) pause(ctx context.Context, of string, paused bool, reason string) error {
	id, by, err := operatorAction(ctx, cmp.Or(of, a.self.String()))
	if err != nil {
		return err
	}
	return a.pauser.Pause(ctx, id, paused, reason, by)
}

func (a *admin) addPaused(ctx context.Context, out *adminv1.StatusResponse) error {
	paused, err := a.pauser.Paused(ctx)
	out.Paused = deploymentNames(paused)
	return err
}
