package read

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/internal/feed"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/internal/requestid"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/grant"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
)

// ErrSlow reports that the reader of a watch took too long to take a delivery: open the watch again.
var ErrSlow = feed.ErrSlow

const (
	beginSinceSQL = feed.SinceBegin + `dbcontroller.meta` + feed.SinceJoin
)

// chunk is the number of items that one watch holds in memory; bodyChunk the number of items with bodies.
const (
	chunk     = 500
	bodyChunk = 100
)

// NoticesFilter is the filter of a deletions watch, which binds its tokens to the watch and its caller.
func NoticesFilter(d schema.DeploymentID) string { return "deletions for " + d.String() }

const (
	noticesSQL = beginSinceSQL + `
    SELECT n.xid::text, n.seq, k.kind, s.name, s.uid, ` + CauseColumnsSQL + `
    FROM dbcontroller.notice n
    JOIN dbcontroller.shadow s ON s.id = n.target_id
    JOIN dbcontroller.kind k ON k.id = s.kind_id
    ` + CauseOfSQL + `
    WHERE n.deployment_id = (SELECT id FROM dbcontroller.deployment WHERE service = split_part($4, '/', 1) AND region = split_part($4, '/', 2)) AND`

	noticesNewSQL = noticesSQL + feed.New
)

var noticesSnapshotSQL = noticesSQL + visibleSQL

// visibleSQL is of the rows of a snapshot by sequence number.
var visibleSQL = ` pg_visible_in_snapshot(xid, $1::text::pg_snapshot) AND seq > $3` + feed.SnapshotEnd("seq", 2)

// Followed translates the error of a watch: a server that is not noticed yet is signalled, and is
// *UnavailableError.
func Followed(g *gate.Gate, err error) error {
	if errors.Is(err, feed.ErrUnnoticed) {
		return g.RecoveringSelf()
	}
	return err
}

// CheckKept fails, with ErrReset, when a token that a holder's deployment has kept of its watch of deletions
// is ahead of this database: an older copy has taken its place, and a new epoch begins. The token is empty
// when none is kept. A stranger is refused (ErrStranger), unless the token shows that the database has lost
// it.
func (s *Reader) CheckKept(ctx context.Context, holder schema.DeploymentID, token string) error {
	if token != "" {
		switch err := s.Feeds.CheckAhead(ctx, token, NoticesFilter(holder)); {
		case errors.Is(err, feed.ErrUnknownKey): // anybody can invent one, so that nothing follows from it
			if _, told := s.unknownKeys.LoadOrStore(holder, true); !told {
				s.Log.Warn(
					"a deployment has shown a position of a key that this database does not have: if a backup from before a rotation of the keys was restored, restart with --restored",
					zap.Stringer("deployment", holder), requestid.Field(ctx))
			}
		case err != nil:
			return Followed(s.gate, err)
		}
	}
	err := s.gate.CheckCaller(ctx, holder)
	if err == nil {
		err = s.gate.ShowPosition(ctx, holder)
	}
	if !errors.Is(err, peer.ErrStranger) || token == "" {
		return err
	}
	issued, failed := s.Feeds.Issued(ctx, token, NoticesFilter(holder))
	if issued && failed == nil {
		issued, failed = s.gate.Readmit(ctx, holder)
	}
	if failed != nil {
		return Followed(s.gate, failed)
	}
	if issued {
		return nil
	}
	return err
}

// WatchDeletions delivers the notices of a holder's deployment: the deletions that it has not acknowledged.
func (s *Reader) WatchDeletions(ctx context.Context, holder schema.DeploymentID, token string,
	deliver func(schema.Event[schema.Deletion]) error,
) error {
	return Followed(s.gate, feed.Follow(ctx, s.Feeds, feed.Feed[schema.Deletion]{
		// By name: the number may become another one's within the life of a watch.
		Filter: NoticesFilter(holder), Topic: db.NoticeFeed, Chunk: chunk, Written: true,
		SnapshotSQL: noticesSnapshotSQL, FirstSQL: noticesNewSQL + feed.FirstPage(1), NextSQL: noticesNewSQL +
			feed.NextPage(1),
		Args: []any{holder.String()},
		Scan: func(row pgx.CollectableRow) (d schema.Deletion, seq int64, err error) {
			var n *int64
			var kind, name *string
			var uid *uuid.UUID
			var cause CauseRow
			if err := row.Scan(append([]any{&n, &kind, &name, &uid}, cause.Dest()...)...); err != nil || n == nil {
				return d, 0, err
			}
			return schema.Deletion{Seq: *n, Kind: s.KindNow(*kind), Name: *name, UID: *uid, Cause: cause.Cause()}, *n,
				nil
		},
	}, token, deliver))
}

