package schema

import (
	"fmt"
	"slices"
	"strings"
)

// Handler is the code for one group of a node's work. An operator can pause it.
type Handler string

// The handlers of a node.
const (
	// OwnedPending confirms, releases and resolves references, checks owners, derives references anew, and
	// compares after a failover.
	OwnedPending Handler = "OWNED_PENDING"
	// OwnedDeleting removes resources in DELETING that wait for nothing any more, and has them dropped as
	// owners.
	OwnedDeleting Handler = "OWNED_DELETING"
	// SubscribedDeleting acts upon deletions in other deployments: cascades and unsets.
	SubscribedDeleting Handler = "SUBSCRIBED_DELETING"
)

// Handlers are all of them.
var Handlers = []Handler{OwnedPending, OwnedDeleting, SubscribedDeleting}

// ParseHandler parses the name of a handler, such as OWNED_PENDING or owned-pending.
func ParseHandler(text string) (Handler, error) {
	h := Handler(strings.ReplaceAll(strings.ToUpper(text), "-", "_"))
	if !slices.Contains(Handlers, h) {
		return "", fmt.Errorf("%q is no handler: want one of %s", text, HandlerNames())
	}
	return h, nil
}

// HandlerNames lists the names of all handlers for people.
func HandlerNames() string {
	names := make([]string, len(Handlers))
	for i, h := range Handlers {
		names[i] = h.Text()
	}
	return strings.Join(names, ", ")
}

// Text is the name of a handler for people, such as owned-pending.
func (h Handler) Text() string { return strings.ReplaceAll(strings.ToLower(string(h)), "_", "-") }
