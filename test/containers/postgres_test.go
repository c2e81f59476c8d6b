package containers

import (
	"net"
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/testcontainers/testcontainers-go"

	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/migrations"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow"
)

// A deployment's store runs over PostgreSQL in a container, which asks for the password.
func TestAStoreOverAContainer(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a container")
	}
	engine, err := connectEngine(t.Context())
	if err != nil {
		t.Skipf("no container engine: %v", err)
	}
	t.Cleanup(func() { _ = engine.Close() })
	require.NoError(t, removeLeftovers(t.Context(), engine))
	image, err := postgresImage(t.Context(), engine)
	if err != nil {
		t.Skipf("no image of PostgreSQL: %v", err)
	}
	c, password, err := runPostgres(t.Context(), image)
	testcontainers.CleanupContainer(t, c, testcontainers.StopTimeout(0))
	require.NoError(t, err)
	at, err := c.Endpoint(t.Context(), "")
	require.NoError(t, err)
	// not on a Mac
	if ip, err := c.ContainerIP(t.Context()); err == nil && answers(t.Context(), net.JoinHostPort(ip, "5432")) {
		at = net.JoinHostPort(ip, "5432")
	}
	dsn := func(password string) string {
		dsn := url.URL{
			Scheme: "postgres", User: url.UserPassword("postgres", password), Host: at, Path: "/postgres",
			RawQuery: "sslmode=disable",
		}
		return dsn.String()
	}
	_, err = pgx.Connect(t.Context(), dsn("wrong"))
	require.ErrorContains(t, err, "password")
	_, err = migrations.Up(t.Context(), dsn(password), migrations.Deployment)
	require.NoError(t, err)
	pool, err := postgres.Connect(t.Context(), dsn(password), "test", 4)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	_, err = shadow.Open(t.Context(),
		shadow.Config{Pool: pool, Deployment: schema.DeploymentID{Service: "a.example.com", Region: "eu"}})
	require.NoError(t, err)
}
