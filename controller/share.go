package controller

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/client"
)

// memberField of a shard's lease is the uid of the membership of the process that has it.
const memberField = "member"

// sharer gets shards and gives them up. A process is a lease that it renews, its membership. A shard is a
// lease that names a membership; it is not renewed. Each shard belongs to one of the memberships that are
// alive.
//
// All state belongs to the goroutine of run. The end of the membership is a timer, which no slow call delays.
type sharer struct {
	*Sharing
	loop   *loop
	leases map[string]*lease // that were seen
	held   map[int]*tenure   // including shards that are given up, until their leases are removed

	name    string             // of the membership
	member  string             // its uid; empty: there is none
	renewed time.Time          // before the last call that renewed it
	ctx     context.Context    //nolint:containedctx // ends with the membership
	end     context.CancelFunc // ends the membership
	expiry  *time.Timer        // calls end
}

// lease is a lease as it was seen, and when it was seen to change.
type lease struct {
	resource *Resource
	since    time.Time
}

func (l *lease) uid() string { return l.resource.GetUid() }
func (l *lease) of() string {
	return l.resource.GetBody().GetFields()[memberField].GetStringValue()
}

func (s *Sharing) isMember(name string) bool { return strings.HasPrefix(name, s.Prefix+"member-") }
func (s *Sharing) shardName(i int) string    { return s.Prefix + "shard-" + strconv.Itoa(i) }
func (s *Sharing) full(name string) string   { return "//" + s.Kind.Deployment.String() + "/" + name }

// share shares the resources until ctx ends; then it gives up all shards, when their runs have ended.
func (l *loop) share(ctx context.Context) error {
	s := &sharer{Sharing: l.c.sharing, loop: l, leases: map[string]*lease{}, held: map[int]*tenure{}}
	batches, failed := make(chan []client.Event), make(chan error, 1)
	l.workers.Go(func() { failed <- s.follow(ctx, batches) })
	tick := time.NewTicker(s.Duration / 10)
	defer tick.Stop()
	for synced := false; ; {
		select {
		case <-ctx.Done():
			s.leave(context.WithoutCancel(ctx), tick.C)
			return nil
		case err := <-failed:
			if ctx.Err() == nil {
				return err
			}
			continue
		case batch := <-batches:
			s.take(batch)
			synced = true
		case <-tick.C:
		}
		if synced {
			s.step(ctx)
		}
	}
}

// follow sends the changes of the leases, in whole transactions: a membership is never seen later than a
// shard that names it.
func (s *sharer) follow(ctx context.Context, batches chan<- []client.Event) error {
	var batch []client.Event
	for e, err := range s.loop.c.source.Watch(ctx, s.Kind.Deployment, client.WatchQuery{
		Kind:      s.Kind.Name,
		Bookmarks: true,
	}) {
		if err != nil {
			return fmt.Errorf("the watch of the leases: %w", err)
		}
		if batch = append(batch, e); e.Token == "" && e.Type != client.Synced {
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case batches <- batch:
		}
		batch = nil
	}
	return ctx.Err()
}

func (s *sharer) take(batch []client.Event) {
	for _, e := range batch {
		switch name := e.Resource.GetName(); {
		case e.Type == client.Deleted:
			delete(s.leases, name)
		case e.Type == client.Upserted && strings.HasPrefix(name, s.Prefix):
			s.leases[name] = &lease{e.Resource, time.Now()}
		}
	}
}

// step makes the writes that are due. A failed one is tried again in the next step: each write is conditional
// on the revision that was read.
func (s *sharer) step(ctx context.Context) {
	call, cancel := context.WithTimeout(ctx, s.Duration/6)
	defer cancel()
	err := s.stay(ctx, call)
	if err != nil {
		s.loop.c.log.Warn("the membership could not be renewed", zap.String("lease", s.name), zap.Error(err))
		return
	}
	alive := s.alive(call)
	for i := range s.Shards {
		if err := s.settle(call, i, s.belongs(i, alive)); err != nil && ctx.Err() == nil {
			s.loop.c.log.Info("a shard is not settled yet", zap.Int("shard", i), zap.Error(err))
		}
	}
}

