package console

import (
	"context"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"strings"

	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
)

// maxActionBytes bounds the body of an action.
const maxActionBytes = 8 << 10

// action is a request of a person to a deployment. The deployment checks the rights of the person, and stores
// the reason.
type action struct {
	// Do is pause, resume, retry, delete, detach or undelete.
	Do         string `json:"do"`
	Deployment string `json:"deployment"`
	// Handler is the one to pause or resume; empty: deletions.
	Handler string `json:"handler"`
	// Of is the other deployment for which it is done; empty: all.
	Of string `json:"of"`
	// Name is the full name of the resource to retry, delete, detach or undelete; empty: the work of the
	// deployment is retried.
	Name string `json:"name"`
	// Path and Target are the reference that detach removes from the resource.
	Path   string `json:"path"`
	Target string `json:"target"`
	Reason string `json:"reason"`
	// Retention is the time for which a delete hides the resource, such as 7d; empty: as its kind says.
	Retention string `json:"retention"`
}

// AllowActions lets people pause, resume, retry, delete, detach and undelete from the page, which only reads
// without it. It is called before the handler serves.
func (h *Handler) AllowActions() *Handler {
	h.acts = true
	h.mux.HandleFunc("POST /api/action", h.act)
	return h
}

// act does an action. A page of another site cannot ask for it: browsers send the cookie of this site to this
// site alone, name the site of the page, and send JSON of another site only after a permission that this
// server does not give.
func (h *Handler) act(w http.ResponseWriter, r *http.Request) {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		refuse(w, http.StatusUnsupportedMediaType, "want application/json")
		return
	}
	if !ownPage(r) {
		refuse(w, http.StatusForbidden, "only a page of this console may ask this")
		return
	}
	var a action
	body := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxActionBytes))
	body.DisallowUnknownFields()
	if err := body.Decode(&a); err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), lookupTimeout)
	defer cancel()
	if err := h.carryOut(ctx, a); err != nil {
		refuse(w, http.StatusConflict, plain(err))
		return
	}
	reply(w, struct{}{})
}

// ownPage reports whether a request comes from a page of this server. Both headers are of browsers, which
// pages cannot change.
func ownPage(r *http.Request) bool {
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" {
		return false
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	from, err := url.Parse(origin)
	return err == nil && strings.EqualFold(from.Host, r.Host)
}

func (h *Handler) carryOut(ctx context.Context, a action) error {
	name := ""
	if a.Name != "" {
		full, err := schema.ParseFullName(a.Name)
		if err != nil {
			return err
		}
		a.Deployment, name = full.Deployment.String(), full.Name
	}
	id, err := schema.ParseDeploymentID(a.Deployment)
	if err != nil {
		return err
	}
	admin, err := h.of.Admin(ctx, id)
	if err != nil {
		return err
	}
	switch a.Do {
	case "pause":
		_, err = admin.Pause(ctx, &adminv1.PauseRequest{Of: a.Of, Handler: a.Handler, Reason: a.Reason})
	case "resume":
		_, err = admin.Resume(ctx, &adminv1.ResumeRequest{Of: a.Of, Handler: a.Handler, Reason: a.Reason})
	case "retry":
		_, err = admin.Retry(ctx, &adminv1.RetryRequest{Of: a.Of, Name: name, Reason: a.Reason})
	case "delete":
		err = h.delete(ctx, id, name, a.Retention)
	case "undelete":
		err = h.undelete(ctx, id, name)
	case "detach":
		err = h.detach(ctx, schema.FullName{Deployment: id, Name: name}, a.Path, a.Target)
	default:
		err = fmt.Errorf("do=%s: want pause, resume, retry, delete, detach or undelete", a.Do)
	}
	return err
}
