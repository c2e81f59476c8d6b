// Package diagnose finds out why the deployments that a resource waits for do not act: the reason is known
// only there.
package diagnose

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
)

const (
	// asked bounds the deployments that are asked, atOnce the deployments that are asked at the same time,
	// and patience the time for all of them.
	asked    = 20
	atOnce   = 10
	patience = 3 * time.Second
	// acknowledge is the group of deletions upon which another deployment has not acted yet.
	acknowledge = "acknowledge"
)

// Deployments asks other deployments.
type Deployments struct {
	Admin func(ctx context.Context, id schema.DeploymentID) (adminv1.AdminServiceClient, error)
	// Plain is the text of an error for people.
	Plain func(error) string
}

func (d Deployments) status(ctx context.Context, deployment string) (*adminv1.StatusResponse, error) {
	id, err := schema.ParseDeploymentID(deployment)
	if err != nil {
		return nil, err
	}
	admin, err := d.Admin(ctx, id)
	if err != nil {
		return nil, err
	}
	return admin.Status(ctx, &adminv1.StatusRequest{})
}

// Explain adds to an explanation the pauses, failures and silence of the other deployments for which the
// resource waits.
func (d Deployments) Explain(ctx context.Context, own schema.DeploymentID, e *adminv1.ExplainResponse) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	others := slices.DeleteFunc(slices.Clone(e.GetWaitsFor()), func(other string) bool { return other == own.String() })
	found := make([][]*adminv1.ExplainResponse_Reason, min(asked, len(others)))
	var g errgroup.Group
	g.SetLimit(atOnce)
	for i := range found {
		g.Go(func() error {
			found[i] = d.keptBy(ctx, others[i], own.String())
			return nil
		})
	}
	_ = g.Wait() // no function fails
	e.Reasons = append(e.Reasons, slices.Concat(found...)...)
}

// keptBy returns the pauses and failures at another deployment that concern the work for this one.
func (d Deployments) keptBy(ctx context.Context, other, own string) (reasons []*adminv1.ExplainResponse_Reason) {
	answer, err := d.status(ctx, other)
	if c := status.Code(err); c == codes.PermissionDenied || c == codes.Unauthenticated {
		return nil // it answers, though not to this caller
	}
	if err != nil {
		return []*adminv1.ExplainResponse_Reason{{
			Type: "SILENT", Message: other + " does not answer",
			LastError: d.Plain(err),
		}}
	}
	for _, p := range answer.GetPauses() {
		if p.GetOf() != other && p.GetOf() != own {
			continue
		}
		what := "deletions"
		if p.GetHandler() != "" {
			what = schema.Handler(p.GetHandler()).Text()
		}
		if p.GetOf() == own {
			what += " for " + own
		}
		reasons = append(reasons, &adminv1.ExplainResponse_Reason{
			Type: "PAUSED", Message: fmt.Sprintf("%s has paused %s at %s: %s", p.GetActor(), what, other,
				p.GetReason()), Since: p.GetTime(),
		})
	}
	for _, f := range failingFor(answer, own) {
		reasons = append(reasons, &adminv1.ExplainResponse_Reason{
			Type: "FAILING", Message: fmt.Sprintf("%s for %s at %s", handlerText(f), own, other),
			LastError: f.GetError() + again(f),
		})
	}
	return reasons
}

// Stuck adds to the deletions that wait for other deployments the failures there; answers has the answers of
// ListStuck, by deployment.
func (d Deployments) Stuck(ctx context.Context, answers map[string]*adminv1.ListStuckResponse) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	waited := map[string][]func(*adminv1.StatusResponse){}
	for own, answer := range answers {
		for _, w := range answer.GetWork() {
			if w.GetGroup() != acknowledge || w.GetLastError() != "" || len(waited) == asked &&
				waited[w.GetDeployment()] == nil {
				continue
			}
			waited[w.GetDeployment()] = append(waited[w.GetDeployment()], func(s *adminv1.StatusResponse) {
				for _, f := range failingFor(s, own) {
					w.LastError, w.NextTime = "there "+handlerText(f)+" fails: "+f.GetError(), f.GetNextTime()
				}
			})
		}
	}
	var g errgroup.Group
	g.SetLimit(atOnce)
	for other, tell := range waited {
		g.Go(func() error {
			answer, err := d.status(ctx, other)
			for _, f := range tell {
				f(answer)
			}
			return err
		})
	}
	_ = g.Wait() // of a deployment that does not answer nothing is known
}

// failingFor returns the last failures of a deployment's handlers in their work for another deployment, in
// the process that has answered. A handler that is paused fails for that reason, which the pauses show.
func failingFor(answer *adminv1.StatusResponse, other string) (found []*adminv1.Failure) {
	paused := map[string]bool{}
	for _, p := range answer.GetPauses() {
		paused[p.GetHandler()] = true
	}
	for _, f := range answer.GetFailures() {
		h, err := schema.ParseHandler(handlerOf(f))
		if err == nil && f.GetDeployment() == other && !paused[string(h)] {
			found = append(found, f)
		}
	}
	return found
}

// handlerOf returns the handler in a failure: failed work is tried again by a task with a name of its own.
func handlerOf(f *adminv1.Failure) string { return strings.TrimSuffix(f.GetHandler(), "_again") }

func handlerText(f *adminv1.Failure) string { return strings.ReplaceAll(handlerOf(f), "_", "-") }

func again(f *adminv1.Failure) string {
	left := time.Until(f.GetNextTime().AsTime()).Round(time.Second)
	if f.GetNextTime() == nil || left <= 0 {
		return ""
	}
	return "; again in " + left.String()
}
