package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// dependants is the number of holders of the large deletion during which small ones are measured.
const dependants = 1_000_000

// dependantsSQL copies an existing holder.
const dependantsSQL = `
WITH like_it AS (
    SELECT s.kind_id, r.body, f.target_id, f.field_id, f.behaviour, f.attempt FROM dbcontroller.shadow s
    JOIN dbcontroller.resource r USING (id) JOIN dbcontroller.reference f ON f.holder_id = s.id WHERE s.name = $1::text
), more AS (
    INSERT INTO dbcontroller.shadow (uid, kind_id, state, shard, revision, generation, name)
    SELECT gen_random_uuid(), kind_id, 1, n % 64, nextval('dbcontroller.revision'), 1, $1::text || '-' || n FROM like_it, generate_series(1, $2::int) AS n
    RETURNING id
), bodies AS (
    INSERT INTO dbcontroller.resource (id, body) SELECT more.id, body FROM more, like_it
)
INSERT INTO dbcontroller.reference (holder_id, target_id, field_id, behaviour, attempt)
SELECT more.id, target_id, field_id, behaviour, attempt FROM more, like_it`

// fairness measures small deletions, one holder each, while a deletion with very many holders of the same two
// deployments is in progress. The baseline is the same without the large one.
func (r *run) fairness(ctx context.Context) error {
	var p50, p99, idle50, idle99 []float64
	for i := range r.Runs {
		calm, err := r.prepareSingles(ctx, fmt.Sprintf("calm%d", i), 3*singles)
		if err != nil {
			return err
		}
		idle, err := r.deleteEach(ctx, calm, nil)
		if err != nil {
			return err
		}
		beside, err := r.besideLarge(ctx, fmt.Sprintf("beside%d", i))
		if err != nil {
			return err
		}
		p50, p99 = append(p50, median(beside)), append(p99, percentile(beside, 0.99))
		idle50, idle99 = append(idle50, median(idle)), append(idle99, percentile(idle, 0.99))
		r.Progress("fairness, run %d: p50 %.1f ms (idle %.1f), p99 %.1f ms (idle %.1f), %d deletions", i+1, p50[i],
			idle50[i], p99[i], idle99[i], len(beside))
	}
	r.add(Result{Case: "fairness-p50", N: dependants, Unit: "ms", Baseline: median(idle50)}.of(p50))
	r.add(Result{Case: "fairness-p99", N: dependants, Unit: "ms", Baseline: median(idle99)}.of(p99))
	return nil
}

// besideLarge measures small deletions until the large one has finished.
func (r *run) besideLarge(ctx context.Context, name string) ([]float64, error) {
	target := schema.FullName{Deployment: targets, Name: "projects/" + name + "-large"}
	uid, err := r.put(ctx, target, nil)
	if err != nil {
		return nil, err
	}
	holder := schema.FullName{Deployment: holders, Name: "fleets/" + name + "-large"}
	if _, err := r.put(ctx, holder, map[string]any{"project": target.String()}); err != nil {
		return nil, err
	}
	conn, err := pgx.Connect(ctx, r.Playground.Deployments[holders].DSN)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err := conn.Exec(ctx, dependantsSQL, holder.Name, dependants-1); err != nil {
		return nil, err
	}
	resources, err := r.Client.Resources(ctx, targets)
	if err != nil {
		return nil, err
	}
	small, err := r.prepareSingles(ctx, name, 10*singles)
	if err != nil {
		return nil, err
	}
	if _, err := resources.DeleteResource(ctx, &resourcev1.DeleteResourceRequest{Name: target.Name}); err != nil {
		return nil, err
	}
	gone := make(chan error, 1)
	go func() { gone <- r.Client.WaitGone(ctx, target.String(), uid, nil) }()
	return r.deleteEach(ctx, small, gone)
}

// deleteEach deletes targets, one after the other, until the channel has an entry; nil: all of them.
func (r *run) deleteEach(ctx context.Context, pairs []pair, over chan error) (took []float64, err error) {
	for _, p := range pairs {
		select {
		case err := <-over:
			return took, err
		default:
		}
		ms, err := r.singleOnce(ctx, p)
		if err != nil {
			return nil, err
		}
		took = append(took, ms)
	}
	if over != nil {
		err = <-over
	}
	return took, err
}

// singleOnce deletes a target, and waits until its holder is gone.
func (r *run) singleOnce(ctx context.Context, s pair) (float64, error) {
	began := time.Now()
	resources, err := r.Client.Resources(ctx, targets)
	if err != nil {
		return 0, err
	}
	if _, err := resources.DeleteResource(ctx, &resourcev1.DeleteResourceRequest{Name: s.target.Name}); err != nil {
		return 0, err
	}
	if err := r.Client.WaitGone(ctx, s.holder.String(), s.uid, nil); err != nil {
		return 0, err
	}
	return milliseconds(time.Since(began)), nil
}
