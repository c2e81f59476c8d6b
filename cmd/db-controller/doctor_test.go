package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	"github.com/db-controller/db-controller/test/stub"
)

// patient is a deployment with a status.
type patient struct {
	adminv1.UnimplementedAdminServiceServer
	status *adminv1.StatusResponse
}

func (p patient) Status(context.Context, *adminv1.StatusRequest) (*adminv1.StatusResponse, error) {
	return p.status, nil
}

// movedRegistry is a registry whose database is on another server, and which a deployment has not followed
// since.
type movedRegistry struct {
	registryv1.UnimplementedRegistryServiceServer
}

func (movedRegistry) GetEnvironment(context.Context,
	*registryv1.GetEnvironmentRequest,
) (*registryv1.GetEnvironmentResponse, error) {
	return &registryv1.GetEnvironmentResponse{
		Environment: &registryv1.Environment{Regions: []*registryv1.Region{{Name: "eu"}}}, Incomplete: true,
		Unheard: []string{"b.example.com/eu", "c.example.com/eu"},
	}, nil
}

func TestDoctorNamesDeploymentsThatARegistryHasNotHeardOf(t *testing.T) {
	t.Parallel()
	said := command(t, "--context", stub.New(t, stub.Services{Registry: movedRegistry{}}).Context, "doctor")
	require.Equal(t, cli.Findings, said.code)
	require.Contains(t, said.out, "have not followed it since: b.example.com/eu, c.example.com/eu")
	require.Contains(t, said.out, "start these deployments, or disable those that stay down")
}

