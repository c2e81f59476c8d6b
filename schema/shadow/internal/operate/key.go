package operate

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// The kinds of ties that can be released.
const (
	blockade       = "BLOCKADE"
	holderEntry    = "HOLDER_ENTRY"
	owneeEntry     = "OWNEE_ENTRY"
	ownerReference = "OWNER_REFERENCE"
	keptReference  = "KEPT_REFERENCE"
	// rights of another deployment to refer to a resource without asking, whether or not it has any.
	rights = "RIGHTS"
)

// key names one row for a release. An equal row that is written later has another attempt, a newer notice, or
// another time, so a key never releases more than a person has seen.
type key struct {
	what string
	uid  uuid.UUID // of the resource here
	// The deployment of the holder, the owner, the entry, or the target of a kept reference.
	deployment schema.DeploymentID

	holder, attempt uuid.UUID // of a blockade
	path            string    // and of a kept reference
	target          uuid.UUID // of a kept reference

	notice int64 // of a holder entry: the newest one

	kind, name string // of an owner
	owner      uuid.UUID
	since      time.Time
}

const keySeparator = "|"

// String returns the text from which parseKey makes the key.
func (k key) String() string {
	parts := []string{k.what, k.uid.String(), k.deployment.String()}
	switch k.what {
	case blockade:
		parts = append(parts, k.holder.String(), k.attempt.String(), k.path)
	case keptReference:
		parts = append(parts, k.target.String(), k.path)
	case holderEntry:
		parts = append(parts, strconv.FormatInt(k.notice, 10))
	case ownerReference:
		parts = append(parts, k.kind, k.owner.String(), strconv.FormatInt(k.since.UnixMicro(), 10), k.name)
	}
	return strings.Join(parts, keySeparator)
}

var keyParts = map[string]int{
	blockade: 6, holderEntry: 4, owneeEntry: 3, ownerReference: 7,
	keptReference: 5, rights: 3,
}

func parseKey(text string) (k key, err error) {
	parts := strings.Split(text, keySeparator)
	if len(parts) < 3 || len(parts) != keyParts[parts[0]] {
		return k, &peer.InvalidError{Resource: "keys", Err: fmt.Errorf("%.100q is no key of ListReleasable", text)}
	}
	k.what = parts[0]
	var errs [4]error
	k.uid, errs[0] = uuid.Parse(parts[1])
	k.deployment, errs[1] = schema.ParseDeploymentID(parts[2])
	switch k.what {
	case blockade:
		k.holder, errs[2] = uuid.Parse(parts[3])
		k.attempt, errs[3] = uuid.Parse(parts[4])
		k.path = parts[5]
	case keptReference:
		k.target, errs[2] = uuid.Parse(parts[3])
		k.path = parts[4]
	case holderEntry:
		k.notice, errs[2] = strconv.ParseInt(parts[3], 10, 64)
	case ownerReference:
		var micros int64
		k.owner, errs[2] = uuid.Parse(parts[4])
		micros, errs[3] = strconv.ParseInt(parts[5], 10, 64)
		k.kind, k.name, k.since = parts[3], parts[6], time.UnixMicro(micros)
	}
	if err := errors.Join(errs[:]...); err != nil {
		return k, &peer.InvalidError{Resource: "keys", Err: fmt.Errorf("%.100q is no key of ListReleasable: %w",
			text, err)}
	}
	return k, nil
}
