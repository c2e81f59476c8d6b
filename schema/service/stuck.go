package service

import (
	"cmp"
	"context"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	"github.com/db-controller/db-controller/schema/service/outcome"
)

// stuckAfter is the time after which a waiting resource or piece of work counts as stuck, when the caller
// gives none.
const stuckAfter = time.Minute

// waiting has the reasons of work that is outstanding although nothing failed, by group.
var waiting = map[string]string{
	schema.CheckOwners.String(): "owners there do not exist: they can still be created, and count as gone after --owner-grace (explain of a resource names them)",
	"acknowledge":               "it has not acted upon these deletions yet (its status shows what fails there)",
	"deleting":                  "the rows DELETING, and explain of a resource, show what they wait for",
	"resolve":                   "it has not said yet whether its writes were committed",
}

func (a *admin) ListStuck(ctx context.Context, req *adminv1.ListStuckRequest) (*adminv1.ListStuckResponse, error) {
	out, err := a.listStuck(ctx, req)
	return out, outcome.Status(a.log, err)
}

func (a *admin) listStuck(ctx context.Context, req *adminv1.ListStuckRequest) (*adminv1.ListStuckResponse, error) {
	longer := cmp.Or(req.GetLonger().AsDuration(), stuckAfter)
	page, err := a.decisions.Stuck(ctx, longer, req.GetPageToken(), pageSize(req.GetPageSize()))
	if err != nil {
		return nil, err
	}
	out := &adminv1.ListStuckResponse{NextPageToken: page.Next, TotalSize: page.Total}
	for _, r := range page.Resources {
		p := &adminv1.ListStuckResponse_Resource{
			Name: schema.FullName{Deployment: a.self, Name: r.Name}.String(), Kind: r.Kind, Uid: r.UID.String(),
			Since: timestamppb.New(r.Since),
		}
		for _, c := range r.Conditions {
			p.Reasons = append(p.Reasons, c.Type+" "+c.Message)
		}
		out.Resources = append(out.Resources, p)
	}
	if req.GetPageToken() != "" { // the rest is in the first page
		return out, nil
	}
	if out.Pauses, err = a.pauses(ctx); err != nil {
		return nil, err
	}
	return out, a.addStuckWork(ctx, longer, out)
}

func (a *admin) addStuckWork(ctx context.Context, longer time.Duration, out *adminv1.ListStuckResponse) error {
	outstanding, err := a.administrator.Outstanding(ctx)
	if err != nil {
		return err
	}
	failures := a.failures()
	for _, o := range outstanding {
		waited := time.Duration(o.Oldest * float64(time.Second))
		if waited < longer {
			continue
		}
		w := &adminv1.ListStuckResponse_Work{
			Group: o.Group, Deployment: o.Deployment, Count: o.Count,
			Since: timestamppb.New(time.Now().Add(-waited)),
		}
		if o.Problem != "" {
			w.LastError = o.Problem
		} else if f := failureOf(failures, o.Group, o.Deployment); f.Error != "" {
			w.LastError, w.NextTime = f.Error, optionalTime(f.Next)
		} else {
			w.Reason = waiting[o.Group]
		}
		out.Work = append(out.Work, w)
	}
	return nil
}

// failureOf returns the last failure of work for a deployment: of the group, whose name begins its error, or
// else of another group.
func failureOf(failures []Failure, group, deployment string) (out Failure) {
	for _, f := range failures {
		if f.Deployment.String() == deployment &&
			(out.Error == "" || strings.HasPrefix(f.Error, strings.ReplaceAll(group, "_", " "))) {
			out = f
		}
	}
	return out
}

// optionalTime returns no timestamp for the zero time.
func optionalTime(at time.Time) *timestamppb.Timestamp {
	if at.IsZero() {
		return nil
	}
	return timestamppb.New(at)
}

func (a *admin) Pause(ctx context.Context, req *adminv1.PauseRequest) (*adminv1.PauseResponse, error) {
	return &adminv1.PauseResponse{}, outcome.Status(a.log, a.pause(ctx, req, true))
}

func (a *admin) Resume(ctx context.Context, req *adminv1.ResumeRequest) (*adminv1.ResumeResponse, error) {
	return &adminv1.ResumeResponse{}, outcome.Status(a.log, a.pause(ctx, req, false))
}

// pauseRequest is a PauseRequest or a ResumeRequest.
type pauseRequest interface {
	GetOf() string
	GetHandler() string
	GetReason() string
}

func (a *admin) pause(ctx context.Context, req pauseRequest, paused bool) error {
	id, by, err := operatorAction(ctx, cmp.Or(req.GetOf(), a.self.String()))
	if err != nil {
		return err
	}
	var handler schema.Handler
	if req.GetHandler() != "" {
		if handler, err = schema.ParseHandler(req.GetHandler()); err != nil {
			return &peer.InvalidError{Resource: "handler", Err: err}
		}
	}
	return a.decisions.Pause(ctx, id, handler, paused, req.GetReason(), by)
}

func (a *admin) pauses(ctx context.Context) ([]*adminv1.Pause, error) {
	pauses, err := a.decisions.Pauses(ctx)
	var out []*adminv1.Pause
	for _, p := range pauses {
		out = append(out, &adminv1.Pause{
			Of: p.Of.String(), Handler: string(p.Handler), Reason: p.Reason, Actor: p.By,
			Time: timestamppb.New(p.At),
		})
	}
	return out, err
}

func (a *admin) addPauses(ctx context.Context, out *adminv1.StatusResponse) (err error) {
	out.Pauses, err = a.pauses(ctx)
	for _, p := range out.GetPauses() {
		if p.GetHandler() == "" {
			out.Paused = append(out.Paused, p.GetOf())
		}
	}
	return err
}
