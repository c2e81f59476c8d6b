package campaign

import "slices"

// tested is a mistake that a test of a package catches and no campaign shows.
type tested struct {
	in, test string // its package and name
	mutant
}

// shown are the tested mistakes. The first ones are in the parts that concurrent requests share:
// transactions, calls, cohorts. They take requests that come in the same milliseconds, or a transaction that
// fails because of one of them.
var shown = []tested{
	{"schema/shadow", "TestAFailedBatchKeepsItsOtherWrites_I20_I29", mutant{
		"failed-batch-fails-all", "I20", "A transaction of several writes that fails because of one of them fails all.",
		"schema/shadow/internal/write/gathered.go",
		[]string{"Whole: func(err error) bool { return !ofOne(err) },", "Whole: func(error) bool { return true },"},
	}},
	{"schema/shadow", "TestAFailedBatchKeepsItsOtherWrites_I20_I29", mutant{
		"failed-write-is-answered", "I20, I29",
		"The write because of which a shared transaction fails is answered as done.",
		"schema/shadow/internal/write/gathered.go",
		[]string{
			"			errs[i] = gather.ErrAlone\n			return nil\n",
			"			errs[i] = nil\n			return nil\n",
		},
	}},
	{"schema/shadow", "TestGatheredWritesOfOneResourceLoseNothing_I10", mutant{
		"second-write-is-skipped", "I10", "The second write of a resource in a batch is answered as done, and skipped.",
		"schema/shadow/internal/write/gathered.go",
		[]string{"} else {\n			errs[i] = gather.ErrAlone\n", "} else {\n			errs[i] = nil\n"},
	}},
	{"schema/shadow", "TestGatheredWritesHaveTheirOwnOutcomes_I20", mutant{
		"outcome-of-another-write", "I20", "The outcomes of a batch are given to its writes in another order.",
		"schema/shadow/internal/write/gathered.go",
		[]string{"errs[in[i]] = err", "errs[in[len(in)-1-i]] = err"},
	}},
	{"schema/shadow", "TestGatheredWritesHaveTheirOwnOutcomes_I20", mutant{
		"locked-target-is-missing", "I2, I20",
		"A target that a batch does not wait for, since another transaction has locked it, counts as missing.",
		"schema/shadow/internal/write/gathered.go",
		[]string{" || len(missingTargets(s.Self, sv)) > 0) {", ") {"},
	}},
	{"schema/shadow", "TestAWriteWhoseTransactionRunsAtItsDeadlineIsUnknown_I29", mutant{
		"left-write-has-no-effect", "I29",
		"A caller whose deadline passes while its shared transaction runs is told that nothing has happened.",
		"schema/shadow/internal/write/gathered.go",
		[]string{
			`return fmt.Errorf("%w: %w", peer.ErrUnknown, context.Cause(ctx))`,
			`return fmt.Errorf("left: %w", context.Cause(ctx))`,
		},
	}},
	{"schema/shadow", "TestGatheredWritesHaveTheirOwnOutcomes_I20", mutant{
		"request-with-anothers-answer", "I29",
		"The request ids of a batch are recorded with the answer of its first write.",
		"schema/shadow/internal/write/write.go",
		[]string{
			"sv.Request.Queue(b, prepare.Outcome{Saved: sv.Saved})",
			"sv.Request.Queue(b, prepare.Outcome{Saved: savings[0].Saved})",
		},
	}},
	{"schema/shadow/internal/write", "TestADeadlineEndsTheWaitForACohort", mutant{
		"cohort-has-one-deadline", "I20", "The deadline of the first write of a cohort ends its neighbours.",
		"schema/shadow/internal/write/cohorts.go",
		[]string{"gather.WithCompany(one.ctx, len(together))", "gather.WithCompany(together[0].ctx, len(together))"},
	}},
	{"schema/shadow/internal/write", "TestAWriteThatOutlastsItsCohortHasItsOwnOutcome", mutant{
		"cohort-answers-for-its-writes", "I1, I20", "A write that outlasts its cohort is answered as done.",
		"schema/shadow/internal/write/cohorts.go",
		[]string{"	<-mine.ended // also when its deadline has passed: it ends soon then, and has an outcome\n", ""},
	}},
	{"schema/shadow", "TestAttemptsOfOneCallHaveTheirOwnOutcomes_I7_I8_I20", mutant{
		"established-after-its-deadline", "I20", "An attempt whose caller has given up is established.",
		"schema/shadow/internal/target/gathered.go",
		[]string{"time.Now().After(e.until)", "time.Since(e.until) > time.Hour"},
	}},
	{"schema/shadow", "TestAFailedBatchKeepsItsOtherAttempts_I8_I20", mutant{
		"failed-attempts-are-answered", "I8",
		"The attempts of a shared transaction that fails are answered as established.",
		"schema/shadow/internal/target/gathered.go",
		[]string{
			"		default:\n			errs[i] = gather.ErrAlone\n",
			"		case errs[i] != nil:\n			errs[i] = gather.ErrAlone\n",
		},
	}},
	{"schema/shadow", "TestAnEpochHoldsUpTheKindsThatItsDatabaseRefersTo_I2_I13", mutant{
		"kinds-of-own-entries-wait", "I2",
		"In a new epoch of a holder's database, deletions wait that are of a kind with an entry or a blockade of that deployment, and not those to whose kind it says that it refers.",
		"schema/shadow/internal/gate/epoch.go",
		[]string{
			"THEN $3 ELSE",
			"THEN ARRAY(SELECT kind_id FROM dbcontroller.shadow s WHERE $3::int[] IS NOT NULL AND EXISTS (SELECT FROM dbcontroller.holder_entry e WHERE e.target_id = s.id AND e.deployment_id = $1)) ELSE",
		},
	}},
	{"schema/shadow", "TestTheKindsOfTheLastEpochCount_I2_I13", mutant{
		"kinds-of-the-first-epoch-stay", "I2",
		"The kinds of an epoch that was not compared stay when a later epoch is told.",
		"schema/shadow/internal/gate/epoch.go",
		[]string{
			"CASE WHEN d.epoch IS NULL OR d.epoch < $2 THEN $3",
			"CASE WHEN NOT d.uncompared AND (d.epoch IS NULL OR d.epoch < $2) THEN $3",
		},
	}},
	{"schema/shadow", "TestAConfirmationInALaterEpochOutdoesIt_I13_I15", mutant{
		"later-epoch-is-not-outdone", "I13",
		"The end of a comparison in a later epoch than the present one is no sign of an epoch that was lost, or that another one has announced.",
		"schema/shadow/internal/gate/epoch.go",
		[]string{
			"return cmp.Or(s.OutdoEpoch(ctx, by, epoch), s.RecoveringSelf())",
			"return cmp.Or(s.RecoveringSelf())",
		},
	}},
	{"schema/shadow", "TestAConfirmationInALaterEpochOutdoesIt_I13_I15", mutant{
		"later-epoch-is-taken", "I2, I13",
		"A database takes over the later epoch that another deployment reports, in which answers of a lost history still count.",
		"schema/shadow/internal/gate/epoch.go",
		[]string{
			"return s.begin(ctx, tx, &observed, greater)", "return s.begin(ctx, tx, &observed, known)",
			"greater, err := s.laterThan(known)", "_, err := s.laterThan(known)",
		},
	}},
	{"schema/service", "TestAnUpgradeCountsWhenItsDeploymentSaysIt_I26", mutant{
		"upgrade-by-certificate", "I26",
		"Owner references are upgraded to a version that a certificate names, and its deployment does not run.",
		"schema/service/owners.go",
		[]string{
			"case version != req.GetVersion() || generation != req.GetGeneration():",
			"case version == \"\" && generation == req.GetGeneration():",
		},
	}},
	{"schema/shadow", "TestAPromotedSynchronousStandbyComparesThoughItHasAllMarks_I2_I3", mutant{
		"promotion-with-all-marks-compares-nothing", "I2, I3",
		"A promoted server that has the greatest number of the sequence mark which its process has seen begins an epoch without a comparison.",
		"schema/shadow/internal/gate/epoch.go",
		[]string{
			"if observed.awaiting = observed.epoch != nil; observed.awaiting {",
			"if observed.awaiting = observed.epoch != nil && (observed.server == observed.live || observed.mark < observed.seen); observed.awaiting {",
		},
	}},
	{"schema/service", "TestAnAnnouncementIsAnsweredWithTheKindsReadAfterIt_I2", mutant{
		"kinds-are-read-before-the-epoch", "I2",
		"An announcement is answered with the kinds that were referred to before the epoch was stored: writes that rely on the former epoch may still commit.",
		"schema/service/epochs.go",
		[]string{
			"	if known, err = s.epochs.RecordPeerEpoch(",
			"	kinds, unread := s.epochs.ReferredKindsIn(ctx, from, epoch)\n	if known, err = s.epochs.RecordPeerEpoch(",
			"		if kinds, err := s.epochs.ReferredKindsIn(ctx, from, epoch); err == nil {",
			"		if unread == nil {",
		},
	}},
	{"schema/shadow", "TestAnEpochHoldsUpTheKindsThatOthersReferTo_I2_I13", mutant{
		"kinds-of-an-earlier-epoch-are-answered", "I2",
		"An announcement is answered with kinds that were read before the announced epoch.",
		"schema/shadow/internal/gate/referred_kinds.go",
		[]string{"referredIn{epoch, of, there}", "referredIn{epoch: epoch, of: of}"},
	}},
	{"schema/shadow", "TestKindsOfOtherAnswersCountForNothing_I2_I13", mutant{
		"answered-kinds-stay", "I2",
		"The kinds of which a deployment has said in an epoch that it refers to them count in the next epoch.",
		"schema/shadow/internal/gate/epoch.go",
		[]string{"SET counted_in = m.epoch, unconfirmed_kinds = NULL FROM", "SET counted_in = m.epoch FROM"},
	}},
	{"schema/shadow", "TestKindsOfOtherAnswersCountForNothing_I2_I13", mutant{
		"kinds-of-another-database", "I2",
		"The kinds count that a deployment has said over a database which another one has replaced.",
		"schema/shadow/internal/gate/epoch.go",
		[]string{" AND counted_in = $4 AND database_id = $5", " AND counted_in = $4 AND (true OR database_id = $5)"},
	}},
	{"schema/shadow", "TestAKindThatWaitsKeepsNoOtherBack_I13_I20", mutant{
		"kind-that-waits-holds-its-batch", "I13, I20",
		"Work about a kind that waits for a comparison fails the whole batch, also the work about other kinds.",
		"handlers/bisect.go",
		[]string{" && !errors.Is(err, peer.ErrKindsRecovering)", ""},
	}},
	{"schema/shadow", "TestTheKindsThatADatabaseRefersTo", mutant{
		"kinds-of-tables-are-left-out", "I2",
		"The kinds that a deployment refers to are those of its rights, and not those of the columns of its attached tables.",
		"schema/shadow/internal/gate/referred_kinds.go",
		[]string{
			"    WHERE r -> 'target' -> 'kind' ->> 'Service' = $1\n",
			"    WHERE r -> 'target' -> 'kind' ->> 'Service' = $1 AND false\n",
		},
	}},
	{"schema/shadow", "TestAConfirmThatLacksBlockadesEstablishesAgain_I2_I8", mutant{
		"confirms-are-counted-together", "I2, I8",
		"Whether blockades are lost is decided for all attempts of a confirm, not for each.",
		"schema/shadow/internal/target/blockade.go",
		[]string{"if known[a] < least {", "if known[a] < least && len(known) < len(c.Attempts) {"},
	}},
	{"schema/shadow", "TestGatheredDeletesLookAfterTheLock_I3", mutant{
		"deletes-look-before-the-lock", "I1, I3",
		"Deletes that share a transaction look for blockades before they have the locks.",
		"schema/shadow/internal/deletion/gathered.go",
		[]string{
			"	b.Queue(lockRootsSQL+` SKIP LOCKED`, kinds, names)",
			"	ready.seen = s.cascade.QueueLockedRows(tx, b, byNames, kinds, names)\n	b.Queue(lockRootsSQL+` SKIP LOCKED`, kinds, names)",
			"	})\n	ready.seen = s.cascade.QueueLockedRows(tx, b, byNames, kinds, names)\n", "	})\n",
		},
	}},
	{"schema/shadow", "TestTwoDeletesOfOneNameRemoveItOnce_I2_I20", mutant{
		"two-deletes-remove-it", "I2", "Two deletes of one name in a batch are both answered with its removal.",
		"schema/shadow/internal/deletion/gathered.go",
		[]string{
			"			index[k] = i + 1\n		}",
			"			index[k] = i + 1\n		} else {\n			t.results[0].Removed, errs[i] = true, nil\n		}",
		},
	}},
	{"schema/shadow", "TestGatheredDeletesThatMarkHaveTheirOwnOutcomes_I20_I29", mutant{
		"delete-recorded-with-anothers-answer", "I29",
		"The request ids of deletes in a batch are recorded with the answer of the first one.",
		"schema/shadow/internal/deletion/gathered.go",
		[]string{
			"t.of.request.Queue(also, outcomeOf(t.results))",
			"t.of.request.Queue(also, outcomeOf(ready.tries[0].results))",
		},
	}},
	{"schema/shadow", "TestGatheredDeletesThatMarkHaveTheirOwnOutcomes_I20_I29", mutant{
		"marked-again-in-a-batch", "I2, I13",
		"A resource in DELETING is marked again by a delete in a batch, with another deletion.",
		"schema/shadow/internal/deletion/gathered.go",
		[]string{"if root.State != peer.Active || !ready.seen.Leaf(root)", "if !ready.seen.Leaf(root)"},
	}},
	{"schema/shadow", "TestAFailedBatchKeepsItsOtherDeletes_I20_I29", mutant{
		"failed-deletes-are-answered", "I2, I20",
		"The deletes of a shared transaction that fails are answered as done.",
		"schema/shadow/internal/deletion/gathered.go",
		[]string{
			"		err = gather.ErrAlone\n	}\n	return slices",
			"		return errs\n	}\n	return slices",
		},
	}},
	{"schema/shadow", "TestSeveralResourcesAreDeletedTogether_I13_I14", mutant{
		"second-root-decides-nothing", "I13, I14",
		"A delete of several resources decides about the first one, and is answered as done for all.",
		"schema/shadow/internal/deletion/delete.go",
		[]string{"d.decide(ctx, tx, active, seen, member)", "d.decide(ctx, tx, active[:1], seen, member)"},
	}},
	{"schema/shadow", "TestSeveralResourcesAreDeletedTogether_I13_I14", mutant{
		"missing-root-is-left-out", "I29",
		"A resource that does not exist is left out of a delete of several ones, although nobody allowed that.",
		"schema/shadow/internal/deletion/delete.go",
		[]string{
			"case w.AllowMissing && errors.Is(unfit, peer.ErrNotFound):",
			"case errors.Is(unfit, peer.ErrNotFound):",
		},
	}},
	{"internal/gather", "TestCallersTakeTurns", mutant{
		"flood-goes-first", "I20", "The caller whose request a batch has taken is the first of the next one again.",
		"internal/gather/gather.go",
		[]string{
			"			q.waiting = append(q.waiting, c)\n",
			"			q.waiting = append([]*caller[R]{c}, q.waiting...)\n",
		},
	}},
	{"schema/shadow", "TestARightEndsAfterAReleaseWithoutAnAnswer_I30_I31", mutant{
		"unanswered-release-is-forgotten", "I30, I31",
		"The deployment of an entry that was released without its answer is not asked again to end its rights.",
		"schema/shadow/internal/operate/release_rights.go",
		[]string{
			"		_, err := s.recall(ctx, tx, k.uid, deployment)\n		return err\n",
			"		return nil\n",
		},
	}},
	{"schema/shadow", "TestAnAnswerOfALostDatabaseReleasesNoEntry_I30_I31", mutant{
		"released-by-a-lost-answer", "I30, I31",
		"An entry is released by the answer of a database that was lost meanwhile.",
		"schema/shadow/internal/operate/release_rights.go",
		[]string{
			"		s.gate.CheckPeerEpoch(tx, b, deployment, recalled.Epoch, selfEpoch)\n",
			"		_ = selfEpoch\n",
		},
	}},
	{"schema/shadow", "TestABlockerThatWasOnlyCountedIsExcused_I14", mutant{
		"counted-leaves-stay-unnamed", "I14",
		"The holder of a blocker counts as one that stays, since the members of its deployment were only counted.",
		"schema/shadow/internal/deletion/lookahead.go",
		[]string{"	if err == nil && w.AskForNames() {", "	if err == nil && false {"},
	}},
	{"schema/shadow", "TestWhatConcernsSomebodyIsNotOnlyCounted_I3", mutant{
		"counted-although-blocked", "I3", "Members with blockers are counted with those that concern nobody else.",
		"schema/shadow/internal/read/member.go",
		[]string{
			"WHERE target_id BETWEEN h.id AND h.id AND behaviour IN ({block}, {cascade_delete}, {async_cascade_delete})", "WHERE target_id BETWEEN h.id AND h.id AND behaviour IN ({cascade_delete}, {async_cascade_delete})",
		},
	}},
	{"schema/shadow", "TestBatchesThatCanMeetRunOneAfterTheOther", mutant{
		"batches-meet", "I20",
		"Two batches of holders with common holders of their own run at a time, and wait for each other.",
		"schema/shadow/internal/follow/act.go",
		[]string{"		if referred[e.HolderID] {", "		if false {"},
	}},
	{"schema/shadow", "TestABlockerAfterTheLookAhead_I35", mutant{
		"frozen-takes-references", "I35", "A member of an atomic deletion takes new references from other deployments.",
		"schema/shadow/internal/target/establish.go",
		[]string{`e.refused[i] == "" && !again {`, `e.refused[i] != "" && !again {`},
	}},
	{"schema/shadow", "TestFrozenResourcesDoNotChange_I35", mutant{
		"frozen-changes", "I35", "A member of an atomic deletion is written before the decision.",
		"schema/shadow/internal/write/lock.go",
		[]string{
			"		if how := l.frozen[wr.Before.ID]; how != db.NotFrozen {\n",
			"		if how := l.frozen[wr.Before.ID]; how < db.NotFrozen {\n",
		},
	}},
	{"schema/shadow", "TestAResourceThatLeavesBeforeTheLock_I35", mutant{
		"freezes-without-looking-again", "I35",
		"A participant freezes what it has found before it had the locks: a resource that is no member any more stays frozen.",
		"schema/shadow/internal/target/frozen.go",
		[]string{
			"		members, err := f.Look(ctx, tx)\n",
			"		members, err := f.Look(ctx, tx)\n		for _, id := range found {\n			members = append(members, Member{ID: id})\n		}\n",
		},
	}},
	{"schema/shadow", "TestTheMembersOfAnAbandonedDeletionAreOpened_I35", mutant{
		"frozen-opens-by-time", "I35",
		"A participant opens the members of an atomic deletion when its time has passed.",
		"handlers/pending_resolve.go",
		[]string{
			"		if err != nil {\n			return fmt.Errorf(\"resolve at %s: %w\", holder, err)\n		}",
			"		if err != nil {\n			answers = &peer.Answers{Epoch: uuid.Max}\n			for range questions {\n				answers.Verdicts = append(answers.Verdicts, peer.GoneVerdict)\n			}\n		}",
		},
	}},
	{"schema/shadow", "TestMembersStayClosedUntilTheirMark_I35", mutant{
		"committed-opens", "I35", "The members of a committed deletion are opened before the cascade has marked them.",
		"schema/shadow/internal/attempt/blockade.go",
		[]string{
			"case *committed && r.questions[i].Key.Path == peer.DeletionPath:",
			"case *committed && r.questions[i].Key.Path == peer.FrozenPath:",
		},
	}},
	{"schema/shadow", "TestARestoredParticipantAbortsTheDeletion_I35", mutant{
		"epochs-of-participants-not-compared", "I35",
		"An atomic deletion commits although a participant has begun a new epoch.",
		"schema/shadow/internal/deletion/atomic.go",
		[]string{"    WHERE d.epoch > i.epoch OR EXISTS", "    WHERE EXISTS"},
	}},
	{"schema/shadow", "TestAFailoverAfterTheDecisionIsForgotten_I35", mutant{
		"committed-freezes-are-asked-about", "I35",
		"In a new epoch of the coordinator's database, the members of deletions that are known to be COMMITTED are undecided again.",
		"schema/shadow/internal/gate/epoch.go",
		[]string{
			"SET expires_at = now() WHERE deployment_id = $1",
			"SET committed = false, expires_at = now() WHERE deployment_id = $1",
		},
	}},
	{"schema/shadow", "TestAnUndeleteThatAnOldBackupHasLost_I12_I36", mutant{
		"undelete-is-forgotten-after-a-day", "I12, I36",
		"A participant forgets a day after it that a deletion was undeleted.",
		"schema/shadow/internal/target/frozen.go",
		[]string{"GREATEST(now(), purge_at) + interval '1 year'", "now()"},
	}},
	{"schema/shadow", "TestOneClockEndsNoRetention_I36", mutant{
		"one-clock-ends-retentions", "I36", "A clock of the database that has jumped ahead ends retentions.",
		"schema/shadow/internal/deletion/schedule.go",
		[]string{"AND purge_at <= $3 AND", "AND $3::timestamptz IS NOT NULL AND"},
	}},
	{"schema/shadow", "TestANewEpochDropsFreezes_I35", mutant{
		"lost-decision-keeps-frozen", "I35",
		"Members stay frozen by a coordinator whose database has begun a new epoch.",
		"schema/shadow/internal/gate/epoch.go",
		[]string{"		b.Queue(askOfSQL, id)\n", ""},
	}},
	{"schema/shadow", "TestARefusedAtomicDeletionChangesNothing_I35", mutant{
		"refused-stays-frozen", "I35", "A refused atomic deletion releases nothing.",
		"schema/shadow/internal/deletion/atomic.go",
		[]string{"		return d.abort(ctx, err)\n", "		return nil, err\n"},
	}},
	{"schema/shadow", "TestADarkDeploymentRefusesAnAtomicDeletion_I35", mutant{
		"dark-participant-commits", "I35", "An atomic deletion commits although a deployment was not asked.",
		"schema/shadow/internal/deletion/atomic.go",
		[]string{"	case len(w.Unasked) > 0:\n", "	case len(w.Unasked) > 100:\n"},
	}},
	{"schema/shadow", "TestAFreezeIsVerifiedWithTheTargetsDeployment_I35", mutant{
		"coordinator-is-believed", "I35", "A participant freezes the holders of any resource that a deployment names.",
		"schema/shadow/internal/deletion/freeze.go",
		[]string{
			"		if t.Deployment != f.Coordinator {\n",
			"		if t.Deployment != f.Coordinator && t.UID == f.Deletion {\n",
		},
	}},
	{"schema/shadow", "TestAParticipantThatAsksFirstAborts_I35", mutant{
		"decides-without-competing", "I35",
		"The decision of an atomic deletion does not compete with that of a participant that asks.",
		"schema/shadow/internal/deletion/atomic.go",
		[]string{"	write.QueueDecision(also, f.began, f.Deletion)\n", "	_ = f.began\n"},
	}},
	{"schema/shadow", "TestAMemberWhoseTargetWasLostIsOpened_I35", mutant{
		"lost-target-keeps-frozen", "I35", "A member of a committed deletion stays frozen after its target was lost.",
		"schema/shadow/internal/target/frozen.go",
		[]string{
			"thawed := queueThaw(b, thawLostSQL, f.others.deletions, f.others.targets, deployment)\n",
			"thawed := new([]int64)\n",
		},
	}},
	{"schema/shadow", "TestMembersStayClosedThroughALateFailover_I35", mutant{
		"failover-opens-members", "I35",
		"A participant that fails over asks for a decision that is forgotten, and opens members before their mark.",
		"schema/shadow/internal/gate/epoch.go",
		[]string{
			"    UPDATE dbcontroller.freeze SET expires_at = clock_timestamp()\n",
			"    UPDATE dbcontroller.freeze SET committed = false, expires_at = clock_timestamp()\n",
		},
	}},
	{"schema/shadow", "TestAHolderKeepsItsTargetUntilItIsRemoved_I33", mutant{
		"mark-releases-kept", "I33", "A marked holder drops the references that it keeps until it is removed.",
		"schema/shadow/internal/cascade/carry.go",
		[]string{
			"WHERE h.id = r.holder_id AND r.behaviour = {block} AND r.field_id",
			"WHERE h.id = r.holder_id AND false AND r.field_id",
		},
	}},
	{"schema/shadow", "TestAReleaseThatKeepsItselfIsRemoved_I33", mutant{
		"kept-by-itself", "I33", "A marked holder keeps a reference to itself, for which it waits.",
		"schema/shadow/internal/cascade/carry.go",
		[]string{"OR r.target_id = r.holder_id OR NOT EXISTS", "OR NOT EXISTS"},
	}},
	{"schema/shadow", "TestAHolderKeepsItsTargetUntilItIsRemoved_I33", mutant{
		"leaving-refuses", "I13", "A holder in DELETING refuses the deletion of the target that it keeps.",
		"schema/shadow/internal/deletion/lookahead.go",
		[]string{
			"		a.leaving = append(a.leaving, b)\n	default:",
			"		a.held = append(a.held, b)\n	default:",
		},
	}},
	{"schema/shadow", "TestAHolderKeepsItsTargetUntilItIsRemoved_I33", mutant{
		"leaving-is-gone", "I33",
		"The blockade of a holder in DELETING, which keeps its reference, is removed by a question.",
		"schema/shadow/internal/attempt/blockade.go",
		[]string{"			r.verdicts[n] = peer.Leaving\n", "			r.verdicts[n] = peer.GoneVerdict\n"},
	}},
	{"schema/shadow", "TestACascadeIsTornDownInTheOrderOfTheReferences_I14_I33", mutant{
		"finalizers-before-blockers", "I33",
		"A resource gets its finalizers with the mark, while others still keep it.",
		"schema/shadow/internal/plan/decide.go",
		[]string{
			"		if (held[id] || m.Protected) && cleaned {",
			"		if (held[id] || m.Protected) && cleaned && false {",
		},
	}},
	{"schema/shadow", "TestAStackIsTornDownInOrder_I14_I33", mutant{
		"members-keep-nothing", "I33", "A member of a deletion is removed beside another member that keeps it.",
		"schema/shadow/internal/plan/decide.go",
		[]string{"	c.waitForHolders(b, waits, held)\n", ""},
	}},
	{"schema/shadow", "TestACascadeIsTornDownInTheOrderOfTheReferences_I14_I33", mutant{
		"finalizers-are-not-given", "I33", "A resource whose last blocker goes never gets its finalizers.",
		"schema/shadow/internal/target/finalise.go",
		[]string{"	b.Queue(giveFinalizersSQL, seqs)\n", "	_ = giveFinalizersSQL\n"},
	}},
	{"schema/shadow", "TestNothingIsKeptAtADecommissionedDeployment_I33", mutant{
		"decommissioned-is-kept", "I33",
		"The reference that a holder in DELETING keeps at a decommissioned deployment acts upon the holder.",
		"schema/shadow/internal/admin/decommission.go",
		[]string{"			b.Queue(dropKeptSQL, deployment, uids, holders)\n", "			_ = dropKeptSQL\n"},
	}},
	{"schema/shadow", "TestAnUndeleteRestoresAllMembers_I36", mutant{
		"scheduled-is-aborted", "I36", "A participant that asks for the decision of a scheduled deletion aborts it.",
		"schema/shadow/internal/attempt/blockade.go",
		[]string{
			"case committed == nil: // scheduled\n",
			"case committed == nil:\n			r.verdicts[i] = peer.GoneVerdict\n",
		},
	}},
	{"schema/shadow", "TestALostScheduleOpensItsMembers_I36", mutant{
		"opened-stays-hidden", "I36", "The members of an aborted deletion are opened, and stay hidden.",
		"schema/shadow/internal/target/blockade.go",
		[]string{"err = Unhide(ctx, tx, s.DB, *thawed)", "_ = thawed"},
	}},
	{"schema/shadow", "TestScheduledDeletionsThatMeet_I36", mutant{
		"one-undelete-shows-all", "I36", "A member of two scheduled deletions is seen when one of them is undeleted.",
		"schema/shadow/internal/target/hidden.go",
		[]string{
			"\n        AND NOT EXISTS (SELECT FROM dbcontroller.frozen m JOIN dbcontroller.freeze f USING (deletion) WHERE m.target_id = s.id AND f.purge_at IS NOT NULL)", "",
		},
	}},
	{"schema/shadow", "TestAnUndeleteWithinAPurge_I36", mutant{
		"purge-does-not-compete", "I36", "A scheduled deletion is carried out although it was undeleted meanwhile.",
		"schema/shadow/internal/deletion/atomic.go",
		[]string{"	if d.scheduled != uuid.Nil {\n		if err", "	if false {\n		if err"},
	}},
	{"schema/shadow", "TestAScheduleIsToldAgain_I36", mutant{
		"schedule-is-told-once", "I36", "A participant that has lost the message of a schedule does not hear it again.",
		"schema/shadow/internal/gate/epoch.go",
		[]string{"		b.Queue(scheduleAgainSQL, id, schema.RingSize, db.ScheduledDeletion)\n", ""},
	}},
	{"schema/shadow", "TestAHidingKindGoesOnce_I36", mutant{
		"hidden-goes-twice", "I36", "Watches hear again that a hidden resource goes when its deletion is carried out.",
		"schema/shadow/internal/cascade/carry.go",
		[]string{"		args[\"gone\"] = hiddenOf(c, v.Mark)\n", "		args[\"gone\"] = []int64(nil)\n"},
	}},
	{"schema/shadow", "TestAnUndeleteRestoresAllMembers_I36", mutant{
		"undelete-is-told-nobody", "I36", "An undelete releases no member in other deployments.",
		"schema/shadow/internal/deletion/schedule.go",
		[]string{
			"FROM dbcontroller.freeze f, unnest(f.participants) AS d WHERE f.deletion = $2`)",
			"FROM dbcontroller.freeze f, unnest(f.participants) AS d WHERE f.deletion = $2 AND false`)",
		},
	}},
	{"schema/shadow", "TestAVersionSwitchBesideHiddenResources_I36", mutant{
		"derivation-waits-for-hidden", "I36", "A hidden resource keeps the others of its kind from being derived anew.",
		"schema/shadow/internal/admin/derive.go",
		[]string{"if row.Hidden {", "if false {"},
	}},
	{"schema/shadow", "TestAnUndeleteThatIsLost_I36", mutant{
		"undelete-is-lost", "I36",
		"A coordinator whose database has lost an undelete tells nobody what it has scheduled.",
		"schema/shadow/internal/gate/epoch.go",
		[]string{"			b.Queue(scheduleAllAgainSQL, schema.RingSize, db.ScheduledDeletion)\n", ""},
	}},
	{"schema/shadow", "TestADecommissioningBesideAScheduledDeletion_I36", mutant{
		"decommissioned-opens-scheduled", "I36",
		"A decommissioning shows members of scheduled deletions that have another target or owner in them.",
		"schema/shadow/internal/admin/decommission.go",
		[]string{"AND f.purge_at IS NOT NULL AND NOT f.committed\n", "AND false\n"},
	}},
	{"schema/shadow", "TestAHiddenOwneeKeepsNoDeletion_I20_I36", mutant{
		"hidden-ownee-keeps", "I36", "An ownee of a scheduled deletion keeps other deletions of its owners waiting.",
		"schema/shadow/internal/cascade/owner_frozen.go",
		[]string{" AND (f.committed OR f.purge_at IS NULL)", ""},
	}},
	{"schema/shadow", "TestCarryingOutNamesAllOfADeletion_I36", mutant{
		"one-name-carries-out", "I36",
		"A request that names one resource of a scheduled deletion carries out the deletion of all.",
		"schema/shadow/internal/deletion/schedule.go",
		[]string{
			"			if i < 0 {\n",
			"			if i < 0 {\n				named, i = append(named, root), len(named)\n			}\n			if i < 0 {\n",
		},
	}},
	{"schema/shadow", "TestRightsEndBeforeTheFreeze_I35", mutant{
		"rights-outlast-the-freeze", "I35", "A participant keeps its rights to the targets of an atomic deletion.",
		"schema/shadow/internal/deletion/freeze.go",
		[]string{"	if err := p.endRights(ctx); err != nil {\n		return nil, err\n	}\n", ""},
	}},
}

// inTests returns the mistakes that tests catch.
func inTests() (all []mutant) {
	for _, g := range shown {
		all = append(all, g.mutant)
	}
	return all
}

// testOf returns the test that catches a mistake; nil if the campaign does.
func testOf(m mutant) *tested {
	if i := slices.IndexFunc(shown, func(g tested) bool { return g.name == m.name }); i >= 0 {
		return &shown[i]
	}
	return nil
}
