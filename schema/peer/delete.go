package peer

// DeleteResult reports whether the resource was removed, or is DELETING because other deployments have to act first.
type DeleteResult struct {
	Removed bool
	// Unasked are the deployments that could not be asked for blockers of the cascade.
	Unasked []Unasked
	// Resource is the marked resource; nil when removed.
	Resource *Resource
}
