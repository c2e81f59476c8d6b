package test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/identity"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// members reads the members of a deployment: a new one appears when a lease was lost.
func (f *fixture) members(deployment string) (ids []string) {
	f.t.Helper()
	conn, err := pgx.Connect(f.t.Context(), f.Deployments[f.id(deployment+"x/y")].DSN)
	require.NoError(f.t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	rows, err := conn.Query(f.t.Context(), "SELECT id::text FROM dbcontroller.member ORDER BY 1")
	require.NoError(f.t, err)
	ids, err = pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(f.t, err)
	return ids
}

// Hundreds of costly lists of one user, and endless scrapes: other users read and write, other deployments
// get answers, the lease is kept, and handlers go on.
func TestNoUserTakesAllConnections_I20(t *testing.T) {
	t.Parallel()
	const deployment = "a.example.com/us-west2"
	f := newFixture(t)
	f.mustPut(aWest+"targets/t", nil)
	user, ctx := resourcev1.NewResourceServiceClient(f.asUser(deployment)), t.Context()
	for page := range 20 {
		batch := &resourcev1.BatchWriteResourcesRequest{}
		for i := range 1000 {
			batch.Writes = append(batch.Writes,
				&resourcev1.BatchWriteResourcesRequest_Write{Write: &resourcev1.BatchWriteResourcesRequest_Write_Put{
					Put: &resourcev1.Resource{
						Name: fmt.Sprintf("others/%d-%d", page, i),
						Body: body(t, fields{"n": i, "blob": strings.Repeat("x", 500)}),
					},
				}})
		}
		require.NoError(t, patiently(ctx, func() error { _, err := user.BatchWriteResources(ctx, batch); return err }))
	}
	before := f.members(aWest)
	hostile, err := f.Issue(identity.Identity{Role: identity.RoleUser, Name: "hostile"})
	require.NoError(t, err)
	lists := resourcev1.NewResourceServiceClient(f.as(hostile, deployment))
	flood, stop := context.WithCancel(ctx)
	var g sync.WaitGroup
	refused := make(chan struct{}, 1)
	for range 400 {
		g.Go(func() {
			for flood.Err() == nil {
				_, err := lists.ListResources(flood, &resourcev1.ListResourcesRequest{
					Filter:  `body.blob = "y"`,
					OrderBy: "body.blob desc, body.n",
				})
				if status.Code(err) == codes.ResourceExhausted {
					select {
					case refused <- struct{}{}:
					default:
					}
					<-time.After(50 * time.Millisecond) // repeating at once only takes processor time
				}
			}
		})
	}
	for range 10 {
		g.Go(func() {
			for flood.Err() == nil {
				answer, err := http.Get(f.Deployments[f.id(aWest+"x/y")].HTTP + "/metrics")
				if err == nil {
					_, _ = io.Copy(io.Discard, answer.Body)
					_ = answer.Body.Close()
				}
				<-time.After(20 * time.Millisecond)
			}
		})
	}
	<-refused
	f.others(func() {
		for i := range 20 {
			holder := fmt.Sprintf("%sholders/h%d", bWest, i)
			f.mustPut(holder, fields{"block": aWest + "targets/t"})
			f.mustDelete(holder)
		}
		f.mustPut(aWest+"targets/cascades", nil)
		f.mustPut(bWest+"holders/goes", fields{"cascade": aWest + "targets/cascades"})
		require.NoError(t, patiently(ctx, func() error { return f.delete(aWest + "targets/cascades") }))
		f.gone(bWest+"holders/goes", aWest+"targets/cascades")
	})
	stop()
	g.Wait()
	require.Equal(t, before, f.members(aWest), "no lease was lost")
	require.Positive(t, f.metric(aWest+"x/y", `dbcontroller_refused_total{role="user",what="calls"}`))
	f.settled()
}
