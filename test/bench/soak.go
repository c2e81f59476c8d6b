package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

const (
	soakClients = 8
	// soakSamples is how often a run looks.
	soakSamples = 60
)

// heldSQL counts the connections and the dead rows of a database.
const heldSQL = `
SELECT (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database())::float8,
    (SELECT COALESCE(sum(n_dead_tup), 0) FROM pg_stat_user_tables)::float8`

// held has the resources of the controllers and their databases at one time.
type held struct{ memory, goroutines, connections, dead float64 }

// soak writes and deletes for some minutes, so that as many resources go as come, and compares memory,
// goroutines, connections and dead rows in the last third of the time with the third before. A ratio well
// above 1 is a leak.
func (r *run) soak(ctx context.Context) error {
	account := schema.FullName{Deployment: targets, Name: "projects/soak/serviceAccounts/a"}
	for _, name := range []schema.FullName{
		{Deployment: targets, Name: "projects/soak"},
		account,
		{Deployment: holders, Name: "fleets/soak"},
	} {
		if _, err := r.put(ctx, name, nil); err != nil {
			return err
		}
	}
	until := time.Now().Add(time.Duration(r.Minutes) * time.Minute)
	g, within := errgroup.WithContext(ctx)
	rounds := make([]int, soakClients)
	for client := range soakClients {
		g.Go(func() error {
			for time.Now().Before(until) {
				rounds[client]++
				if err := r.soakRound(within, fmt.Sprintf("soak-%d-%d", client, rounds[client]), account); err != nil {
					return err
				}
			}
			return nil
		})
	}
	var samples []held
	g.Go(func() error {
		for time.Now().Before(until) {
			if err := pause(within, time.Duration(r.Minutes)*time.Minute/soakSamples); err != nil {
				return err
			}
			h, err := r.holds(within)
			if err != nil {
				return err
			}
			samples = append(samples, h)
			r.Progress("soak: %.0f MB, %.0f goroutines, %.0f connections, %.0f dead rows", h.memory, h.goroutines,
				h.connections, h.dead)
		}
		return nil
	})
	if err := g.Wait(); err != nil {
		return err
	}
	all := 0
	for _, n := range rounds {
		all += n
	}
	r.add(Result{Case: "soak-rounds", N: r.Minutes, Value: float64(all) / float64(60*r.Minutes), Unit: "1/s"})
	for _, result := range growthOf(samples) {
		result.N = r.Minutes
		r.add(result)
	}
	return nil
}

// soakRound makes a target with a holder elsewhere that goes along, and a blocking reference; and removes
// all. Its calls are repeated until they are definite, as guarantees.md tells: within twenty minutes some run
// out of time on a busy machine.
func (r *run) soakRound(ctx context.Context, name string, account schema.FullName) error {
	target := schema.FullName{Deployment: targets, Name: "projects/" + name}.String()
	device := schema.FullName{Deployment: holders, Name: "fleets/soak/devices/" + name}.String()
	for _, put := range []struct {
		name string
		body map[string]any
	}{
		{target, nil},
		{schema.FullName{Deployment: holders, Name: "fleets/" + name}.String(), map[string]any{"project": target}},
		{device, map[string]any{"account": account.String()}},
	} {
		body, err := structpb.NewStruct(put.body)
		if err != nil {
			return err
		}
		if _, err := r.Client.Put(ctx, &resourcev1.Resource{Name: put.name, Body: body}); err != nil {
			return err
		}
	}
	for _, name := range []string{device, target} {
		if _, err := r.Client.Delete(ctx, name, client.Version{}); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) holds(ctx context.Context) (sum held, err error) {
	for _, d := range r.Playground.Deployments {
		m, err := scrape(ctx, d.HTTP+"/metrics")
		if err != nil {
			return held{}, err
		}
		sum.memory, sum.goroutines = sum.memory+m["bytes"]/1e6, sum.goroutines+m["goroutines"]
		err = onConnection(ctx, d.DSN, func(conn *pgx.Conn) error {
			var connections, dead float64
			err := conn.QueryRow(ctx, heldSQL).Scan(&connections, &dead)
			sum.connections, sum.dead = sum.connections+connections, sum.dead+dead
			return err
		})
		if err != nil {
			return held{}, err
		}
	}
	return sum, nil
}

// growthOf compares the last third of samples with the third before; the first one is a warm-up.
func growthOf(samples []held) []Result {
	third := len(samples) / 3
	if third == 0 {
		return nil
	}
	mean := func(of []held, value func(held) float64) (sum float64) {
		for _, h := range of {
			sum += value(h) / float64(len(of))
		}
		return sum
	}
	before, last := samples[len(samples)-2*third:len(samples)-third], samples[len(samples)-third:]
	var out []Result
	for _, c := range []struct {
		name, unit string
		value      func(held) float64
	}{
		{"soak-memory", "MB", func(h held) float64 { return h.memory }},
		{"soak-goroutines", "1", func(h held) float64 { return h.goroutines }},
		{"soak-connections", "1", func(h held) float64 { return h.connections }},
		{"soak-dead-rows", "rows", func(h held) float64 { return h.dead }},
	} {
		out = append(out, Result{
			Case: c.name, Unit: c.unit, Value: mean(last, c.value),
			Baseline: mean(before, c.value),
		})
	}
	return out
}
