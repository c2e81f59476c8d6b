// Package atomic models atomic deletions: all members of a deletion, over all deployments, or none. The coordinator C freezes
// the members level by level, decides in one transaction of its own database, and the participants act afterwards.
//
// The invariants, while no database that the deletion D has reached is restored or decommissioned between the freeze and the mark:
//
//	A1  D is committed: every member is removed, and none ends BLOCKED by a reference from outside.
//	A2  D is refused or aborted: no resource is marked by D anywhere.
//	A3  D has one outcome (also beside restores of participants).
//	A4  At rest no frozen row is left, and every committed deletion is done.
//	A5  A frozen row leaves with the mark or the removal of its resource, or when D is known to be aborted, or C decommissioned.
//	A6  Of deletions that meet, the oldest one is kept from nothing by the others.
//
// The rules that crashes, repetitions and late arrivals at each step teach:
//
// Freezing
//
//   - F1. A Freeze ends, in its transaction, the rights of its own deployment to the targets, under the lock of the right's row,
//     and looks for holders behind that lock (a close). The deployment of the target recalls only rights to block: an acting
//     right has no recall, and a holder may write under it between the freeze of the target and the Freeze that arrives here.
//     That holder is found, and is a member.
//   - F2. The answer about frozen members has an order: the freeze is committed; then rights to block are ended; then every
//     tentative blockade of any behaviour is resolved; then entries, proxies, ownee entries and blockers are read. A write that
//     was established before the freeze, and is committed after it, has an acting reference that only the resolution shows: read
//     earlier, its deployment is missing from the next level. While an attempt is undecided, the answer is "undecided".
//   - F3. A repeated Freeze names all holders of its targets, not only those that it has inserted: the first answer may be lost,
//     and a member may be reached by a second path. The coordinator follows each uid once.
//   - F4. The epoch in an answer is read in the freeze transaction. The coordinator keeps the first epoch of each participant,
//     and aborts when a later answer, or the newest epoch that it knows, is another one: a participant that is restored between
//     two levels has lost the first, and its answer to the second has the new epoch.
//   - F5. The decision also compares the coordinator's own epoch with that of the freeze: its process may survive a failover.
//   - F6. A Freeze is refused while a recovery waits (of this database, or for a deployment that refers to it): blockers may be
//     missing. The decision aborts, and does not wait, when a recovery or a pause stops it (see R3).
//   - F7. A Freeze of a decommissioned coordinator, or of one whose later epoch is known, is refused under the lock that the order
//     (the epoch) takes: its rows would stay for ever. A participant that is decommissioned before the decision aborts it.
//   - F8. What cannot be seen completely aborts: a limit of members, a list of blockers or of holders under a right that is cut.
//
// What is frozen
//
//   - Z1. Writers are refused (ABORTED): references and owners of a frozen resource, its flag block_deletion, new references to it
//     of any behaviour (an UNSET brings an entry, and with it an acting right), rights, proxies, entries of ownees, local
//     references, derivations of a version switch. Each check is behind the lock of the row that the freeze takes.
//   - Z2. Effects pass: the mark by another deletion, an unset by one. They take no member away and bring no blocker; if they
//     waited, every deletion would wait for a silent coordinator.
//   - Z3. A comparison of a recovery establishes stored references to a frozen resource again. Otherwise a recovery waits for the
//     freeze, the mark that ends the freeze waits for the recovery, and neither ends.
//   - Z4. An ownee with other owners is frozen without being a member (pinned), with the owners that go with D. When the last of
//     them goes at a later level, the pin becomes a member, with its closure. Meanwhile the drop of an owner by another deletion is
//     repeated later: it would make the ownee a member of D behind D's back. The other deletion's root waits; D waits for nothing.
//   - Z5. An ownee whose owner is not checked yet has no entry, and is no member. It is collected later, as ever.
//
// Outcome
//
//   - O1. The coordinator looks for its decision first. Only without one does an older epoch of the freeze mean aborted: a copy
//     may be restored to after the decision. A freeze of an epoch that this database has never begun reveals an older copy of it,
//     and is not answered.
//   - O2. Without a decision, and expired: insert (D, aborted), wait for a commit under way, commit, then answer. The insert has the
//     guards of a mark (identity, number, pause of starts): an unnoticed copy denies nothing.
//   - O3. "Committed" makes the participant mark its frozen members, in the transaction that drops their rows. The decision marks
//     all frozen members at the coordinator, of any level. The removal of the root does not say that the cascade is over: a
//     deployment acknowledges when its own holders are marked, and the members behind it are still active. Rows that are dropped
//     when the root is gone let a blocker in before the cascade arrives. Rows that wait for the cascade stay for ever if a
//     restore has cut the path. The ordinary cascade comes first or second; each mark has one effect.
//   - O4. A committed decision names its participants, and is kept until each of them has marked (or is decommissioned), however
//     long it is silent. An aborted one is kept as decisions of attempts are: a deletion at or before the newest forgotten one
//     cannot commit, and is answered "over", which drops rows and marks nothing.
//   - O5. Open is believed from the coordinator of the row alone, and only says aborted, so it may come at any time.
//
// Meeting
//
//   - M1. A participant that refuses a Freeze because of another deletion asks that one's coordinator at once, not at the end of
//     `until`: lost openings would keep the older one out. An answer "aborted" or "committed" clears the way for the repetition.
//   - M2. Only the younger one yields. A deletion that holds waits for attempts and answers, which end, and never for a younger
//     holder beyond that one's deadline; so nobody waits in a ring. `until` is not before the coordinator's deadline.
//
// Restores
//
//   - R1. A restore of the coordinator to before a committed decision loses it, as any commit: some members may be marked, the
//     others are opened.
//   - R2. A restored participant that has rows again asks, and marks again what was decided.
//   - R3. A coordinator that recovers aborts its undecided deletions: deployments that compare wait for nothing of them.
package atomic
