// Package containers runs deployments in containers, each with its PostgreSQL, by testcontainers-go.
package containers

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	tclog "github.com/testcontainers/testcontainers-go/log"
	tcwait "github.com/testcontainers/testcontainers-go/wait"

	"github.com/db-controller/db-controller/internal/postgres/launcher"
	"github.com/db-controller/db-controller/test/wait"
)

const (
	// publicImage is taken where this machine has no programs of PostgreSQL.
	publicImage = "postgres:17-alpine"

	// label marks our containers.
	label = "db-controller.test"
	// leftoverAge is the age at which a container is taken for one that a killed test process has left.
	leftoverAge = time.Hour

	// dataMount is in memory. It is no volume of either image.
	dataMount = "/db-controller-test"
	logLines  = 20
)

// configureLibrary has to be called before the first use of the library.
var configureLibrary = sync.OnceFunc(func() {
	// Its reaper needs one more image; removeLeftovers replaces it.
	_ = os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true") // the name is a valid one
	// It would report every step to standard error.
	tclog.SetDefault(tclog.NewNoopLogger())
})

// connectEngine returns a client of the container engine, once that answers.
func connectEngine(ctx context.Context) (engine client.APIClient, err error) {
	configureLibrary()
	// The library panics where it finds no socket of an engine.
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("find a container engine: %v", cause)
		}
	}()
	provider, err := testcontainers.NewDockerProvider()
	if err != nil {
		return nil, fmt.Errorf("find a container engine: %w", err)
	}
	if err := provider.Health(ctx); err != nil {
		return nil, fmt.Errorf("ask the container engine: %w", err)
	}
	return provider.Client(), nil
}

// postgresImage returns an image of PostgreSQL: one that image.sh makes from the programs on this machine;
// without any, a public one that is present or can be pulled.
func postgresImage(ctx context.Context, engine client.APIClient) (string, error) {
	if programs := launcher.Binaries(ctx); programs != "" {
		out, err := exec.CommandContext(ctx, "sh", "image.sh", programs).CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("make an image of the programs in %s: %w: %s", programs, err, out)
		}
		return strings.TrimSpace(string(out)), nil
	}
	if _, err := engine.ImageInspect(ctx, publicImage); err == nil {
		return publicImage, nil
	}
	progress, err := engine.ImagePull(ctx, publicImage, client.ImagePullOptions{})
	if err != nil {
		return "", fmt.Errorf("pull %s: %w", publicImage, err)
	}
	defer func() { _ = progress.Close() }()
	for message, err := range progress.JSONMessages(ctx) {
		if err == nil && message.Error != nil {
			err = message.Error
		}
		if err != nil {
			return "", fmt.Errorf("pull %s: %w", publicImage, err)
		}
	}
	return publicImage, nil
}

// runPostgres starts a server in a container of the image and waits until it accepts connections. With an
// error the container may be non-nil; the caller terminates it.
func runPostgres(ctx context.Context, image string,
	more ...testcontainers.ContainerCustomizer,
) (c *testcontainers.DockerContainer, password string, err error) {
	password = rand.Text()
	tail := &logTail{}
	c, err = testcontainers.Run(ctx, image, append([]testcontainers.ContainerCustomizer{
		testcontainers.WithEnv(map[string]string{
			"POSTGRES_PASSWORD":    password,
			"POSTGRES_INITDB_ARGS": "--encoding=UTF8 --no-locale",
			"PGDATA":               dataMount + "/data",
		}),
		testcontainers.WithTmpfs(map[string]string{dataMount: "rw,mode=1777"}),
		testcontainers.WithCmd("postgres", "-c", "fsync=off"),
		testcontainers.WithExposedPorts("5432/tcp"),
		testcontainers.WithLabels(map[string]string{label: "true"}),
		testcontainers.WithHostConfigModifier(func(host *container.HostConfig) { host.AutoRemove = true }),
		testcontainers.WithLogConsumers(tail),
		// Over TCP: while the official image sets itself up, a server answers on the socket that is going to
		// be restarted.
		testcontainers.WithWaitStrategy(tcwait.ForExec([]string{
			"pg_isready", "-h", "127.0.0.1", "-U",
			"postgres",
		}).WithStartupTimeout(wait.Limit)),
	}, more...)...)
	if err != nil {
		return c, "", fmt.Errorf("run %s: %w; it logged: %s", image, err, tail)
	}
	return c, password, nil
}

func answers(ctx context.Context, address string) bool {
	ctx, cancel := context.WithTimeout(ctx, wait.Limit)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

func terminate(c *testcontainers.DockerContainer) error {
	return testcontainers.TerminateContainer(c, testcontainers.StopTimeout(0))
}

// removeLeftovers removes the containers of test processes that were killed.
func removeLeftovers(ctx context.Context, engine client.APIClient) error {
	found, err := engine.ContainerList(ctx, client.ContainerListOptions{
		All:     true,
		Filters: make(client.Filters).Add("label", label),
	})
	if err != nil {
		return fmt.Errorf("look for leftover containers: %w", err)
	}
	var errs []error
	for _, one := range found.Items {
		if time.Since(time.Unix(one.Created, 0)) < leftoverAge {
			continue
		}
		_, err := engine.ContainerRemove(ctx, one.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		if err != nil && !errdefs.IsNotFound(err) && !errdefs.IsConflict(err) {
			errs = append(errs, fmt.Errorf("remove a leftover container: %w", err))
		}
	}
	return errors.Join(errs...)
}

// logTail keeps the last log lines of a container, which is removed with its log when it ends.
type logTail struct {
	mu    sync.Mutex
	lines []string
}

// Accept implements testcontainers.LogConsumer.
func (l *logTail) Accept(entry testcontainers.Log) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, strings.TrimSpace(string(entry.Content)))
	if len(l.lines) > logLines {
		l.lines = slices.Delete(l.lines, 0, len(l.lines)-logLines)
	}
}

func (l *logTail) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}
