package serve

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// NewHealthcheck returns the command healthcheck.
func NewHealthcheck() *cobra.Command {
	var url string
	cmd := &cobra.Command{
		Use:   "healthcheck",
		Short: "Exit with 0 when a process is ready, else with 1; for container health checks",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			req, err := http.NewRequestWithContext(cmd.Context(), http.MethodGet, url+"?verbose", nil)
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
	cmd.Flags().StringVar(&url, "url", "http://127.0.0.1:8080/readyz", "URL of the process's readiness endpoint")
	return cmd
}
