package console

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/db-controller/db-controller/internal/diagnose"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

const (
	// lookupTimeout bounds one question that a person asks.
	lookupTimeout = 10 * time.Second
	// shown is the number of entries of a list on the page, beside its total.
	shown = 500
	// endedShown is the number of ended deletions of one deployment.
	endedShown = 50
)

// at is the answer of one deployment, or the reason why there is none.
type at struct {
	Deployment string          `json:"deployment"`
	Answer     json.RawMessage `json:"answer,omitempty"`
	Error      string          `json:"error,omitempty"`
}

// everywhere asks every deployment, and returns the answers in the order of their names.
func (h *Handler) everywhere(ctx context.Context, ask func(context.Context, schema.DeploymentID,
	adminv1.AdminServiceClient) (json.RawMessage, error),
) ([]at, error) {
	env, err := h.of.Environment(ctx)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex // of out
	var out []at
	var g errgroup.Group
	g.SetLimit(askAtOnce)
	for _, d := range env.Deployments {
		g.Go(func() error {
			a := at{Deployment: d.String()}
			admin, err := h.of.Admin(ctx, d.DeploymentID)
			if err == nil {
				a.Answer, err = ask(ctx, d.DeploymentID, admin)
			}
			if err != nil {
				a.Error = plain(err)
			}
			mu.Lock()
			defer mu.Unlock()
			out = append(out, a)
			return nil
		})
	}
	_ = g.Wait() // errors are in out
	slices.SortFunc(out, func(a, b at) int {
		if a.Deployment < b.Deployment {
			return -1
		}
		return 1
	})
	return out, nil
}

// others asks the other deployments for which a resource or work waits.
func (h *Handler) others() diagnose.Deployments {
	return diagnose.Deployments{Admin: h.of.Admin, Plain: plain}
}

// stuck answers with resources and work that have waited for longer than ?longer=1m, in every deployment.
func (h *Handler) stuck(w http.ResponseWriter, r *http.Request) {
	longer := time.Minute
	if text := r.URL.Query().Get("longer"); text != "" {
		var err error
		if longer, err = time.ParseDuration(text); err != nil || longer <= 0 {
			refuse(w, http.StatusBadRequest, "longer="+text+": want a duration of more than 0s, such as 30s or 10m")
			return
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), lookupTimeout)
	defer cancel()
	var mu sync.Mutex // of answers
	answers := map[string]*adminv1.ListStuckResponse{}
	found, err := h.everywhere(ctx,
		func(ctx context.Context, d schema.DeploymentID, admin adminv1.AdminServiceClient) (json.RawMessage, error) {
			answer, err := admin.ListStuck(ctx, &adminv1.ListStuckRequest{
				Longer:   durationpb.New(longer),
				PageSize: shown,
			})
			mu.Lock()
			defer mu.Unlock()
			answers[d.String()] = answer
			return nil, err
		})
	if err != nil {
		refuse(w, http.StatusBadGateway, plain(err))
		return
	}
	h.others().Stuck(ctx, answers)
	for i, f := range found {
		found[i].Answer = message(answers[f.Deployment])
	}
	reply(w, found)
}

// deletion answers with the progress of the deletion ?id= in every deployment that it has reached.
func (h *Handler) deletion(w http.ResponseWriter, r *http.Request) {
	id := r.URL.Query().Get("id")
	if id == "" {
		refuse(w, http.StatusBadRequest, "id is missing: want the id of a deletion, a UUID")
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), lookupTimeout)
	defer cancel()
	found, err := h.everywhere(ctx,
		func(ctx context.Context, _ schema.DeploymentID, admin adminv1.AdminServiceClient) (json.RawMessage, error) {
			answer, err := admin.ListDeletions(ctx, &adminv1.ListDeletionsRequest{Deletion: id})
			if err != nil || len(answer.GetDeletions()) == 0 {
				return nil, err
			}
			return message(answer.GetDeletions()[0]), nil
		})
	if err != nil {
		refuse(w, http.StatusBadGateway, plain(err))
		return
	}
	reply(w, slices.DeleteFunc(found, func(a at) bool { return a.Answer == nil && a.Error == "" }))
}

// ended answers with the last deletions that have ended in each deployment.
func (h *Handler) ended(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), lookupTimeout)
	defer cancel()
	found, err := h.everywhere(ctx,
		func(ctx context.Context, _ schema.DeploymentID, admin adminv1.AdminServiceClient) (json.RawMessage, error) {
			answer, err := admin.ListDeletions(ctx, &adminv1.ListDeletionsRequest{Ended: true, PageSize: endedShown})
			if err != nil {
				return nil, err
			}
			return message(answer), nil
		})
	if err != nil {
		refuse(w, http.StatusBadGateway, plain(err))
		return
	}
	reply(w, found)
}

// resourceView is everything about one resource; a part that failed is an error beside the others.
type resourceView struct {
	Name     string          `json:"name"`
	Resource json.RawMessage `json:"resource,omitempty"`
	Explain  json.RawMessage `json:"explain,omitempty"`
	Removals json.RawMessage `json:"removals,omitempty"`
	// References are those of the body and of the name.
	References []reference `json:"references,omitempty"`
	// Referrers has a page of each deployment with resources that refer to it.
	Referrers []at              `json:"referrers,omitempty"`
	Errors    map[string]string `json:"errors,omitempty"`
}

