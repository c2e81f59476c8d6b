package peer

// Trace lists the resources whose deletion would remove one resource.
type Trace struct {
	// Cascades are the targets of its cascading references, and those of these targets, transitively in the same database.
	Cascades []PlanTarget
	// Owners are the owners of the resource and of the local Cascades. The deletion of one owner is not enough: an ownee is
	// deleted with the last one, which a trace does not decide.
	Owners []PlanTarget
}
