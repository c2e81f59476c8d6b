package test

import (
	"bytes"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/status"

	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// refuseSpaceSQL makes every insert into a table fail as it does when the table cannot grow.
const refuseSpaceSQL = `
CREATE FUNCTION public.no_space() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full';
END $$;
CREATE TRIGGER no_space BEFORE INSERT ON dbcontroller.shadow EXECUTE FUNCTION public.no_space()`

// A deployment whose disk is full is healthy nowhere: the answer to a write, readyz, metrics and status name
// the disk, until there is space.
func TestAFullDiskIsToldEverywhere(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const name = aWest + "targets/t"
	d := f.Deployments[f.id(name)]
	f.mustPut(name, nil)
	execute(t, d.DSN, refuseSpaceSQL)
	_, resources := f.named(name)
	put := func() error {
		_, err := resources.PutResource(t.Context(),
			&resourcev1.PutResourceRequest{Resource: &resourcev1.Resource{Name: "targets/new", Body: body(t, nil)}})
		return err
	}
	health := func() string {
		res, err := http.Get(d.HTTP + "/readyz?verbose")
		require.NoError(t, err)
		defer func() { _ = res.Body.Close() }()
		var text bytes.Buffer
		_, err = text.ReadFrom(res.Body)
		require.NoError(t, err)
		return text.String()
	}
	const why = "the disk of the database is full: nothing is written until it has space"
	f.eventually("it is told everywhere", func() bool {
		err := put() // again and again: the probe finds space, in truth
		require.Contains(t, status.Convert(err).Message(), "the disk of the deployment's database is full")
		told := f.statusFor(t, f.id(name).String()).GetNotReady()
		return strings.Contains(health(), "[-]writes: "+why) &&
			f.metric(name, `dbcontroller_ready{reason="writes"}`) == 0 &&
			len(told) == 1 && told[0].GetCheck() == "writes" && told[0].GetReason() == why
	})
	require.NotNil(t, f.get(name), "reads go on")
	execute(t, d.DSN, `DROP TRIGGER no_space ON dbcontroller.shadow`)
	f.mustPut(aWest+"targets/new", nil)
	f.eventually("it is ready again", func() bool { return strings.Contains(health(), "readyz check passed") })
	require.Equal(t, 1.0, f.metric(name, `dbcontroller_ready{reason="writes"}`))
	require.Empty(t, f.statusFor(t, f.id(name).String()).GetNotReady())
}
