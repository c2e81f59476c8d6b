package server_test

import (
	"context"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/envregistry/server"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/schema"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
)

var east = schema.DeploymentID{Service: "iam.example.com", Region: "eastus2"}

// parts is a registry whose servers begin parts of its history.
type parts struct {
	t                    *testing.T
	dsn                  string
	pool                 *pgxpool.Pool
	operator, west, east registryv1.RegistryServiceClient
}

func newParts(t *testing.T) *parts {
	t.Helper()
	p := &parts{t: t, dsn: database(t)}
	var err error
	p.pool, err = postgres.Connect(t.Context(), p.dsn, "test", 2)
	require.NoError(t, err)
	t.Cleanup(p.pool.Close)
	p.operator = serve(t, p.dsn, identity.Identity{Role: identity.RoleOperator, Name: "o"})
	p.west, p.east = serve(t, p.dsn, identity.Deployment(west)), serve(t, p.dsn, identity.Deployment(east))
	apply(t, p.operator, example)
	p.register(p.west, west, uuid.Nil)
	p.register(p.east, east, uuid.Nil)
	p.begin()
	return p
}

// begin is the start of a server.
func (p *parts) begin() {
	p.t.Helper()
	require.NoError(p.t, server.New(p.pool, nil, nil, zap.NewNop()).Begin(p.t.Context()))
}

func (p *parts) register(c registryv1.RegistryServiceClient, id schema.DeploymentID,
	database uuid.UUID,
) *registryv1.Deployment {
	p.t.Helper()
	d, err := c.RegisterDeployment(p.t.Context(), &registryv1.RegisterDeploymentRequest{
		Service: id.Service, Region: id.Region, Address: id.Region + ":1", Database: database.String(),
		Generation: next(p.t, c, id),
	})
	require.NoError(p.t, err)
	return d
}

func (p *parts) get(c registryv1.RegistryServiceClient,
	seen *registryv1.Environment,
) *registryv1.GetEnvironmentResponse {
	p.t.Helper()
	answer, err := c.GetEnvironment(p.t.Context(), &registryv1.GetEnvironmentRequest{
		SeenRevision: seen.GetRevision(),
		SeenHistory:  seen.GetHistory(),
	})
	require.NoError(p.t, err)
	return answer
}

// change makes a change of the environment: an additional region.
func (p *parts) change(region string) {
	p.t.Helper()
	apply(p.t, p.operator, "regions: ["+region+"]\ndeployments: []")
}

func (p *parts) exec(sql string, args ...any) {
	p.t.Helper()
	_, err := p.pool.Exec(p.t.Context(), sql, args...)
	require.NoError(p.t, err)
}

// copy keeps the state of the registry, and returns a function that puts it back as an older copy of the
// server's files would.
func (p *parts) copy() (putBack func()) {
	p.t.Helper()
	var revision, seq int64
	var history string
	require.NoError(p.t, p.pool.QueryRow(p.t.Context(), `SELECT revision, history, (SELECT max(seq) FROM dbcontroller_registry.history)
		FROM dbcontroller_registry.meta`).Scan(&revision, &history, &seq))
	return func() {
		p.exec(`UPDATE dbcontroller_registry.meta SET revision = $1, history = $2`, revision, history)
		p.exec(`DELETE FROM dbcontroller_registry.history WHERE seq > $1`, seq)
	}
}

