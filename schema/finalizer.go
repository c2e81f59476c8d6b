package schema

import (
	"regexp"
	"slices"
	"strings"
)

// Finalizer is one step of each deletion of a resource of a kind: the holder cleans up, and removes the
// finalizer from the resource in DELETING.
type Finalizer struct {
	Name string
	// Holder is the identity that may remove it: user/calendar, or an application of the service in a
	// transaction of its own, application/rooms.example.com/calendar. Operators may as well.
	Holder string
	Pos    Pos
}

// MaxFinalizers bounds the finalizers of a kind.
const MaxFinalizers = 10

var finalizerGrammar = regexp.MustCompile(`^[a-z][a-z0-9.-]{0,62}$`)

func checkFinalizers(ps *Problems, service string, k *Kind) {
	if k.Table != (TableName{}) && len(k.Finalizers) > 0 {
		ps.add(k.Pos, "remove finalizers", "kind %s is a table: SQL deletes its rows, and waits for nobody", k.Name)
	}
	if len(k.Finalizers) > MaxFinalizers {
		ps.add(k.Pos, "let one holder clean up several things", "kind %s has %d finalizers, at most %d are allowed",
			k.Name, len(k.Finalizers), MaxFinalizers)
	}
	names := map[string]bool{}
	for _, f := range k.Finalizers {
		if !finalizerGrammar.MatchString(f.Name) {
			ps.add(f.Pos, "write lower-case letters, digits, . and -, at most 63 characters, such as calendar",
				"finalizer %q", clip(f.Name))
		}
		if names[f.Name] {
			ps.add(f.Pos, "give one of them another name", "finalizer %s is listed twice", f.Name)
		}
		names[f.Name] = true
		application, own := strings.CutPrefix(f.Holder, "application/"+service+"/")
		if !identityGrammar.MatchString(f.Holder) && (!own || !identityGrammar.MatchString("user/"+application)) {
			ps.add(f.Pos, "write user/NAME, operator/NAME or application/"+service+"/NAME",
				"finalizer %s: holder %q: unknown form", f.Name, clip(f.Holder))
		}
	}
}

// FinalizerNames are the names of the finalizers that a resource of the kind has in DELETING, in order.
func (k *KindModel) FinalizerNames() (names []string) {
	for _, f := range k.finalizers {
		names = append(names, f.Name)
	}
	slices.Sort(names)
	return names
}

// FinalizerHolder returns the identity that may remove a finalizer; empty when the version does not name one.
func (k *KindModel) FinalizerHolder(name string) string {
	for _, f := range k.finalizers {
		if f.Name == name {
			return f.Holder
		}
	}
	return ""
}

// UntilRemoved are the paths of the references that a resource of the kind keeps in DELETING, in order.
func (k *KindModel) UntilRemoved() (paths []string) {
	for _, r := range k.references {
		if r.untilRemoved {
			paths = append(paths, r.path.String())
		}
	}
	if slices.ContainsFunc(k.parents, func(p referenceModel) bool { return p.untilRemoved }) {
		paths = append(paths, ParentPath)
	}
	slices.Sort(paths)
	return paths
}

func (k *KindModel) finalizersText() string {
	texts := make([]string, len(k.finalizers))
	for i, f := range k.finalizers {
		texts[i] = f.Name + "=" + f.Holder
	}
	return strings.Join(texts, " ")
}
