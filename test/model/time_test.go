package model

import (
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// lived plays the model with time: deployments send, ask, act and expire by their own clocks, users have
// deadlines, and the network takes from a millisecond to a minute, loses, repeats, and is cut for a while.
// The synctest bubble has its time.
func lived(t *testing.T, seed uint64, m Mistakes) (broken []string) {
	const sites, tentative = 3, 15 * time.Second
	synctest.Test(t, func(*testing.T) {
		r := rand.New(rand.NewPCG(seed, seed))
		var mu sync.Mutex
		w := New(sites, m)
		names := []string{"x", "y"}
		stop := time.Now().Add(5 * time.Minute)
		calm := func() bool { return time.Now().After(stop) }
		var all sync.WaitGroup
		every := func(at time.Duration, do func()) {
			all.Go(func() {
				for end := stop.Add(10 * time.Minute); time.Now().Before(end); time.Sleep(at) {
					mu.Lock()
					do()
					mu.Unlock()
				}
			})
		}
		delay := func() time.Duration {
			if calm() {
				return time.Millisecond
			}
			return time.Duration(r.Int64N(int64([]time.Duration{
				10 * time.Millisecond, time.Second, 20 * time.Second,
				time.Minute,
			}[r.IntN(4)])))
		}
		// The network takes each message from the bag, and delivers it after its delay.
		every(time.Millisecond*100, func() {
			for w.Bag() > 0 {
				m := w.bag[0]
				w.Lose(0)
				copies := 1
				if !calm() {
					copies = []int{0, 1, 1, 1, 1, 2}[r.IntN(6)]
				}
				for range copies {
					late := delay()
					all.Go(func() {
						time.Sleep(late)
						mu.Lock()
						defer mu.Unlock()
						w.receive(m)
					})
				}
			}
		})
		for at := range sites {
			every(time.Second, func() { w.Send(at) })
			every(tentative, func() { w.Expire(at) })
			every(300*time.Millisecond, func() {
				for from := range sites {
					if len(w.deployments[at].watched[from]) > 0 && (calm() || r.IntN(4) == 0) {
						w.Act(at, from)
						delete(w.deployments[at].watched, from)
					}
				}
			})
		}
		// Users, with deadlines up to twice the expiry of tentative blockades.
		every(400*time.Millisecond, func() {
			if calm() {
				for w.Writes() > 0 {
					w.Commit(0)
				}
				return
			}
			at, name := r.IntN(sites), names[r.IntN(len(names))]
			switch n := r.IntN(20); {
			case n == 0:
				w.Crash(at)
			case n < 4:
				w.Delete(at, name)
			default:
				refs, targets := map[string]Reference{}, map[string]string{}
				for _, path := range []string{"a", "b"}[:r.IntN(3)] {
					refs[path] = Reference{Behaviour: Behaviour(r.IntN(3)), Home: r.IntN(sites)}
					targets[path] = names[r.IntN(len(names))]
				}
				w.Write(at, name, refs, targets)
				if w.Writes() == 0 {
					return
				}
				wr, patience := w.writes[len(w.writes)-1], time.Duration(r.Int64N(int64(2*tentative)))
				all.Go(func() {
					time.Sleep(patience)
					mu.Lock()
					defer mu.Unlock()
					for i, x := range w.writes {
						if x == wr {
							w.Commit(i)
							return
						}
					}
				})
			}
			w.Check()
		})
		all.Wait()
		broken = w.CheckAtRest()
	})
	return broken
}

func TestTheProtocolInTime_I1_I2_I5_I8_I28(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		if broken := lived(t, seed, Mistakes{}); len(broken) > 0 {
			t.Fatalf("seed %d:\n%s", seed, strings.Join(broken, "\n"))
		}
	}
}

func TestTheModelInTimeFindsThatExpiryRemoves(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		if len(lived(t, seed, Mistakes{ExpiryRemoves: true})) > 0 {
			return
		}
	}
	t.Error("no run shows it")
}
