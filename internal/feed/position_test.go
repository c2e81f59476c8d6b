package feed

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Transactions begin and end at random, across a boundary of digits; snapshots are taken in between, as
// PostgreSQL does.
func TestPositionsAreInTheOrderInWhichTheyWereTaken(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	next, running := 95, []int{}
	var last Position
	for step := range 3000 {
		switch {
		case r.IntN(2) == 0 && len(running) < 8:
			running = append(running, next)
			next++
		case len(running) > 0:
			i := r.IntN(len(running))
			running = slices.Delete(running, i, i+1)
		}
		xmin, ids := next, []string{}
		for i, xid := range running {
			ids = append(ids, strconv.Itoa(xid))
			if i == 0 {
				xmin = xid
			}
		}
		p, err := parsePosition(strconv.Itoa(xmin) + ":" + strconv.Itoa(next) + ":" + strings.Join(ids, ","))
		require.NoError(t, err)
		if step > 0 {
			require.False(t, last.after(p), "%s was taken before %s", last.Text, p.Text)
			require.Equal(t, last.Text != p.Text, p.after(last), "%s was taken after %s", p.Text, last.Text)
		}
		last = p
	}
}

func TestMalformedPositionsAreRefused(t *testing.T) {
	for _, text := range []string{
		"", ":", "::", "1:2", "1:2:3:4", "a:2:", "1:-2:", "1:2:,", "1:2:3,",
		"1:2:x", "1 :2:",
	} {
		_, err := parsePosition(text)
		require.ErrorIs(t, err, errPosition, "%q", text)
	}
}
