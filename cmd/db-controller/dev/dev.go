// Package dev has the commands that try the program out: the playground with its scenarios, and the
// benchmark.
package dev

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/cmd/db-controller/operate"
	"github.com/db-controller/db-controller/cmd/db-controller/playground"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/internal/postgres/launcher"
	"github.com/db-controller/db-controller/schema"
)

//go:embed examples
var examples embed.FS

const defaultServices = "examples/services.yaml"

// NewDev returns the command dev.
func NewDev() *cobra.Command {
	var cfg devConfig
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Start a playground: PostgreSQL, a registry, two services in two regions",
		Long: `dev starts PostgreSQL, a registry and four deployments, each a process with its own database and certificate, and stops them at Ctrl-C.
With --scenario it plays a scenario and exits; "demo" is built in, and so is "adopt", about tables that applications already have.

A server of --postgres needs 6 free connections for each deployment, and no other playground.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := runDev(cmd, cfg)
			if cfg.scenario != "" {
				if err != nil {
					return fmt.Errorf("%s: %w", cfg.scenario, err)
				}
				cmd.Println(cfg.scenario + ": ok")
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.dsn, "postgres", "",
		"DSN of a PostgreSQL server to use, of a user who may create databases (default: start a server)")
	f.StringVar(&cfg.scenario, "scenario", "", `file with a scenario to play, "demo", or "adopt"`)
	f.StringSliceVar(&cfg.regions, "regions", nil,
		"regions in which each service of --services runs, if the files have no deployments")
	f.StringSliceVar(&cfg.services, "services", nil,
		"files with services and deployments (default: iam and devices in two regions)")
	f.BoolVar(&cfg.delegations, "delegations", true, "run the deployments with serve --delegations")
	cfg.hosts.Flags(f)
	f.StringVar(&cfg.dir, "dir", filepath.Dir(client.DefaultFile()), "folder for certificates, logs and client.yaml")
	return cmd
}

type devConfig struct {
	dsn, scenario, dir string
	services, regions  []string
	hosts              operate.Hosts
	delegations        bool
}

func runDev(cmd *cobra.Command, cfg devConfig) error {
	if err := cfg.hosts.Check(); err != nil {
		return err
	}
	example := defaultServices
	if cfg.scenario == adopt {
		cfg.delegations = true // of attached tables
		example = adoptServices
	}
	files, err := devServices(example, cfg.services, cfg.regions)
	if err != nil {
		return err
	}
	var play *scenario
	if cfg.scenario != "" {
		if play, err = readScenario(cfg.scenario); err != nil {
			return err
		}
		// Another folder: the default one may belong to a running playground.
		var done func()
		if cfg.dir, done, err = temporary(); err != nil {
			return err
		}
		defer done()
	}
	release, err := takeFolder(cfg.dir)
	if err != nil {
		return err
	}
	defer release()
	began := time.Now()
	pg, err := launcher.Start(cmd.Context(), launcher.Config{DSN: cfg.dsn, Settings: OwnServer(len(files.Deployments))})
	if err != nil {
		return err
	}
	defer func() { _ = pg.Stop() }()
	cmd.Println("database  ", pg.Source())
	binary, err := os.Executable()
	if err != nil {
		return err
	}
	p, c, err := Start(cmd.Context(), pg, binary, cfg.dir, files, cfg.hosts,
		fmt.Sprintf("--delegations=%t", cfg.delegations))
	if p != nil {
		defer func() { _ = p.Stop() }()
	}
	if err != nil {
		return err
	}
	defer c.Close()
	cmd.Println("registry  ", p.RegistryAddress)
	cmd.Println("           database", p.RegistryDSN)
	for _, id := range sortedKeys(p) {
		d := p.Deployments[id]
		cmd.Printf("deployment %-29s grpc %s  health and metrics %s\n", id, d.Address, d.HTTP)
		cmd.Println("           database", d.DSN)
	}
	cmd.Printf("ready in %s\n\n", time.Since(began).Round(10*time.Millisecond))
	if play != nil {
		err := play.run(cmd.Context(), cmd.OutOrStdout(), p, c)
		if err != nil {
			for _, id := range sortedKeys(p) {
				cmd.PrintErrf("\nthe end of the log of %s:\n%s\n", id, p.Deployments[id].Tail())
			}
		}
		return err
	}
	cmd.Print(hints(cfg))
	<-cmd.Context().Done()
	cmd.Println("\nstopping")
	return nil
}

// temporary makes a folder, which done removes.
func temporary() (dir string, done func(), err error) {
	if dir, err = os.MkdirTemp("", "db-controller-"); err != nil {
		return "", nil, err
	}
	return dir, func() { _ = os.RemoveAll(dir) }, nil
}

func hints(cfg devConfig) string {
	context := ""
	if file := filepath.Join(cfg.dir, playground.ClientFile); file != client.DefaultFile() {
		context = " --context " + file
	}
	lines := []string{"In another terminal, try:"}
	tries := []string{
		`put //iam.example.com/us-west2/projects/acme '{"title": "Acme"}'`,
		`put //iam.example.com/us-west2/projects/acme/serviceAccounts/robot`,
		`put //devices.example.com/eastus2/fleets/north '{"project": "//iam.example.com/us-west2/projects/acme"}'`,
		`put //devices.example.com/eastus2/fleets/north/devices/d1 '{"account": "//iam.example.com/us-west2/projects/acme/serviceAccounts/robot"}'`,
		`delete //iam.example.com/us-west2/projects/acme/serviceAccounts/robot     # refused: the device refers to it`,
		`watch devices.example.com/eastus2                                         # leave it open while you delete`,
		`delete //devices.example.com/eastus2/fleets/north`,
		`plan //iam.example.com/us-west2/projects/acme                             # the effect of a delete in all deployments`,
		`delete //iam.example.com/us-west2/projects/acme --wait 5s`,
	}
	if len(cfg.services) > 0 {
		tries = []string{"put --help", "list --help", "plan --help", "validate " + strings.Join(cfg.services, " ")}
	}
	for _, try := range tries {
		lines = append(lines, "  "+os.Args[0]+context+" "+try)
	}
	lines = append(lines, "  "+os.Args[0]+context+" console", "", "Logs and certificates: "+cfg.dir,
		"Ctrl-C stops it.", "")
	return strings.Join(lines, "\n")
}

