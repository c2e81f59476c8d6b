package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"
)

// awaitStart waits until the checks pass for the first time. While they do not, it says every few seconds what it waits
// for, and after the timeout it fails with that: whoever started the process can see it, and start it again.
func awaitStart(ctx context.Context, timeout time.Duration, checks []check, problem func() string, log *zap.Logger) error {
	began, told := time.Now(), time.Now()
	for {
		var waits []string
		for _, c := range checks {
			if err := c.run(ctx); err != nil {
				waits = append(waits, c.name+": "+err.Error())
			}
		}
		if len(waits) == 0 || ctx.Err() != nil {
			return nil
		}
		if p := problem(); p != "" {
			waits = append(waits, p)
		}
		switch {
		case time.Since(began) > timeout:
			return fmt.Errorf("not ready after %s (--start-timeout): %s", timeout, strings.Join(waits, "; "))
		case time.Since(told) > 5*time.Second:
			told = time.Now()
			log.Info("waiting to be ready", zap.Strings("for", waits), zap.Duration("gives up in", (timeout-time.Since(began)).Round(time.Second)))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(100 * time.Millisecond):
		}
	}
}