func TestDoctorNamesProblemsAndRemedies(t *testing.T) {
	t.Parallel()
	ago := func(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(time.Now().Add(-d)) }
	id := stub.Deployment.String()
	alive := []*adminv1.StatusResponse_Process{
		{Name: "p1", ExpireTime: ago(-time.Hour)},
		{Name: "p2", ExpireTime: ago(-time.Hour)},
	}
	call := func(s *adminv1.StatusResponse, args ...string) (code int, found map[string]string, out string) {
		t.Helper()
		s.Deployment = id
		at := append([]string{
			"--context",
			stub.New(t, stub.Services{Admin: patient{status: s}, Described: "eastus2"}).Context, "doctor",
		}, args...)
		people, programs := command(t, at...), command(t, append(at, "-o", "json")...)
		require.Equal(t, people.code, programs.code)
		var all []struct{ Severity, Where, Problem, Remedy string }
		require.NoError(t, json.Unmarshal([]byte(programs.out), &all), programs.out)
		found = map[string]string{}
		for _, f := range all {
			require.NotEmpty(t, f.Remedy)
			found[f.Problem] = f.Severity + " " + f.Where
		}
		return people.code, found, people.out
	}
	version := "v1"
	code, found, _ := call(&adminv1.StatusResponse{Version: version, Processes: alive})
	require.Equal(t, cli.Findings, code)
	require.Equal(t, map[string]string{
		"everybody with a certificate may read, write and delete everything: the rights say default: allow": "WARNING environment",
		"it is described and has never run": "WARNING iam.example.com/eastus2",
	}, found)
	code, found, out := call(&adminv1.StatusResponse{Version: version, Processes: alive}, id)
	require.Zero(t, code, found)
	require.Equal(t, "no findings in 1 deployment and the registry\n", out)

	_, found, out = call(&adminv1.StatusResponse{
		Version: "v0", Processes: alive[:1], DatabaseTime: ago(time.Minute), ProcessTime: ago(0),
		NotReady: []*adminv1.StatusResponse_NotReady{{Check: "database", Reason: "it is read-only"}},
		Watches: []*adminv1.StatusResponse_Watch{{
			Name: "deletions", Deployment: "b.example.com/eu",
			Primed: true, HeardTime: ago(time.Minute),
		}, {
			Name: "deletions", Deployment: "c.example.com/eu",
			Lost: 7,
		}, {Name: "deletions", Deployment: "d.example.com/eu"}},
		Epoch: &adminv1.StatusResponse_Epoch{
			AwaitingRegistry: true,
			Unconfirmed:      []string{"b.example.com/eu"},
		},
		Pauses:             []*adminv1.Pause{{Of: id}},
		DanglingReferences: 2,
		AttachedRows:       &adminv1.StatusResponse_AttachedRows{Incomplete: 1},
		Failures: []*adminv1.Failure{{
			Handler: "owned pending", Deployment: "b.example.com/eu",
			Error: "refused",
		}},
		Outstanding: []*adminv1.StatusResponse_Outstanding{{
			Group: "confirm", Deployment: "b.example.com/eu",
			Count: 3, OldestTime: ago(time.Hour),
		}, {Group: "release", Count: 1, OldestTime: ago(time.Second)}, {
			Group: "acquire", Deployment: "b.example.com/us", Count: 2, OldestTime: ago(time.Second),
			Problem: "it has no right",
		}, {
			Group: "purge", Deployment: id, Count: 2, OldestTime: ago(time.Hour),
			Problem: "a region is away",
		}},
		Kept: []*adminv1.StatusResponse_Kept{{Kind: "Old", Resources: 1, Sample: "olds/1"}},
		Postgresql: &adminv1.StatusResponse_PostgreSQL{
			Connections: 90, MaxConnections: 100, Archives: true, ArchivingFails: true,
			OldestTransactionTime: ago(2 * time.Hour), OldestPreparedTime: ago(time.Hour),
		},
	}, id, "--certificates-within", "1000000h")
	for problem, want := range map[string]string{
		"fsync = off": "ERROR", "full_page_writes = off": "ERROR", "90 of 100 connections": "ERROR",
		"archiving of its PostgreSQL log fails":            "ERROR",
		"a transaction of its database is open for 2h":     "WARNING",
		"a transaction of its database is prepared for 1h": "WARNING",
		"its certificate ends on":                          "WARNING", "not ready: database: it is read-only": "ERROR",
		"it runs v0, and v1 is set": "ERROR", "it has one process": "WARNING",
		"the clock of its database is 1": "WARNING", "the watch deletions of b.example.com/eu has been silent": "ERROR",
		"the watch deletions of c.example.com/eu is lost": "ERROR", "nothing is deleted until the registry": "ERROR",
		"deletions wait until these deployments have compared their references: b.example.com/eu": "ERROR",
		"paused: deletions":            "WARNING",
		"2 references lost the target": "ERROR", "1 value of attached tables": "WARNING",
		"owned pending for b.example.com/eu fails: refused":                                                                        "ERROR",
		"3 pieces of confirm for b.example.com/eu: the oldest waits for 1h":                                                        "WARNING",
		"1 resource of kind Old, such as olds/1":                                                                                   "WARNING",
		"2 values of attached tables may not refer to resources of b.example.com/us, so that nothing keeps these: it has no right": "ERROR",
		"2 deletions with a retention, whose purge time has passed, cannot be carried out: a region is away":                       "ERROR",
	} {
		got := ""
		for p, as := range found {
			if strings.Contains(p, problem) && strings.HasPrefix(as, want) {
				got = as
			}
		}
		require.NotEmpty(t, got, "%s: %s", problem, out)
	}
	require.NotContains(t, out, "of 1 release")
	require.NotContains(t, out, "d.example.com", "its watch has just begun")
	require.Contains(t, out, "db-controller resume "+id+" --reason TEXT")
	require.Less(t, strings.LastIndex(out, "ERROR"), strings.Index(out, "WARNING"), "errors are first")

	code, found, out = call(&adminv1.StatusResponse{Version: version, Processes: alive[:1]}, id, "--errors-only")
	require.Zero(t, code, out)
	require.Empty(t, found)

	silent := command(t, "--context", stub.New(t, stub.Services{}).Context, "doctor", id)
	require.Equal(t, cli.Findings, silent.code)
	require.Contains(t, silent.out, "ERROR    "+id+": it does not answer")
	wrong := command(t, "--context", stub.New(t, stub.Services{}).Context, "doctor", "iam.example.com/us-west9")
	require.Equal(t, cli.Refused, wrong.code)
	require.Contains(t, wrong.errOut, "did you mean "+id)
}