// Start starts a playground of a program on a PostgreSQL server, in a folder, and returns it with a client.
// It returns the playground with an error as well: the caller stops it.
func Start(ctx context.Context, pg *launcher.Server, binary, dir string, files *schema.File, at operate.Hosts,
	serve ...string,
) (*playground.Playground, *client.Client, error) {
	var ids []schema.DeploymentID
	for _, d := range files.Deployments {
		ids = append(ids, d.DeploymentID)
	}
	var plaintext []string
	if postgres.CheckTLS(pg.DSN("")) != nil {
		plaintext = []string{"--postgres-plaintext"} // a server of the user
	}
	each, err := connectionsEach(ctx, pg, len(ids))
	if err != nil {
		return nil, nil, err
	}
	// The code below drops the databases of an earlier playground, but must not drop those that a running one
	// uses.
	if err := pg.Claim(ctx); errors.Is(err, launcher.ErrClaimed) {
		return nil, nil, fmt.Errorf("another playground runs on %s: stop it, or use another server with --postgres",
			pg.Source())
	} else if err != nil {
		return nil, nil, err
	}
	p, err := playground.New(ctx, playground.Config{
		HostNames: at.Names, Addresses: at.Addresses,
		Tell: func(text string) { _, _ = fmt.Fprintln(os.Stderr, text) },
		Dir:  dir, Binary: binary, Deployments: ids,
		Args: append([]string{"--connections", strconv.Itoa(each), "--reflection"}, serve...),
		Databases: playground.Databases{Args: plaintext, New: func(ctx context.Context, name string) (string, error) {
			name = "dbc_" + strings.ReplaceAll(name, "-", "_")
			if err := pg.DropDatabase(ctx, name); err != nil { // from an earlier playground on the same server
				return "", err
			}
			return pg.DSN(name), pg.CreateDatabase(ctx, name)
		}},
	})
	if err != nil {
		return nil, nil, err
	}
	c, err := client.New(client.File{Registry: p.RegistryAddress, Certs: p.ClientCerts()},
		filepath.Join(dir, playground.ClientFile+".environment"))
	if err != nil {
		return p, nil, err
	}
	if err := p.Start(ctx, func(ctx context.Context) error {
		open := *files
		open.Rights = cmp.Or(files.Rights, &schema.Rights{Allow: true}) // a playground
		_, err := operate.Apply(ctx, c, &open, nil)
		return err
	}); err != nil {
		c.Close()
		return p, nil, err
	}
	return p, c, nil
}

