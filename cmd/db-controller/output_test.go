package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/stub"
)

// Scripts decide by the class of an error.
func TestErrorsHaveAnExitCodeByClass(t *testing.T) {
	t.Parallel()
	of := map[codes.Code]int{
		codes.InvalidArgument: 4, codes.NotFound: 4, codes.AlreadyExists: 4, codes.PermissionDenied: 4,
		codes.Unauthenticated:    4,
		codes.FailedPrecondition: 4, codes.OutOfRange: 4, codes.Unimplemented: 4,
		codes.Unavailable: 5, codes.DeadlineExceeded: 5, codes.Aborted: 5, codes.ResourceExhausted: 5,
		codes.Internal: 1, codes.Unknown: 1, codes.Canceled: 1, codes.DataLoss: 1,
	}
	for c := codes.Canceled; c <= codes.Unauthenticated; c++ {
		want, ok := of[c]
		require.True(t, ok, "%v has no class", c)
		err := status.Error(c, "why")
		for _, err := range []error{
			err, cli.Plain(err), fmt.Errorf("of it: %w", cli.Plain(err)),
			errors.Join(cli.Plain(err), errors.New("more")),
		} {
			require.Equal(t, want, cli.ExitCode(err), "%v", err)
		}
		require.Equal(t, fmt.Sprintf("why (%v)", c), cli.Plain(cli.Plain(err)).Error())
	}
	require.Zero(t, cli.ExitCode(nil))
	require.Equal(t, 1, cli.ExitCode(errors.New("a fault")))
	require.Equal(t, 2, cli.ExitCode(fmt.Errorf("more: %w", cli.Usage("wrong"))))
	require.Equal(t, 4, cli.ExitCode(&client.UnregisteredError{}))
	require.Equal(t, 5, cli.ExitCode(fmt.Errorf("more: %w", context.DeadlineExceeded)))
}

// Commands that work with a database have the exit codes of the others.
func TestErrorsOfDatabasesHaveAnExitCodeByClass(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]int{"28P01": 4, "3D000": 4, "42501": 4, "57P03": 5, "40P01": 5, "42601": 1} {
		require.Equal(t, want, cli.ExitCode(cli.OfDatabase(fmt.Errorf("migrate: %w", &pgconn.PgError{Code: code}))),
			code)
	}
	require.NoError(t, cli.OfDatabase(nil))
	require.Equal(t, 2, cli.ExitCode(cli.OfDatabase(cli.Usage("wrong"))))
	nobody := command(t, "migrate", "status", "--postgres", "postgres://127.0.0.1:1/x")
	require.Equal(t, 5, nobody.code, nobody.errOut)

	dsn := harness.Postgres(t).NewDatabase(t, "")
	require.Zero(t, command(t, "migrate", "up", "--postgres", dsn, "--postgres-plaintext").code)
	other := command(t, "migrate", "up", "--set", "registry", "--postgres", dsn, "--postgres-plaintext")
	require.Equal(t, 4, other.code, other.errOut)
	certs := t.TempDir()
	require.Zero(t, command(t, "certs", "--dir", certs, "registry").code)
	start := command(t, "registry", "--certs", certs+"/registry", "--listen", "127.0.0.1:0", "--postgres", dsn,
		"--postgres-plaintext")
	require.Equal(t, 4, start.code, start.errOut)
}

// An upgrade keeps the roles that the database has: roles of another prefix would take its tables over,
// without the rights of their users.
func TestAnUpgradeKeepsTheRolesOfTheDatabase(t *testing.T) {
	t.Parallel()
	dsn := harness.Postgres(t).NewDatabase(t, "")
	of := []string{"--postgres", dsn, "--postgres-plaintext"}
	up := func(args ...string) ran { return command(t, slices.Concat([]string{"migrate", "up"}, of, args)...) }
	require.Contains(t, up("--roles", "--role-prefix", "dbcontroller_first").out, "roles dbcontroller_first_owner")
	require.Empty(t, up().errOut, "nothing is new")
	require.Zero(t, command(t, slices.Concat([]string{"migrate", "down", "--reason", "a test", "--yes"}, of)...).code)
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	_, err = conn.Exec(t.Context(), `CREATE SCHEMA dbcontroller AUTHORIZATION dbcontroller_first_owner`)
	require.NoError(t, err)
	require.Equal(t, "note: the roles dbcontroller_first_… have no rights to what is new: run it again with --roles\n",
		up().errOut)
	again := up("--roles")
	require.Contains(t, again.out, "roles dbcontroller_first_owner", "without --role-prefix")
	require.Empty(t, again.errOut)
	require.Contains(t, up("--roles", "--role-prefix", "dbcontroller_second").errOut,
		"note: the roles dbcontroller_first_… have no rights to what is new: grant those below to their users, or run it again without --role-prefix dbcontroller_second")
}

