package operate

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/internal/console"
)

// NewConsole returns the command console.
func NewConsole() *cobra.Command {
	var listen string
	var actions bool
	cmd := cli.NewDeploymentCommand("console", "Show all deployments in a browser", `  db-controller console --context /etc/db-controller/client.yaml
  db-controller console --listen 127.0.0.1:8080`, cobra.NoArgs,
		func(cmd *cobra.Command, c *client.Client, _ []string) error {
			if err := loopback(listen); err != nil {
				return err
			}
			return serveConsole(cmd, c, listen, actions)
		})
	cmd.Long = `Show all deployments in a browser: a map of services and regions, running deletions, stuck resources and work, single resources, and changes of
the environment. The page is served on this machine only, to everybody who has the printed address, with the identity of the context.`
	cmd.Flags().BoolVar(&actions, "actions", false,
		"allow the page to pause, resume and retry, with the identity of the context")
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:0", "loopback host:port; port 0 takes a free one")
	return cmd
}

func loopback(address string) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil || !at.Addr().IsLoopback() {
		return cli.Usage(
			"--listen %s: want a loopback address, such as 127.0.0.1:8080: everybody who can connect to it has your read access", address)
	}
	return nil
}

func serveConsole(cmd *cobra.Command, c *client.Client, listen string, actions bool) error {
	listener, err := (&net.ListenConfig{}).Listen(cmd.Context(), "tcp", listen)
	if err != nil {
		return err
	}
	handler := console.NewHandler(c)
	if actions {
		handler.AllowActions()
	}
	page := console.NewKeyed(handler, listener.Addr().String())
	server := &http.Server{
		Handler: page, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute,
		MaxHeaderBytes: 16 << 10,
	}
	ctx, stop := context.WithCancel(cmd.Context())
	defer stop()
	server.BaseContext = func(net.Listener) context.Context { return ctx } // streams end with the command
	context.AfterFunc(ctx, func() { _ = server.Close() })
	cli.PrinterOf(cmd).Line("The console is at %s\nCtrl-C ends it.", page.URL())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