const (
	workSQL = beginSinceSQL + `
    SELECT w.xid::text, w.seq, w.action, d.service, d.region, w.created_at
    FROM dbcontroller.work w JOIN dbcontroller.deployment d ON d.id = w.deployment_id
    WHERE w.shard = ANY ($4) AND`

	workNewSQL = workSQL + feed.New
)

var workSnapshotSQL = workSQL + visibleSQL

// WatchWork delivers the outstanding work of some shards.
func (s *Reader) WatchWork(ctx context.Context, shards []int16, token string,
	deliver func(schema.Event[schema.Work]) error,
) error {
	return Followed(s.gate, feed.Follow(ctx, s.Feeds, feed.Feed[schema.Work]{
		Filter: fmt.Sprint("work of shards ", shards), Topic: db.WorkFeed, Chunk: chunk, Written: true,
		SnapshotSQL: workSnapshotSQL, FirstSQL: workNewSQL + feed.FirstPage(1), NextSQL: workNewSQL + feed.NextPage(1),
		Args: []any{shards},
		Scan: func(row pgx.CollectableRow) (w schema.Work, seq int64, err error) {
			var n *int64
			var action *schema.Action
			var service, region *string
			var created *time.Time
			if err := row.Scan(&n, &action, &service, &region, &created); err != nil || n == nil {
				return w, 0, err
			}
			return schema.Work{Seq: *n, Action: *action, Deployment: schema.DeploymentID{
				Service: *service,
				Region:  *region,
			}, CreatedAt: *created}, *n, nil
		},
	}, token, deliver))
}

// A row x of a resource, or of a change of one, has the columns that filters know.
const (
	resourcesSnapshotSQL = beginSinceSQL + `
SELECT x.kind_id, x.name, x.id, x.uid, x.kind, x.name, x.state, x.revision, x.generation, x.created_at, x.updated_at, x.labels, x.body, x.owners, x.block_deletion,
    x.finalizers, x.status, x.status_generation
FROM (
    SELECT s.*, k.kind, r.labels, r.body, r.owners, r.status, r.status_generation
    FROM dbcontroller.shadow s JOIN dbcontroller.kind k ON k.id = s.kind_id LEFT JOIN dbcontroller.resource r ON r.id = s.id
    WHERE NOT s.hidden
) AS x
WHERE ($2::int = 0 OR x.kind_id = $2) AND (x.kind_id, x.name) > ($3, $4) AND `

	// A resource that does not match the filter is delivered as gone.
	resourcesNewSQL = beginSinceSQL + `
    SELECT x.xid::text, x.seq, x.uid, x.kind, x.name, CASE WHEN `
)

var resourcesNewOfSQL = db.Codes(` THEN x.state ELSE {gone} END, x.revision, x.generation, x.created_at, x.updated_at, x.labels, x.body, x.owners, x.block_deletion,
    x.finalizers, x.status, x.status_generation
    FROM (
        SELECT c.*, c.changed_at AS updated_at, k.kind FROM dbcontroller.change c JOIN dbcontroller.kind k ON k.id = c.kind_id
    ) AS x
    WHERE ($4::int = 0 OR x.kind_id = $4) AND `) + feed.KeyRead("x.kind_id, x.name", 5)

var resourcesEndSQL = feed.SnapshotEnd("x.kind_id, x.name", 1)

// WatchResources delivers the resources of a kind, or of all kinds when kindName is empty, that match a
// filter. A removed resource is delivered in state Gone, with name, kind, uid and revision; so is a changed
// resource that does not match, whether or not it matched before.
func (s *Reader) WatchResources(ctx context.Context, kindName, filter, token string,
	deliver func(schema.Event[peer.Resource]) error,
) error {
	return WatchResourcesAs(ctx, s, WatchRequest{Kind: kindName, Filter: filter, Token: token},
		func(r peer.Resource) (peer.Resource, error) {
			return r, nil
		}, deliver)
}

// WatchRequest asks for a watch of resources.
type WatchRequest struct {
	// a kind whose rows are in an attached table is refused; without a kind, such rows are left out
	Kind, Filter, Token string
	// Within are the names that the caller may read; a token is bound to them. Others are not delivered, not
	// even as gone.
	Within grant.Within
	// Form is a comparable value: watches with equal ones share the results of their conversion.
	Form any
}

// ResourcesFilter begins the filters of all watches of resources.
const ResourcesFilter = "resources of kind "

// bound is the value to which the watch's tokens are bound, beside the caller.
func (r WatchRequest) bound() string {
	bound := ResourcesFilter + r.Kind
	if r.Filter != "" {
		sum := sha256.Sum256([]byte(r.Filter))
		bound += " " + hex.EncodeToString(sum[:16])
	}
	if r.Within != nil {
		sum := sha256.Sum256(fmt.Appendf(nil, "%q", r.Within)) // in the order of the kinds
		bound += " within " + hex.EncodeToString(sum[:16])
	}
	return bound
}

