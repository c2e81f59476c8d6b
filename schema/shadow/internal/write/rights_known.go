package write

import (
	"sync"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow/internal/prepare"
)

// mostKnown bounds the memory of known: about 3 MB.
const mostKnown = 10_000

// knownRights remembers where rights to names were found, so that most writes read nothing before their
// transaction. It decides nothing: the transaction checks under the lock of the row all that a reading would
// have found.
type knownRights struct {
	mu     sync.Mutex
	rights map[namedRight]prepare.DelegatedTarget // guarded by mu
}

// namedRight is one of the two rights to a name.
type namedRight struct {
	target schema.FullName
	kind   int32
	blocks bool
}

func nameOfRight(ref *prepare.NewReference) namedRight {
	return namedRight{ref.Target, ref.KindID, ref.Behaviour == schema.Block}
}

// find sets the known rights of references, and returns the others.
func (k *knownRights) find(refs []*prepare.NewReference) (others []*prepare.NewReference) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, ref := range refs {
		if right, ok := k.rights[nameOfRight(ref)]; ok {
			ref.Rights = []prepare.DelegatedTarget{right}
		} else {
			others = append(others, ref)
		}
	}
	return others
}

func (k *knownRights) add(refs []*prepare.NewReference) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.rights == nil || len(k.rights) > mostKnown {
		k.rights = map[namedRight]prepare.DelegatedTarget{}
	}
	for _, ref := range refs {
		if len(ref.Rights) == 1 {
			k.rights[nameOfRight(ref)] = ref.Rights[0]
		}
	}
}

func (k *knownRights) forget(refs []*prepare.NewReference) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, ref := range refs {
		delete(k.rights, nameOfRight(ref))
	}
}
