package server

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/db-controller/db-controller/internal/feed"
	"github.com/db-controller/db-controller/schema"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
)

// environmentFeed is the one topic of the registry.
const environmentFeed feed.Topics = 1

// environmentFilter binds tokens to this kind of watch; change it when the events change, so that old tokens
// are reset.
const environmentFilter = "environment with rights and databases"

var writtenSQL = feed.WrittenBegin + feed.AnyNew("dbcontroller_registry.change") + `::int` + feed.WrittenFrom +
	`dbcontroller_registry.meta` + feed.StateEnd

const (
	otherServerSQL = `
SELECT m.server IS DISTINCT FROM ` + feed.ServerSQL + ` OR ` + feed.EpochSQL + ` IS NULL FROM dbcontroller_registry.meta m`
	lockServerSQL = otherServerSQL + ` FOR UPDATE`

	// Tokens of the former epoch are void. The changes that were kept for them may have ids of transactions
	// that another server has used, and this one will: every watch would receive them. Logical replication
	// copies rows without their sequences.
	beginEpochSQL = `
WITH old AS (
    DELETE FROM dbcontroller_registry.change WHERE xid >= pg_snapshot_xmin(pg_current_snapshot())
), numbered AS (
    SELECT setval(pg_get_serial_sequence('dbcontroller_registry.change', 'seq'), greatest((SELECT max(seq) FROM dbcontroller_registry.change), nextval(pg_get_serial_sequence('dbcontroller_registry.change', 'seq')))) AS change,
        setval(pg_get_serial_sequence('dbcontroller_registry.history', 'seq'), greatest((SELECT max(seq) FROM dbcontroller_registry.history), nextval(pg_get_serial_sequence('dbcontroller_registry.history', 'seq')))) AS history
)
UPDATE dbcontroller_registry.meta m SET epoch = gen_random_uuid(), server = ` + feed.ServerSQL + `, timeline = ` + feed.TimelineSQL + `, compacted = '0'
FROM numbered AS n WHERE n.change + n.history > 0`

	stateSQL      = feed.StateBegin + `''` + feed.StateFrom + `dbcontroller_registry.meta` + feed.StateEnd
	beginSinceSQL = feed.SinceBegin + `dbcontroller_registry.meta` + feed.SinceJoin

	// In the order of dependence: deployments need regions and services.
	environmentSnapshotSQL = beginSinceSQL + `
    SELECT * FROM (
        SELECT 1 AS kind, name, 1::bigint AS seq, m.revision, false AS gone, name AS region, NULL AS service, NULL AS version,
            NULL AS address, NULL::bigint AS generation, NULL::boolean AS disabled, NULL::bytea AS descriptor, NULL::bytea AS rights,
            NULL::uuid AS database
        FROM dbcontroller_registry.region
        UNION ALL
        SELECT 1, '', 1, m.revision, false, NULL, NULL, NULL, NULL, NULL, NULL, NULL, rights, NULL
        FROM dbcontroller_registry.rights
        UNION ALL
        SELECT 2, service || ' ' || version, 2, m.revision, false, NULL, service, version, NULL, NULL, NULL, descriptor, NULL, NULL
        FROM dbcontroller_registry.service_version
        UNION ALL
        SELECT 3, service || ' ' || region, 3, m.revision, false, region, service, version, address, generation, disabled, NULL, NULL, database
        FROM dbcontroller_registry.deployment
    ) AS item WHERE kind > $2 OR kind = $2 AND name COLLATE "C" > $3`

	environmentNewSQL = beginSinceSQL + `
    SELECT seq, revision, gone, region, service, version, address, generation, disabled, descriptor, rights, database
    FROM dbcontroller_registry.change
    WHERE (CASE WHEN service IS NULL THEN 1 WHEN region IS NULL THEN 2 ELSE 3 END,
        CASE WHEN service IS NULL THEN COALESCE(region, '') ELSE service || ' ' || COALESCE(region, version) END COLLATE "C") <= ($4, $5) AND` + feed.New

	// The mark moves in the transaction that removes the rows, so that no token resumes at removed rows.
	compactSQL = `
WITH old AS (
    DELETE FROM dbcontroller_registry.change WHERE changed_at < now() - $1::interval RETURNING xid
), newest AS (
    SELECT xid FROM old ORDER BY xid DESC LIMIT 1
)
UPDATE dbcontroller_registry.meta SET compacted = newest.xid FROM newest WHERE newest.xid > meta.compacted`
)

// retention is the time that changes are kept for watches that resume.
const retention = 24 * time.Hour

// changed is one row of a watch.
type changed struct {
	change *registryv1.WatchEnvironmentResponse_Change
	gone   bool
}

