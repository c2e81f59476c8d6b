package cache

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/tidwall/btree"
)

// Index finds objects by keys other than their ids.
type Index[T any] struct {
	Name string
	// Keys of an object: none, one, or many. Computed from the object alone, they change only with it.
	Keys func(T) ([]string, error)
}

// Config of a Cache. Kind and ID are needed.
type Config[T any] struct {
	// Kind is for messages.
	Kind string
	// ID of an object, never empty, and Version, which grows with its changes; nil: a later object is newer.
	ID      func(T) string
	Version func(T) int64
	Indexes []Index[T]
	// Clone makes a deep copy of an object. Copies needs it.
	Clone func(T) T
}

// Cache of one kind of objects.
type Cache[T any] struct {
	cfg Config[T]

	mu      sync.Mutex
	primed  bool                    // guarded by mu
	objects *btree.Map[string, T]   // guarded by mu
	indexes []*btree.Map[string, T] // guarded by mu; by key, a separator, and id
	view    *View[T]                // guarded by mu; nil after a write
	stale   map[string]bool         // guarded by mu; between Begin and End: the ids that were not sent yet
}

// New makes an empty cache.
func New[T any](cfg Config[T]) *Cache[T] {
	c := &Cache[T]{cfg: cfg, objects: &btree.Map[string, T]{}, indexes: make([]*btree.Map[string, T], len(cfg.Indexes))}
	for i := range c.indexes {
		c.indexes[i] = &btree.Map[string, T]{}
	}
	return c
}

// separator of key and id in an index. No id or key has it; an id or a key with it is refused.
const separator = "\x00"

// Begin begins a stream: objects that it does not send until End are gone then. Until End the cache is not
// primed.
func (c *Cache[T]) Begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.primed, c.stale, c.view = false, make(map[string]bool, c.objects.Len()), nil
	c.objects.Scan(func(id string, _ T) bool { c.stale[id] = true; return true })
}

// End completes the snapshot, and returns the objects that it lacked: they are deleted.
func (c *Cache[T]) End() (gone []T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range c.stale {
		if o, ok := c.remove(id); ok {
			gone = append(gone, o)
		}
	}
	slices.SortFunc(gone, func(a, b T) int { return strings.Compare(c.cfg.ID(a), c.cfg.ID(b)) })
	c.primed, c.stale, c.view = true, nil, nil
	return gone
}

// Lost notes that the stream ended: the objects stay, and may be out of date.
func (c *Cache[T]) Lost() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.primed, c.view = false, nil
}

// Upsert stores objects, and returns the new ones, and the ones newer than the stored version. An object that
// an index refuses is not stored, in no index; the others are, and the error names each refused one.
func (c *Cache[T]) Upsert(objects ...T) (changed []T, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var refused []error
	for _, o := range objects {
		id := c.cfg.ID(o)
		keys, kerr := c.keys(id, o)
		if kerr != nil {
			refused = append(refused, kerr)
			continue
		}
		delete(c.stale, id)
		old, known := c.objects.Get(id)
		if known && c.cfg.Version != nil && c.cfg.Version(old) >= c.cfg.Version(o) {
			continue
		}
		if known {
			c.unindex(id, old)
		}
		c.view = nil
		c.objects.Set(id, o)
		for i, index := range keys {
			for _, key := range index {
				c.indexes[i].Set(key+separator+id, o)
			}
		}
		changed = append(changed, o)
	}
	return changed, joined(refused)
}

// keys computes all keys of an object before an index changes.
func (c *Cache[T]) keys(id string, o T) ([][]string, error) {
	if id == "" || strings.Contains(id, separator) {
		return nil, fmt.Errorf("cache of %s: the id %q cannot be one", c.cfg.Kind, id)
	}
	all := make([][]string, len(c.cfg.Indexes))
	for i, index := range c.cfg.Indexes {
		keys, err := index.Keys(o)
		switch {
		case err != nil:
			return nil, fmt.Errorf("cache of %s, index %s: %s: %w", c.cfg.Kind, index.Name, id, err)
		case slices.ContainsFunc(keys, func(k string) bool { return strings.Contains(k, separator) }):
			return nil, fmt.Errorf("cache of %s, index %s: %s has a key with a NUL character", c.cfg.Kind,
				index.Name, id)
		}
		all[i] = keys
	}
	return all, nil
}

func (c *Cache[T]) unindex(id string, o T) {
	for i, index := range c.cfg.Indexes {
		keys, _ := index.Keys(o) // it was taken with these
		for _, key := range keys {
			c.indexes[i].Delete(key + separator + id)
		}
	}
}

// Delete removes objects by their ids, and returns them. With a version, it removes only objects that are not
// newer: a delete that arrives late does not remove a newer incarnation.
func (c *Cache[T]) Delete(version int64, ids ...string) (gone []T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range ids {
		if o, ok := c.objects.Get(id); !ok || version > 0 && c.cfg.Version(o) > version {
			continue
		}
		if o, ok := c.remove(id); ok {
			gone = append(gone, o)
		}
	}
	return gone
}

func (c *Cache[T]) remove(id string) (o T, ok bool) {
	if o, ok = c.objects.Delete(id); ok {
		c.unindex(id, o)
		c.view = nil
	}
	delete(c.stale, id)
	return o, ok
}

// Primed reports whether the stream has sent its whole snapshot.
func (c *Cache[T]) Primed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.primed
}

// Len is the number of objects.
func (c *Cache[T]) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.objects.Len()
}

// View returns the current version, without copies: its objects must not be changed.
func (c *Cache[T]) View() *View[T] {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.view == nil {
		v := &View[T]{cfg: &c.cfg, objects: c.objects.Copy(), indexes: make([]*btree.Map[string, T], len(c.indexes))}
		for i, index := range c.indexes {
			v.indexes[i] = index.Copy()
		}
		c.view = v
	}
	return c.view
}

// Copies returns the current version for code that may change objects: every object that it returns is a
// copy.
func (c *Cache[T]) Copies() *View[T] {
	v := *c.View()
	v.clone = c.cfg.Clone
	return &v
}
