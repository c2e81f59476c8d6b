package peer

// How is the kind of reason for which a resource was removed. The numbers are stored.
type How int16

// A resource is removed by a user's request, by a cascade from a removed target, or with its last owner.
const (
	Requested How = 1
	Cascaded  How = 2
	Disowning How = 3
)

func (h How) String() string {
	switch h {
	case Requested:
		return "REQUESTED"
	case Cascaded:
		return "CASCADED"
	case Disowning:
		return "OWNER_GONE"
	}
	return "UNKNOWN"
}