const (
	// besides is the number of connections of a deployment outside its pool, for notifications.
	besides = 2
	// others is the number of connections of the registry and of this process, and those reserved for
	// administrators.
	others = 20
)

// connectionsFor returns how many connections the deployments need when each has a pool of the given size.
func connectionsFor(deployments, each int) int { return deployments*(each+besides) + others }

// connectionsEach divides the free connections of a server among deployments. It returns an error when they
// are too few for the deployments to work.
func connectionsEach(ctx context.Context, pg *launcher.Server, deployments int) (int, error) {
	most, used, err := pg.Connections(ctx)
	if err != nil {
		return 0, err
	}
	if needed := connectionsFor(deployments, postgres.MinConnections); most-used < needed {
		return 0, fmt.Errorf(
			"%s has %d connections, of which %d are in use; %d deployments need %d: set max_connections there to %d or more, and restart it, or describe fewer deployments",
			pg.Source(), most, used, deployments, needed, used+needed)
	}
	return min(20, (most-used-others)/max(1, deployments)-besides), nil
}

// OwnServer returns the settings of a server that is started for deployments.
func OwnServer(deployments int) map[string]string {
	return map[string]string{
		"max_connections": strconv.Itoa(max(300, connectionsFor(deployments, postgres.MinConnections)+others)),
	}
}

// takeFolder makes a folder, and keeps other playgrounds and other installations safe from this one.
func takeFolder(dir string) (release func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := playground.CheckFolder(dir); err != nil {
		return nil, cli.Usage("%w", err)
	}
	if release, err = playground.Lock(dir); err != nil {
		return nil, cli.Usage("%w", err)
	}
	return release, nil
}

// Services returns the services and deployments of the built-in example.
func Services() (*schema.File, error) { return devServices(defaultServices, nil, nil) }

// devServices reads services from files, or from an example.
func devServices(example string, paths, regions []string) (*schema.File, error) {
	if len(regions) > 0 && len(paths) == 0 {
		return nil, cli.Usage("--regions is for the services of --services: the built-in ones have deployments")
	}
	if len(paths) > 0 {
		files, err := schema.ReadFiles(paths)
		if err != nil {
			return nil, err
		}
		return files, deployed(files, regions)
	}
	raw, err := examples.ReadFile(example)
	if err != nil {
		return nil, err
	}
	return schema.ParseFile(filepath.Base(example), bytes.NewReader(raw))
}

// deployed adds the deployments of regions to services that have none. Without regions it names the missing
// deployments.
func deployed(files *schema.File, regions []string) error {
	switch {
	case len(files.Deployments) > 0 && len(regions) > 0:
		return cli.Usage("--regions: the files have deployments already")
	case len(files.Deployments) > 0:
		return nil
	case len(files.Services) == 0:
		return cli.Usage("the files describe neither services nor deployments")
	}
	missing := &strings.Builder{}
	ask := len(regions) == 0
	if ask {
		regions = []string{"us-west2", "eastus2"}
	}
	fmt.Fprintf(missing, "---\nregions: [%s]\ndeployments:\n", strings.Join(regions, ", "))
	for _, region := range regions {
		if err := schema.CheckRegion(region); err != nil {
			return cli.Usage("--regions: %w", err)
		}
		for _, d := range newest(files.Services) {
			fmt.Fprintf(missing, "  - { deployment: %s/%s, version: %s }\n", d.Service, region, d.Version)
		}
	}
	if ask {
		return cli.Usage(
			"the files describe services, and no deployment that runs one: add --regions us-west2,eastus2, or to a file\n\n%s", missing)
	}
	added, err := schema.ParseFile("--regions", strings.NewReader(missing.String()))
	if err != nil {
		return err
	}
	files.Regions = slices.Compact(slices.Sorted(slices.Values(append(files.Regions, added.Regions...))))
	files.Deployments = added.Deployments
	return nil
}

// newest returns the last described version of each service.
func newest(all []*schema.Descriptor) []*schema.Descriptor {
	var found []*schema.Descriptor
	for _, d := range all {
		i := slices.IndexFunc(found, func(f *schema.Descriptor) bool { return f.Service == d.Service })
		if i < 0 {
			found = append(found, d)
		} else {
			found[i] = d
		}
	}
	return found
}

// readExample reads a file, or the built-in example of that name when there is no such file.
func readExample(name string) ([]byte, error) {
	raw, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		if built, berr := examples.ReadFile("examples/" + name + ".yaml"); berr == nil {
			return built, nil
		}
	}
	return raw, err
}
