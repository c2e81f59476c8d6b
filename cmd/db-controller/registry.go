package main

import (
	"github.com/spf13/cobra"
)

func newRegistry() *cobra.Command {
	var cfg registryConfig
	var plaintext bool
	cmd := &cobra.Command{
		Use:   "registry",
		Short: "Run the registry of services, regions and deployments",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := require(cmd, "postgres", "certs", "listen"); err != nil {
				return err
			}
			if err := checkDSN(cfg.dsn, plaintext); err != nil {
				return err
			}
			log, err := newLogger(cmd)
			if err != nil {
				return err
			}
			defer func() { _ = log.Sync() }()
			return runRegistry(cmd.Context(), cfg, log)
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.dsn, "postgres", "", "DSN of the registry's database")
	f.StringVar(&cfg.certs, "certs", "", "folder with tls.crt, tls.key and ca.crt")
	f.StringVar(&cfg.listen, "listen", "", "host:port for gRPC")
	f.StringVar(&cfg.http, "http", "", "host:port for /livez, /readyz and /metrics (default: none)")
	f.StringVar(&cfg.pprof, "pprof", "", "loopback host:port for profiles (default: none)")
	reflectionFlag(f, &cfg.reflection)
	plaintextFlag(f, &plaintext)
	f.BoolVar(&cfg.migrate, "migrate", false, "bring the database to the newest schema first")
	startTimeoutFlag(f, &cfg.startTimeout, "until the database answers")
	return cmd
}
