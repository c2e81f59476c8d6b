package serve

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
)

// NewHealthcheck returns the command healthcheck.
func NewHealthcheck() *cobra.Command {
	var endpoint string
	cmd := &cobra.Command{
		Use:   "healthcheck",
		Short: "Exit with 0 when a process is ready, else with 1; for container health checks",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if u, err := url.Parse(endpoint); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
				return cli.Usage("--url %s: want a URL such as http://127.0.0.1:8080/readyz", endpoint)
			}
			req, err := http.NewRequestWithContext(cmd.Context(), http.MethodGet, endpoint+"?verbose", nil)
			if err != nil {
				return err
			}
			client := http.Client{Timeout: 3 * time.Second}
			res, err := client.Do(req)
			if err != nil {
				return err
			}
			defer func() { _ = res.Body.Close() }()
			body, err := io.ReadAll(io.LimitReader(res.Body, 1<<16))
			if err != nil {
				return err
			}
			cmd.Print(string(body))
			if res.StatusCode != http.StatusOK {
				return fmt.Errorf("not ready: %s", strings.ToLower(res.Status))
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&endpoint, "url", "http://127.0.0.1:8080/readyz", "URL of the process's readiness endpoint")
	return cmd
}
