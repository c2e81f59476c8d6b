package target

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/crash"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
)

const (
	// maxClockAhead is the time by which the clock of a holder's deployment may be ahead: an attempt dated
	// later would outlive its tombstone.
	maxClockAhead = 2 * time.Hour
)

const (
	// The lock returns the newest version of each row, which stays valid until the commit: a delete takes FOR
	// UPDATE first.
	lockEstablishedSQL = `
SELECT i.n, s.id, s.uid, s.state, s.frozen, EXISTS (SELECT FROM dbcontroller.closing c WHERE c.target_id = s.id AND ` + ClosesSQL + `)
FROM unnest($1::int[], $2::text[]) WITH ORDINALITY AS i (kind_id, name, n)
JOIN dbcontroller.shadow s ON s.kind_id = i.kind_id AND s.name = i.name
ORDER BY s.id
FOR SHARE OF s`

	selectAdmissionSQL = `SELECT now(), ` + gate.PresentSQL + `, ` + gate.RunningColumns + ` FROM dbcontroller.meta m`

	selectClosedSQL = `
SELECT i.n - 1, EXISTS (SELECT FROM dbcontroller.closed_attempt c WHERE c.attempt = i.attempt AND c.deployment_id IN (0, i.deployment_id)),
    EXISTS (SELECT FROM dbcontroller.decommissioned x WHERE x.deployment_id = i.deployment_id), d.database_id
FROM unnest($1::uuid[], $2::int[]) WITH ORDINALITY AS i (attempt, deployment_id, n)
JOIN dbcontroller.deployment d ON d.id = i.deployment_id`

	insertBlockadesSQL = `
INSERT INTO dbcontroller.blockade (target_id, holder_uid, attempt, field_id, deployment_id, holder_kind_id, behaviour, expires_at, holder_name)
SELECT i.target_id, i.holder_uid, i.attempt, i.field_id, i.deployment_id, i.kind_id, i.behaviour, now() + @ttl, i.name
FROM unnest(@targets::bigint[], @holders::uuid[], @attempts::uuid[], @fields::int[], @deployments::int[], @kinds::int[], @behaviours::smallint[], @names::text[])
    AS i (target_id, holder_uid, attempt, field_id, deployment_id, kind_id, behaviour, name)
ON CONFLICT DO NOTHING` // repeated: a stored blockade stays as it is, tentative or confirmed
)

// Which holders block a target by the same field until now, by themselves or under a right. After the lock: a
// release that came before has removed it.
var selectBlockingSQL = db.Codes(`
SELECT i.n - 1 FROM unnest(@targets::bigint[], @holders::uuid[], @fields::int[], @uids::uuid[], @rights::uuid[]) WITH ORDINALITY
    AS i (target_id, holder_uid, field_id, target_uid, attempt, n)
WHERE EXISTS (
    SELECT FROM dbcontroller.blockade b WHERE b.target_id = i.target_id AND b.holder_uid = i.holder_uid AND b.field_id = i.field_id
        AND b.deployment_id = @deployment AND b.behaviour = {block} AND b.expires_at IS NULL
) OR EXISTS ( -- of a proxy, whose holder uid is that of its target
    SELECT FROM dbcontroller.blockade b WHERE b.target_id = i.target_id AND b.holder_uid = i.target_uid AND b.attempt = i.attempt
        AND b.deployment_id = @deployment AND b.behaviour = {block} AND b.expires_at IS NULL
)`)

var errOnlyValidated = errors.New("validated: the transaction is rolled back")

// WouldEstablish returns the answer that Establish would give now, or fails as it would: its transaction
// runs, and is rolled back.
func (s *Keeper) WouldEstablish(ctx context.Context, holder schema.DeploymentID, attempt peer.AttemptID,
	refs []peer.EstablishReference,
) (*peer.Established, error) {
	e, reserved, err := s.establishmentOf(ctx, holder, attempt, refs)
	if err != nil {
		return nil, err
	}
	defer reserved.giveBack()
	err = s.InTx(ctx, db.NoFeed, func(tx pgx.Tx) error {
		if err := s.establish(ctx, tx, e, db.Stay); err != nil {
			return err
		}
		return errOnlyValidated
	})
	if !errors.Is(err, errOnlyValidated) {
		return nil, err
	}
	return e.answer(), nil
}