// WatchResourcesAs is WatchResources with a conversion, which runs once for all watches that share a feed.
func WatchResourcesAs[T any](ctx context.Context, s *Reader, req WatchRequest, as func(peer.Resource) (T, error),
	deliver func(schema.Event[T]) error,
) error {
	v, err := s.Current()
	if err != nil {
		return err
	}
	var kindID int32
	if req.Kind != "" {
		if kindID, _, err = s.kindToRead(ctx, v, req.Kind); err != nil {
			return err
		}
		if s.rows.Of(kindID) != nil {
			return unlisted("kind", req.Kind, "follow its changes by logical replication of the table")
		}
	}
	// The same conditions, with their parameters behind the parameters of each statement: of the filter, then
	// of the names.
	var matches [3]*condition
	var within [3]string
	for i, first := range []int{5, 8, 9} {
		if matches[i], err = s.compile(req.Filter, first); err != nil {
			return err
		}
		if within[i], err = s.readable(ctx, v, req.Within, matches[i]); err != nil {
			return err
		}
	}
	return Followed(s.gate, feed.Follow(ctx, s.Feeds, feed.Feed[T]{
		Filter: req.bound(), Form: req.Form, Topic: db.ChangeFeed, Chunk: bodyChunk, Aged: true, Keyed: true,
		Written:     true,
		SnapshotSQL: resourcesSnapshotSQL + matches[0].sql.String() + within[0] + resourcesEndSQL,
		FirstSQL: resourcesNewSQL + matches[1].sql.String() + resourcesNewOfSQL + within[1] + ` AND` + feed.New +
			feed.FirstPage(3),
		NextSQL: resourcesNewSQL + matches[2].sql.String() + resourcesNewOfSQL + within[2] + ` AND` + feed.New +
			feed.NextPage(3),
		Args: []any{kindID}, More: matches[0].args,
		Scan: func(row pgx.CollectableRow) (item T, seq int64, err error) {
			r, seq, err := scanChange(row)
			if err != nil || seq == 0 {
				return item, seq, err
			}
			r.Kind = s.KindNow(r.Kind)
			item, err = as(r)
			return item, seq, err
		},
	}, req.Token, deliver))
}

// readable returns the condition of the names that a watch is limited to; its parameters follow the filter's.
// The names may be of kinds that only another version has: the watch outlives a switch of the version.
func (s *Reader) readable(ctx context.Context, v *db.Version, names grant.Within, filter *condition) (string, error) {
	if names == nil {
		return "", nil
	}
	ids, kinds, err := s.kindsToRead(ctx, v)
	if err != nil {
		return "", err
	}
	for _, kind := range slices.Sorted(maps.Keys(names)) {
		if kind == schema.Every {
			continue
		}
		id, err := s.Names.Kind(ctx, schema.KindID{Service: s.Self.Service, Kind: kind})
		if err != nil {
			return "", err
		}
		if !slices.Contains(ids, id) {
			ids, kinds = append(ids, id), append(kinds, kind)
		}
	}
	c := &condition{next: filter.next}
	c.within(names, ids, kinds)
	filter.args, filter.next = append(filter.args, c.args...), c.next
	return c.sql.String(), nil
}

// scanChange scans a row of resourcesSnapshotSQL or resourcesNewSQL, and returns its resource and sequence
// number. In a row without an item all columns are null: the sequence number is 0.
func scanChange(row pgx.CollectableRow) (r peer.Resource, _ int64, err error) {
	var (
		seq, revision, generation *int64
		statusGeneration          *int64
		uid                       *uuid.UUID
		kind, name                *string
		state                     *peer.State
		created, updated          *time.Time
		blocks                    *bool
		labels, owners            []byte
	)
	if err := row.Scan(&seq, &uid, &kind, &name, &state, &revision, &generation, &created, &updated, &labels, &r.Body,
		&owners, &blocks, &r.Finalizers, &r.Status, &statusGeneration); err != nil || seq == nil {
		return r, 0, err
	}
	r.UID, r.Kind, r.Name, r.State, r.Revision, r.Generation = *uid, *kind, *name, *state, peer.Revision(*revision),
		*generation
	r.CreatedAt, r.UpdatedAt = *created, *updated
	if r.State == peer.Gone {
		r.Body, r.Status, r.Finalizers = nil, nil, nil
		return r, *seq, nil
	}
	if r.BlockDeletion = *blocks; statusGeneration != nil {
		r.StatusGeneration = *statusGeneration
	}
	if err := postgres.DecodeJSON(labels, &r.Labels); err != nil {
		return r, 0, err
	}
	return r, *seq, postgres.DecodeJSON(owners, &r.Owners)
}
