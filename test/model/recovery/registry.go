package recovery

import "maps"

// registry is the registry's database. Its copies have the history of the original up to the moment at which
// they were made.
type registry struct {
	// the identity of the database server: another one after a failover or a restore, the same for a copy of
	// its files
	server   int
	revision int
	part     int         // of the history; each start of a registry server begins one, and each notice of an older copy
	ended    map[int]int // the last revision of each earlier part
	listed   map[int]listing
	heardIn  map[int]int // the part in which a deployment has told its position
}

type listing struct {
	disabled  bool
	database  int // with which the deployment registered
	appliedIn int // the server on which an operator has applied it last; 0: before commits were lost
}

func (r registry) clone() registry {
	r.ended, r.listed, r.heardIn = maps.Clone(r.ended), maps.Clone(r.listed), maps.Clone(r.heardIn)
	return r
}

// seen is the newest state of the registry that a deployment has.
type seen struct{ part, revision int }

func (w *World) beginPart() {
	w.registry.ended[w.registry.part] = w.registry.revision
	w.registry.part = w.number()
}

func (w *World) list(d int, l listing) {
	if w.registry.listed[d] != l {
		w.registry.listed[d] = l
		w.registry.revision++
	}
}

// Come lets an operator describe a deployment, which registers. The open watches deliver it to all: the limit
// that docs/protocol/identities.md names, that no deployment which remembers it speaks, is not played.
func (w *World) Come(d int) {
	w.came[d] = true
	w.list(d, listing{database: w.databases[d], appliedIn: w.registry.server})
	for _, d := range sorted(w.came) {
		w.Open(d)
	}
}

// Disable lets an operator disable a deployment, or enable it.
func (w *World) Disable(d int, disabled bool) {
	if l, ok := w.registry.listed[d]; ok {
		l.disabled = disabled
		w.list(d, l)
	}
}

// Restart starts the registry's server anew, over the same database.
func (w *World) Restart() { w.beginPart() }

// RestoreRegistry puts the backup in the registry's place. A copy of the server's files has the identity of
// the original.
func (w *World) RestoreRegistry(copied bool) {
	w.registry = w.registryBackup.clone()
	if !copied {
		w.registry.server = w.number()
	}
	w.beginPart()
}

// ApplyAll lets an operator apply the descriptions of all deployments that have come.
func (w *World) ApplyAll() {
	for _, d := range sorted(w.came) {
		l := w.registry.listed[d]
		l.database, l.appliedIn = w.databases[d], w.registry.server
		w.list(d, l)
	}
}

// ApplyListed lets an operator apply the list of the registry again, and vouch for a list that may lack
// deployments.
func (w *World) ApplyListed() {
	for _, d := range sorted(w.registry.listed) {
		l := w.registry.listed[d]
		l.appliedIn = w.registry.server
		w.list(d, l)
	}
	w.careless = true
}

// vouches reports whether the list of deployments is complete: an operator has applied each of them on this
// server, and each that runs has told its position since this server began.
func (w *World) vouches() bool {
	r := w.registry
	for d, l := range r.listed {
		told := l.disabled || w.HeardIsNotNeeded || r.heardIn[d] == r.part
		if l.appliedIn != r.server || !told {
			return false
		}
	}
	return len(r.listed) > 0
}

// isLost reports whether a deployment has seen a state that the registry's history does not contain.
func (w *World) isLost(s seen) bool {
	r := w.registry
	switch {
	case w.OlderCopyIsNotNoticed || s == seen{}:
		return false
	case w.RevisionsAlone:
		return s.revision > r.revision
	case s.part == r.part:
		return s.revision > r.revision
	}
	last, known := r.ended[s.part]
	return !known || s.revision > last
}

// hear compares the position of a deployment with the registry's history. A registry that has lost commits
// vouches for nothing until all deployments are applied again.
func (w *World) hear(d int) {
	if w.isLost(w.seen[d]) {
		for d, l := range w.registry.listed {
			if !w.AppliedBeforeCounts {
				l.appliedIn = 0
			}
			w.registry.listed[d] = l
		}
		w.registry.revision = max(w.registry.revision, w.seen[d].revision) + 1
		w.beginPart()
	}
	w.registry.heardIn[d] = w.registry.part
	w.seen[d] = seen{w.registry.part, w.registry.revision}
}

// Open opens the watch of the environment: the deployment tells its position, and receives the list.
func (w *World) Open(d int) {
	w.hear(d)
	if d == target {
		w.take()
	}
}