// stay makes the membership, or renews it: it lasts two thirds of the duration from before the call.
func (s *sharer) stay(ctx, call context.Context) error {
	now := time.Now()
	switch {
	case s.member == "" || s.ctx.Err() != nil:
		return s.join(ctx, call, now)
	case now.Sub(s.renewed) < s.Duration/3:
		return nil
	}
	err := s.renew(call, now)
	if isGone(err) { // another process has removed it
		s.end()
	}
	return err
}

func (s *sharer) renew(ctx context.Context, now time.Time) error {
	r := &Resource{
		Name: s.full(s.name), Uid: s.member,
		Labels: map[string]string{"renewed": strconv.FormatInt(now.UnixNano(), 36)},
	}
	_, err := s.Writer.Update(ctx, r, "labels.renewed")
	if err == nil {
		s.lasts(now)
	}
	return err
}

// join makes a membership, under a name that no other one has had: a late repetition of an earlier call makes
// none that counts.
func (s *sharer) join(ctx, call context.Context, now time.Time) error {
	s.member, s.name = "", s.Prefix+"member-"+uuid.NewString()
	r, err := s.Writer.Create(call, &Resource{Name: s.full(s.name), Body: &structpb.Struct{}})
	if err != nil {
		return err
	}
	s.ctx, s.end = context.WithCancel(ctx)
	s.member, s.leases[s.name] = r.GetUid(), &lease{r, now}
	s.expiry = time.AfterFunc(s.Duration*2/3, s.end)
	s.lasts(now)
	return nil
}

// lasts moves the end of the membership, unless it has ended.
func (s *sharer) lasts(from time.Time) {
	if s.renewed = from; s.expiry.Stop() {
		s.expiry = time.AfterFunc(time.Until(from.Add(s.Duration*2/3)), s.end)
	}
}

// leave gives everything up, when all runs have ended. Until then it renews the membership.
func (s *sharer) leave(ctx context.Context, tick <-chan time.Time) {
	if s.member == "" {
		return
	}
	idle := make(chan struct{})
	s.loop.workers.Go(func() {
		<-s.loop.stopped
		s.loop.runners.Wait()
		close(idle)
	})
	for ended := false; !ended; {
		select {
		case <-idle:
			ended = true
		case now := <-tick:
			s.during(ctx, func(call context.Context) { _ = s.renew(call, now) })
		}
	}
	s.expiry.Stop()
	s.during(ctx, func(call context.Context) { // or it expires
		for _, t := range s.held {
			_ = s.remove(call, t)
		}
		_, _ = s.Writer.Delete(call, s.full(s.name), client.Version{UID: s.member})
	})
}

// during makes calls, for not too long.
func (s *sharer) during(ctx context.Context, calls func(context.Context)) {
	ctx, cancel := context.WithTimeout(ctx, s.Duration/6)
	defer cancel()
	calls(ctx)
}

// alive returns the uids of the memberships that are alive, and removes the expired ones unless they were
// renewed meanwhile.
func (s *sharer) alive(ctx context.Context) map[string]bool {
	alive := map[string]bool{}
	for name, l := range s.leases {
		if !s.isMember(name) {
			continue
		}
		if l.uid() != s.member && time.Since(l.since) >= s.Duration {
			_, err := s.Writer.Delete(ctx, s.full(name),
				client.Version{UID: l.uid(), Revision: l.resource.GetRevision()})
			if err == nil || errors.Is(err, client.ErrNotFound) {
				continue
			}
		}
		alive[l.uid()] = true
	}
	return alive
}

// belongs returns the membership to which a shard belongs, by rendezvous hashing: few shards move when
// processes come and go.
func (s *sharer) belongs(shard int, alive map[string]bool) (to string) {
	var most uint64
	for member := range alive {
		h := fnv.New64a()
		_, _ = fmt.Fprint(h, member, "/", shard)
		if sum := mixed(h.Sum64()); to == "" || sum > most || sum == most && member > to {
			to, most = member, sum
		}
	}
	return to
}