// Establish inserts a tentative blockade for each reference of a holder's attempt, all or none. References of
// every behaviour get one, since the target must not be deleted before the holder's commit. It fails with
// *RefusedError, which names every refused target.
func (s *Keeper) Establish(ctx context.Context, holder schema.DeploymentID, attempt peer.AttemptID,
	refs []peer.EstablishReference,
) (*peer.Established, error) {
	e, reserved, err := s.establishmentOf(ctx, holder, attempt, refs)
	if err != nil {
		return nil, err
	}
	defer reserved.done()
	if err := s.gate.SetFlag(ctx, gate.NoteReferredSQL, e.ids.holder); err != nil {
		return nil, err
	}
	err = s.establishSoon(ctx, e)
	crash.At("crash-establish-committed")
	if err != nil {
		return nil, err
	}
	return e.answer(), nil
}

// establishmentOf reserves the quota of a call, and looks up its ids. When the ids cannot be looked up,
// nothing stays reserved.
func (s *Keeper) establishmentOf(ctx context.Context, holder schema.DeploymentID, attempt peer.AttemptID,
	refs []peer.EstablishReference,
) (*establishment, reservation, error) {
	selfEpoch := s.gate.PresentEpoch()
	deployment, err := s.Names.Deployment(ctx, holder)
	if err != nil {
		return nil, reservation{}, err
	}
	reserved, err := s.admit(ctx, deployment, s.limits(holder), refs) // before names of the holders are stored
	if err != nil {
		return nil, reservation{}, err
	}
	ids, err := s.establishIDs(ctx, holder, refs)
	if err != nil {
		reserved.giveBack()
		return nil, reservation{}, err
	}
	return &establishment{
		epoch: selfEpoch, holder: holder, attempt: attempt, refs: refs, ids: ids,
		checkDatabase: func(known *uuid.UUID) error { return gate.CheckCallerDatabase(ctx, holder, known) },
	}, reserved, nil
}

func (e *establishment) answer() *peer.Established {
	return &peer.Established{UIDs: e.uids, Version: e.running.Version, Epoch: e.epoch}
}

// establishment is a call of Establish; the fields after ids belong to its present transaction.
type establishment struct {
	until   time.Time // zero: at any time
	epoch   uuid.UUID // of this deployment's database, in which ids were looked up
	holder  schema.DeploymentID
	attempt peer.AttemptID
	refs    []peer.EstablishReference
	ids     *establishIDs

	// By reference.
	targets []int64
	uids    []uuid.UUID
	refused []peer.Reason

	closed, decommissioned bool
	database               *uuid.UUID // of the holder's deployment, as it is known here
	running                gate.Running

	checkDatabase func(known *uuid.UUID) error // against the caller's database
}

func (s *Keeper) establish(ctx context.Context, tx pgx.Tx, e *establishment, last db.Sender) error {
	absent, err := s.ensureRows(ctx, tx, e)
	if err != nil {
		return err
	}
	a, err := s.lockEstablished(ctx, tx, []*establishment{e}, "")
	if err != nil {
		return err
	}
	if err := s.refuseRows(ctx, tx, e, absent); err != nil {
		return err
	}
	if err := s.checkEstablishment(a, e); err != nil {
		return err
	}
	if err := replaceBlocks(ctx, tx, e); err != nil {
		return err
	}
	e.refuseAttempt(a.now)
	if err := s.refusals(e.refs, e.refused); err != nil {
		return err
	}
	return s.insertBlockades(ctx, tx, last, e)
}

func (s *Keeper) insertBlockades(ctx context.Context, tx pgx.Tx, last db.Sender,
	establishments ...*establishment,
) error {
	var targets []int64
	var holders, attempts []uuid.UUID
	var fields, deployments, kinds []int32
	var behaviours []int16
	var names []string
	for _, e := range establishments {
		targets, holders, fields = append(targets, e.targets...), append(holders, e.ids.holderUIDs...),
			append(fields, e.ids.fields...)
		kinds, behaviours, names = append(kinds, e.ids.holderKinds...), append(behaviours, e.ids.behaviours...),
			append(names, e.ids.holderNames...)
		attempts = append(attempts, slices.Repeat([]uuid.UUID{e.attempt}, len(e.refs))...)
		deployments = append(deployments, slices.Repeat([]int32{e.ids.holder}, len(e.refs))...)
	}
	b := &pgx.Batch{}
	b.Queue(insertBlockadesSQL, db.Named{
		"ttl": s.Tuning.Load().TentativeTTL, "targets": targets, "holders": holders, "attempts": attempts,
		"fields":      fields,
		"deployments": deployments, "kinds": kinds, "behaviours": behaviours, "names": names,
	})
	return last(ctx, tx, b)
}

