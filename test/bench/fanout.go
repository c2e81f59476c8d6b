package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/cmd/db-controller/dev"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// The baselines: bare is a child table with an indexed native key. Equal cascades by native keys as we do by
// hand: a resource row, its shadow and its references go with the target, and a change row is written for
// each.
const baselineSQL = `
CREATE TABLE bare_target (id bigint PRIMARY KEY);
CREATE TABLE bare_holder (id bigint PRIMARY KEY, target_id bigint NOT NULL REFERENCES bare_target ON DELETE CASCADE, body jsonb);
CREATE INDEX ON bare_holder (target_id);

CREATE SEQUENCE revision;
CREATE TABLE target (id bigint PRIMARY KEY, uid uuid NOT NULL UNIQUE, name text COLLATE "C" NOT NULL UNIQUE);
CREATE TABLE shadow (
    id bigint PRIMARY KEY, uid uuid NOT NULL UNIQUE, kind_id int NOT NULL, state smallint NOT NULL, shard smallint NOT NULL,
    revision bigint NOT NULL, generation bigint NOT NULL, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL,
    target_id bigint REFERENCES target ON DELETE CASCADE,
    name text COLLATE "C" NOT NULL, UNIQUE (kind_id, name)
);
CREATE INDEX ON shadow (target_id);
CREATE TABLE resource (id bigint PRIMARY KEY REFERENCES shadow ON DELETE CASCADE, labels jsonb, body jsonb NOT NULL);
CREATE TABLE reference (
    holder_id bigint NOT NULL REFERENCES shadow ON DELETE CASCADE, target_id bigint NOT NULL, attempt uuid,
    field_id int NOT NULL, behaviour smallint NOT NULL, PRIMARY KEY (holder_id, field_id, target_id)
);
CREATE INDEX ON reference (target_id, behaviour, holder_id);
CREATE TABLE change (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    uid uuid NOT NULL, revision bigint NOT NULL, generation bigint NOT NULL, kind_id int NOT NULL, state smallint NOT NULL,
    created_at timestamptz NOT NULL, changed_at timestamptz NOT NULL DEFAULT now(), name text NOT NULL, labels jsonb, body jsonb
);
CREATE INDEX ON change (xid);
CREATE TABLE attempt (id uuid PRIMARY KEY, committed boolean NOT NULL, decided_at timestamptz NOT NULL DEFAULT now());
CREATE INDEX ON attempt (decided_at);
CREATE FUNCTION removed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO change (uid, revision, generation, kind_id, state, created_at, name)
    SELECT uid, nextval('revision'), generation, kind_id, 3, created_at, name FROM gone;
    RETURN NULL;
END $$;
CREATE TRIGGER removed AFTER DELETE ON shadow REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION removed();`

func (r *run) createBaseline(ctx context.Context) error {
	_, err := r.baseline.Exec(ctx, baselineSQL)
	return err
}

const (
	fillBareSQL = `
WITH t AS (INSERT INTO bare_target VALUES (1) RETURNING id)
INSERT INTO bare_holder SELECT i, t.id, '{"model": "sensor"}' FROM t, generate_series(1, $1) i`

	fillEqualSQL = `
WITH t AS (
    INSERT INTO target (id, uid, name) VALUES (0, gen_random_uuid(), 'projects/target') RETURNING id
), h AS (
    INSERT INTO shadow (id, uid, kind_id, state, shard, revision, generation, created_at, updated_at, target_id, name)
    SELECT i, gen_random_uuid(), 2, 1, 1, 1, 1, now(), now(), t.id, 'fleets/holder' || i FROM t, generate_series(1, $1) i RETURNING id
), b AS (
    INSERT INTO resource SELECT id, NULL, '{"project": "//iam.example.com/us-west2/projects/target"}' FROM h
)
INSERT INTO reference (holder_id, target_id, attempt, field_id, behaviour) SELECT id, 0, gen_random_uuid(), 1, 3 FROM h`
)