// settle brings one shard to the membership to which it belongs.
func (s *sharer) settle(ctx context.Context, i int, to string) error {
	seen := s.leases[s.shardName(i)]
	if t := s.held[i]; t != nil {
		if t.idle == nil && to == s.member && t.ctx.Err() == nil && t.lasts(seen) {
			return nil
		}
		return s.release(ctx, t)
	}
	switch {
	case to != s.member:
		return nil
	case seen == nil:
		return s.acquire(ctx, i)
	case seen.of() == s.member: // the answer was lost, or its removal was not seen yet
		return s.adopt(ctx, i, seen.uid())
	case s.exists(seen.of()):
		return nil // its process gives it up, or expires
	}
	// The membership that made it is gone for good.
	if _, err := s.Writer.Delete(ctx, s.full(s.shardName(i)), client.Version{UID: seen.uid()}); err != nil &&
		!isGone(err) {
		return err
	}
	return s.acquire(ctx, i)
}

// lasts reports whether the lease of a shard is still the lease that this process has made: an operator may
// remove it, or the deployment be restored to an older state. A lease that is not seen yet counts.
func (t *tenure) lasts(seen *lease) bool {
	same := seen != nil && seen.uid() == t.term.UID
	t.seen = t.seen || same
	return same || !t.seen
}

// exists reports whether a membership exists. One that a shard names was seen before the shard, and never
// comes back.
func (s *sharer) exists(member string) bool {
	for name, l := range s.leases {
		if s.isMember(name) && l.uid() == member {
			return true
		}
	}
	return false
}

func (s *sharer) acquire(ctx context.Context, i int) error {
	body := &structpb.Struct{Fields: map[string]*structpb.Value{memberField: structpb.NewStringValue(s.member)}}
	r, err := s.Writer.Create(ctx, &Resource{Name: s.full(s.shardName(i)), Body: body})
	if err != nil {
		return err
	}
	s.got(i, r.GetUid())
	return nil
}

// adopt takes a shard that this membership has made, if it is still there: no other membership removes it.
func (s *sharer) adopt(ctx context.Context, i int, uid string) error {
	t := Term{Lease: s.full(s.shardName(i)), UID: uid}
	if _, err := s.Writer.Update(ctx, t.guard(), guardMask); err != nil {
		return err
	}
	s.got(i, uid)
	return nil
}

// got hands a shard to the loop.
func (s *sharer) got(i int, uid string) {
	t := &tenure{shard: i, term: Term{Lease: s.full(s.shardName(i)), UID: uid}}
	t.ctx, t.end = context.WithCancel(s.ctx)
	s.held[i] = t
	s.hand(handing{tenure: t})
}

// release takes a shard back from the loop, and removes its lease when nothing of it runs any more.
func (s *sharer) release(ctx context.Context, t *tenure) error {
	if t.idle == nil {
		t.end()
		t.idle = make(chan struct{})
		s.hand(handing{t, t.idle})
	}
	select {
	case <-t.idle:
		return s.remove(ctx, t)
	default:
		return nil
	}
}

// remove removes the lease of a shard.
func (s *sharer) remove(ctx context.Context, t *tenure) error {
	if _, err := s.Writer.Delete(ctx, t.term.Lease, client.Version{UID: t.term.UID}); err != nil && !isGone(err) {
		return err
	}
	delete(s.held, t.shard)
	if name := s.shardName(t.shard); s.leases[name] != nil && s.leases[name].uid() == t.term.UID {
		delete(s.leases, name)
	}
	return nil
}

func (s *sharer) hand(h handing) {
	select {
	case s.loop.handings <- h:
	case <-s.loop.stopped:
	}
}

// isGone reports whether a write failed because the incarnation that it names does not exist any more.
func isGone(err error) bool {
	return errors.Is(err, client.ErrNotFound) || errors.Is(err, client.ErrConflict)
}