// reference is a reference from the resource of a view.
type reference struct {
	Path      string `json:"path"`
	Target    string `json:"target"` // full name
	Behaviour string `json:"behaviour"`
}

// resource answers with the resource of the full name ?name=.
func (h *Handler) resource(w http.ResponseWriter, r *http.Request) {
	name, err := schema.ParseFullName(r.URL.Query().Get("name"))
	if err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), lookupTimeout)
	defer cancel()
	admin, err := h.of.Admin(ctx, name.Deployment)
	if err != nil {
		refuse(w, http.StatusBadGateway, plain(err))
		return
	}
	resources, err := h.of.Resources(ctx, name.Deployment)
	if err != nil {
		refuse(w, http.StatusBadGateway, plain(err))
		return
	}
	view := h.viewOf(ctx, name, admin, resources)
	if view.Referrers, err = h.referrers(ctx, name, resources); err != nil {
		view.Errors["referrers"] = plain(err)
	}
	reply(w, view)
}

// referrers asks the resource's own deployment, and then each that it names.
func (h *Handler) referrers(ctx context.Context, of schema.FullName,
	resources resourcev1.ResourceServiceClient,
) ([]at, error) {
	here, err := resources.ListReferrers(ctx, &resourcev1.ListReferrersRequest{Target: of.String(), PageSize: shown})
	if err != nil {
		return nil, err
	}
	out := make([]at, len(here.GetDeployments())+1)
	out[0] = at{Deployment: of.Deployment.String(), Answer: message(here)}
	var g errgroup.Group
	g.SetLimit(askAtOnce)
	for i, there := range here.GetDeployments() {
		g.Go(func() error {
			out[i+1] = h.referrersAt(ctx, there, &resourcev1.ListReferrersRequest{
				Target:    of.String(),
				TargetUid: here.GetTargetUid(), PageSize: shown,
			})
			return nil
		})
	}
	_ = g.Wait() // errors are in out
	return out, nil
}

func (h *Handler) referrersAt(ctx context.Context, deployment string, req *resourcev1.ListReferrersRequest) at {
	id, err := schema.ParseDeploymentID(deployment)
	var resources resourcev1.ResourceServiceClient
	if err == nil {
		resources, err = h.of.Resources(ctx, id)
	}
	var found *resourcev1.ListReferrersResponse
	if err == nil {
		found, err = resources.ListReferrers(ctx, req)
	}
	if err != nil {
		return at{Deployment: deployment, Error: plain(err)}
	}
	return at{Deployment: deployment, Answer: message(found)}
}

func (h *Handler) viewOf(ctx context.Context, name schema.FullName, admin adminv1.AdminServiceClient,
	resources resourcev1.ResourceServiceClient,
) *resourceView {
	view := &resourceView{Name: name.String(), Errors: map[string]string{}}
	var found *resourcev1.Resource
	var mu sync.Mutex // of view.Errors
	var g errgroup.Group
	part := func(what string, to *json.RawMessage, ask func() (json.RawMessage, error)) {
		g.Go(func() (err error) {
			if *to, err = ask(); err != nil {
				mu.Lock()
				defer mu.Unlock()
				*to, view.Errors[what] = nil, plain(err)
			}
			return nil
		})
	}
	part("resource", &view.Resource, func() (json.RawMessage, error) {
		m, err := resources.GetResource(ctx, &resourcev1.GetResourceRequest{Name: name.Name})
		found = m
		return message(m), err
	})
	part("explain", &view.Explain, func() (json.RawMessage, error) {
		m, err := admin.Explain(ctx, &adminv1.ExplainRequest{Name: name.Name})
		if err == nil {
			h.others().Explain(ctx, name.Deployment, m)
		}
		return message(m), err
	})
	part("removals", &view.Removals, func() (json.RawMessage, error) {
		m, err := admin.ListRemovals(ctx, &adminv1.ListRemovalsRequest{Name: name.Name, PageSize: 20})
		return message(m), err
	})
	_ = g.Wait() // errors are in the view
	if view.Errors["resource"] == "" {
		var err error
		if view.References, err = h.references(ctx, name, found.GetBody().AsMap()); err != nil {
			view.Errors["references"] = plain(err)
		}
	}
	return view
}

// references derives the references of a resource as its deployment does, by the version of the environment.
func (h *Handler) references(ctx context.Context, name schema.FullName, body map[string]any) ([]reference, error) {
	env, err := h.of.Environment(ctx)
	if err != nil {
		return nil, err
	}
	model, err := env.Model(name.Deployment)
	if err != nil {
		return nil, err
	}
	kind, err := model.KindOf(name.Name)
	if err != nil {
		return nil, err
	}
	if kind.Table != nil {
		return nil, errors.New("a row of a table refers by its columns, which its deployment alone can read")
	}
	found, err := kind.References(name.Deployment, name.Name, body)
	out := make([]reference, len(found))
	for i, f := range found {
		out[i] = reference{f.Path, f.Target.String(), f.Behaviour.String()}
	}
	return out, err
}
