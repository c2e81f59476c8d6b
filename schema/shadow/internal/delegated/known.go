package delegated

import (
	"sync"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow/internal/prepare"
)

// mostKnown bounds the memory of known: about 3 MB.
const mostKnown = 10_000

// known remembers where rights to names were found, so that most writes read nothing before their
// transaction. It decides nothing: the transaction checks under the lock of the row all that a reading would
// have found.
type known struct {
	mu     sync.Mutex
	rights map[named]prepare.DelegatedTarget // guarded by mu
}

// named is one of the two rights to a name.
type named struct {
	target schema.FullName
	kind   int32
	blocks bool
}

func nameOf(ref *prepare.NewReference) named {
	return named{ref.Target, ref.KindID, ref.Behaviour == schema.Block}
}

// find sets the known rights of references, and returns the others.
func (k *known) find(refs []*prepare.NewReference) (others []*prepare.NewReference) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, ref := range refs {
		if right, ok := k.rights[nameOf(ref)]; ok {
			ref.Rights = []prepare.DelegatedTarget{right}
		} else {
			others = append(others, ref)
		}
	}
	return others
}

func (k *known) add(refs []*prepare.NewReference) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.rights == nil || len(k.rights) > mostKnown {
		k.rights = map[named]prepare.DelegatedTarget{}
	}
	for _, ref := range refs {
		if len(ref.Rights) == 1 {
			k.rights[nameOf(ref)] = ref.Rights[0]
		}
	}
}

func (k *known) forget(refs []*prepare.NewReference) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, ref := range refs {
		delete(k.rights, nameOf(ref))
	}
}
