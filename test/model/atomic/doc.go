// Package atomic models atomic deletions: all members of a deletion, over all deployments, or none. The
// coordinator C freezes the members level by level, decides in one transaction of its own database, which
// marks the root, and the ordinary cascade marks the others afterwards. Each message and each transaction is
// a step; the mistakes that a transaction in two parts would make are planted.
//
// Left out: owners and their pins, version switches, rows of attached tables, rights to block (a recall ends
// them before a look), the flag block_deletion (like a local reference from outside), limits (a walk that is
// not complete aborts), and copies that nobody notices. The comparison of a restored database is one step:
// package recovery has it. F8 is modelled as a question that a Freeze waits for: what it keeps out is not.
//
// The invariants:
//
//	A1  D is committed: every member is removed, and none ends BLOCKED by a reference from outside. It is void
//	    if a database that D has asked (C's is one) is restored or decommissioned, and C cannot know it at the
//	    decision; if that comes between the decision and the mark; if a comparison between freeze and mark
//	    brings back a reference to a member, from whatever database; or if an operator has opened rows, or has
//	    released an entry.
//	A2  D is refused or aborted: no resource is marked by D anywhere.
//	A3  D has one outcome, also beside restores of participants, and of C to after the decision.
//	A4  At rest no frozen row is left, and every committed deletion is done.
//	A5  A frozen row leaves with the mark or the removal of its resource, or when D cannot commit any more, or
//	    when A1 is void for D and no mark will come (L4), or C is restored or decommissioned, or by an
//	    operator's decision about a coordinator that does not come back.
//
// The rules, with their reasons:
//
// Freezing
//
//   - F1. A Freeze ends, in its transaction, the rights of its own deployment to the target, under the lock
//     of the right's row, and looks for holders behind that lock. An acting right has no recall: a holder may
//     write under it between the freeze of the target and the Freeze that arrives here, and that holder is
//     found, and is a member. A grant that was asked for before the close is not taken.
//   - F2. The look at a frozen member has an order: the freeze is committed; then every tentative attempt of
//     any behaviour is resolved; then entries and blockers are read. A write that was established before the
//     freeze, and is committed after it, has an acting reference that only the resolution shows: read
//     earlier, its deployment is missing from the next level. While an attempt is undecided, so is the look.
//   - F3. A repeated Freeze names all holders of its target, not only those that it has inserted: the first
//     answer may be lost, and a member may be reached by a second path. The coordinator follows each uid
//     once. It leaves a row of D as it is, above all a lasting one.
//   - F4. The coordinator keeps the first epoch of each participant, and aborts when a later answer, or the
//     newest epoch that it knows, is another one: a participant that is restored between two levels has lost
//     the first, and its answer to the second has the new epoch. A Freeze names the epoch that the
//     coordinator keeps of its receiver, if any, and one that is in another epoch refuses it: after the
//     decision as well, a row that a restore has lost does not come again (F9 has the reason).
//   - F5. The decision also compares the coordinator's own epoch with that of the freeze: its process may
//     survive a failover.
//   - F6. A Freeze and a look wait for a recovery of their database: entries and blockers may be missing. The
//     decision aborts, and does not wait, when a recovery stops it: deployments that compare wait for nothing
//     of an undecided deletion.
//   - F7. A Freeze of a decommissioned coordinator is refused under the lock that the decommissioning takes:
//     it may reach a third deployment late, and its rows would stay for ever. One of an older epoch than is
//     known is refused as well: C would answer "aborted", and a row that was opened after R4 does not come
//     again. A participant that is known to be decommissioned aborts D, also when it has answered everything:
//     members behind it refer to nothing any more, and stay.
//   - F8. A Freeze because of a target of a third deployment, neither C's nor its own, is verified there: a
//     row of D for the target exists, tentative or lasting, or the target is marked or gone. Otherwise, and
//     while that deployment recovers or is silent, it is not answered, and D ends at its deadline at the
//     latest.
//   - F9. A Freeze that arrives after its `until`, by the clock of its database, is refused. L4 begins after
//     the same `until`, by the same clock, and so does an operator's decision: a row that they have opened
//     does not come again. Its resource may refer, in a ring, to a member that was frozen because of it, and
//     two rows would keep one another for ever.
//
// What is frozen
//
//   - Z1. Writers are refused (ABORTED) while any row of the resource exists: references of a frozen
//     resource, new references to it of any behaviour, and rights. Each check is behind the lock of the row
//     that the freeze takes. An UNSET alone would bring no member; the right that its confirm grants would. A
//     confirm that is repeated after the Freeze has its target's entry, and grants nothing either.
//   - Z2. Effects pass: the mark by another deletion, atomic or not, and an unset by one. They take no member
//     away that would stay, and bring no blocker.
//   - Z3. A comparison of a recovery establishes stored references to a frozen resource again. Otherwise a
//     recovery waits for the freeze, the mark that ends the freeze waits for the recovery, and neither ends.
//     A blocker from a database that D has never asked may come back so, after the look: A1 is void then.
//   - Z4. A blocker is excused when its holder is frozen by D, as the decision sees it. One that refers to a
//     member when it is read may drop that reference before its deployment is reached.
//   - Z5. Freezes are shared: each deletion has a row of its own, and none waits for another. A freeze only
//     keeps writers away, and the first mark takes the resource from all.
//
// Outcome
//
//   - O1. The coordinator looks for its decision first, then for the newest forgotten decision. Only without
//     either does an older epoch of the freeze mean aborted: a copy may be restored to after the decision,
//     and may forget it.
//   - O2. Without a decision, and expired: insert (D, aborted), and then answer. The insert and the decision
//     compete for the primary key. Time alone opens nothing.
//   - O4. A committed decision names its participants, C's own deployment among them, and is told until each
//     of them has acknowledged it (or is decommissioned), however long it is silent. An aborted one may be
//     forgotten: a deletion at or before the newest forgotten one cannot commit, and is answered "over",
//     which drops tentative rows and marks nothing.
//   - O5. Open only says aborted, so it may come at any time. A row that comes after it is asked about when
//     it has expired.
//
// Lasting rows
//
//   - L1. A row is tentative first. "Committed", told or answered, makes all rows of D in the database
//     lasting, in one transaction, and is acknowledged after it. It marks nothing: the ordinary cascade does,
//     which brings cause and reason. The removal of the root does not say that the cascade is over: the rows
//     keep writers away from the members that it has not reached.
//   - L2. A lasting row asks C nothing, and neither "aborted" nor "over" drops it: C forgets the decision
//     while questions of before are under way.
//   - L3. A mark drops the rows of all deletions. What is left would be of a resource that nothing marks
//     again.
//   - L4. A row names the first target because of which it was inserted: the Freeze's, or the one in its own
//     database that it was found by. When a lasting row has expired, its deployment looks from time to time
//     whether a mark may still come from that target: the resource refers to it by a cascading reference, its
//     deployment is not decommissioned, and says, while it does not recover, that a row of D for it exists,
//     tentative or lasting, or that it is marked, and still waits for this deployment: it has an entry.
//     Otherwise the row is opened. A target that is gone, or marked without the entry, is a no, unlike in F8:
//     the resource was marked before, or will not be marked by it; it may itself block the target, which is
//     not gone before the row is. Without this rule a row stays for ever, and keeps away the writer who would
//     mend a reference that dangles: the target's deployment is decommissioned, or restored to before the
//     target; the target is restored to before its mark, and what marked it is removed; the resource is
//     restored so, with its lasting row; an operator has opened the target, which leaves the deletion then,
//     or has released the entry of the resource's deployment. Each of these makes A1 void. The rows behind
//     follow one by one: the targets that rows name form no ring (F4, F9).
//
// Scheduled deletions
//
//   - S1. A deletion may be decided later. It freezes its members as any other one, and instead of a decision
//     its record says "scheduled". Members are frozen, and hidden, until the record changes.
//   - S2. "Scheduled" is told until each participant has acknowledged it, and answered to one that asks. Its
//     rows ask nothing more then, however late it is, until a restore of either database (R2, R4). An
//     acknowledgement counts for the verdict that it was sent for.
//   - S3. The purge is an atomic deletion of its own: it freezes and looks again, since a participant may
//     have lost rows in the meantime. Its decision also makes the record of the scheduled one "committed", in
//     the same transaction, and fails when it is not "scheduled" any more. So no member is open between the
//     two.
//   - S4. To undelete is to make the record "aborted". It is told until each participant has acknowledged it:
//     nobody asks.
//   - S5. A restore of the coordinator may lose that it has undeleted. In its new epoch it tells "scheduled"
//     again, and a participant that has opened its members for it answers "aborted": it undeletes again.
//
// Restores
//
//   - R1. A restore of the coordinator to before a committed decision loses it, as any commit: some members
//     may be marked, the others are opened.
//   - R2. A restored participant has the rows of its copy. A comparison brings back none. All count as
//     expired: the tentative ones ask, and are made lasting while the decision is kept, and opened later. The
//     lasting ones are left to L4.
//   - R3. A coordinator that recovers aborts its undecided deletions, and keeps the scheduled ones of its
//     copy.
//   - R4. The comparison of a restored coordinator makes all rows of its deletions in the database that
//     compares expired. For a tentative one the coordinator is asked for its decision, and answers "aborted"
//     for one that it has lost. A lasting one is left to L4: a coordinator that has lost nothing may have
//     forgotten the decision, while marks are under way, and would answer "over". Its own copy has no lasting
//     row of a lost decision, so that the root says that no mark comes. A decision is told with the
//     epoch of the coordinator, and refused where a later one is known, by itself as well: a late "committed"
//     of a lost decision would make the row of its root lasting, which no mark takes, and which names no
//     target.
package atomic
