package db

import (
	"github.com/db-controller/db-controller/schema"
)

// KindNow returns the current version's name of a kind of this service; stored is the kind's oldest name.
func (s *DB) KindNow(stored string) string {
	return s.Names.Canonical(schema.KindID{Service: s.Self.Service, Kind: stored}).Kind
}
