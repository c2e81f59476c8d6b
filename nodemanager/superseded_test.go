package nodemanager_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/nodemanager"
	"github.com/db-controller/db-controller/schema"
)

// switched lets another process switch to the version of an environment, which it may keep in the database.
func (w *world) switched(t *testing.T, env *schema.Environment, keeps bool) {
	t.Helper()
	model, err := env.Model(self)
	require.NoError(t, err)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.database = model; keeps {
		w.kept = env
	}
}

func (w *world) keep(env *schema.Environment) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kept = env
}

func (w *world) held() int { return len(w.leases.process().held()) }

func (p *process) held() (held []uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s, member := range p.shards {
		if _, lives := p.members[member]; lives {
			held = append(held, uint32(s))
		}
	}
	return held
}

// A process without the registry follows the environment that another process keeps in the database.
func TestASwitchOfAnotherProcessIsFollowed_I26(t *testing.T) {
	inManager(t, func(w *world, m *nodemanager.Manager, envs chan *schema.Environment) {
		env := environment(t, "b.example.com/us-west2@v1")
		env.Revision = 1
		w.kept = env
		envs <- env
		synctest.Wait()
		w.take()
		next := environment(t, "b.example.com/us-west2@v2", "a.example.com/us-west2@v1")
		next.Revision = 2
		w.switched(t, next, true)
		time.Sleep(4 * time.Second)
		synctest.Wait()
		require.NoError(t, m.Ready())
		require.Equal(t, []string{"switch to v2 with 0 nodes running"}, w.take())
		require.Equal(t, 1, w.followed)
		require.Equal(t, schema.RingSize, w.held())
	})
}

// As long as it cannot learn the new version, it is not ready and holds no shard; it never switches back.
func TestAProcessThatDoesNotKnowTheNewVersionReleasesItsShards_I15_I26(t *testing.T) {
	inManager(t, func(w *world, m *nodemanager.Manager, envs chan *schema.Environment) {
		env := environment(t, "b.example.com/us-west2@v1")
		w.kept = env
		envs <- env
		synctest.Wait()
		require.Equal(t, schema.RingSize, w.held())
		w.take()
		next := environment(t, "b.example.com/us-west2@v2")
		w.switched(t, next, false)
		w.superseded <- struct{}{} // a transaction met it
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		require.ErrorContains(t, m.Ready(), "another process has switched the version of this deployment")
		require.Zero(t, w.running)
		require.Zero(t, w.held(), "others have its shards")
		envs <- env // the registry does not know of it either
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Error(t, m.Ready())
		require.Empty(t, w.take(), "it does not switch back")
		w.switched(t, next, true)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.NoError(t, m.Ready())
		require.Equal(t, []string{"switch to v2 with 0 nodes running"}, w.take())
		require.Equal(t, schema.RingSize, w.held())
	})
}

// The next environment of the registry counts, also when the other process switches to a third version, or
// back.
func TestAfterASwitchOfAnotherProcessTheNextEnvironmentCounts(t *testing.T) {
	inManager(t, func(w *world, m *nodemanager.Manager, envs chan *schema.Environment) {
		w.kept = environment(t, "b.example.com/us-west2@v1")
		envs <- w.kept
		synctest.Wait()
		w.switched(t, environment(t, "b.example.com/us-west2@v2"), false)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		require.Error(t, m.Ready())
		w.switched(t, w.kept, false)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		require.NoError(t, m.Ready(), "it is back")
		w.switched(t, otherWords(t), false)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		require.Error(t, m.Ready(), "the same name, other words")
		w.take()
		envs <- environment(t, "b.example.com/us-west2@v2")
		synctest.Wait()
		require.Equal(t, []string{"switch to v2 with 0 nodes running"}, w.take())
		require.NoError(t, m.Ready())
	})
}

