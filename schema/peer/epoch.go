package peer

import (
	"errors"
)

// A database begins a new epoch when it may have lost commits: a standby was promoted, or a backup restored. Its rows may
// then contradict messages that were exchanged with other deployments. From the new epoch on
//   - attempts of the old epoch cannot commit, and deployments that know the new epoch refuse messages of the old one;
//   - nothing is removed or marked until every deployment that may refer to resources here has compared its references
//     with the blockades and entries here, and has established lost ones again;
//   - references from here to other deployments, and blockades here, are compared as well.

// ErrOldEpoch refuses a message that was made before its sender's database began a new epoch.
var ErrStaleEpoch = errors.New("this is of before a failover or a restore of the sender's database; " +
	"if it is not, that database was put back to before one: start its deployment with --restored")
