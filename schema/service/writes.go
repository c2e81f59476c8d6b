package service

import (
	"errors"
	"fmt"
	"slices"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/schema/service/writes"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/schema/violation"
	"github.com/db-controller/db-controller/schema/wire"
)

// invalidIn returns an error of the store with the fields of the request that it is about. Other errors than
// *peer.InvalidError stay.
func (r *resources) invalidIn(in writes.Request, err error) error {
	var invalid *peer.InvalidError
	if !errors.As(err, &invalid) {
		return err
	}
	i := slices.IndexFunc(in.All, func(w *resourcev1.BatchWriteResourcesRequest_Write) bool {
		name, _ := ownName(r.self, writes.Resource(w).GetName())
		if invalid.Resource != "" || r.model() == nil {
			return name == invalid.Resource
		}
		_, unfit := r.model().KindOf(name) // whose error has no resource, because it contains the name
		return unfit != nil
	})
	return in.Invalid(i, err)
}

func (r *resources) writes(in writes.Request) (out []peer.Write, err error) {
	out = make([]peer.Write, len(in.All))
	for i, w := range in.All {
		if out[i], err = r.write(w); err != nil {
			return nil, in.Invalid(i, err)
		}
	}
	return out, nil
}

// errNoBody refuses a write that replaces everything and has no body: an empty resource is most likely not
// intended.
var errNoBody = errors.New(
	"the body is missing, and the write would replace the whole resource: give the whole body, an empty one for none; to keep fields, update with a mask; to create only, send a create")

func (r *resources) write(in *resourcev1.BatchWriteResourcesRequest_Write) (w peer.Write, err error) {
	p := writes.Resource(in)
	if p == nil {
		return w, &peer.InvalidError{
			Resource: "resource",
			Err:      violation.In("", errors.New("is missing: give the resource to write")),
		}
	}
	switch in := in.GetWrite().(type) {
	case *resourcev1.BatchWriteResourcesRequest_Write_Create:
		w.Mode = peer.Create
	case *resourcev1.BatchWriteResourcesRequest_Write_Update:
		w.Mode, w.Mask = peer.Update, in.Update.GetUpdateMask().GetPaths()
	}
	if w.Name, err = ownName(r.self, p.GetName()); err != nil {
		return w, violation.In("name", err)
	}
	if p.GetBody() == nil && w.Mode != peer.Create && len(w.Mask) == 0 {
		return w, &peer.InvalidError{Resource: w.Name, Err: violation.In("body", errNoBody)}
	}
	if err := wire.CheckObject("body", p.GetBody(), wire.Bounds{
		Bytes:  shadow.MaxBodyBytes,
		Levels: shadow.MaxBodyDepth,
	}); err != nil {
		return w, &peer.InvalidError{Resource: w.Name, Err: err}
	}
	w.Revision, w.Labels, w.Body = peer.Revision(p.GetRevision()), p.GetLabels(), p.GetBody().AsMap()
	if w.UID, err = optionalUUID("uid", p.GetUid()); err != nil {
		return w, err
	}
	if w.Owners, err = owners(r.self, p.GetOwnerReferences()); err != nil {
		return w, err
	}
	return w, r.checkKind(p, w.Name)
}

// checkKind refuses a kind that differs from the kind of the name.
func (r *resources) checkKind(p *resourcev1.Resource, name string) error {
	model := r.model()
	if p.GetKind() == "" || model == nil {
		return nil
	}
	given := model.Canonical(schema.KindID{Service: r.self.Service, Kind: p.GetKind()})
	if _, err := model.Kind(given.Kind); err != nil {
		return &peer.InvalidError{Resource: name, Err: violation.In("kind", err)}
	}
	if kind, err := model.KindOf(name); err == nil && kind.ID != given {
		return &peer.InvalidError{
			Resource: name,
			Err: violation.In("kind", fmt.Errorf("kind %q does not fit the name, which is of kind %s", p.GetKind(),
				kind.ID.Kind)),
		}
	}
	return nil
}
