package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/service/access"
	"github.com/db-controller/db-controller/schema/service/outcome"
	"github.com/db-controller/db-controller/schema/shadow"
)

// PlanDeletion of the ResourceService is the plan for people, see SchemaService for the one between
// deployments.
func (r *resources) PlanDeletion(ctx context.Context,
	req *resourcev1.PlanDeletionRequest,
) (*resourcev1.PlanDeletionResponse, error) {
	out, err := r.planDeletion(ctx, req)
	return out, outcome.Status(r.log, err)
}

func (r *resources) planDeletion(ctx context.Context,
	req *resourcev1.PlanDeletionRequest,
) (*resourcev1.PlanDeletionResponse, error) {
	if n := len(req.GetMore()); n >= MaxBatch {
		return nil, outcome.Invalid("more", fmt.Errorf("%d in one plan with name, fewer than %d are allowed",
			n, MaxBatch))
	}
	names := make([]string, 0, 1+len(req.GetMore()))
	for _, name := range append([]string{req.GetName()}, req.GetMore()...) {
		name, err := ownName(r.self, name)
		if err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	ctx, cancel := beforeDeadline(ctx)
	defer cancel()
	if err := checkMaxRemovals(req.GetMaxRemovals()); err != nil {
		return nil, err
	}
	if most := req.GetMaxRemovals(); most != 0 {
		person := peer.PersonFrom(ctx)
		person.MaxRemovals = most
		ctx = peer.WithPerson(ctx, person)
	}
	plan, err := r.deleter.PlanDelete(ctx, names...)
	if err != nil {
		return nil, err
	}
	out := &resourcev1.PlanDeletionResponse{
		Accepted: plan.Refusal == nil && plan.Complete(), Truncated: plan.Truncated,
		Uncounted: plan.Uncounted,
	}
	out.UnaskedDeployments, out.Unasked = unaskedProto(plan.Unasked)
	if plan.Retention > 0 {
		out.Retention = durationpb.New(plan.Retention)
	}
	if plan.Refusal != nil {
		out.Refusal = plan.Refusal.Error()
	}
	denied, err := deniedOf(ctx, plan)
	if err != nil {
		return nil, err
	}
	most := cmp.Or(int(req.GetMaxSamples()), fewSamples)
	if most < 0 || most > peer.PlanLimit {
		return nil, outcome.Invalid("max_samples", fmt.Errorf("%d: want 1 to %d, or 0 for %d", most, peer.PlanLimit,
			fewSamples))
	}
	for i, g := range plan.Groups {
		samples := make([]string, min(len(g.Names), most))
		for n := range samples {
			samples[n] = schema.FullName{Deployment: g.Deployment, Name: g.Names[n]}.String()
		}
		out.Groups = append(out.Groups, &resourcev1.PlanDeletionResponse_Group{
			Parent: int32(g.Parent), Deployment: g.Deployment.String(), Kind: g.Kind, Path: g.Path,
			Behaviour: schemav1.Behaviour(g.Behaviour),
			Count:     int64(g.Count), Samples: samples, Unset: g.Unset, AtLeast: g.AtLeast, Finalizers: g.Finalizers,
			Denied: int64(denied[i].count),
		})
	}
	blockers := readableBlockers(ctx, plan.Blockers)
	out.HiddenBlockers = int64(len(plan.Blockers) - len(blockers))
	if err := pageBlockers(out, blockers, int(req.GetPageSize()), req.GetPageToken()); err != nil {
		return nil, err
	}
	out.TotalBlockers += out.GetHiddenBlockers()
	return out, nil
}

// fewSamples is the number of names in a group of an answer, unless the caller wants more.
const fewSamples = 3

// denied are the resources of a group of a plan that the caller has no right to delete, and that go along.
type denied struct {
	count int
	names []schema.FullName // of the resources that the plan visited
}

// deniedOf returns the denied resources of each group. Resources that were counted, and not visited, are
// denied unless the caller may delete all of their kind.
func deniedOf(ctx context.Context, plan *shadow.DeletePlan) ([]denied, error) {
	out, person := make([]denied, len(plan.Groups)), peer.PersonFrom(ctx)
	if person.Delete == nil {
		return out, nil
	}
	for i, g := range plan.Groups {
		if g.Unset || g.Parent < 0 { // the delete itself needs the right to the resources that it names
			continue
		}
		all, err := person.DeleteKind(ctx, g.Deployment, g.Kind)
		if err != nil {
			return nil, err
		}
		if all {
			continue
		}
		names := make([]schema.FullName, len(g.Names))
		for n, name := range g.Names {
			names[n] = schema.FullName{Deployment: g.Deployment, Name: name}
		}
		allowed, err := person.Delete(ctx, names)
		if err != nil {
			return nil, err
		}
		for n, ok := range allowed {
			if !ok {
				out[i].names = append(out[i].names, names[n])
			}
		}
		out[i].count = len(out[i].names) + g.Count - len(g.Names)
	}
	return out, nil
}

// ofWriter returns a context in which the right to delete the holder of a new cascading reference, or of a
// new owner, covers all resources that the holder takes along, where the rights say cascade_needs_delete: a
// caller who may delete the target could else take along resources that refer to the holder, without a right
// to them.
func (r *resources) ofWriter(ctx context.Context) context.Context {
	person := peer.PersonFrom(ctx)
	if !person.CascadeNeedsDelete {
		return ctx
	}
	writer, may := person, person.Delete
	person.Delete = func(ctx context.Context, names []schema.FullName) ([]bool, error) {
		allowed, err := may(ctx, names)
		for i, name := range names {
			if err != nil || !allowed[i] {
				continue
			}
			var plan *shadow.DeletePlan
			if plan, err = r.deleter.PlanDelete(ctx, name.Name); errors.Is(err, peer.ErrNotFound) ||
				errors.Is(err, peer.ErrDeleting) {
				err = nil
				continue
			}
			if err == nil { // the plan has all that goes along: the writer's own rights are asked for
				err = mayTake(peer.WithPerson(ctx, writer), plan)
			}
			if errors.Is(err, peer.ErrDenied) {
				allowed[i], err = false, nil
			}
		}
		return allowed, err
	}
	return peer.WithPerson(ctx, person)
}

// mayTakeAlong refuses a delete that takes resources along which the caller may not delete, where the rights
// say cascade_needs_delete. A reference that is added after the look is one whose writer had the right to
// delete the holder with all that goes along (ofWriter).
func (r *resources) mayTakeAlong(ctx context.Context, requests []shadow.DeleteRequest) error {
	if !peer.PersonFrom(ctx).CascadeNeedsDelete {
		return nil
	}
	names := make([]string, len(requests))
	for i, req := range requests {
		names[i] = req.Name
	}
	plan, err := r.deleter.PlanDelete(ctx, names...)
	if errors.Is(err, peer.ErrNotFound) || errors.Is(err, peer.ErrDeleting) {
		if len(names) == 1 {
			return nil // the delete answers with it, or with the outcome of the request before
		}
		for _, one := range requests { // some of them are not there, the others may be
			if err := r.mayTakeAlong(ctx, []shadow.DeleteRequest{one}); err != nil {
				return err
			}
		}
		return nil
	}
	if err != nil {
		return err
	}
	return mayTake(ctx, plan)
}

// mayTake refuses a plan that takes resources along which the caller may not delete, or that visits only
// some of the resources.
func mayTake(ctx context.Context, plan *shadow.DeletePlan) error {
	if len(plan.Unasked) > 0 {
		return fmt.Errorf("the rights of the caller to the resources that the delete takes along cannot be checked: %w",
			&peer.UnavailableError{Unasked: plan.Unasked})
	}
	found, err := deniedOf(ctx, plan)
	if err != nil {
		return err
	}
	var all denied
	for _, d := range found {
		all.count, all.names = all.count+d.count, append(all.names, d.names...)
	}
	if all.count == 0 && !plan.Truncated && !plan.Uncounted {
		return nil
	}
	return &cascadeDeniedError{all}
}

// cascadeDeniedError denies a delete because of the resources that it takes along.
type cascadeDeniedError struct{ denied }

func (e *cascadeDeniedError) Error() string {
	const most = 5
	if e.count == 0 {
		return "the delete takes more along than one plan visits, so that the right to delete all of it cannot be checked: delete parts of it first, or ask an operator to delete it"
	}
	names := make([]string, 0, most)
	for _, n := range e.names[:min(len(e.names), most)] {
		names = append(names, n.String())
	}
	if more := e.count - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return "the delete takes along what the caller has no right to delete: " + strings.Join(names, ", ") + ": " +
		peer.ErrDenied.Error()
}

func (e *cascadeDeniedError) Unwrap() error { return peer.ErrDenied }

// readableBlockers returns the blockers whose holders the caller may read: before they are paged, because a
// page token has a name.
func readableBlockers(ctx context.Context, all []shadow.PlannedBlocker) (out []shadow.PlannedBlocker) {
	names := make([]schema.FullName, len(all))
	for i, b := range all {
		names[i] = b.Holder.Name
	}
	for i, ok := range access.Readable(ctx, names) {
		if ok {
			out = append(out, all[i])
		}
	}
	return out
}

// pageBlockers adds one page of the blockers, which are in the order of their pages.
func pageBlockers(out *resourcev1.PlanDeletionResponse, all []shadow.PlannedBlocker, size int, token string) error {
	follows, err := peer.Follows(token)
	if err != nil {
		return err
	}
	out.TotalBlockers = int64(len(all))
	if size <= 0 || size > maxPageSize {
		size = maxPageSize
	}
	var last peer.Refusal
	for _, b := range all {
		at := peer.Refusal{Holder: b.Holder.Name.String(), Path: b.Holder.Path, Target: b.Holder.Target}
		if !follows(at) {
			continue
		}
		if len(out.Blockers) == size {
			out.NextPageToken = peer.TokenAfter(last)
			return nil
		}
		last = at
		out.Blockers = append(out.Blockers, &resourcev1.PlanDeletionResponse_Blocker{
			Holder: at.Holder, Path: at.Path, Target: at.Target.String(), Undecided: b.Undecided, Unknown: b.Unknown,
			Unanswered: b.Unanswered, Refuses: b.Refuses,
		})
	}
	return nil
}

var whyProto = map[peer.Why]resourcev1.UnaskedDeployment_Reason{
	peer.Unreachable:  resourcev1.UnaskedDeployment_REASON_UNREACHABLE,
	peer.TimedOut:     resourcev1.UnaskedDeployment_REASON_TIMED_OUT,
	peer.LimitReached: resourcev1.UnaskedDeployment_REASON_LIMIT_REACHED,
}

// unaskedProto returns the names of deployments that were not asked, and the same with reasons.
func unaskedProto(in []peer.Unasked) (names []string, out []*resourcev1.UnaskedDeployment) {
	for _, u := range in {
		names = append(names, u.Deployment.String())
		out = append(out, &resourcev1.UnaskedDeployment{
			Deployment: u.Deployment.String(), Reason: whyProto[u.Why],
			Message: u.Error(),
		})
	}
	return names, out
}