// admission is the state of the database under the locks of establishments.
type admission struct {
	now     time.Time
	present *gate.EpochCheck
	running gate.Running
}

// lockEstablished locks the version and the targets, and reads the conditions of the attempts. suffix is
// nothing, or skipLocked.
func (s *Keeper) lockEstablished(ctx context.Context, tx pgx.Tx, establishments []*establishment,
	suffix string,
) (*admission, error) {
	var kinds, deployments []int32
	var names []string
	var attempts []peer.AttemptID
	rows := 0
	wanted := map[wantedTarget][]establishedTarget{}
	for _, e := range establishments {
		e.targets, e.uids, e.refused = make([]int64, len(e.refs)), make([]uuid.UUID, len(e.refs)),
			make([]peer.Reason, len(e.refs))
		for i := range e.refs {
			e.refused[i] = e.ids.missing(i)
			k := wantedTarget{e.ids.targetKinds[i], e.ids.targetNames[i]}
			if wanted[k] == nil {
				kinds, names = append(kinds, k.kindID), append(names, k.name)
			}
			wanted[k] = append(wanted[k], establishedTarget{e, i})
		}
		attempts, deployments = append(attempts, e.attempt), append(deployments, e.ids.holder)
		rows += len(e.refs)
	}
	a := &admission{present: s.gate.Present(tx)}
	b := &pgx.Batch{}
	var frozen []int64 // according to their column
	db.QueuePlans(tx, b, rows)
	b.Queue(gate.ShareVersionSQL, gate.VersionLock) // a concurrent Decommission waits for us or is visible below
	b.Queue(lockEstablishedSQL+suffix, kinds, names).Query(func(rows pgx.Rows) (err error) {
		frozen, err = takeTargets(rows, kinds, names, wanted)
		return err
	})
	b.Queue(selectAdmissionSQL).QueryRow(func(row pgx.Row) error {
		return row.Scan(slices.Concat([]any{&a.now}, a.present.Columns(), a.running.Into())...)
	})
	// After the lock: an earlier release of an attempt has committed its closed_attempt row.
	b.Queue(selectClosedSQL, attempts, deployments).Query(func(rows pgx.Rows) error {
		var n int
		var closed, decommissioned bool
		var database *uuid.UUID
		_, err := pgx.ForEachRow(rows, []any{&n, &closed, &decommissioned, &database}, func() error {
			e := establishments[n]
			e.closed, e.decommissioned, e.database = closed, decommissioned, database
			return nil
		})
		return err
	})
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return nil, fmt.Errorf("lock targets: %w", err)
	}
	for _, e := range establishments {
		e.running = a.running
	}
	return a, refuseFrozen(ctx, tx, establishments, frozen)
}

// refuseFrozen refuses new references to members of atomic deletions, and references that a new version
// derives with another behaviour. One that is established again after a restore is accepted: otherwise the
// recovery waits for the deletion, and the mark of its members for the recovery.
func refuseFrozen(ctx context.Context, tx pgx.Tx, establishments []*establishment, ids []int64) error {
	frozen, err := db.Frozen(ctx, tx, ids)
	if err != nil || len(frozen) == 0 {
		return err
	}
	compares, err := comparing(ctx, tx, establishments)
	if err != nil {
		return err
	}
	for _, e := range establishments {
		for i, ref := range e.refs {
			again := ref.TargetUID != uuid.Nil && compares[e.ids.holder]
			if how := frozen[e.targets[i]]; how != db.NotFrozen && e.refused[i] == "" && !again {
				e.refused[i] = how.Reason()
			}
		}
	}
	return nil
}

const selectComparingSQL = `SELECT id FROM dbcontroller.deployment WHERE id = ANY ($1) AND (unconfirmed OR uncompared)`