// Every command that ends by itself prints its result for programs as well.
func TestEveryCommandThatPrintsHasAnOutputFlag(t *testing.T) {
	t.Parallel()
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			walk(sub)
		}
		runs := []string{"serve", "registry", "dev", "healthcheck", "completion", "help", "schema"}
		if !c.HasParent() || c.HasSubCommands() && c.Name() != "certs" || slices.Contains(runs, c.Name()) {
			return
		}
		require.NotNil(t, c.Flags().Lookup("output"), c.CommandPath())
	}
	walk(newRoot())
}

// administered answers for operators.
type administered struct {
	adminv1.UnimplementedAdminServiceServer
}

func (administered) Status(context.Context, *adminv1.StatusRequest) (*adminv1.StatusResponse, error) {
	return &adminv1.StatusResponse{
		Deployment: "iam.example.com/us-west2", Version: "v1", Generation: 1,
		Outstanding: []*adminv1.StatusResponse_Outstanding{
			{Group: "confirm", Deployment: "devices.example.com/eastus2", Count: 3},
		}, Epoch: &adminv1.StatusResponse_Epoch{Unconfirmed: []string{"a.example.com/r"}},
	}, nil
}

func (administered) Explain(context.Context, *adminv1.ExplainRequest) (*adminv1.ExplainResponse, error) {
	return &adminv1.ExplainResponse{Name: acmeName, State: "ACTIVE"}, nil
}

func (administered) ListRemovals(context.Context, *adminv1.ListRemovalsRequest) (*adminv1.ListRemovalsResponse, error) {
	return &adminv1.ListRemovalsResponse{}, nil
}

func (administered) WaiveComparison(context.Context,
	*adminv1.WaiveComparisonRequest,
) (*adminv1.WaiveComparisonResponse, error) {
	return &adminv1.WaiveComparisonResponse{}, nil
}

// empty has no resources, and deletes each.
type empty struct {
	project
}

func (*empty) ListResources(context.Context,
	*resourcev1.ListResourcesRequest,
) (*resourcev1.ListResourcesResponse, error) {
	return &resourcev1.ListResourcesResponse{}, nil
}

func (*empty) DeleteResource(_ context.Context,
	req *resourcev1.DeleteResourceRequest,
) (*resourcev1.DeleteResourceResponse, error) {
	if req.GetName() == "projects/none" && !req.GetAllowMissing() {
		return nil, status.Error(codes.NotFound, "projects/none: not found")
	}
	return &resourcev1.DeleteResourceResponse{Removed: true}, nil
}

func (e *empty) BatchDeleteResources(ctx context.Context,
	req *resourcev1.BatchDeleteResourcesRequest,
) (*resourcev1.BatchDeleteResourcesResponse, error) {
	out := &resourcev1.BatchDeleteResourcesResponse{}
	for _, one := range req.GetRequests() {
		answer, err := e.DeleteResource(ctx, one)
		if err != nil {
			return nil, err
		}
		out.Responses = append(out.Responses, answer)
	}
	return out, nil
}

func (registry) Remove(_ context.Context, req *registryv1.RemoveRequest) (*registryv1.RemoveResponse, error) {
	return &registryv1.RemoveResponse{Changes: req.GetDeployments()}, nil
}

// The result for programs is one document on the standard output, also when it is empty.
func TestResultsForProgramsAreOneDocument(t *testing.T) {
	t.Parallel()
	at := []string{"--context", stub.New(t, stub.Services{
		Resources: &empty{}, Admin: administered{},
		Registry: registry{},
	}).Context}
	for want, args := range map[string][]string{
		`[]`: {"list", "iam.example.com/us-west2"},
		`[{"name":"` + acmeName + `","state":"GONE"},{"name":"` + acmeName + `","state":"GONE"}]`: {
			"delete",
			acmeName, acmeName,
		},
		`{"name":"` + acmeName + `","state":"GONE"}`: {"delete", acmeName},
		`{"name":"//iam.example.com/us-west2/projects/none","state":"GONE"}`: {
			"delete",
			"--ignore-not-found", "//iam.example.com/us-west2/projects/none",
		},
		`{"name":"` + acmeName + `","state":"ACTIVE"}`: {
			"explain",
			acmeName,
		},
		`{"changes":[]}`: {"apply", write(t, "regions: [us-west2]\n")},
		`{"changes":["iam.example.com/us-west2"]}`: {
			"remove",
			"iam.example.com/us-west2",
		},
		`{"deployment":"iam.example.com/us-west2","comparisonOf":"a.example.com/r"}`: {
			"force-release",
			"iam.example.com/us-west2", "--comparison-of", "a.example.com/r", "--reason", "r", "--yes",
		},
	} {
		for _, format := range []string{"json", "yaml"} {
			got := command(t, slices.Concat(at, args, []string{"-o", format})...)
			require.Zero(t, got.code, "%v: %s", args, got.errOut)
			var value any
			require.NoError(t, yaml.Unmarshal([]byte(got.out), &value), "%v: %s", args, got.out)
			raw, err := json.Marshal(value)
			require.NoError(t, err)
			require.JSONEq(t, want, string(raw), "%v -o %s", args, format)
		}
	}
	got := command(t, append(at, "removals", acmeName, "-o", "json")...)
	require.Equal(t, ran{0, "[]\n", ""}, got)
	got = command(t, append(at, "list", "iam.example.com/us-west2")...)
	require.Equal(t, ran{0, "", "no resources\n"}, got, "for people")
	got = command(t, append(at, "plan", acmeName, "-o", "json")...)
	require.Zero(t, got.code, got.errOut)
	require.Contains(t, got.out, `"accepted": true`)
}