func scanChanged(row pgx.CollectableRow) (out changed, _ int64, _ error) {
	var seq, revision, generation *int64
	var gone, disabled *bool
	var region, service, version, address *string
	var raw, rights []byte
	var database *uuid.UUID
	err := row.Scan(&seq, &revision, &gone, &region, &service, &version, &address, &generation, &disabled, &raw,
		&rights, &database)
	if err != nil || seq == nil {
		return out, 0, err
	}
	out = changed{change: &registryv1.WatchEnvironmentResponse_Change{Revision: *revision}, gone: *gone}
	switch {
	case rights != nil:
		p := &registryv1.Rights{}
		if err := proto.Unmarshal(rights, p); err != nil {
			return out, 0, fmt.Errorf("rights: %w", err)
		}
		out.change.Item = &registryv1.WatchEnvironmentResponse_Change_Rights{Rights: p}
	case service == nil:
		out.change.Item = &registryv1.WatchEnvironmentResponse_Change_Region{Region: &registryv1.Region{Name: *region}}
	case region == nil:
		d := &schemav1.ServiceDescriptor{}
		if err := proto.Unmarshal(raw, d); err != nil {
			return out, 0, fmt.Errorf("descriptor of %s@%s: %w", *service, *version, err)
		}
		out.change.Item = &registryv1.WatchEnvironmentResponse_Change_Service{Service: d}
	default:
		d := &registryv1.Deployment{
			Service: *service, Region: *region, Version: *version, Address: *address,
			Generation: *generation, Disabled: *disabled,
		}
		if database != nil {
			d.Database = database.String()
		}
		out.change.Item = &registryv1.WatchEnvironmentResponse_Change_Deployment{Deployment: d}
	}
	return out, *seq, nil
}

// noticeServer begins an epoch, and a part of the history, when the database runs on another server than
// before: tokens of the former epoch are void, and each deployment tells the revision that it has seen before
// the list of deployments counts.
func (s *store) noticeServer(ctx context.Context) error {
	var other bool
	err := s.pool.QueryRow(ctx, otherServerSQL).Scan(&other)
	if err == nil && other {
		err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
			if err := tx.QueryRow(ctx, lockServerSQL).Scan(&other); err != nil || !other {
				return err // another server was first
			}
			if _, err := tx.Exec(ctx, beginEpochSQL); err != nil {
				return err
			}
			return beginHistory(ctx, tx)
		})
	}
	if err != nil {
		return fmt.Errorf("notice the registry's server: %w", err)
	}
	return nil
}

// WatchEnvironment sends the whole environment, the end of the snapshot, and then every change; with a token,
// the changes since. At the end of the snapshot, and at each bookmark, the events before it are a whole
// environment.
func (s *Server) WatchEnvironment(req *registryv1.WatchEnvironmentRequest,
	stream grpc.ServerStreamingServer[registryv1.WatchEnvironmentResponse],
) error {
	s.followers.Add(1)
	defer s.followers.Add(-1)
	at, err := s.stream(stream.Context(), seen{req.GetSeenRevision(), req.GetSeenHistory()})
	if err != nil {
		return s.fail(err)
	}
	err = feed.Follow(stream.Context(), s.store.feeds, feed.Feed[changed]{
		Filter: environmentFilter, Topic: environmentFeed, Chunk: 100, Aged: true, Keyed: true,
		SnapshotSQL: environmentSnapshotSQL + feed.SnapshotEnd(`kind, name COLLATE "C"`, 1),
		FirstSQL:    environmentNewSQL + feed.FirstPage(2), NextSQL: environmentNewSQL + feed.NextPage(2),
		Scan: scanChanged,
	}, req.GetResumeToken(), func(e schema.Event[changed]) error {
		for _, c := range e.Items {
			at.take(c.change)
			if item, is := c.change.GetItem().(*registryv1.WatchEnvironmentResponse_Change_Rights); is {
				if item.Rights, err = visible(stream.Context(), item.Rights); err != nil {
					return err
				}
			}
			if err := stream.Send(response(c)); err != nil {
				return err
			}
		}
		if e.EndOfSnapshot || e.Token != "" {
			if err := at.settle(stream.Context()); err != nil {
				return err
			}
		}
		switch {
		case e.EndOfSnapshot:
			return stream.Send(
				&registryv1.WatchEnvironmentResponse{Event: &registryv1.WatchEnvironmentResponse_EndOfSnapshot_{
					EndOfSnapshot: &registryv1.WatchEnvironmentResponse_EndOfSnapshot{
						Revision:    at.revision,
						ResumeToken: e.Token, History: at.stamp,
					},
				}})
		case e.Token != "":
			return stream.Send(
				&registryv1.WatchEnvironmentResponse{Event: &registryv1.WatchEnvironmentResponse_Bookmark_{
					Bookmark: &registryv1.WatchEnvironmentResponse_Bookmark{
						Revision: at.revision, ResumeToken: e.Token,
						History: at.stamp,
					},
				}})
		}
		return nil
	})
	return s.fail(err)
}

func response(c changed) *registryv1.WatchEnvironmentResponse {
	if c.gone {
		return &registryv1.WatchEnvironmentResponse{Event: &registryv1.WatchEnvironmentResponse_Delete{
			Delete: c.change,
		}}
	}
	return &registryv1.WatchEnvironmentResponse{Event: &registryv1.WatchEnvironmentResponse_Upsert{Upsert: c.change}}
}

// Tidy removes changes that no watch can resume from any more.
func (s *Server) Tidy(ctx context.Context) error {
	if _, err := s.store.pool.Exec(ctx, compactSQL, retention); err != nil {
		return fmt.Errorf("compact changes of the environment: %w", err)
	}
	return nil
}

// RunTidy calls Tidy every minute until ctx ends. It returns nil.
func (s *Server) RunTidy(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Minute):
		}
		if err := s.Tidy(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("expired changes could not be removed, retrying", zap.Error(err))
		}
	}
}