// The copy has received as many changes as were lost: the revisions are alike, the histories are not.
func TestACopyWithAsManyChangesAsWereLostIsNoticed_I15(t *testing.T) {
	t.Parallel()
	for name, restarts := range map[string]bool{"of the same part": false, "of an earlier part": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newParts(t)
			putBack := p.copy()
			if restarts {
				p.begin()
			}
			p.change("lost-1")
			p.get(p.east, nil)
			lost := p.get(p.west, nil)
			require.False(t, lost.GetIncomplete())
			p.change("lost-2")
			later := p.get(p.east, nil)
			putBack()
			p.begin()
			p.change("other-1")
			p.change("other-2")
			p.change("other-3")
			p.get(p.east, nil)
			answer := p.get(p.west, lost.GetEnvironment())
			require.True(t, answer.GetIncomplete())
			require.Greater(t, answer.GetEnvironment().GetRevision(), lost.GetEnvironment().GetRevision())
			apply(t, p.operator, example)
			p.get(p.east, later.GetEnvironment())
			require.False(t, p.get(p.west, lost.GetEnvironment()).GetIncomplete(),
				"it is known, and all were applied again")
			p.change("next")
			require.False(t, p.get(p.west, answer.GetEnvironment()).GetIncomplete(), "of the present history")
		})
	}
}

// A position in any part of the present history reveals no loss; an invented part reveals none either.
func TestWhatWasSeenOfThePresentHistoryRevealsNothing(t *testing.T) {
	t.Parallel()
	p := newParts(t)
	p.get(p.east, nil)
	first := p.get(p.west, nil)
	p.begin()
	p.change("a")
	p.begin()
	p.get(p.east, first.GetEnvironment())
	second := p.get(p.west, first.GetEnvironment())
	require.False(t, second.GetIncomplete())
	p.change("b")
	p.begin()
	p.get(p.east, second.GetEnvironment())
	require.False(t, p.get(p.west, second.GetEnvironment()).GetIncomplete())
	require.False(t,
		p.get(p.west, &registryv1.Environment{Revision: 1, History: strings.Repeat("a", 64)}).GetIncomplete(),
		"invented")
	require.False(t, p.get(p.west, &registryv1.Environment{Revision: 1, History: "?"}).GetIncomplete(), "malformed")
}

// The database may have been replaced while no server ran: before the registry vouches for its list, each
// deployment in the list tells the position that it has seen. Disabled deployments, and deployments that
// never ran, are not waited for.
func TestARegistryThatHasStartedHearsItsDeploymentsFirst_I2_I15(t *testing.T) {
	t.Parallel()
	p := newParts(t)
	answer := p.get(p.west, nil)
	require.True(t, answer.GetIncomplete())
	require.Equal(t, []string{"iam.example.com/eastus2"}, answer.GetUnheard())
	p.get(p.operator, nil)
	require.True(t, p.get(p.west, nil).GetIncomplete(), "an operator is no deployment")
	apply(t, p.operator,
		"regions: []\ndeployments: [{deployment: iam.example.com/eastus2, version: v1, disabled: true}]")
	require.False(t, p.get(p.west, nil).GetIncomplete())
	apply(t, p.operator, "regions: []\ndeployments: [{deployment: iam.example.com/eastus2, version: v1}]")
	require.True(t, p.get(p.west, nil).GetIncomplete())
	p.get(p.east, nil)
	require.False(t, p.get(p.west, nil).GetIncomplete())
}

