package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/schema"
)

// batch is whole transactions of one deployment.
type batch struct {
	from    schema.DeploymentID
	changes []change
	synced  bool // all resources were delivered
	// position is the token behind the batch; empty: the source has given none.
	position string
}

// change is a stored resource, or a removed one.
type change struct {
	stored  *object // nil: removed
	removed string  // relative name
}

// query selects the watched kinds of a deployment: one watch delivers them all, so that they are known at one
// moment.
func (k *kinds) query(id schema.DeploymentID) (client.WatchQuery, error) {
	q := client.WatchQuery{Bookmarks: true}
	var names []string
	for _, root := range slices.Sorted(maps.Keys(k.declared[id])) {
		name, err := k.present(k.declared[id][root])
		if err != nil {
			return q, err
		}
		names = append(names, name)
	}
	if len(names) == 1 {
		q.Kind = names[0]
		return q, nil
	}
	for i, name := range names {
		names[i] = fmt.Sprintf("kind = %q", name)
	}
	q.Filter = strings.Join(names, " OR ")
	return q, nil
}

// follow sends the changes of a deployment, until ctx ends or the watch is refused. A batch waits for the
// loop: the deployment sends no more than is taken.
func (l *loop) follow(ctx context.Context, id schema.DeploymentID) error {
	q, err := l.kinds.query(id)
	if err != nil {
		return err
	}
	q.Interrupted = func(err error) {
		if err == nil {
			l.c.log.Info("a watch goes on", zap.Stringer("deployment", id))
			return
		}
		l.c.log.Warn("a watch is interrupted, it is tried again", zap.Stringer("deployment", id), zap.Error(err))
	}
	b := batch{from: id}
	for e, err := range l.c.source.Watch(ctx, id, q) {
		if err == nil {
			err = l.collect(ctx, &b, e)
		}
		if err != nil {
			return fmt.Errorf("the watch of %s: %w", id, err)
		}
		if e.Token == "" && e.Type != client.Synced { // within a snapshot, or within a transaction
			continue
		}
		b.position = e.Token
		select {
		case <-ctx.Done():
			return ctx.Err()
		case l.batches <- b:
		}
		b = batch{from: id}
	}
	return ctx.Err()
}

// collect adds an event to a batch.
func (l *loop) collect(ctx context.Context, b *batch, e client.Event) error {
	switch e.Type {
	case client.Synced:
		b.synced = true
	case client.Deleted:
		b.changes = append(b.changes, change{removed: e.Resource.GetName()})
	case client.Upserted:
		kind, err := l.kinds.ofResource(ctx, b.from, e.Resource)
		if err != nil {
			return err
		}
		b.changes = append(b.changes, change{stored: &object{e.Resource, kind}})
	case client.Bookmark:
	}
	return nil
}