// comparing returns the holders' deployments that compare their references to resources here, after a restore
// of their databases or of this one.
func comparing(ctx context.Context, tx pgx.Tx, establishments []*establishment) (map[int32]bool, error) {
	holders := make([]int32, len(establishments))
	for i, e := range establishments {
		holders[i] = e.ids.holder
	}
	rows, err := tx.Query(ctx, selectComparingSQL, holders)
	if err != nil {
		return nil, fmt.Errorf("read who compares: %w", err)
	}
	compares := map[int32]bool{}
	var id int32
	if _, err = pgx.ForEachRow(rows, []any{&id}, func() error { compares[id] = true; return nil }); err != nil {
		return nil, fmt.Errorf("read who compares: %w", err)
	}
	return compares, nil
}

type wantedTarget struct {
	kindID int32
	name   string
}

// establishedTarget is the target of a reference of an establishment.
type establishedTarget struct {
	by *establishment
	n  int
}

// takeTargets sets the targets of references, and returns the targets that may be frozen.
func takeTargets(rows pgx.Rows, kinds []int32, names []string,
	wanted map[wantedTarget][]establishedTarget,
) (maybeFrozen []int64, err error) {
	var n, id int64
	var uid uuid.UUID
	var state peer.State
	var frozen, closing bool
	_, err = pgx.ForEachRow(rows, []any{&n, &id, &uid, &state, &frozen, &closing}, func() error {
		if frozen {
			maybeFrozen = append(maybeFrozen, id)
		}
		for _, w := range wanted[wantedTarget{kinds[n-1], names[n-1]}] {
			w.by.targets[w.n], w.by.uids[w.n] = id, uid
			w.by.refused[w.n] = refusalOf(w.by.refs[w.n], uid, state, closing)
		}
		return nil
	})
	return maybeFrozen, err
}

// checkEstablishment checks the caller's database, and the epoch and the version in which the ids were looked
// up.
func (s *Keeper) checkEstablishment(a *admission, e *establishment) error {
	if err := e.checkDatabase(e.database); err != nil {
		return err
	}
	if !a.present.Is(e.epoch) { // before the refusals: a missing target may be lost, not deleted
		return s.gate.RecoveringSelf()
	}
	return s.gate.CheckVersion(e.ids.version, e.running)
}

// refuseAttempt refuses all references of an attempt that may not establish any.
func (e *establishment) refuseAttempt(now time.Time) {
	for i := range e.refused {
		switch {
		case e.decommissioned:
			e.refused[i] = peer.TargetDecommissioned
		case e.closed:
			e.refused[i] = peer.AttemptClosed
		case now.Sub(peer.AttemptTime(e.attempt)) > peer.MaxAttemptAge:
			e.refused[i] = peer.AttemptTooOld
		case peer.AttemptTime(e.attempt).Sub(now) > maxClockAhead:
			e.refused[i] = peer.AttemptOfFuture
		}
	}
}

func refusalOf(ref peer.EstablishReference, uid uuid.UUID, state peer.State, closing bool) peer.Reason {
	switch {
	case ref.TargetUID != uuid.Nil && ref.TargetUID != uid:
		return peer.TargetReplaced
	case state != peer.Active:
		return peer.TargetDeleting
	case closing:
		return peer.TargetClosing
	}
	return ""
}

// replaceBlocks allows an acting reference to replace a BLOCK reference by the same field of the same holder
// although the target is DELETING: a version switch has changed the behaviour. That adds no reference to the
// target (I4); after it is confirmed, its deployment gets a notice of the deletion and acts.
func replaceBlocks(ctx context.Context, tx pgx.Tx, e *establishment) error {
	if !slices.Contains(e.refused, peer.TargetDeleting) {
		return nil
	}
	rights := make([]peer.AttemptID, len(e.refs))
	for i, ref := range e.refs {
		rights[i] = ref.Right
	}
	rows, err := tx.Query(ctx, selectBlockingSQL, db.Named{
		"targets": e.targets, "holders": e.ids.holderUIDs, "fields": e.ids.fields, "uids": e.uids, "rights": rights,
		"deployment": e.ids.holder,
	})
	if err != nil {
		return err
	}
	var n int
	_, err = pgx.ForEachRow(rows, []any{&n}, func() error {
		if e.refused[n] == peer.TargetDeleting && e.refs[n].Behaviour != schema.Block {
			e.refused[n] = ""
		}
		return nil
	})
	return err
}

