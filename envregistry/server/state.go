package server

import (
	"context"
	"fmt"
)

// State is the state of the environment for the registry's metrics.
type State struct {
	Revision int64
	// Complete is false while the list of deployments may lack some, as after a failover that has lost
	// commits: deletions wait for those that may refer to their resources.
	Complete bool
	// Deployments by state: registered, awaited (no process of it has registered yet) and disabled.
	Registered, Awaited, Disabled int64
}

const environmentStateSQL = `
SELECT m.revision, NOT (` + incompleteOfSQL + ` OR EXISTS (SELECT FROM dbcontroller_registry.deployment r WHERE ` + unheardOfSQL + `)),
    count(d.service) FILTER (WHERE NOT d.disabled AND d.address <> ''), count(d.service) FILTER (WHERE NOT d.disabled AND d.address = ''),
    count(d.service) FILTER (WHERE d.disabled)
FROM dbcontroller_registry.meta m LEFT JOIN dbcontroller_registry.deployment d ON true
GROUP BY m.singleton`

// State reads the state of the environment with one statement.
func (s *Server) State(ctx context.Context) (st State, err error) {
	err = s.store.pool.QueryRow(ctx, environmentStateSQL).Scan(&st.Revision, &st.Complete, &st.Registered, &st.Awaited,
		&st.Disabled)
	if err != nil {
		return st, fmt.Errorf("read the state of the registry: %w", err)
	}
	return st, nil
}

// Followers returns the number of watches of the environment that this server serves.
func (s *Server) Followers() int64 { return s.followers.Load() }
