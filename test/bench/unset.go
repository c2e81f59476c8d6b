package main

import (
	"context"
	"fmt"

	"github.com/db-controller/db-controller/cmd/db-controller/dev"
	"github.com/db-controller/db-controller/schema"
)

// The baseline of unset: a native key with SET NULL, and the bookkeeping of the rows that it changes by a
// statement trigger, which writes the body without the value, the next revision, and a change row with the
// whole of it.
const unsetBaselineSQL = `
CREATE TABLE account (id bigint PRIMARY KEY);
CREATE TABLE device (
    id bigint PRIMARY KEY, uid uuid NOT NULL UNIQUE, kind_id int NOT NULL, state smallint NOT NULL, shard smallint NOT NULL,
    revision bigint NOT NULL, generation bigint NOT NULL, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL,
    account_id bigint REFERENCES account ON DELETE SET NULL, name text COLLATE "C" NOT NULL, UNIQUE (kind_id, name)
);
CREATE INDEX ON device (account_id);
CREATE TABLE device_body (id bigint PRIMARY KEY REFERENCES device ON DELETE CASCADE, labels jsonb, body jsonb NOT NULL);
CREATE FUNCTION was_unset() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF pg_trigger_depth() > 2 THEN -- of the update below; the key itself acts by a trigger
        RETURN NULL;
    END IF;
    UPDATE device d SET revision = nextval('revision'), updated_at = now() FROM changed c WHERE d.id = c.id;
    UPDATE device_body b SET body = b.body #- '{backup,account}' FROM changed c WHERE b.id = c.id;
    INSERT INTO change (uid, revision, generation, kind_id, state, created_at, name, body)
    SELECT d.uid, d.revision, d.generation, d.kind_id, d.state, d.created_at, d.name, b.body
    FROM changed c JOIN device d USING (id) JOIN device_body b USING (id);
    RETURN NULL;
END $$;
CREATE TRIGGER was_unset AFTER UPDATE ON device REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION was_unset()`

const fillUnsetSQL = `
WITH a AS (
    INSERT INTO account VALUES (0) ON CONFLICT (id) DO UPDATE SET id = 0 RETURNING id
), gone AS (
    DELETE FROM device
), d AS (
    INSERT INTO device (id, uid, kind_id, state, shard, revision, generation, created_at, updated_at, account_id, name)
    SELECT nextval('revision'), gen_random_uuid(), 3, 1, 1, 1, 1, now(), now(), a.id, 'fleets/f/devices/' || gen_random_uuid() FROM a, generate_series(1, $1) RETURNING id
)
INSERT INTO device_body SELECT id, NULL, '{"backup": {"account": "//iam.example.com/us-west2/projects/unset/serviceAccounts/target"}}' FROM d`

// unset measures one target with n holders in another deployment, which lose the reference and stay.
func (r *run) unset(ctx context.Context) error {
	if _, err := r.baseline.Exec(ctx, unsetBaselineSQL); err != nil {
		return err
	}
	project := schema.FullName{Deployment: targets, Name: "projects/unset"}
	if _, err := r.put(ctx, project, nil); err != nil {
		return err
	}
	for _, n := range r.N {
		var ours, equal []float64
		for i := range r.Runs {
			took, err := r.timed(ctx, fillUnsetSQL, n, `DELETE FROM account`)
			if err != nil {
				return err
			}
			equal = append(equal, took)
			if took, err = r.unsetOnce(ctx, fmt.Sprintf("unset%dx%d", n, i), n); err != nil {
				return err
			}
			ours = append(ours, took)
			r.Progress("unset %d, run %d: %.0f ms, equal %.0f ms", n, i+1, took, equal[i])
		}
		r.add(Result{Case: "unset", N: n, Unit: "ms", Baseline: median(equal)}.of(ours))
	}
	return nil
}

func (r *run) unsetOnce(ctx context.Context, name string, n int) (float64, error) {
	account := schema.FullName{Deployment: targets, Name: "projects/unset/serviceAccounts/" + name}
	if _, err := r.put(ctx, account, nil); err != nil {
		return 0, err
	}
	fleet := schema.FullName{Deployment: holders, Name: "fleets/" + name}
	if _, err := r.put(ctx, fleet, nil); err != nil {
		return 0, err
	}
	body := map[string]any{"backup": map[string]any{"account": account.String()}}
	if err := dev.PutMany(ctx, r.Client, holders, fleet.Name+"/devices/d", n, body); err != nil {
		return 0, err
	}
	if err := r.settle(ctx); err != nil {
		return 0, err
	}
	return r.removed(ctx, account, "ServiceAccount")
}
