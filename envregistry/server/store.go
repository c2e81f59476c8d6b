package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/singleflight"
	"google.golang.org/protobuf/proto"

	"github.com/db-controller/db-controller/internal/feed"
	"github.com/db-controller/db-controller/schema"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/wire"
)

var (
	errUnknownDeployment = errors.New("unknown deployment")
	errSuperseded        = errors.New("superseded")
	errDecommissioned    = errors.New("decommissioned")
)

type store struct {
	pool  *pgxpool.Pool
	wake  *feed.Broadcast // wakes the watches of this process, which read the database
	feeds *feed.Log
	seen  atomic.Int64 // the greatest revision that this process has read
	// recent is the part of the history as some watch has read it last.
	recent  atomic.Pointer[recentHistory]
	reading singleflight.Group // of recent
}

func newStore(pool *pgxpool.Pool) *store {
	wake := feed.NewBroadcast()
	return &store{
		pool: pool, wake: wake,
		feeds: feed.NewLog(feed.Config{Pool: pool, StateSQL: stateSQL, WrittenSQL: writtenSQL, Wake: wake}),
	}
}

const (
	lockRevisionSQL      = `SELECT revision FROM dbcontroller_registry.meta FOR UPDATE`
	selectRevisionSQL    = `SELECT revision FROM dbcontroller_registry.meta`
	selectHistorySQL     = `SELECT history FROM dbcontroller_registry.meta`
	selectRegionsSQL     = `SELECT name FROM dbcontroller_registry.region ORDER BY name`
	selectServicesSQL    = `SELECT descriptor FROM dbcontroller_registry.service_version ORDER BY service, version`
	selectDeploymentsSQL = `SELECT service, region, version, address, generation, disabled, database FROM dbcontroller_registry.deployment ORDER BY service, region`

	selectRightsSQL = `SELECT rights FROM dbcontroller_registry.rights`

	// Each change of a row writes the row of the watches.
	upsertRightsSQL = `
WITH new AS (
    INSERT INTO dbcontroller_registry.rights (rights) VALUES ($1)
    ON CONFLICT (singleton) DO UPDATE SET rights = EXCLUDED.rights RETURNING rights
)
INSERT INTO dbcontroller_registry.change (revision, gone, rights) SELECT m.revision, false, new.rights FROM new, dbcontroller_registry.meta m`
	upsertRegionSQL = `
WITH new AS (
    INSERT INTO dbcontroller_registry.region (name) VALUES ($1) ON CONFLICT DO NOTHING RETURNING name
)
INSERT INTO dbcontroller_registry.change (revision, gone, region) SELECT m.revision, false, new.name FROM new, dbcontroller_registry.meta m`
	upsertServiceSQL = `
WITH new AS (
    INSERT INTO dbcontroller_registry.service_version (service, version, descriptor) VALUES ($1, $2, $3)
    ON CONFLICT (service, version) DO UPDATE SET descriptor = EXCLUDED.descriptor RETURNING service, version, descriptor
)
INSERT INTO dbcontroller_registry.change (revision, gone, service, version, descriptor)
SELECT m.revision, false, new.service, new.version, new.descriptor FROM new, dbcontroller_registry.meta m`
	upsertDeploymentSQL = `
WITH new AS (
    INSERT INTO dbcontroller_registry.deployment (service, region, version, address, generation, disabled, database)
    VALUES (@service, @region, @version, @address, @generation, @disabled,
        COALESCE(@database, (SELECT database FROM dbcontroller_registry.removed WHERE service = @service AND region = @region)))
    ON CONFLICT (service, region) DO UPDATE SET version = EXCLUDED.version, address = EXCLUDED.address,
        generation = EXCLUDED.generation, disabled = EXCLUDED.disabled, database = EXCLUDED.database
    RETURNING service, region, version, address, generation, disabled, database
)
INSERT INTO dbcontroller_registry.change (revision, gone, service, region, version, address, generation, disabled, database)
SELECT m.revision, false, new.service, new.region, new.version, new.address, new.generation, new.disabled, new.database FROM new, dbcontroller_registry.meta m`
	// The list of deployments is complete when there is at least one, all that run have reported the revision
	// that they have seen since the database came to its server (unheardSQL), and none of them has seen more
	// than the database has; where none runs, or the database is known to have lost commits, when an operator
	// has applied each of them since.
	incompleteSQL = `SELECT ` + incompleteOfSQL + ` FROM dbcontroller_registry.meta m`

	incompleteOfSQL = `(NOT EXISTS (SELECT FROM dbcontroller_registry.deployment) OR EXISTS (
    SELECT FROM dbcontroller_registry.deployment d WHERE d.applied_in IS NULL
        OR d.applied_in <> ` + feed.ServerSQL + ` AND NOT EXISTS (SELECT FROM dbcontroller_registry.deployment r WHERE ` + runsSQL + `)
) OR m.server IS DISTINCT FROM ` + feed.ServerSQL + `)`

	// runsSQL is the condition that a deployment r has run and is not disabled.
	runsSQL = `r.address <> '' AND NOT r.disabled`

	vouchSQL = `
UPDATE dbcontroller_registry.deployment d SET applied_in = ` + feed.ServerSQL + `
FROM dbcontroller_registry.meta m, unnest($1::text[], $2::text[]) AS i (service, region)
WHERE d.service = i.service AND d.region = i.region AND d.applied_in IS DISTINCT FROM ` + feed.ServerSQL + `
`

	moveRevisionSQL = `UPDATE dbcontroller_registry.meta SET revision = revision + 1`
)

