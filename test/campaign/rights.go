package campaign

import (
	"slices"
	"strings"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// Schedules of the right to block a resource of another deployment without asking.
var ofRights = []schedule{
	{"held", (*stage).heldUnderARight},
	{"free", (*stage).freeOfARight},
	{"unanswered", (*stage).recallUnanswered},
	{"writing", (*stage).recallDuringAWrite},
	{"along", (*stage).holdersGoAlong},
	{"cascade", (*stage).cascadeReachesARight},
	{"late", (*stage).rightAfterAClose},
	{"released", (*stage).entryReleased},
	{"insisted", (*stage).entryReleasedWithoutAnAnswer},
	{"taken", (*stage).rightsTakenBack},
}

// acquires writes the target and two holders that block it, which gives their deployment the right to do so
// without asking.
func (s *stage) acquires() {
	s.t.Helper()
	if s.uid == "" {
		s.uid = s.puts(s.target, nil).GetUid()
	}
	for n := range 2 {
		s.puts(s.holder(n), s.blocks())
	}
	s.awaits("the right to block", func() bool { return s.finds(s.holder(0), hasBlockRightSQL, s.uid) })
	s.settled()
}

// holdsUnderTheRight writes a holder that blocks the target under the right, and lets those go that do so by
// blockades of their own.
func (s *stage) holdsUnderTheRight(n int, refs map[string][]string) {
	s.t.Helper()
	mend := s.suffer(s.target, "EstablishReferences")
	s.puts(s.holder(n), refs)
	mend()
	s.dropReferences(0, 1)
}

// heldUnderARight: a delete recalls the right, which is held by a reference that has no blockade (I3).
func (s *stage) heldUnderARight() {
	s.acquires()
	s.holdsUnderTheRight(2, s.blocks())
	s.cannotDelete(s.target, codes.FailedPrecondition, s.holder(2)+" blocks it under a right (I3)")
	s.dropReferences(2)
	s.deletes(s.target)
}

// freeOfARight: a delete recalls a right under which nothing stands. It is accepted, and nothing is written
// under the right afterwards (I31).
func (s *stage) freeOfARight() {
	s.acquires()
	s.dropReferences(0, 1)
	s.deletes(s.target)
	s.cannotPut(s.holder(2), s.blocks(), "its target was removed (I1, I31)")
}

// recallUnanswered: a deployment with a right does not answer, so that a delete is neither accepted nor
// refused (I5, I15).
func (s *stage) recallUnanswered() {
	s.acquires()
	s.holdsUnderTheRight(2, s.blocks())
	mend := s.suffer(s.holder(2), "RecallDelegations")
	defer mend()
	s.cannotDelete(s.target, codes.Unavailable, "the deployment of "+s.holder(2)+
		", which blocks it, was not asked (I3, I15)")
	mend()
	s.cannotDelete(s.target, codes.FailedPrecondition, s.holder(2)+" blocks it under a right (I3)")
	s.dropReferences(2)
	s.deletes(s.target)
}

const (
	// A write that has locked the row of a right, and waits for its own resource.
	writerWaitsSQL = `
SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND pg_blocking_pids(pid) && ARRAY[$1::int])`

	// A recall that waits for that write.
	recallWaitsSQL = `
SELECT EXISTS (
    SELECT FROM pg_stat_activity w JOIN pg_stat_activity r ON pg_blocking_pids(r.pid) && ARRAY[w.pid]
    WHERE w.datname = current_database() AND pg_blocking_pids(w.pid) && ARRAY[$1::int]
)`
)

// recallDuringAWrite: a recall waits for a write under the right that has not committed, and finds its
// reference (I3, I31).
func (s *stage) recallDuringAWrite() {
	written, deleted := make(chan error, 1), make(chan error, 1)
	var pid uint32
	var unlock func()
	for under := false; !under; { // a right that nothing uses may end before the write
		s.acquires()
		s.dropReferences(0, 1)
		s.puts(s.holder(2), nil)
		pid, unlock = s.locks(s.holder(2))
		go func() { _, err := s.write(s.holder(2), s.blocks()); written <- err }()
		s.awaits("a write waits", func() bool { return s.finds(s.holder(2), writerWaitsSQL, pid) })
		if under = s.finds(s.holder(2), hasBlockRightSQL, s.uid); !under {
			unlock()
			s.t.Logf("a write that had no right to use: %v", <-written)
		}
	}
	defer unlock()
	go func() { deleted <- s.remove(s.target) }()
	s.awaits("a recall waits for the write", func() bool { return s.finds(s.holder(2), recallWaitsSQL, pid) })
	unlock()
	if err := <-written; err != nil {
		s.wrong("put %s was refused before the delete was decided: %v", s.holder(2), err)
	}
	s.answered(<-deleted, codes.FailedPrecondition, s.target, s.holder(2)+" blocks it under a right (I3)")
	s.dropReferences(2)
	s.deletes(s.target)
}

// holdersGoAlong: all that was written under a right goes along with a deletion. The right ends before the
// delete is decided, so that a reference which is written meanwhile has a blockade of its own, and refuses
// the delete (I3).
func (s *stage) holdersGoAlong() {
	s.acquires()
	s.puts(s.holder(2), map[string][]string{"c1": {s.target}}) // goes along
	s.settled()
	s.holdsUnderTheRight(2, map[string][]string{"c1": {s.target}, "b1": {s.target}})
	recalled := s.stops(s.holder(2), 2, func(method string) bool {
		return strings.HasSuffix(method, "/RecallDelegations")
	})
	deleted := make(chan error, 1)
	go func() { deleted <- s.remove(s.target) }()
	recalled.awaits(s, "the second recall")
	s.puts(s.holder(3), s.blocks())
	recalled.release()
	s.answered(<-deleted, codes.FailedPrecondition, s.target, s.holder(3)+" blocks it, and does not go along (I3)")
	s.dropReferences(3)
	s.deletes(s.target)
}

// falls writes a root that the target cascades with, and deletes it. Its deletion reaches the target when the
// returned function is called.
func (s *stage) falls() (arrives func()) {
	s.t.Helper()
	root := "//a.example.com/east/nodes/" + s.name
	s.puts(root, nil)
	s.uid = s.puts(s.target, map[string][]string{"c1": {root}}).GetUid()
	s.settled()
	mend := s.suffer(root, "WatchImportedServiceDeletions")
	s.t.Cleanup(mend)
	s.deletes(root)
	return func() {
		s.t.Helper()
		mend()
		s.awaits("the deletion of the target", func() bool {
			return s.state(s.target) == resourcev1.Resource_STATE_DELETING
		})
		s.awaits("the acknowledgement of all deployments", func() bool {
			return s.finds(s.target, `SELECT NOT EXISTS (SELECT FROM dbcontroller.notice)`)
		})
	}
}

// cascadeReachesARight: a cascade marks a target that is blocked under a right. Its deployment hears of that,
// writes nothing under the right any more, and keeps it as long as references stand that were written under
// it (I2, I4, I13).
func (s *stage) cascadeReachesARight() {
	arrives := s.falls()
	s.acquires()
	s.holdsUnderTheRight(2, s.blocks())
	arrives()
	s.settled()
	if s.state(s.target) != resourcev1.Resource_STATE_DELETING {
		s.wrong("%s is gone, and %s blocks it (I2)", s.target, s.holder(2))
	}
	s.cannotPut(s.holder(3), s.blocks(), "its target is DELETING, which all deployments have acknowledged (I4)")
	s.dropReferences(2)
	s.awaits("the removal of "+s.target+", which nothing blocks any more (I13, I28)", func() bool {
		return s.state(s.target) == resourcev1.Resource_STATE_UNSPECIFIED
	})
}

// rightAfterAClose: the answer that gives a right arrives after the target was marked, and its deployment has
// closed the row. The right is not taken (I30, I31).
func (s *stage) rightAfterAClose() {
	arrives := s.falls()
	s.puts(s.holder(0), s.blocks())
	s.settled()
	asked := s.stops(s.target, 2, establishes) // the first question comes from the second holder
	s.puts(s.holder(1), s.blocks())
	asked.awaits(s, "the question for the right")
	arrives()
	asked.release()
	s.settled()
	s.cannotPut(s.holder(2), s.blocks(), "its target is DELETING, which all deployments have acknowledged (I4, I31)")
	s.dropReferences(0, 1)
}

const hasActingRightSQL = `SELECT EXISTS (SELECT FROM dbcontroller.foreign_target WHERE uid = $1 AND acting_epoch IS NOT NULL)`

// releases has an operator release the tie of the target by that name.
func (s *stage) releases(what string, unanswered bool) {
	s.t.Helper()
	admin, err := s.w.Client.Admin(s.ctx, s.siteOf(s.target).id)
	require.NoError(s.t, err)
	full, err := schema.ParseFullName(s.target)
	require.NoError(s.t, err)
	listed, err := admin.ListReleasable(s.ctx, &adminv1.ListReleasableRequest{Name: full.Name})
	require.NoError(s.t, err)
	ties := slices.DeleteFunc(listed.GetReleasable(), func(r *adminv1.Releasable) bool { return r.GetWhat() != what })
	require.Len(s.t, ties, 1)
	released, err := admin.ForceRelease(s.ctx, &adminv1.ForceReleaseRequest{
		Keys:   []string{ties[0].GetKey()},
		Reason: "schedule", Unanswered: unanswered,
	})
	require.NoError(s.t, err)
	require.Len(s.t, released.GetReleased(), 1)
}

// deletesUnheard deletes a target of which a deployment with the acting right does not hear, and returns
// references of its kind.
func (s *stage) deletesUnheard() (cascades map[string][]string) {
	cascades = map[string][]string{"c1": {s.target}}
	s.uid = s.puts(s.target, nil).GetUid()
	s.puts(s.holder(0), cascades)
	s.awaits("the acting right", func() bool { return s.finds(s.holder(0), hasActingRightSQL, s.uid) })
	s.settled()
	s.t.Cleanup(s.suffer(s.target, "WatchImportedServiceDeletions"))
	s.deletes(s.target)
	return cascades
}

func (s *stage) awaitsRemoval() {
	s.awaits("the removal of "+s.target, func() bool {
		return s.state(s.target) == resourcev1.Resource_STATE_UNSPECIFIED
	})
}

// entryReleased: an operator releases the entry of a deployment that does not hear of a deletion. Its right
// ends before, so that nothing is written under it when the target is gone (I30, I31).
func (s *stage) entryReleased() {
	cascades := s.deletesUnheard()
	s.puts(s.holder(1), cascades) // under the right
	s.releases("HOLDER_ENTRY", false)
	s.awaitsRemoval()
	s.cannotPut(s.holder(2), cascades, "its target was removed, and the entry of its deployment released (I30, I31)")
	s.dropReferences(0, 1)
}

// entryReleasedWithoutAnAnswer: the same, while that deployment does not answer. Its right ends as soon as it
// does, although the target is gone (I31).
func (s *stage) entryReleasedWithoutAnAnswer() {
	cascades := s.deletesUnheard()
	mend := s.suffer(s.holder(0), "RecallDelegations")
	defer mend()
	s.releases("HOLDER_ENTRY", true)
	s.awaitsRemoval()
	s.puts(s.holder(1), cascades) // under the right: it dangles
	mend()
	s.settled()
	s.cannotPut(s.holder(2), cascades, "its target was removed, and its deployment has ended the right (I30, I31)")
	s.dropReferences(0, 1)
}

// rightsTakenBack: an operator takes back the rights of a deployment that does not answer. It is asked until
// it does. The references that it wrote under them stay, and block (I3); no more are written under them
// (I31).
func (s *stage) rightsTakenBack() {
	s.acquires()
	s.holdsUnderTheRight(2, s.blocks())
	mend := s.suffer(s.holder(2), "RecallDelegations")
	defer mend()
	s.releases("RIGHTS", false)
	if !s.finds(s.holder(2), hasBlockRightSQL, s.uid) {
		s.wrong("the right ended before its deployment heard of it")
	}
	mend()
	s.settled()
	if s.finds(s.holder(2), hasBlockRightSQL, s.uid) {
		s.wrong("the right was taken back, and nothing is owed, and it has not ended (I31)")
	}
	s.cannotDelete(s.target, codes.FailedPrecondition, s.holder(2)+" blocks it under the former right (I3)")
	s.dropReferences(2)
	s.deletes(s.target)
}
