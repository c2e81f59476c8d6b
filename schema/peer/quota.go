package peer

// Quotas bound the blockades that the holders of one deployment have here at a time, and the rights that are
// asked for here: each can keep a resource from being deleted.
type Quotas struct {
	// Tentative is the maximum number of tentative blockades, of attempts under way (default 100,000).
	Tentative int64
	// Blocking is the maximum number of blockades of BLOCK references, tentative or confirmed (default
	// 10,000,000).
	Blocking int64
	// Unused is the maximum number of rights to block resources of one other deployment that a role of this
	// deployment's database, or a caller, has asked for, and that nothing here uses (default 1,000).
	Unused int64
}
