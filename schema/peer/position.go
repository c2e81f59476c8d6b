package peer

import "github.com/db-controller/db-controller/schema"

// Position is a newer token of the watch of deletions of a deployment, and the stored one (Was) that it
// replaces; empty for none.
type Position struct {
	Of         schema.DeploymentID
	Was, Token string
}
