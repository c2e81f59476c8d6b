package peer

// Upgrade is the version information that owner references to resources of this deployment store.
type Upgrade struct {
	Version    string
	Generation int64
	// Renamed maps the names of kinds in other versions to their names in this version.
	Renamed map[string]string
}
