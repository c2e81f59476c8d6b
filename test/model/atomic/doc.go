// Package atomic models atomic deletions: all members of a deletion, over all deployments, or none. The coordinator C freezes
// the members level by level, decides in one transaction of its own database, and the participants act afterwards. Each message and each
// transaction is a step; the mistakes that a transaction in two parts would make are planted.
//
// Left out: owners and their pins, version switches, rows of attached tables, rights to block (a recall ends them before a look), the flag
// block_deletion (like a local reference from outside), limits (a walk that is not complete aborts), and copies that nobody notices. The
// comparison of a restored database is one step: package recovery has it.
//
// The invariants:
//
//	A1  D is committed: every member is removed, and none ends BLOCKED by a reference from outside. It is void if a database that D has
//	    asked is restored or decommissioned, and C cannot know it at the decision; if that comes between the decision and the mark; if a
//	    comparison between freeze and mark brings back a reference to a member, from whatever database; or if an operator has opened rows.
//	A2  D is refused or aborted: no resource is marked by D anywhere.
//	A3  D has one outcome, also beside restores of participants, and of C to after the decision.
//	A4  At rest no frozen row is left, and every committed deletion is done.
//	A5  A frozen row leaves with the mark or the removal of its resource, or when D cannot commit any more, or C is decommissioned, or by an
//	    operator's decision about a coordinator that does not come back.
//	A6  Of deletions that meet, the oldest one is kept from nothing by the others.
//
// The rules, with their reasons:
//
// Freezing
//
//   - F1. A Freeze ends, in its transaction, the rights of its own deployment to the target, under the lock of the right's row,
//     and looks for holders behind that lock. An acting right has no recall: a holder may write under it between the freeze of the target
//     and the Freeze that arrives here, and that holder is found, and is a member. A grant that was asked for before the close is not taken.
//   - F2. The look at a frozen member has an order: the freeze is committed; then every tentative attempt of any behaviour is resolved; then
//     entries and blockers are read. A write that was established before the freeze, and is committed after it, has an acting reference that
//     only the resolution shows: read earlier, its deployment is missing from the next level. While an attempt is undecided, so is the look.
//   - F3. A repeated Freeze names all holders of its target, not only those that it has inserted: the first answer may be lost,
//     and a member may be reached by a second path. The coordinator follows each uid once.
//   - F4. The coordinator keeps the first epoch of each participant, and aborts when a later answer, or the newest epoch that it knows, is
//     another one: a participant that is restored between two levels has lost the first, and its answer to the second has the new epoch.
//   - F5. The decision also compares the coordinator's own epoch with that of the freeze: its process may survive a failover.
//   - F6. A Freeze and a look wait for a recovery of their database: entries and blockers may be missing. The decision aborts, and does not
//     wait, when a recovery stops it: deployments that compare wait for nothing of an undecided deletion.
//   - F7. A Freeze of a decommissioned coordinator is refused under the lock that the decommissioning takes: it may reach a third deployment
//     late, and its rows would stay for ever. One of an older epoch than is known is refused as well, only to save a question: C would
//     answer "aborted". A participant that is known to be decommissioned aborts D, also when it has answered everything: members behind it
//     refer to nothing any more, and stay.
//
// What is frozen
//
//   - Z1. Writers are refused (ABORTED): references of a frozen resource, new references to it of any behaviour, and rights. Each check is
//     behind the lock of the row that the freeze takes. An UNSET alone would bring no member; the right that its confirm grants would.
//     A confirm that is repeated after the Freeze has its target's entry, and grants nothing either.
//   - Z2. Effects pass: the mark by another deletion, an unset by one. They take no member away that would stay, and bring no blocker.
//   - Z3. A comparison of a recovery establishes stored references to a frozen resource again. Otherwise a recovery waits for the
//     freeze, the mark that ends the freeze waits for the recovery, and neither ends. A blocker from a database that D has never asked
//     may come back so, after the look: A1 is void then.
//   - Z4. A blocker is excused when its holder is frozen by D, as the decision sees it. One that refers to a member when it is read may drop
//     that reference before its deployment is reached.
//
// Outcome
//
//   - O1. The coordinator looks for its decision first, then for the newest forgotten decision. Only without either does an older epoch of the freeze
//     mean aborted: a copy may be restored to after the decision, and may forget it.
//   - O2. Without a decision, and expired: insert (D, aborted), and then answer. The insert and the decision compete for the primary key.
//     Time alone opens nothing.
//   - O3. "Committed" makes the participant mark all its frozen members, in the transaction that drops their rows. The removal of the root
//     does not say that the cascade is over: a deployment acknowledges when its own holders are marked, and the members behind it are still
//     active. The ordinary cascade comes first or second; each mark has one effect.
//   - O4. A committed decision names its participants, and is kept until each of them has marked (or is decommissioned), however
//     long it is silent. An aborted one may be forgotten: a deletion at or before the newest forgotten one cannot commit, and is
//     answered "over", which drops rows and marks nothing.
//   - O5. Open only says aborted, so it may come at any time. A row that comes after it is asked about when it has expired.
//
// Meeting
//
//   - M1. A participant that refuses a Freeze because of another deletion asks that one's coordinator at once, not at the end of
//     `until`: lost openings would keep the older one out. An answer "aborted" or "committed" clears the way for the repetition.
//   - M2. The question says which deletion was refused. The coordinator answers one for an older deletion as if the younger one had expired:
//     it inserts (D, aborted), unless D is decided. The younger one that is refused waits. So nobody waits in a ring, and the oldest one
//     waits for nobody: not for a younger one that waits itself for a third, silent one, whose deadline is later than the oldest one's, nor
//     for one whose process has died.
//
// Restores
//
//   - R1. A restore of the coordinator to before a committed decision loses it, as any commit: some members may be marked, the
//     others are opened.
//   - R2. A restored participant that has rows again asks. It marks again what was decided, while the decision is kept; later it opens.
//   - R3. A coordinator that recovers aborts its undecided deletions.
package atomic