// read returns the environment of one moment.
func (s *store) read(ctx context.Context) (*schema.Environment, error) {
	var env *schema.Environment
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err := pgx.BeginTxFunc(ctx, s.pool, options, func(tx pgx.Tx) (err error) {
		if env, err = readEnvironment(ctx, tx, selectRevisionSQL); err != nil {
			return err
		}
		return complete(ctx, tx, env)
	})
	if err != nil {
		return nil, fmt.Errorf("read the environment: %w", err)
	}
	s.see(env.Revision)
	return env, nil
}

func readEnvironment(ctx context.Context, tx pgx.Tx, revisionSQL string) (*schema.Environment, error) {
	env := &schema.Environment{}
	if err := tx.QueryRow(ctx, revisionSQL).Scan(&env.Revision); err != nil {
		return nil, err
	}
	b := &pgx.Batch{}
	b.Queue(selectRegionsSQL).Query(func(rows pgx.Rows) (err error) {
		env.Regions, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	b.Queue(selectServicesSQL).Query(func(rows pgx.Rows) error {
		var raw []byte
		_, err := pgx.ForEachRow(rows, []any{&raw}, func() error {
			d := &schemav1.ServiceDescriptor{}
			if err := proto.Unmarshal(raw, d); err != nil {
				return err
			}
			env.Services = append(env.Services, wire.Descriptor(d))
			return nil
		})
		return err
	})
	b.Queue(selectDeploymentsSQL).Query(func(rows pgx.Rows) error {
		var d schema.Deployment
		var database *uuid.UUID
		_, err := pgx.ForEachRow(rows, []any{
			&d.Service, &d.Region, &d.Version, &d.Address, &d.Generation, &d.Disabled,
			&database,
		}, func() error {
			if d.Database = uuid.Nil; database != nil {
				d.Database = *database
			}
			d.Pos = schema.Pos{Path: "deployments[" + d.String() + "]"}
			env.Deployments = append(env.Deployments, d)
			return nil
		})
		return err
	})
	b.Queue(selectRightsSQL).Query(func(rows pgx.Rows) error {
		var raw []byte
		_, err := pgx.ForEachRow(rows, []any{&raw}, func() (err error) {
			env.Rights, err = rightsOf(raw)
			return err
		})
		return err
	})
	return env, tx.SendBatch(ctx, b).Close()
}

func rightsOf(raw []byte) (*schema.Rights, error) {
	p := &registryv1.Rights{}
	if err := proto.Unmarshal(raw, p); err != nil {
		return nil, fmt.Errorf("the stored rights: %w", err)
	}
	return wire.Rights(p), nil
}

// applied sets regions, services, deployments and rights; a deployment keeps its registered address unless
// another one is given.
func applied(in *schema.Environment) func(*schema.Environment) error {
	return func(env *schema.Environment) error {
		env.Regions = append(env.Regions, in.Regions...)
		env.Rights = cmp.Or(in.Rights.After(env.Rights, time.Now()), env.Rights)
		for _, d := range in.Services {
			i := slices.IndexFunc(env.Services, func(e *schema.Descriptor) bool {
				return e.ServiceVersion == d.ServiceVersion
			})
			if i < 0 {
				env.Services = append(env.Services, d)
				continue
			}
			if sameDescriptor(env.Services[i], d) {
				continue
			}
			if runs := runsVersion(env, d.ServiceVersion); runs != nil {
				return schema.Problems{{
					Pos: d.Pos, Message: fmt.Sprintf("%s runs on %s and cannot change", d.ServiceVersion,
						runs.DeploymentID),
					Remedy: "describe the change as a new version",
				}}
			}
			env.Services[i] = d
		}
		for _, d := range in.Deployments {
			old := find(env, d.DeploymentID)
			if old == nil {
				d.Database = uuid.Nil // its registration names it
				env.Deployments = append(env.Deployments, d)
				continue
			}
			old.Version, old.Disabled, old.Pos = d.Version, d.Disabled, d.Pos
			if d.Address != "" {
				old.Address = d.Address
			}
		}
		return nil
	}
}

// vouch records that an operator has applied deployments on the present server of the registry's database.
func (s *store) vouch(ctx context.Context, applied []schema.Deployment) error {
	var services, regions []string
	for _, d := range applied {
		services, regions = append(services, d.Service), append(regions, d.Region)
	}
	if _, err := s.pool.Exec(ctx, vouchSQL, services, regions); err != nil {
		return fmt.Errorf("record the applied deployments: %w", err)
	}
	return nil
}

func runsVersion(env *schema.Environment, v schema.ServiceVersion) *schema.Deployment {
	for i, d := range env.Deployments {
		if d.Service == v.Service && d.Version == v.Version {
			return &env.Deployments[i]
		}
	}
	return nil
}

func sameDescriptor(a, b *schema.Descriptor) bool {
	return proto.Equal(wire.DescriptorProto(a), wire.DescriptorProto(b))
}

// change is a change of the environment.
type change struct {
	by           *author             // nil for the registration of a deployment, which is not on record
	unused       patterns            // which versions may drop
	validateOnly bool                // nothing is written
	vouches      []schema.Deployment // that the author names, also as they are: they count as applied
	edit         func(*schema.Environment) error
}

var errValidated = errors.New("the change was only to be validated")

// change edits the environment under the lock of its revision, checks the whole, and writes the differences
// and who made them. It returns the differences for the caller.
func (s *store) change(ctx context.Context, c change) ([]string, error) {
	var changes []string
	var revision int64
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		changes = nil
		before, err := readEnvironment(ctx, tx, lockRevisionSQL)
		if err != nil {
			return err
		}
		after := &schema.Environment{
			Regions: slices.Clone(before.Regions), Services: slices.Clone(before.Services),
			Deployments: slices.Clone(before.Deployments), Rights: before.Rights,
		}
		if err := c.edit(after); err != nil {
			return err
		}
		slices.Sort(after.Regions)
		after.Regions = slices.Compact(after.Regions)
		if err := after.Check(); err != nil {
			return err
		}
		if err := notDecommissioned(ctx, tx, after.Deployments); err != nil {
			return err
		}
		if err := keepsPatterns(ctx, tx, before, after, c.unused); err != nil {
			return err
		}
		if err := keepsImports(before, after); err != nil {
			return err
		}
		if err := c.by.permitted(before, after, c.vouches); err != nil {
			return err
		}
		b := &pgx.Batch{}
		b.Queue(moveRevisionSQL) // first: the changes have the new revision
		if changes, err = queueDifference(b, before, after); err != nil || len(changes) == 0 {
			return err
		}
		if c.validateOnly {
			return errValidated
		}
		revision = before.Revision + 1
		c.by.queue(b, revision, changes)
		return tx.SendBatch(ctx, b).Close()
	})
	if errors.Is(err, errValidated) {
		c.by.ended(ctx, nil)
		return changes, nil
	}
	if err != nil {
		c.by.ended(ctx, err)
		return nil, err
	}
	if len(changes) == 0 {
		c.by.ended(ctx, nil)
	}
	if len(changes) > 0 {
		c.by.changed(ctx, revision, changes)
		s.wake.Wake(environmentFeed)
	}
	return changes, nil
}
