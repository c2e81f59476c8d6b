package test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/cmd/db-controller/playground"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/test/harness"
)

// One deployment has a standby, which is given to all of them: its reads leave the primary, a person sees her
// own writes, and for the others it is the standby of another database, which they do not use. Nothing
// depends on it.
func TestReadsLeaveThePrimary_I37(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts seven processes")
	}
	id := schema.DeploymentID{Service: "a.example.com", Region: "us-west2"}
	primary := harness.NewCluster(t)
	primary.CreateDatabase("own")
	primary.Stop()
	standby := primary.Copy()
	primary.Start()
	standby.StartStandby(primary)
	f := &fixture{t: t, Processes: harness.NewProcessesWith(t, everything, playground.Config{
		Databases: playground.Databases{DSNs: map[schema.DeploymentID]string{id: primary.DSN("own")}},
		Args:      []string{"--tentative-ttl", "1s", "--postgres-read", standby.DSN("own")},
	})}
	reads := func(outcome string) float64 {
		return f.metric(aWest+"x/y", `dbcontroller_standby_reads_total{outcome="`+outcome+`"}`)
	}

	for i := range 50 {
		f.mustPut(aWest+"targets/own", fields{"n": float64(i)})
		require.InDelta(t, i, f.get(aWest + "targets/own").GetBody().AsMap()["n"], 0,
			"a person sees her own write at once")
	}
	require.Positive(t, reads("recent"))
	f.eventually("the standby answers", func() bool {
		require.InDelta(t, 49, f.get(aWest + "targets/own").GetBody().AsMap()["n"], 0)
		return reads("answered") > 0
	})
	answered := reads("answered")
	for _, command := range [][]string{{"get", aWest + "targets/own", "--latest"}, {"list", id.String(), "--latest"}} {
		out, err := run(t, append(command, "--context", f.Context)...)
		require.NoError(t, err, out)
		require.Contains(t, out, "targets/own")
	}
	require.InDelta(t, answered, reads("answered"), 0)
	name, resources := f.named(aWest + "targets/own")
	found, err := resources.GetResource(t.Context(), &resourcev1.GetResourceRequest{Name: name, MinRevision: 1 << 60})
	require.NoError(t, err)
	require.InDelta(t, 49, found.GetBody().AsMap()["n"], 0)

	standby.Stop()
	for i := range 20 {
		require.InDelta(t, 49, f.get(aWest + "targets/own").GetBody().AsMap()["n"], 0,
			fmt.Sprint("without the standby, read ", i))
	}
	f.mustPut(bEast+"holders/h", fields{"block": aWest + "targets/own"})
	require.Error(t, f.delete(aWest+"targets/own"))
	require.NotNil(t, f.get(bEast+"holders/h"))
}