// otherWords is an environment in which v1 has another description.
func otherWords(t *testing.T) *schema.Environment {
	t.Helper()
	env := environment(t, "b.example.com/us-west2@v1")
	for i, d := range env.Services {
		if d.Service == self.Service && d.Version == "v1" {
			changed := *d
			changed.Kinds = []schema.Kind{{Name: "New", Patterns: []string{"news/{new}"}}}
			env.Services[i] = &changed
		}
	}
	return env
}

// S9: a version with another description is another version, though its name is the same.
func TestAChangedDescriptionOfTheRunningVersionIsSwitchedTo_I26(t *testing.T) {
	inManager(t, func(w *world, _ *nodemanager.Manager, envs chan *schema.Environment) {
		envs <- environment(t, "b.example.com/us-west2@v1")
		synctest.Wait()
		w.take()
		envs <- otherWords(t)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Equal(t, []string{"switch to v1 with 0 nodes running"}, w.take())
	})
}

// The registry may return to the version that ran here before the other process switched.
func TestAProcessThatHasCaughtUpGoesBackWhenTheRegistrySaysSo_I26(t *testing.T) {
	inManager(t, func(w *world, m *nodemanager.Manager, envs chan *schema.Environment) {
		w.kept = environment(t, "b.example.com/us-west2@v1")
		envs <- w.kept
		synctest.Wait()
		next := environment(t, "b.example.com/us-west2@v2")
		next.Revision = 1
		w.switched(t, next, true)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		require.NoError(t, m.Ready())
		w.take()
		back := environment(t, "b.example.com/us-west2@v1")
		back.Revision = 2
		w.keep(back) // as a process keeps the registry's environment before it switches
		envs <- back
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Equal(t, []string{"switch to v1 with 0 nodes running"}, w.take())
		require.NoError(t, m.Ready())
	})
}

// A process that lags switches to an older environment, and keeps it; the newest environment counts.
func TestASwitchByAnEarlierEnvironmentIsNotFollowed_I26(t *testing.T) {
	inManager(t, func(w *world, m *nodemanager.Manager, envs chan *schema.Environment) {
		env := environment(t, "b.example.com/us-west2@v1")
		env.Revision = 2
		envs <- env
		synctest.Wait()
		w.take()
		earlier := environment(t, "b.example.com/us-west2@v2")
		earlier.Revision = 1
		w.switched(t, earlier, true)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		require.Equal(t, []string{"switch to v1 with 0 nodes running"}, w.take())
		require.Zero(t, w.followed)
		require.NoError(t, m.Ready())
	})
}

// Another process has switched the version, and then the database is restored from a backup before both
// versions: this process does not wait for the lost switch.
func TestAfterARestoreAProcessWaitsForNoLostSwitch_I26(t *testing.T) {
	inManager(t, func(w *world, m *nodemanager.Manager, envs chan *schema.Environment) {
		envs <- environment(t, "b.example.com/us-west2@v1")
		synctest.Wait()
		w.switched(t, environment(t, "b.example.com/us-west2@v2"), false)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		require.Error(t, m.Ready())
		w.take()
		w.switched(t, otherWords(t), false) // the version before v1
		w.renewed <- struct{}{}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Equal(t, []string{"switch to v1 with 0 nodes running"}, w.take())
		require.NoError(t, m.Ready())
	})
}

// While the database is unavailable its version is unknown, which does not mean another version.
func TestAnUnavailableDatabaseEndsNoNode_I26(t *testing.T) {
	inManager(t, func(w *world, m *nodemanager.Manager, envs chan *schema.Environment) {
		envs <- environment(t, "b.example.com/us-west2@v1")
		synctest.Wait()
		w.take()
		w.mu.Lock()
		w.away = errors.New("database away")
		w.mu.Unlock()
		w.superseded <- struct{}{}
		time.Sleep(time.Minute)
		synctest.Wait()
		require.NoError(t, m.Ready())
		require.Equal(t, 3, w.running)
		require.Empty(t, w.take())
		require.Equal(t, schema.RingSize, w.held())
	})
}
