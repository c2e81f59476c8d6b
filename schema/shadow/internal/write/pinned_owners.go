package write

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/db-controller/db-controller/internal/requestid"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/prepare"
)

// pinnedTimeout bounds the question for owners: a write does not depend on the deployments of its owners.
const pinnedTimeout = 2 * time.Second

// pinned is an owner that a write names with its uid.
type pinned struct {
	wr    *prepare.Writing
	owner prepare.PinnedOwner
}

// checkPinned refuses owners whose uid, name and kind do not belong to one resource: a resource that was
// saved with the uid of a former owner and is put back would be removed with that owner. A deployment that
// does not answer refuses none; its owners are checked later, as the owners of all writes are.
func (s *Writer) checkPinned(ctx context.Context, sv *prepare.Saving) error {
	at := map[schema.DeploymentID][]pinned{}
	for _, wr := range sv.Writes {
		for _, o := range wr.PinnedOwners {
			at[o.Owner.Deployment] = append(at[o.Owner.Deployment], pinned{wr, o})
		}
	}
	if len(at) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, pinnedTimeout)
	defer cancel()
	var (
		mu      sync.Mutex
		refused []pinned // guarded by mu
		wg      sync.WaitGroup
	)
	for deployment, asked := range at {
		wg.Go(func() {
			absent := s.absent(ctx, deployment, asked)
			mu.Lock()
			defer mu.Unlock()
			refused = append(refused, absent...)
		})
	}
	wg.Wait()
	for _, wr := range sv.Writes { // the first of the request
		if i := slices.IndexFunc(refused, func(r pinned) bool { return r.wr == wr }); i >= 0 {
			o := refused[i].owner
			return prepare.InvalidOwner(wr, o.At,
				fmt.Errorf("there is no %s %s with the uid %s: leave the uid out, or give that of the present one",
					o.Kind, o.Owner, o.UID))
		}
	}
	return nil
}

// absent returns the owners that a deployment knows not to exist.
func (s *Writer) absent(ctx context.Context, at schema.DeploymentID, asked []pinned) (absent []pinned) {
	questions := make([]peer.OwnerQuestion, len(asked))
	for i, p := range asked {
		questions[i] = peer.OwnerQuestion{Kind: p.owner.Kind, Name: p.owner.Owner.Name, UID: p.owner.UID}
	}
	answers, err := s.Peers.WouldCheckOwners(ctx, at, questions)
	if err != nil || len(answers.Answers) != len(asked) {
		s.Log.Debug("cannot ask a deployment for owners; they are checked later", zap.Stringer("deployment", at),
			zap.Error(err), requestid.Field(ctx))
		return nil
	}
	for i, a := range answers.Answers {
		if a.Verdict == peer.OwnerAbsent {
			absent = append(absent, asked[i])
		}
	}
	return absent
}