func TestTheVersionIsPrintedForPrograms(t *testing.T) {
	t.Parallel()
	got := command(t, "version", "-o", "json")
	require.Zero(t, got.code, got.errOut)
	var b cli.Build
	require.NoError(t, json.Unmarshal([]byte(got.out), &b))
	require.Equal(t, cli.ThisBuild(), b)
	got = command(t, "--version")
	require.Equal(t, command(t, "version"), got)
}

// Resources of one deployment are deleted all or none. With --ignore-not-found those that do not exist are
// left out.
func TestSeveralResourcesAreDeletedAllOrNone(t *testing.T) {
	t.Parallel()
	at := []string{"--context", stub.New(t, stub.Services{Resources: &empty{}}).Context}
	const none = "//iam.example.com/us-west2/projects/none"
	got := command(t, append(at, "delete", none, acmeName)...)
	require.Equal(t, cli.Refused, got.code)
	require.Empty(t, got.out)
	require.Equal(t,
		"error: iam.example.com/us-west2: none of 2 resources is deleted: projects/none: not found (NotFound)\n",
		got.errOut)
	got = command(t, append(at, "delete", acmeName, "//iam.example.com/us-west2/projects/b", "-o", "json")...)
	require.Zero(t, got.code, got.errOut)
	require.JSONEq(t, `[{"name": "`+acmeName+
		`", "state": "GONE"}, {"name": "//iam.example.com/us-west2/projects/b", "state": "GONE"}]`, got.out)
}

func TestAMisspeltNameIsNotRemoved(t *testing.T) {
	t.Parallel()
	at := []string{"--context", stub.New(t, stub.Services{Registry: registry{}}).Context}
	got := command(t, append(at, "remove", "iam.example.com/us-west", "typo")...)
	require.Equal(t, cli.Refused, got.code)
	require.Equal(t, "error: not registered: iam.example.com/us-west: did you mean iam.example.com/us-west2?, typo\n",
		got.errOut)
	require.Zero(t, command(t, append(at, "remove", "typo", "--ignore-not-found")...).code)
}

func TestStatusOfAllDeployments(t *testing.T) {
	t.Parallel()
	i := stub.New(t, stub.Services{Admin: administered{}})
	got := command(t, "--context", i.Context, "status", "--all")
	require.Zero(t, got.code, got.errOut)
	require.Contains(t, got.out, "DEPLOYMENT                VERSION  PROCESSES  OUTSTANDING  OLDEST")
	require.Regexp(t, `iam.example.com/us-west2  v1       0          3 `, got.out)
	silent := stub.New(t, stub.Services{})
	got = command(t, "--context", silent.Context, "status", "--all", "-o", "json")
	require.NotZero(t, got.code)
	require.Contains(t, got.out, `"error": `)
}

// Completions find the installation as commands do: also by the environment and the configuration file.
func TestCompletionsReadTheConfiguration(t *testing.T) {
	at := stub.New(t, stub.Services{}).Context
	t.Setenv("DBCONTROLLER_CONTEXT", at)
	require.Equal(t, "iam.example.com/us-west2\n:4\n", command(t, "__complete", "status", "").out)
	t.Setenv("DBCONTROLLER_CONTEXT", "/nonexistent")
	require.Equal(t, ":4\n", command(t, "__complete", "status", "").out)
	require.NoError(t, os.Unsetenv("DBCONTROLLER_CONTEXT"))
	require.Equal(t, "iam.example.com/us-west2\n:4\n", command(t, "__complete", "status", "--config",
		write(t, "context: "+at+"\n"), "").out)
}

func TestNamesAndKindsAreCompleted(t *testing.T) {
	t.Parallel()
	at := []string{"--context", stub.New(t, stub.Services{Resources: &project{}}).Context}
	complete := func(args ...string) string { return command(t, slices.Concat([]string{"__complete"}, args)...).out }
	require.Contains(t, complete(slices.Concat([]string{"get"}, at, []string{"//"})...),
		"//iam.example.com/us-west2/\n")
	require.Contains(t, complete(slices.Concat([]string{"get"}, at, []string{"//iam.example.com/us-west2/pro"})...),
		acmeName+"\n")
	require.Contains(t, complete(slices.Concat([]string{"list"}, at, []string{""})...), "iam.example.com/us-west2\n")
	require.Contains(t, complete("get", "-o", ""), "table\njson\nyaml\n")
	require.Equal(t, "iam.example.com/us-west2\n:4\n",
		complete(slices.Concat([]string{"status"}, at, []string{"ia"})...))
}