// A deployment whose watch is open at one server is heard in the part of the history that another server
// begins.
func TestAnOpenWatchIsHeardWhenAnotherServerStarts(t *testing.T) {
	t.Parallel()
	p := newParts(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := p.east.WatchEnvironment(ctx, &registryv1.WatchEnvironmentRequest{})
	require.NoError(t, err)
	first := token(t, stream)
	require.False(t, p.get(p.west, nil).GetIncomplete())
	p.begin()
	require.True(t, p.get(p.west, nil).GetIncomplete())
	p.change("a") // a bookmark follows at once
	second := token(t, stream)
	require.NotEqual(t, first.GetHistory(), second.GetHistory())
	require.Equal(t, first.GetRevision()+1, second.GetRevision())
	require.False(t, p.get(p.west, nil).GetIncomplete())
}

func token(t *testing.T, stream registryv1.RegistryService_WatchEnvironmentClient) *registryv1.Environment {
	t.Helper()
	for {
		msg, err := stream.Recv()
		require.NoError(t, err)
		if e := msg.GetEndOfSnapshot(); e != nil {
			return &registryv1.Environment{Revision: e.GetRevision(), History: e.GetHistory()}
		}
		if e := msg.GetBookmark(); e.GetRevision() != 0 {
			return &registryv1.Environment{Revision: e.GetRevision(), History: e.GetHistory()}
		}
	}
}

// The registry remembers the database that a deployment registered with first, also over a removal, until an
// operator accepts another.
func TestADeploymentIsKnownByItsDatabase_I15(t *testing.T) {
	t.Parallel()
	p := newParts(t)
	one, other := uuid.New(), uuid.New()
	require.Equal(t, one.String(), p.register(p.west, west, one).GetDatabase())
	require.Equal(t, one.String(), p.register(p.west, west, other).GetDatabase(),
		"it may be an empty one, started by mistake")
	const again = "regions: []\ndeployments: [{deployment: iam.example.com/us-west2, version: v1}]"
	apply(t, p.operator, again)
	_, err := p.operator.Remove(t.Context(), &registryv1.RemoveRequest{Deployments: []string{west.String()}})
	require.NoError(t, err)
	apply(t, p.operator, again)
	known := func() string {
		for _, d := range p.get(p.west, nil).GetEnvironment().GetDeployments() {
			if d.GetRegion() == west.Region {
				return d.GetDatabase()
			}
		}
		return ""
	}
	require.Equal(t, one.String(), known())
	d, err := p.operator.AcceptDatabase(t.Context(), &registryv1.AcceptDatabaseRequest{
		Service: west.Service,
		Region:  west.Region, Database: other.String(),
	})
	require.NoError(t, err)
	require.Equal(t, other.String(), d.GetDatabase())
	require.Equal(t, other.String(), known())
	for _, bad := range []string{"", "x"} {
		_, err = p.operator.AcceptDatabase(t.Context(), &registryv1.AcceptDatabaseRequest{
			Service: west.Service,
			Region:  west.Region, Database: bad,
		})
		require.Equal(t, codes.InvalidArgument, status.Code(err))
	}
	_, err = p.operator.AcceptDatabase(t.Context(), &registryv1.AcceptDatabaseRequest{
		Service: west.Service,
		Region:  "nowhere", Database: other.String(),
	})
	require.Equal(t, codes.NotFound, status.Code(err))
}

// A switch-over of the registry's database that loses no commit needs no operator: each deployment tells the
// revision that it has seen. A switch-over that has lost commits needs an operator, and so does one with no
// running deployment in its list.
func TestASwitchOverOfTheRegistryNeedsNobody_I13_I15(t *testing.T) {
	t.Parallel()
	const promoted = `UPDATE dbcontroller_registry.meta SET server = 'before', timeline = '00000000'`
	const appliedBefore = `UPDATE dbcontroller_registry.deployment SET applied_in = 'before'`
	p := newParts(t)
	p.get(p.east, nil)
	last := p.get(p.west, nil).GetEnvironment()
	p.exec(promoted)
	p.exec(appliedBefore)
	answer := p.get(p.west, last)
	require.True(t, answer.GetIncomplete())
	require.Equal(t, []string{"iam.example.com/eastus2"}, answer.GetUnheard(), "it may have seen more")
	p.get(p.east, last)
	require.False(t, p.get(p.west, last).GetIncomplete(), "all of them have seen what the database has")

	putBack := p.copy()
	p.change("lost")
	lost := p.get(p.east, last).GetEnvironment()
	putBack()
	p.exec(promoted)
	p.exec(appliedBefore)
	p.get(p.west, last)
	require.True(t, p.get(p.east, lost).GetIncomplete())
	require.True(t, p.get(p.west, last).GetIncomplete(), "one has seen a lost commit")
	apply(t, p.operator, example)
	require.False(t, p.get(p.west, last).GetIncomplete())

	p.exec(promoted)
	p.exec(appliedBefore)
	p.exec(`UPDATE dbcontroller_registry.deployment SET disabled = true`)
	require.True(t, p.get(p.west, last).GetIncomplete(), "nobody who runs can tell")
}
