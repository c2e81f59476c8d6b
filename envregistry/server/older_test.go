package server_test

import (
	"context"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/envregistry"
	"github.com/db-controller/db-controller/envregistry/server"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/schema"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	"github.com/db-controller/db-controller/test/wait"
)

const another = "regions: []\ndeployments: [{deployment: iam.example.com/eastus2, version: v2}]"

// copied is a registry whose database has an older copy: of before the last change.
type copied struct {
	t    *testing.T
	dsn  string
	old  int64
	seen *registryv1.Environment // the position of a deployment among the lost commits
}

func newCopied(t *testing.T) *copied {
	t.Helper()
	c := &copied{t: t, dsn: database(t)}
	operator := serve(t, c.dsn, identity.Identity{Role: identity.RoleOperator, Name: "o"})
	apply(t, operator, example)
	conn, err := pgx.Connect(t.Context(), c.dsn)
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT revision FROM dbcontroller_registry.meta`).Scan(&c.old))
	apply(t, operator, another)
	answer, err := operator.GetEnvironment(t.Context(), &registryv1.GetEnvironmentRequest{})
	require.NoError(t, err)
	c.seen = &registryv1.Environment{
		Revision: answer.GetEnvironment().GetRevision(),
		History:  answer.GetEnvironment().GetHistory(),
	}
	return c
}

// putBack gives the database the state of an older copy of its server's files: the same server, epoch and
// key, and an older environment.
func (c *copied) putBack() {
	c.t.Helper()
	conn, err := pgx.Connect(c.t.Context(), c.dsn)
	require.NoError(c.t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	_, err = conn.Exec(c.t.Context(), `UPDATE dbcontroller_registry.meta SET revision = $1`, c.old)
	require.NoError(c.t, err)
	_, err = conn.Exec(c.t.Context(), `UPDATE dbcontroller_registry.deployment SET version = 'v1'`)
	require.NoError(c.t, err)
}

func incomplete(t *testing.T, c registryv1.RegistryServiceClient, seen *registryv1.Environment) bool {
	t.Helper()
	answer, err := c.GetEnvironment(t.Context(), &registryv1.GetEnvironmentRequest{
		SeenRevision: seen.GetRevision(),
		SeenHistory:  seen.GetHistory(),
	})
	require.NoError(t, err)
	return answer.GetIncomplete()
}

// A deployment has seen a greater revision than the registry's database has: the database is an older copy,
// and deployments may be missing in it. Revisions go on after the greatest that was seen.
func TestARegistryOverAnOlderCopyIsIncomplete_I15(t *testing.T) {
	t.Parallel()
	c := newCopied(t)
	c.putBack()
	user := serve(t, c.dsn, identity.Identity{Role: identity.RoleUser, Name: "u"})
	own, operator := serve(t, c.dsn, identity.Deployment(west)),
		serve(t, c.dsn, identity.Identity{Role: identity.RoleOperator, Name: "o"})
	require.False(t, incomplete(t, own, nil), "it cannot know")
	require.False(t, incomplete(t, user, c.seen), "a user has no part in it")
	for _, absurd := range []int64{-1, 1 << 60} {
		_, err := own.GetEnvironment(t.Context(), &registryv1.GetEnvironmentRequest{SeenRevision: absurd})
		require.Equal(t, codes.InvalidArgument, status.Code(err))
	}
	require.True(t, incomplete(t, own, c.seen))
	answer, err := user.GetEnvironment(t.Context(), &registryv1.GetEnvironmentRequest{})
	require.NoError(t, err)
	require.Equal(t, c.seen.GetRevision()+1, answer.GetEnvironment().GetRevision())
	apply(t, operator, example)
	require.False(t, incomplete(t, own, c.seen), "all were applied again")
}

// A deployment that invents its position: later revisions of the present history, alone or under the stamp of
// an earlier one, by which the registry would disown its list with each request; and one so great that no
// later position of any deployment is accepted.
func TestADeploymentDoesNotMakeUpWhatItHasSeen_I13(t *testing.T) {
	t.Parallel()
	c := newCopied(t)
	hostile := serve(t, c.dsn, identity.Deployment(west))
	history := c.seen.GetHistory()
	later := c.seen.GetRevision() + 1
	of, _, _ := strings.Cut(history, ".")
	for name, told := range map[string]*registryv1.Environment{
		"a revision":            {Revision: later},
		"the greatest revision": {Revision: 1 << 52},
		"under a stamp":         {Revision: later, History: history},
		"under a changed stamp": {Revision: later, History: strings.Replace(history,
			"."+strconv.FormatInt(later-1, 10)+".", "."+strconv.FormatInt(later, 10)+".", 1)},
		"under a cut stamp": {
			Revision: later,
			History:  history[:strings.LastIndexByte(history, '.')],
		},
		"under a part":                        {Revision: later, History: of},
		"under a part with another":           {Revision: later, History: of + "." + history},
		"under the stamp of an empty history": {Revision: later, History: "." + strconv.FormatInt(later, 10) + "."},
	} {
		require.False(t, incomplete(t, hostile, told), name)
		_, err := hostile.WatchEnvironment(t.Context(),
			&registryv1.WatchEnvironmentRequest{SeenRevision: told.GetRevision(), SeenHistory: told.GetHistory()})
		require.NoError(t, err, name)
	}
	answer, err := hostile.GetEnvironment(t.Context(), &registryv1.GetEnvironmentRequest{})
	require.NoError(t, err)
	require.Equal(t, c.seen.GetRevision(), answer.GetEnvironment().GetRevision())
}

// A watch resumed with a token of the lost commits would miss changes.
func TestATokenOfLostCommitsIsReset_I24(t *testing.T) {
	t.Parallel()
	c := newCopied(t)
	own := serve(t, c.dsn, identity.Deployment(west))
	_, token, err := listen(t, own, "", ends("end"))
	require.NoError(t, err)
	c.putBack()
	stream, err := own.WatchEnvironment(t.Context(), &registryv1.WatchEnvironmentRequest{
		ResumeToken:  token,
		SeenRevision: c.seen.GetRevision(), SeenHistory: c.seen.GetHistory(),
	})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.Equal(t, codes.OutOfRange, status.Code(err), "%v", err)
	require.True(t, incomplete(t, own, nil))
}

// A deployment whose watch is older than its entry has reported its revision at the beginning of the watch:
// the list is complete without another watch.
func TestADeploymentThatIsListedAfterItsWatchBeganIsHeardOf_I15(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	pool, err := postgres.Connect(t.Context(), dsn, "test", 2)
	require.NoError(t, err)
	defer pool.Close()
	require.NoError(t, server.New(pool, nil, nil, zap.NewNop()).Begin(t.Context()))
	operator, own := serve(t, dsn, identity.Identity{Role: identity.RoleOperator, Name: "o"}),
		serve(t, dsn, identity.Deployment(west))
	stream, err := own.WatchEnvironment(t.Context(), &registryv1.WatchEnvironmentRequest{})
	require.NoError(t, err)
	_, err = stream.Recv() // the end of an empty snapshot
	require.NoError(t, err)
	go func() {
		for err := error(nil); err == nil; {
			_, err = stream.Recv()
		}
	}()
	apply(t, operator, example)
	_, err = own.RegisterDeployment(t.Context(), &registryv1.RegisterDeploymentRequest{
		Service: west.Service,
		Region:  west.Region, Address: "a:1", Generation: 1,
	})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return !incomplete(t, operator, nil) }, wait.Limit, wait.Poll)
}

// A registry that goes on notices an older copy by itself; a registry that has just started believes an
// operator.
func TestARegistryNoticesAnOlderCopyItself(t *testing.T) {
	t.Parallel()
	c := newCopied(t)
	user := serve(t, c.dsn, identity.Identity{Role: identity.RoleUser, Name: "u"})
	require.False(t, incomplete(t, user, nil))
	c.putBack()
	require.True(t, incomplete(t, user, nil))

	d := newCopied(t)
	d.putBack()
	pool, err := postgres.Connect(t.Context(), d.dsn, "test", 2)
	require.NoError(t, err)
	defer pool.Close()
	require.NoError(t, server.New(pool, nil, nil, zap.NewNop()).Restored(t.Context()))
	require.True(t, incomplete(t, serve(t, d.dsn, identity.Identity{Role: identity.RoleUser, Name: "u"}), nil))
}

type keeper struct{ kept *schema.Environment }

func (k keeper) LoadEnvironment(context.Context) (*schema.Environment, error) { return k.kept, nil }
func (keeper) KeepEnvironment(context.Context, *schema.Environment) error     { return nil }

// A deployment's process tells the registry the revision of the environment that it has stored, when it asks
// as well as when it watches.
func TestAClientTellsTheRevisionThatItHasSeen(t *testing.T) {
	t.Parallel()
	for name, meets := range map[string]func(*envregistry.Client){
		"watches": func(*envregistry.Client) {},
		"asks": func(c *envregistry.Client) {
			env, err := c.Ask(t.Context())
			require.NoError(t, err)
			require.True(t, env.Incomplete)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			copied := newCopied(t)
			dsn := copied.dsn
			copied.putBack()
			client, err := envregistry.New(envregistry.Config{
				Deployment: west, Address: "west:1", Registry: connect(t, dsn, identity.Deployment(west)),
				Logger: zap.NewNop(),
				Keeper: keeper{&schema.Environment{
					Revision: copied.seen.GetRevision(),
					History:  copied.seen.GetHistory(), Deployments: []schema.Deployment{{DeploymentID: west}},
				}},
			})
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() { _ = client.Run(ctx) }()
			<-client.Environments() // the stored one
			meets(client)
			for env := range client.Environments() {
				if env.Revision == copied.seen.GetRevision()+1 {
					break
				}
			}
			require.True(t, incomplete(t, serve(t, dsn, identity.Deployment(west)), nil))
		})
	}
}
