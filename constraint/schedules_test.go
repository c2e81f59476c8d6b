package constraint

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
)

// notices are the deletions of a deployment for one holders' deployment, in their order; a position is their
// number at a time. A deletion comes again when there are more holders.
type notices struct {
	all []*notice
}

type notice struct {
	schema.Deletion
	acted, acked bool
}

func (n *notices) delete(r *rand.Rand) {
	name := fmt.Sprint("t", len(n.all))
	if len(n.all) > 0 && r.IntN(3) == 0 {
		name = n.all[r.IntN(len(n.all))].Name
	}
	n.all = append(n.all, &notice{Deletion: schema.Deletion{
		Seq: int64(len(n.all) + 1), Name: name,
		UID: uuid.NewSHA1(uuid.NameSpaceURL, []byte(name)),
	}})
}

// act acts upon a deletion, and all earlier arrivals of it.
func (n *notices) act(d schema.Deletion) {
	for _, o := range n.all {
		o.acted = o.acted || o.UID == d.UID && o.Seq <= d.Seq
	}
}

func (n *notices) acknowledge(t *testing.T, position string, except []uuid.UUID, failed map[uuid.UUID]error) {
	upTo, err := strconv.Atoi(position)
	require.NoError(t, err)
	for _, d := range n.all[:upTo] {
		if d.acked || slices.Contains(except, d.UID) || failed[d.UID] != nil {
			continue
		}
		require.True(t, d.acted, "%s was acknowledged and never acted upon", d.Name)
		d.acked = true
	}
}

func (n *notices) outstanding() (left int) {
	for _, d := range n.all {
		if !d.acked {
			left++
		}
	}
	return left
}

func (n *notices) event(from, to int) event {
	e := event{}
	for _, d := range n.all[from:to] {
		if !d.acked {
			e.deletion.Items = append(e.deletion.Items, d.Deletion)
		}
	}
	return e
}

// Streams break anywhere; runs fail as a whole or in part, lose their answers, and end while a new stream
// begins. No deletion is acknowledged before it was acted upon; in the end every deletion is acknowledged,
// without further events of the watch; and a deletion that succeeded is not acted upon again because a watch
// was opened again.
func TestDeletionsAreActedUponAndThenAcknowledgedOnEverySchedule(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		remote, f := &notices{}, newDeletions(schema.Subscription{})
		times := map[int64]int{}
		sent, snapshot, told := 0, 0, -1 // of this stream: told is the last position
		var flights [2]*batch            // of new deletions, and of repeated ones, concurrently
		now := time.Now()
		clean := seed%2 == 0 // answers are not lost in this half: then nothing is done twice
		step := func(hostile bool) {
			switch n := r.IntN(12); {
			case n < 2 && hostile:
				remote.delete(r)
			case n == 2 && hostile || f.stream == 0: // the stream breaks, and a new one begins
				require.NoError(t, f.take(event{lost: true}))
				require.NoError(t, f.take(event{started: true}))
				sent, snapshot, told = 0, len(remote.all), -1
			case n < 6: // the watch delivers an event
				switch {
				case sent < snapshot || f.Primed() && sent < len(remote.all) && r.IntN(2) == 0:
					to := sent + 1 + r.IntN(max(snapshot, len(remote.all))-sent)
					if !f.Primed() {
						to = min(to, snapshot)
					}
					e := remote.event(sent, to)
					if sent = to; len(e.deletion.Items) > 0 {
						require.NoError(t, f.take(e))
					}
				case hostile || told < sent: // at rest an idle watch says nothing more
					e := event{}
					e.deletion.EndOfSnapshot, e.deletion.Token = !f.Primed(), strconv.Itoa(sent)
					told = sent
					require.NoError(t, f.take(e))
				}
			case n < 9 && flights[n%2] == nil && f.Primed():
				b := batch{}
				if n%2 == 0 {
					b = f.fresh()
				} else if waits, _ := f.waits(now); waits {
					b = f.again(now.Add(time.Hour))
				}
				if len(b.deletions) > 0 || b.position != "" {
					flights[n%2] = &b
				}
			case flights[n%2] != nil: // the run ends
				flight := flights[n%2]
				failed := map[uuid.UUID]error{}
				for _, d := range flight.deletions {
					if hostile && r.IntN(4) == 0 {
						failed[d.UID] = []error{errors.New("poison"), schema.ErrUnfinished}[r.IntN(2)]
						continue
					}
					remote.act(d)
					times[d.Seq]++
				}
				lost := hostile && !clean && r.IntN(3) == 0
				if flight.position != "" && (!lost || r.IntN(2) == 0) { // the acknowledgement or its answer
					remote.acknowledge(t, flight.position, flight.except, failed)
				}
				switch {
				case !lost:
					f.done(*flight, failed)
				case !flight.retry:
					f.putBack(*flight)
				}
				flights[n%2] = nil
			}
		}
		for range 150 {
			step(true)
		}
		for range 3000 {
			if remote.outstanding() == 0 && flights == [2]*batch{} && f.Primed() && f.Len() == 0 {
				break
			}
			step(false)
		}
		require.Zero(t, remote.outstanding(), "seed %d: everything is acknowledged in the end", seed)
		require.Zero(t, f.Len(), "seed %d: and forgotten", seed)
		require.Empty(t, f.failed)
		require.Empty(t, f.acted)
		for _, d := range remote.all {
			if clean {
				require.LessOrEqual(t, times[d.Seq], 1, "seed %d: %s", seed, d.Name)
			}
		}
	}
}
