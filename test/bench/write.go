package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/cmd/db-controller/dev"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

const (
	writeTime = 2 * time.Second

	// The rows that a write leaves at its own deployment, one transaction each: $4 references, of which $5 is
	// to another deployment.
	insertRowsSQL = `
WITH n AS (SELECT nextval('revision') AS n), s AS (
    INSERT INTO shadow (id, uid, kind_id, state, shard, revision, generation, created_at, updated_at, name)
    SELECT n, $1, 3, 1, 1, n, 1, now(), now(), $2 FROM n RETURNING id, revision
), b AS (
    INSERT INTO resource SELECT id, NULL, $3::text::jsonb FROM s
), f AS (
    INSERT INTO reference (holder_id, target_id, attempt, field_id, behaviour) SELECT id, i, $1, i, 1 FROM s, generate_series(1, $4::int) AS i
), a AS (
    INSERT INTO attempt (id, committed) SELECT $1, true WHERE $5
)
INSERT INTO change (uid, revision, generation, kind_id, state, created_at, name, body)
SELECT $1, revision, 1, 3, 1, now(), $2, $3::text::jsonb FROM s`
)

// writeShape describes the references of the written resources.
type writeShape struct {
	name       string
	pattern    string         // of the name
	body       map[string]any // a star in a text stands for the number of a target
	targets    int            // that the resources refer to in turn
	references int
	foreign    bool
	clients    []int
}

// bodies returns a body for each target.
func (s writeShape) bodies() ([]*structpb.Struct, error) {
	out := make([]*structpb.Struct, max(s.targets, 1))
	for i := range out {
		body := map[string]any{}
		for key, value := range s.body {
			text, _ := value.(string)
			body[key] = strings.ReplaceAll(text, "*", strconv.Itoa(i+1))
		}
		var err error
		if out[i], err = structpb.NewStruct(body); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// manyTargets is the number of targets of writes that do not refer to one hot target.
const manyTargets = 1000

// write measures creates: without references, with one in the same database, and with another one to another
// deployment, which is established and confirmed, to one hot target and to many.
func (r *run) write(ctx context.Context) error {
	account := schema.FullName{Deployment: targets, Name: "projects/write/serviceAccounts/a"}
	for _, name := range []schema.FullName{
		{Deployment: targets, Name: "projects/write"},
		account,
		{Deployment: holders, Name: "fleets/write"},
	} {
		if _, err := r.put(ctx, name, nil); err != nil {
			return err
		}
	}
	if err := dev.PutMany(ctx, r.Client, targets, account.Name, manyTargets, nil); err != nil {
		return err
	}
	var chosen []writeShape
	for _, shape := range []writeShape{
		{"write-none", "fleets/write-%s", map[string]any{"model": "sensor"}, 1, 0, false, []int{1, 8, 16, 64}},
		{
			"write-local", "fleets/write/devices/local-%s",
			map[string]any{"model": "sensor"},
			1, 1, false,
			[]int{1, 8, 16, 64},
		},
		{
			"write-foreign", "fleets/write/devices/%s",
			map[string]any{"account": account.String(), "model": "sensor"},
			1,
			2, true,
			[]int{1, 16, 64, 240},
		},
		{"write-foreign-1000", "fleets/write/devices/many-%s", map[string]any{
			"account": account.String() + "*",
			"model":   "sensor",
		}, manyTargets, 2, true, []int{16, 64, 240}},
	} {
		if slices.Contains(r.Cases, "write") || slices.Contains(r.Cases, shape.name) {
			chosen = append(chosen, shape)
		}
	}
	return r.shapes(ctx, chosen...)
}

// shapes measures shapes with their numbers of clients, or with the numbers that were asked for.
func (r *run) shapes(ctx context.Context, shapes ...writeShape) error {
	for _, shape := range shapes {
		if len(r.Clients) > 0 {
			shape.clients = r.Clients
		}
		for _, clients := range shape.clients {
			if err := r.writes(ctx, shape, clients); err != nil {
				return err
			}
		}
	}
	return nil
}

// writes measures one shape with a number of clients, beside inserts of the same rows.
func (r *run) writes(ctx context.Context, shape writeShape, clients int) error {
	bodies, err := shape.bodies()
	if err != nil {
		return err
	}
	text, err := bodies[0].MarshalJSON()
	if err != nil {
		return err
	}
	resources, err := r.Client.Resources(ctx, holders)
	if err != nil {
		return err
	}
	var ours, plain, oursCPU, plainCPU []float64
	for i := range r.Runs {
		name := func(n int64) string { return fmt.Sprintf(shape.pattern, fmt.Sprintf("c%d-%d-%d", clients, i, n)) }
		rate, cpu, err := r.measured(ctx, clients, func(ctx context.Context, n int64) error {
			_, err := resources.CreateResource(ctx,
				&resourcev1.CreateResourceRequest{Resource: &resourcev1.Resource{
					Name: name(n),
					Body: bodies[n%int64(len(bodies))],
				}})
			return err
		}, r.quiet)
		if err != nil {
			return err
		}
		ours, oursCPU = append(ours, rate), append(oursCPU, cpu.sum())
		r.Progress("%s with %d clients, run %d: %.0f/s, %s each", shape.name, clients, i+1, rate, cpu)
		rate, cpu, err = r.measured(ctx, clients, func(ctx context.Context, n int64) error {
			_, err := r.baseline.Exec(ctx, insertRowsSQL, uuid.Must(uuid.NewV7()), name(n), string(text),
				shape.references, shape.foreign)
			return err
		}, nil)
		if err != nil {
			return err
		}
		if err := r.settle(ctx); err != nil {
			return err
		}
		plain, plainCPU = append(plain, rate), append(plainCPU, cpu.sum())
		r.Progress("    plain inserts: %.0f/s, %s each", rate, cpu)
	}
	r.add(Result{Case: shape.name, N: clients, Unit: "writes/s", Baseline: median(plain)}.of(ours))
	if median(oursCPU) > 0 {
		r.add(Result{Case: shape.name + "-cpu", N: clients, Unit: "ms", Baseline: median(plainCPU)}.of(oursCPU))
	}
	return nil
}

// measured runs clients in parallel for a while, and returns their operations a second and the processor time
// of each. The time includes the work that quiet waits for; quiet may be nil.
func (r *run) measured(ctx context.Context, clients int, do func(ctx context.Context, n int64) error,
	quiet func(context.Context) error,
) (float64, cpuTimes, error) {
	var n atomic.Int64
	g, within := errgroup.WithContext(ctx)
	before, began := cpuNow(r.server), time.Now()
	for range clients {
		g.Go(func() error {
			for time.Since(began) < writeTime {
				if err := do(within, n.Add(1)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := g.Wait()
	rate := float64(n.Load()) / time.Since(began).Seconds()
	if err == nil && quiet != nil {
		err = quiet(ctx)
	}
	return rate, before.since(r.server, float64(n.Load())), err
}
