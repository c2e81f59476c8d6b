package console

import (
	"context"
	"net/http"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/db-controller/db-controller/internal/detach"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

const (
	// listedResources is the number of resources in a page of a list.
	listedResources = 50
	// planTimeout bounds a plan, which asks all deployments that a deletion reaches.
	planTimeout = 25 * time.Second
)

// resources answers with a page of the resources of ?deployment=, of ?kind=, whose names begin with ?prefix=,
// after ?page=; with ?deleted=1 also those that a deletion has hidden.
func (h *Handler) resources(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	id, err := schema.ParseDeploymentID(q.Get("deployment"))
	if err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	req := &resourcev1.ListResourcesRequest{
		Kind: q.Get("kind"), PageSize: listedResources, PageToken: q.Get("page"), ShowDeleted: q.Get("deleted") != "",
		ReadMask: &fieldmaskpb.FieldMask{Paths: []string{
			"name", "kind", "state", "uid", "create_time", "update_time",
			"purge_time", "labels",
		}},
	}
	if prefix := q.Get("prefix"); prefix != "" {
		if strings.ContainsAny(prefix, `"\*`) {
			refuse(w, http.StatusBadRequest, `prefix: want the beginning of a name, without ", \ and *`)
			return
		}
		req.Filter = `name = "` + prefix + `*"`
	}
	ctx, cancel := context.WithTimeout(r.Context(), lookupTimeout)
	defer cancel()
	at, err := h.of.Resources(ctx, id)
	var page *resourcev1.ListResourcesResponse
	if err == nil {
		page, err = at.ListResources(ctx, req)
	}
	if err != nil {
		refuse(w, http.StatusBadGateway, plain(err))
		return
	}
	reply(w, message(page))
}

// plan answers with what a delete of the resource of the full name ?name= would do in all deployments.
func (h *Handler) plan(w http.ResponseWriter, r *http.Request) {
	name, err := schema.ParseFullName(r.URL.Query().Get("name"))
	if err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), planTimeout)
	defer cancel()
	at, err := h.of.Resources(ctx, name.Deployment)
	var plan *resourcev1.PlanDeletionResponse
	if err == nil {
		plan, err = at.PlanDeletion(ctx, &resourcev1.PlanDeletionRequest{Name: name.Name, MaxSamples: 5, PageSize: 100})
	}
	if err != nil {
		refuse(w, http.StatusBadGateway, plain(err))
		return
	}
	reply(w, message(plan))
}

// delete deletes a resource; with a retention it is hidden for that time, in which it can be undeleted.
func (h *Handler) delete(ctx context.Context, id schema.DeploymentID, name, retention string) error {
	req := &resourcev1.DeleteResourceRequest{Name: name}
	if retention != "" {
		d, err := schema.ParseRetention(retention)
		if err != nil {
			return err
		}
		req.Retention = durationpb.New(d)
	}
	resources, err := h.of.Resources(ctx, id)
	if err != nil {
		return err
	}
	_, err = resources.DeleteResource(ctx, req)
	return err
}

func (h *Handler) undelete(ctx context.Context, id schema.DeploymentID, name string) error {
	resources, err := h.of.Resources(ctx, id)
	if err != nil {
		return err
	}
	_, err = resources.UndeleteResource(ctx, &resourcev1.UndeleteResourceRequest{Name: name})
	return err
}

func (h *Handler) detach(ctx context.Context, holder schema.FullName, path, target string) error {
	resources, err := h.of.Resources(ctx, holder.Deployment)
	if err != nil {
		return err
	}
	return detach.Reference(ctx, resources, holder, path, target)
}
