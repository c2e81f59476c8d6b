package console

import (
	"context"
	"net/http"

	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
)

// registry is implemented by the Deployments of an operator: the registry tells only operators who changed
// it.
type registry interface {
	Registry() registryv1.RegistryServiceClient
}

// changes answers with the newest changes of the environment.
func (h *Handler) changes(w http.ResponseWriter, r *http.Request) {
	of, ok := h.of.(registry)
	if !ok {
		refuse(w, http.StatusNotFound,
			"operators see who changed the environment: with db-controller console, or db-controller history")
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), lookupTimeout)
	defer cancel()
	found, err := of.Registry().ListRevisions(ctx, &registryv1.ListRevisionsRequest{})
	if err != nil {
		refuse(w, http.StatusBadGateway, plain(err))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(message(found)) // the browser has gone
}
