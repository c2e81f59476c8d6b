package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/db-controller/db-controller/schema"
)

func newServe() *cobra.Command {
	var cfg deploymentConfig
	var deployment string
	var plaintext bool
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the db-controller of one deployment",
		Example: `  db-controller serve --deployment iam.example.com/us-west2 --postgres postgres://…/iam \
    --registry registry:7000 --certs /etc/db-controller --listen :7001 --advertise iam-us-west2:7001 --migrate`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := require(cmd, "deployment", "postgres", "registry", "certs", "listen"); err != nil {
				return err
			}
			log, err := newLogger(cmd)
			if err != nil {
				return err
			}
			defer func() { _ = log.Sync() }()
			if cfg.deployment, err = schema.ParseDeploymentID(deployment); err != nil {
				return err
			}
			if err := checkDSN(cfg.dsn, plaintext); err != nil {
				return err
			}
			if cfg.pprof != "" {
				if err := onLoopback(cfg.pprof); err != nil {
					return fmt.Errorf("--pprof: %w", err)
				}
			}
			if cfg.lease < time.Second {
				return fmt.Errorf("--lease %s: want at least 1s, so that a process which is slow for a moment keeps its work", cfg.lease)
			}
			if cfg.auditRate <= 0 {
				return fmt.Errorf("--audit-rate %d: want at least 1; --audit-interval 0 is for no audit", cfg.auditRate)
			}
			if cfg.removalsKept != 0 && cfg.removalsKept < 7*24*time.Hour {
				return fmt.Errorf("--removals-kept %s: want at least 168h", cfg.removalsKept)
			}
			return runDeployment(cmd.Context(), cfg, log)
		},
	}
	f := cmd.Flags()
	f.StringVar(&deployment, "deployment", "", "service/region")
	f.StringVar(&cfg.dsn, "postgres", "", "DSN of the deployment's own database")
	f.StringVar(&cfg.registry, "registry", "", "host:port of the registry, or of several servers of it, separated by commas")
	f.StringVar(&cfg.certs, "certs", "", "folder with tls.crt, tls.key and ca.crt")
	f.StringVar(&cfg.listen, "listen", "", "host:port for gRPC")
	f.StringVar(&cfg.advertise, "advertise", "", "host:port under which other deployments reach it (default: as it listens)")
	f.StringVar(&cfg.http, "http", "", "host:port for /livez, /readyz and /metrics (default: none)")
	f.StringVar(&cfg.pprof, "pprof", "", "loopback host:port for profiles (default: none)")
	reflectionFlag(f, &cfg.reflection)
	plaintextFlag(f, &plaintext)
	f.BoolVar(&cfg.migrate, "migrate", false, "bring the database to the newest schema first")
	f.IntVar(&cfg.nodes, "nodes", 2, "constraint nodes that share the work")
	f.Int32Var(&cfg.connections, "connections", 20, "connections to the database; at least 4")
	f.StringVar(&cfg.name, "name", "", "this process, among those of the deployment; one that starts under the same name takes its place (default: host:port)")
	f.DurationVar(&cfg.lease, "lease", 5*time.Second, "how long this process may be silent before others take its work over; at least 1s")
	startTimeoutFlag(f, &cfg.startTimeout, "until the database answers, and it is registered and knows its version")
	f.BoolVar(&cfg.restored, "restored", false, "the database was restored from a copy of its server's files: nothing is deleted until other deployments have confirmed their references (other restores, and failovers, are noticed without it)")
	f.DurationVar(&cfg.auditInterval, "audit-interval", time.Hour, "pause between two comparisons with the other deployments (as verify does, without repairs); 0 for none")
	f.IntVar(&cfg.auditRate, "audit-rate", 1000, "rows a second that such a comparison takes")
	f.DurationVar(&cfg.tentativeTTL, "tentative-ttl", 0, "how long a tentative blockade stands before its holder must decide (default 15s)")
	f.DurationVar(&cfg.ownerGrace, "owner-grace", 0, "how long an owner that was named without its uid may be missing before it counts as gone (default 5m)")
	f.Int64Var(&cfg.quotas.Tentative, "max-tentative", 0, "references under way that one other deployment may have here at a time (default 100000)")
	f.Int64Var(&cfg.quotas.Blocking, "max-blocking", 0, "blocking references that one other deployment may have here (default 10000000)")
	f.DurationVar(&cfg.removalsKept, "removals-kept", 0, "how long it is kept who and what removed resources, at least 168h (default 2160h, 90 days)")
	return cmd
}
