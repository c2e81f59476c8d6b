package cache

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/tidwall/btree"
)

// ErrUnknown is the error for the name of an unknown index.
var ErrUnknown = errors.New("unknown")

// View is one version of a cache. It does not change, and any number of goroutines may read it.
type View[T any] struct {
	cfg     *Config[T]
	objects *btree.Map[string, T]
	indexes []*btree.Map[string, T]
	clone   func(T) T // nil: without copies
}

func (v *View[T]) give(o T) T {
	if v.clone != nil {
		return v.clone(o)
	}
	return o
}

// Get finds an object by its id. That there is none is no error.
func (v *View[T]) Get(id string) (o T, ok bool) {
	if o, ok = v.objects.Get(id); ok {
		o = v.give(o)
	}
	return o, ok
}

// By goes through the objects that have a key in an index, in the order of their ids.
func (v *View[T]) By(index, key string) (iter.Seq[T], error) {
	i := slices.IndexFunc(v.cfg.Indexes, func(i Index[T]) bool { return i.Name == index })
	if i < 0 {
		return nil, fmt.Errorf("cache of %s: %w index %q: there are %s", v.cfg.Kind, ErrUnknown, index, v.Indexes())
	}
	prefix := key + separator
	return func(yield func(T) bool) {
		v.indexes[i].Ascend(prefix, func(at string, o T) bool {
			return strings.HasPrefix(at, prefix) && yield(v.give(o))
		})
	}, nil
}

// Indexes returns the names of the indexes.
func (v *View[T]) Indexes() []string {
	names := make([]string, len(v.cfg.Indexes))
	for i, index := range v.cfg.Indexes {
		names[i] = index.Name
	}
	return names
}

func joined(errs []error) error { return errors.Join(errs...) }
