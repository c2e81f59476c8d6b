package db

// Groups in countsSQL, beside the actions of work.
const (
	AcknowledgeGroup = 101
	DeletingGroup    = 102
	ResolveGroup     = 103
)
