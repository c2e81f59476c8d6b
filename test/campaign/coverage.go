package campaign

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// Coverage counts the moments that campaigns reached.
type Coverage struct {
	mu     sync.Mutex
	counts map[string]int           // guarded by mu
	worst  map[string]time.Duration // guarded by mu
}

// NewCoverage returns empty counts.
func NewCoverage() *Coverage {
	return &Coverage{counts: map[string]int{}, worst: map[string]time.Duration{}}
}

func (c *Coverage) add(what string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[what] += n
}

func (c *Coverage) took(what string, d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.worst[what] = max(c.worst[what], d)
}

// Count returns how often a moment was reached.
func (c *Coverage) Count(what string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts[what]
}

// Missing returns the moments that were never reached.
func (c *Coverage) Missing(moments ...string) (missing []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range moments {
		if c.counts[m] == 0 {
			missing = append(missing, m)
		}
	}
	return missing
}

// Operations returns the number of operations with a definite outcome.
func (c *Coverage) Operations() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts["put accepted"] + c.counts["put refused"] + c.counts["delete accepted"] + c.counts["delete refused"]
}

func (c *Coverage) String() (s string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range slices.Sorted(maps.Keys(c.counts)) {
		s += fmt.Sprintf("  %7d  %s\n", c.counts[k], k)
	}
	for _, k := range slices.Sorted(maps.Keys(c.worst)) {
		s += fmt.Sprintf("  %7s  at most: %s\n", c.worst[k].Round(time.Millisecond), k)
	}
	return s
}
