package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// primeOutstanding is the number of pieces of outstanding work, for a deployment that is not registered.
const primeOutstanding = 100_000

const (
	settledSQL = `
INSERT INTO dbcontroller.shadow (uid, kind_id, state, shard, revision, generation, name)
SELECT gen_random_uuid(), k.id, 1, n % 64, n, 1, 'projects/settled-' || n
FROM (SELECT id FROM dbcontroller.kind ORDER BY id LIMIT 1) k, generate_series($1::int + 1, $2::int) AS n`

	outstandingWorkSQL = `
WITH d AS (
    INSERT INTO dbcontroller.deployment (service, region) VALUES ('nobody.example.com', 'nowhere')
    ON CONFLICT (service, region) DO UPDATE SET region = EXCLUDED.region RETURNING id
)
INSERT INTO dbcontroller.work (action, shard, deployment_id, attempt)
SELECT 2, n % 64, d.id, gen_random_uuid() FROM d, generate_series(1, $1::int) AS n`

	forgetSQL = `
DELETE FROM dbcontroller.work;
DELETE FROM dbcontroller.shadow WHERE name LIKE 'projects/settled-%'`
)

// prime measures from the start of a controller until its nodes have read all outstanding work, and the
// memory that this takes, with few and with many resources that have no outstanding work. The baseline is a
// start without outstanding work.
func (r *run) prime(ctx context.Context) error {
	d := r.Playground.Deployments[targets]
	conn, err := pgx.Connect(ctx, d.DSN)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	idle, _, err := r.primed(ctx, 0)
	if err != nil {
		return err
	}
	if err := d.Stop(); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, outstandingWorkSQL, primeOutstanding); err != nil {
		return err
	}
	settled := 0
	for _, n := range []int{10_000, 1_000_000} {
		if _, err := conn.Exec(ctx, settledSQL, settled, n); err != nil {
			return err
		}
		if _, err := conn.Exec(ctx, `VACUUM (ANALYZE)`); err != nil {
			return err
		}
		var took, memory []float64
		for i := range r.Runs {
			ms, mb, err := r.primed(ctx, primeOutstanding)
			if err != nil {
				return err
			}
			took, memory = append(took, ms), append(memory, mb)
			r.Progress("prime beside %d settled, run %d: %.0f ms, %.0f MB", n, i+1, ms, mb)
		}
		r.add(Result{Case: "prime", N: n, Unit: "ms", Baseline: idle}.of(took))
		r.add(Result{Case: "prime-memory", N: n, Unit: "MB"}.of(memory))
		settled = n
	}
	if err := d.Stop(); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, forgetSQL); err != nil {
		return err
	}
	if err := d.Start(); err != nil {
		return err
	}
	return d.WaitReady(ctx)
}

// primed restarts the controller, and returns the milliseconds until its nodes have read all outstanding
// work, and the megabytes of memory that the process has then.
func (r *run) primed(ctx context.Context, outstanding float64) (ms, mb float64, err error) {
	d := r.Playground.Deployments[targets]
	if err := d.Stop(); err != nil {
		return 0, 0, err
	}
	began := time.Now()
	if err := d.Start(); err != nil {
		return 0, 0, err
	}
	for time.Since(began) < time.Minute && ctx.Err() == nil {
		m, err := scrape(ctx, d.HTTP+"/metrics")
		if err == nil && m["primed"] >= 2 && m["objects"] >= outstanding {
			return milliseconds(time.Since(began)), m["bytes"] / 1e6, nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
	return 0, 0, fmt.Errorf("its watches were not primed within a minute: %w", ctx.Err())
}

// scrape sums up the metrics of the nodes' watches of shadows, and reads the memory of the process.
func scrape(ctx context.Context, url string) (map[string]float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	out := map[string]float64{}
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), " ")
		v, err := strconv.ParseFloat(value, 64)
		switch {
		case err != nil:
		case name == "process_resident_memory_bytes":
			out["bytes"] = v
		case name == "go_goroutines":
			out["goroutines"] = v
		case !strings.Contains(name, `watch="shadows-`):
		case strings.HasPrefix(name, "dbcontroller_watch_primed"):
			out["primed"] += v
		case strings.HasPrefix(name, "dbcontroller_watch_snapshot_objects"):
			out["objects"] += v
		}
	}
	return out, nil
}