func (s *Keeper) refusals(refs []peer.EstablishReference, reasons []peer.Reason) error {
	var out []peer.Refusal
	for i, reason := range reasons {
		if reason != "" {
			out = append(out, peer.Refusal{
				Holder: refs[i].HolderName, Path: refs[i].Path,
				Target: schema.FullName{Deployment: s.Self, Name: refs[i].TargetName}, Reason: reason,
			})
		}
	}
	if len(out) > 0 {
		return &peer.RefusedError{Refusals: out}
	}
	return nil
}

type establishIDs struct {
	version                          *db.Version // that kinds are named by
	kept                             []bool      // it has no place for the target, if that is there at all
	holder                           int32
	targetKinds, holderKinds, fields []int32
	targetNames, holderNames         []string
	holderUIDs                       []uuid.UUID
	behaviours                       []int16
}

// establishIDs looks up the ids of names, outside the transaction, and refuses unknown kinds.
func (s *Keeper) establishIDs(ctx context.Context, holder schema.DeploymentID,
	refs []peer.EstablishReference,
) (*establishIDs, error) {
	v, err := s.Current()
	if err != nil {
		return nil, err
	}
	reasons, kept := make([]peer.Reason, len(refs)), make([]bool, len(refs))
	targetKinds := make([]schema.KindID, len(refs))
	for i, ref := range refs {
		targetKinds[i] = v.Model.Canonical(schema.KindID{Service: s.Self.Service, Kind: ref.TargetKind})
		kind, err := v.Model.KindOf(ref.TargetName)
		switch {
		case ref.Path == peer.RightPath && (err != nil || kind.ID != targetKinds[i] ||
			!s.delegates(kind, holder.Service)):
			reasons[i] = peer.NotReferable
		case (err != nil || kind.ID != targetKinds[i]) && ref.TargetUID != uuid.Nil:
			kept[i] = true // a reference to a target for which the version has no place is established again
		case err != nil || kind.ID != targetKinds[i]:
			reasons[i] = peer.UnknownKind
		case kind.Table != nil && !s.attached(ctx, kind.ID): // whether the row exists is not known
			reasons[i] = peer.UnknownKind
		case kind.Unconstrained && ref.TargetUID == uuid.Nil: // a reference that was stored before is established again
			reasons[i] = peer.NotConstrained
		case !referableBy(kind, holder.Service, s.Self.Service, ref.TargetUID != uuid.Nil):
			reasons[i] = peer.NotReferable
		}
	}
	if err := s.refusals(refs, reasons); err != nil {
		return nil, err
	}
	out := &establishIDs{version: v, kept: kept}
	if out.holder, err = s.Names.Deployment(ctx, holder); err != nil {
		return nil, err
	}
	paths, holderKinds := make([]string, len(refs)), make([]schema.KindID, len(refs))
	for i, ref := range refs {
		paths[i], holderKinds[i] = ref.Path,
			v.Model.Canonical(schema.KindID{Service: holder.Service, Kind: ref.HolderKind})
	}
	if !s.usage.name(out.holder, s.Names.Unknown(paths, holderKinds)) {
		return nil, s.tooMuch(refs, "its field paths and kinds are more than a service has")
	}
	for i, ref := range refs {
		targetKind, err := s.Names.Kind(ctx, targetKinds[i])
		if err != nil {
			return nil, err
		}
		holderKind, err := s.Names.Kind(ctx, holderKinds[i])
		if err != nil {
			return nil, err
		}
		field, err := s.Names.Field(ctx, ref.Path)
		if err != nil {
			return nil, err
		}
		out.targetKinds, out.holderKinds, out.fields = append(out.targetKinds, targetKind),
			append(out.holderKinds, holderKind), append(out.fields, field)
		out.targetNames, out.holderNames = append(out.targetNames, ref.TargetName),
			append(out.holderNames, ref.HolderName)
		out.holderUIDs, out.behaviours = append(out.holderUIDs, ref.HolderUID),
			append(out.behaviours, int16(ref.Behaviour))
	}
	return out, nil
}

// missing returns the refusal of a target without a shadow. When the version lacks the target's kind, the
// name may belong to another kind, so that its absence is not certain: UnknownKind.
func (ids *establishIDs) missing(i int) peer.Reason {
	if ids.kept[i] {
		return peer.UnknownKind
	}
	return peer.TargetMissing
}
