package embed

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/internal/jsonbody"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// Mode is the condition of a Write.
type Mode int

// Put creates a resource, or replaces all its fields; Create fails with ErrExists when it exists, Update with
// ErrNotFound when it does not.
const (
	Put Mode = iota
	Create
	Update
)

// Write is one resource to create or to update.
type Write struct {
	Mode Mode
	// Name is relative to the deployment, such as devices/d1, or the full name.
	Name string
	// UID and Revision of the stored resource; ErrNotFound or ErrConflict if it has others. The zero values
	// match any.
	UID      uuid.UUID
	Revision int64
	Labels   map[string]string
	// Body is the whole new body: a struct or a map, which encoding/json converts to an object; nil for an
	// empty one.
	Body   any
	Owners []Owner
	// Mask of an Update: the fields that it replaces (labels, labels.<key>, owner_references, body,
	// body.<field>); nil: all of them.
	Mask []string
}

// Owner is an owner of a resource, which is deleted with its last owner.
type Owner struct {
	Name schema.FullName
	Kind string
	// UID of the owner. In a Write the zero value stands for the uid of the present owner of this name.
	UID uuid.UUID
	// Controller marks the managing owner for readers.
	Controller bool
	// Requires: the owner counts only while it refers to the resource itself.
	Requires bool
}

// Resource is a stored resource.
type Resource struct {
	Name string // relative
	Kind string
	UID  uuid.UUID
	// Revision increases with every change, Generation with every change of the body.
	Revision, Generation int64
	// Deleting: the resource is being deleted. Finalizers are the finalizers that are left then.
	Deleting   bool
	Finalizers []string
	Labels     map[string]string
	Owners     []Owner
	Body       json.RawMessage
	// Status is the report of a controller, nil for none, and StatusGeneration increases with its changes.
	Status           json.RawMessage
	StatusGeneration int64
	Created, Updated time.Time
}

// Deleted is the result of a delete.
type Deleted struct {
	// Removed: the resource is gone. Otherwise it is in DELETING, because others have to act first.
	Removed bool
	// Resource in DELETING; nil when removed.
	Resource *Resource
	// Deletion identifies the deletion in all deployments.
	Deletion uuid.UUID
	// Unasked are deployments that could not be asked in advance whether the deletion is blocked there: it
	// may wait for them.
	Unasked []schema.DeploymentID
}

// relative returns the relative name of a resource of the application's deployment.
func (a *Application) relative(name string) (string, error) {
	if !strings.HasPrefix(name, "//") {
		return name, nil
	}
	full, err := schema.ParseFullName(name)
	if err == nil && full.Deployment != a.cfg.Deployment {
		err = fmt.Errorf("it is a resource of %s: the application writes resources of %s", full.Deployment,
			a.cfg.Deployment)
	}
	if err != nil {
		return "", &InvalidError{Name: name, err: err}
	}
	return full.Name, nil
}

func (a *Application) peerWrites(writes []Write) ([]peer.Write, error) {
	all := make([]peer.Write, len(writes))
	for i, w := range writes {
		name, err := a.relative(w.Name)
		if err != nil {
			return nil, err
		}
		body, err := jsonbody.Of(w.Body)
		if err != nil {
			return nil, &InvalidError{Name: w.Name, err: err}
		}
		all[i] = peer.Write{
			Mode: peer.Mode(w.Mode), Name: name, UID: w.UID, Revision: peer.Revision(w.Revision), Labels: w.Labels,
			Body: body, Mask: w.Mask,
		}
		for _, o := range w.Owners {
			all[i].Owners = append(all[i].Owners, peer.OwnerReference{
				Owner: o.Name, Kind: o.Kind, UID: o.UID,
				Controller: o.Controller, Requires: o.Requires,
			})
		}
	}
	return all, nil
}

func resourceOf(r *peer.Resource) Resource {
	if r == nil {
		return Resource{}
	}
	made := Resource{
		Name: r.Name, Kind: r.Kind, UID: r.UID, Revision: int64(r.Revision), Generation: r.Generation,
		Deleting: r.State == peer.Deleting, Finalizers: r.Finalizers, Labels: r.Labels, Body: r.Body,
		Status: r.Status, StatusGeneration: r.StatusGeneration, Created: r.CreatedAt, Updated: r.UpdatedAt,
	}
	for _, o := range r.Owners {
		made.Owners = append(made.Owners, Owner{
			Name: o.Owner, Kind: o.Kind, UID: o.UID, Controller: o.Controller,
			Requires: o.Requires,
		})
	}
	return made
}

func resourcesOf(all []peer.Resource) []Resource {
	made := make([]Resource, len(all))
	for i := range all {
		made[i] = resourceOf(&all[i])
	}
	return made
}

func deletedOf(d peer.DeleteResult) Deleted {
	made := Deleted{Removed: d.Removed, Deletion: d.Deletion}
	if d.Resource != nil {
		r := resourceOf(d.Resource)
		made.Resource = &r
	}
	for _, u := range d.Unasked {
		made.Unasked = append(made.Unasked, u.Deployment)
	}
	return made
}
