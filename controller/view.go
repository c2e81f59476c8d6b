package controller

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/db-controller/db-controller/constraint/cache"
	"github.com/db-controller/db-controller/schema"
)

// ErrUnknown is the error for a kind that is not watched, and for the name of an unknown index.
var ErrUnknown = errors.New("unknown")

// View is the state of all watched kinds. It does not change: of each deployment it has all transactions up
// to one moment, and none after it. The resources that it returns are copies. Any number of goroutines may
// read it.
type View struct {
	kinds *kinds
	of    map[schema.DeploymentID]*cache.View[*object]
	// positions are tokens.
	positions map[schema.DeploymentID]string
}

// Position is the token of the watch behind the state of a deployment: the changes after it are those that
// the view lacks. `db-controller watch --from` goes on there, and `removals --since` lists the removals
// after it, also while no controller ran. Empty for a deployment that is not watched.
func (v *View) Position(of schema.DeploymentID) string { return v.positions[of] }

// object is a resource in a cache.
type object struct {
	resource *Resource
	kind     Kind // as it was declared
}

// The indexes that each cache has.
const (
	kindIndex  = "kind"
	ownerIndex = "owner"
)

// Get returns a resource of a watched kind. That there is none is no error.
func (v *View) Get(name schema.FullName) (*Resource, bool) {
	o, ok := v.get(name)
	if !ok {
		return nil, false
	}
	return o.resource, true
}

func (v *View) get(name schema.FullName) (*object, bool) {
	if of := v.of[name.Deployment]; of != nil {
		return of.Get(name.Name)
	}
	return nil, false
}

// List goes through the resources of a watched kind, in the order of their names. It fails with ErrUnknown.
func (v *View) List(kind Kind) (iter.Seq[*Resource], error) {
	if !v.kinds.declares(kind) {
		return nil, fmt.Errorf("%w kind %s: it is not watched", ErrUnknown, kind)
	}
	found, err := v.of[kind.Deployment].By(kindIndex, kind.Name)
	return resources(found), err
}

// By goes through the resources that have a key in an index: by deployment, in the order of their names. It
// fails with ErrUnknown.
func (v *View) By(index, key string) (iter.Seq[*Resource], error) {
	var all []iter.Seq[*object]
	for _, id := range schema.SortedDeployments(slices.Collect(maps.Keys(v.of))) {
		found, err := v.of[id].By(index, key)
		if err != nil {
			return nil, fmt.Errorf("%w index %q: there are %s", ErrUnknown, index, v.of[id].Indexes())
		}
		all = append(all, found)
	}
	return resources(all...), nil
}

// Owned goes through the resources of watched kinds of which a resource is an owner.
func (v *View) Owned(by schema.FullName) iter.Seq[*Resource] {
	found, err := v.By(ownerIndex, by.String())
	if err != nil { // each cache has the index
		return func(func(*Resource) bool) {}
	}
	return found
}

func resources(all ...iter.Seq[*object]) iter.Seq[*Resource] {
	return func(yield func(*Resource) bool) {
		for _, found := range all {
			for o := range found {
				if !yield(o.resource) {
					return
				}
			}
		}
	}
}

// newCache makes the cache of a deployment.
func (c *Controller) newCache(of schema.DeploymentID) *cache.Cache[*object] {
	indexes := []cache.Index[*object]{
		{Name: kindIndex, Keys: func(o *object) ([]string, error) { return []string{o.kind.Name}, nil }},
		{Name: ownerIndex, Keys: func(o *object) ([]string, error) { return ownersOf(o.resource) }},
	}
	for _, i := range c.indexes {
		indexes = append(indexes, cache.Index[*object]{Name: i.name, Keys: i.of})
	}
	return cache.New(cache.Config[*object]{
		Kind: of.String(), ID: func(o *object) string { return o.resource.GetName() }, Indexes: indexes,
		Clone: func(o *object) *object { return &object{copyOf(o.resource), o.kind} },
	})
}

// of returns the keys of an object. The function of a user gets a copy.
func (i index) of(o *object) (keys []string, err error) {
	if !slices.Contains(i.kinds, o.kind) {
		return nil, nil
	}
	err = guarded(func() error {
		keys, err = i.keys(copyOf(o.resource))
		return err
	})
	return keys, err
}

// ownersOf returns the full names of the owners.
func ownersOf(r *Resource) (owners []string, err error) {
	for _, o := range r.GetOwnerReferences() {
		name, err := ownerOf(r, o.GetName())
		if err != nil {
			return nil, err
		}
		if !slices.Contains(owners, name.String()) {
			owners = append(owners, name.String())
		}
	}
	return owners, nil
}

// ownerOf completes the name of an owner: a relative one is of the same deployment.
func ownerOf(r *Resource, owner string) (schema.FullName, error) {
	if strings.HasPrefix(owner, "//") {
		return schema.ParseFullName(owner)
	}
	return schema.FullName{Deployment: deploymentOf(r), Name: owner}, nil
}

func nameOf(r *Resource) schema.FullName {
	return schema.FullName{Deployment: deploymentOf(r), Name: r.GetName()}
}

func deploymentOf(r *Resource) schema.DeploymentID {
	service, region, _ := strings.Cut(r.GetDeployment(), "/")
	return schema.DeploymentID{Service: service, Region: region}
}

func copyOf(r *Resource) *Resource { return proto.CloneOf(r) }
