package cache

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/tidwall/btree"
)

// ErrUnknown is the error for the name of an unknown index or query.
var ErrUnknown = errors.New("unknown")

// View is one version of a cache. It does not change, and any number of goroutines may read it.
type View[T any] struct {
	cfg     *Config[T]
	primed  bool
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

// Primed reports whether the view has a whole snapshot.
func (v *View[T]) Primed() bool { return v.primed }

// Len is the number of objects.
func (v *View[T]) Len() int { return v.objects.Len() }

// Get finds an object by its id. That there is none is no error.
func (v *View[T]) Get(id string) (o T, ok bool) {
	if o, ok = v.objects.Get(id); ok {
		o = v.give(o)
	}
	return o, ok
}

// All goes through all objects in the order of their ids.
func (v *View[T]) All() iter.Seq[T] {
	return func(yield func(T) bool) {
		v.objects.Scan(func(_ string, o T) bool { return yield(v.give(o)) })
	}
}

// By goes through the objects that have a key in an index, in the order of their ids.
func (v *View[T]) By(index, key string) (iter.Seq[T], error) {
	return v.from(index, key+separator)
}

// WithPrefix goes through the objects that have a key with a prefix in an index, in the order of the keys. An object with
// several such keys comes several times.
func (v *View[T]) WithPrefix(index, prefix string) (iter.Seq[T], error) {
	return v.from(index, prefix)
}

func (v *View[T]) from(index, prefix string) (iter.Seq[T], error) {
	i := slices.IndexFunc(v.cfg.Indexes, func(i Index[T]) bool { return i.Name == index })
	if i < 0 {
		return nil, fmt.Errorf("cache of %s: %w index %q: there are %s", v.cfg.Kind, ErrUnknown, index, v.names())
	}
	return func(yield func(T) bool) {
		v.indexes[i].Ascend(prefix, func(key string, o T) bool {
			return strings.HasPrefix(key, prefix) && yield(v.give(o))
		})
	}, nil
}

func (v *View[T]) names() string {
	names := make([]string, len(v.cfg.Indexes))
	for i, index := range v.cfg.Indexes {
		names[i] = index.Name
	}
	return "[" + strings.Join(names, " ") + "]"
}

// Query runs a query by its name.
func (v *View[T]) Query(name string, args ...any) ([]T, error) {
	i := slices.IndexFunc(v.cfg.Queries, func(q Query[T]) bool { return q.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("cache of %s: %w query %q", v.cfg.Kind, ErrUnknown, name)
	}
	found, err := v.cfg.Queries[i].Run(v, args...)
	if err != nil {
		return nil, fmt.Errorf("cache of %s, query %s: %w", v.cfg.Kind, name, err)
	}
	return found, nil
}

// Parents returns the objects whose ids are prefixes of a hierarchical id (projects/acme/devices/d1), the outermost first.
func (v *View[T]) Parents(id string) []T {
	var parents []T
	for at, slashes := 0, 0; at < len(id); at++ {
		if id[at] != '/' {
			continue
		}
		if slashes++; slashes%2 == 0 { // a collection and an id each
			if o, ok := v.Get(id[:at]); ok {
				parents = append(parents, o)
			}
		}
	}
	return parents
}

func joined(errs []error) error { return errors.Join(errs...) }
