package schema

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// The bounds of a retention.
const (
	MinRetention = time.Second
	MaxRetention = 366 * day

	day = 24 * time.Hour
)

// ParseRetention reads a time such as 7d, 36h or 1d12h. It fails outside of the bounds.
func ParseRetention(text string) (d time.Duration, err error) {
	days, rest, found := strings.Cut(text, "d")
	if !found {
		days, rest = "0", text
	}
	n, err := strconv.ParseUint(days, 10, 16)
	if err == nil && rest != "" {
		d, err = time.ParseDuration(rest)
	}
	if err != nil || d < 0 || text == "" {
		return 0, fmt.Errorf("%q: want a time such as 7d, 36h or 30m", text)
	}
	d += time.Duration(n) * day //nolint:gosec // at most 65,535 days
	return d, CheckRetention(d)
}

// CheckRetention fails for a retention outside of the bounds.
func CheckRetention(d time.Duration) error {
	if d < MinRetention || d > MaxRetention {
		return fmt.Errorf("%s: want a time between %s and %s", FormatRetention(d), FormatRetention(MinRetention),
			FormatRetention(MaxRetention))
	}
	return nil
}

// FormatRetention writes a retention as ParseRetention reads it.
func FormatRetention(d time.Duration) string {
	text := ""
	if n := d / day; n > 0 {
		text, d = fmt.Sprintf("%dd", n), d%day
	}
	if d == 0 && text != "" {
		return text
	}
	rest := d.String()
	if strings.HasSuffix(rest, "m0s") {
		rest = strings.TrimSuffix(rest, "0s")
	}
	if strings.HasSuffix(rest, "h0m") {
		rest = strings.TrimSuffix(rest, "0m")
	}
	return text + rest
}