// fanOut measures one target with n holders in another deployment.
func (r *run) fanOut(ctx context.Context) error {
	for _, n := range r.N {
		var ours, equal, bare []float64
		for i := range r.Runs {
			took, err := r.timed(ctx, fillBareSQL, n, `DELETE FROM bare_target`)
			if err != nil {
				return err
			}
			bare = append(bare, took)
			if took, err = r.timed(ctx, fillEqualSQL, n, `DELETE FROM target`); err != nil {
				return err
			}
			equal = append(equal, took)
			if took, err = r.fanOutOnce(ctx, fmt.Sprintf("fan%dx%d", n, i), n); err != nil {
				return err
			}
			ours = append(ours, took)
			r.Progress("fan-out %d, run %d: %.0f ms, equal %.0f ms, bare %.0f ms", n, i+1, took, equal[i], bare[i])
		}
		r.add(Result{Case: "fan-out", N: n, Unit: "ms", Baseline: median(equal), Bare: median(bare)}.of(ours))
	}
	return nil
}

// timed fills the baseline and returns the duration of its delete, in milliseconds.
func (r *run) timed(ctx context.Context, fill string, n int, remove string) (float64, error) {
	if _, err := r.baseline.Exec(ctx, fill, n); err != nil {
		return 0, err
	}
	if _, err := r.baseline.Exec(ctx, `VACUUM (ANALYZE)`); err != nil {
		return 0, err
	}
	began := time.Now()
	_, err := r.baseline.Exec(ctx, remove)
	return milliseconds(time.Since(began)), err
}

// fanOutOnce returns the time from the Delete call until the target is removed, in milliseconds.
func (r *run) fanOutOnce(ctx context.Context, name string, n int) (float64, error) {
	target := schema.FullName{Deployment: targets, Name: "projects/" + name}
	if _, err := r.put(ctx, target, nil); err != nil {
		return 0, err
	}
	if err := dev.PutMany(ctx, r.Client, holders, "fleets/"+name+"-", n,
		map[string]any{"project": target.String()}); err != nil {
		return 0, err
	}
	if err := r.settle(ctx); err != nil {
		return 0, err
	}
	return r.removed(ctx, target, "Project")
}

func (r *run) put(ctx context.Context, name schema.FullName, body map[string]any) (uid string, err error) {
	resources, err := r.Client.Resources(ctx, name.Deployment)
	if err != nil {
		return "", err
	}
	s, err := structpb.NewStruct(body)
	if err != nil {
		return "", err
	}
	saved, err := resources.PutResource(ctx,
		&resourcev1.PutResourceRequest{Resource: &resourcev1.Resource{Name: name.Name, Body: s}})
	return saved.GetUid(), err
}

const outstandingSQL = `SELECT (SELECT count(*) FROM dbcontroller.work) + (SELECT count(*) FROM dbcontroller.notice)`

// settle waits until no work is outstanding, and updates the statistics of the databases, as autovacuum
// would.
func (r *run) settle(ctx context.Context) error {
	if err := r.quiet(ctx); err != nil {
		return err
	}
	for _, d := range r.Playground.Deployments {
		if err := onConnection(ctx, d.DSN, func(conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, `VACUUM (ANALYZE)`)
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// quiet waits until no work is outstanding.
func (r *run) quiet(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, d := range r.Playground.Deployments {
		if err := onConnection(ctx, d.DSN, func(conn *pgx.Conn) error {
			for {
				var n int
				if err := conn.QueryRow(ctx, outstandingSQL).Scan(&n); err != nil || n == 0 {
					return err
				}
				time.Sleep(5 * time.Millisecond)
			}
		}); err != nil {
			return err
		}
	}
	return nil
}

func onConnection(ctx context.Context, dsn string, do func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	return errors.Join(do(conn), conn.Close(context.WithoutCancel(ctx)))
}
