package operate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
)

// Explanation lists the reasons why a resource is pending or still in DELETING.
type Explanation struct {
	Kind      string
	Name      string
	UID       uuid.UUID
	State     peer.State
	UpdatedAt time.Time
	// Pending reports that work is outstanding.
	Pending bool
	Reasons []ExplainedReason
	// WaitsFor are the deployments that have to act, this one among them if its own work is outstanding.
	WaitsFor []schema.DeploymentID
}

// ExplainedReason is one reason.
type ExplainedReason struct {
	// Type is BLOCKED, WAITING, PROTECTED, FROZEN, SCHEDULED, HALTED (all deletions here), TENTATIVE,
	// DELEGATED, OWNER, or the name of outstanding work.
	Type    string
	Message string
	Since   time.Time // zero: unknown
	// Deployment to which the work belongs; zero for other reasons.
	Deployment schema.DeploymentID
	// Error of the last try, if known.
	Error string
}

const (
	selectExplainedSQL = `
SELECT id, uid, state, updated_at, block_deletion FROM dbcontroller.shadow WHERE kind_id = $1 AND name = $2`

	explainTentativeSQL = `
SELECT '//' || d.service || '/' || d.region || '/' || b.holder_name, f.path, b.expires_at, ` + db.ExpiredSQL + `$2::interval), b.attempt
FROM dbcontroller.blockade b JOIN dbcontroller.deployment d ON d.id = b.deployment_id JOIN dbcontroller.field f ON f.id = b.field_id
WHERE b.target_id = $1 AND b.expires_at IS NOT NULL ORDER BY b.expires_at LIMIT 20`

	explainFrozenSQL = `
SELECT f.deletion, '//' || d.service || '/' || d.region || '/' || f.root, f.committed, f.deleted_at, f.purge_at, COALESCE(f.reason, '')
FROM dbcontroller.frozen m JOIN dbcontroller.freeze f USING (deletion) JOIN dbcontroller.deployment d ON d.id = f.deployment_id
WHERE m.target_id = $1 ORDER BY f.deletion LIMIT 20`

	explainPausedSQL = `SELECT EXISTS (SELECT FROM dbcontroller.deployment WHERE id = $1 AND paused)`

	explainRightsSQL = `
SELECT DISTINCT d.service || '/' || d.region
FROM dbcontroller.blockade b JOIN dbcontroller.shadow s ON s.id = b.target_id AND s.uid = b.holder_uid JOIN dbcontroller.deployment d ON d.id = b.deployment_id
WHERE b.target_id = $1 ORDER BY 1`

	explainOwnersSQL = `
SELECT '//' || d.service || '/' || d.region || '/' || o.name, k.kind, o.flags, o.created_at, o.created_at + $2 <= now(), o.uid
FROM dbcontroller.owner_reference o JOIN dbcontroller.deployment d ON d.id = o.deployment_id JOIN dbcontroller.kind k ON k.id = o.kind_id
WHERE o.ownee_id = $1 AND NOT o.checked ORDER BY 1 LIMIT 20`
)

var explainOwnedWorkSQL = db.Codes(`
SELECT w.action, d.service, d.region, w.created_at, COALESCE(w.reason, ''), w.attempt
FROM dbcontroller.work w JOIN dbcontroller.deployment d ON d.id = w.deployment_id
WHERE w.action IN ({finalise}, {check_owners}, {drop_owners}, {derive}) AND w.target_id = $1
    OR w.action IN ({release}, {let_go}) AND w.holder_uid = $2
    OR w.action = {confirm} AND w.attempt IN (SELECT attempt FROM dbcontroller.reference WHERE holder_id = $1)
ORDER BY w.seq LIMIT 50`)

// Explain returns the reasons why a resource is pending or still in DELETING. It fails with ErrNotFound or
// *InvalidError.
func (s *Operations) Explain(ctx context.Context, name string) (*Explanation, error) {
	return gate.UnlessSkewed(ctx, s.gate, s.Pool, func() (*Explanation, error) { return s.explain(ctx, name) })
}

func (s *Operations) explain(ctx context.Context, name string) (*Explanation, error) {
	kindID, err := s.KindOfName(ctx, name)
	if err != nil {
		return nil, err
	}
	kind, err := s.Names.KindOf(ctx, s.Pool, kindID)
	if err != nil {
		return nil, err
	}
	e := &Explanation{Name: name, Kind: kind.Kind}
	var id int64
	var protected bool
	err = s.Pool.QueryRow(ctx, selectExplainedSQL, kindID, name).Scan(&id, &e.UID, &e.State, &e.UpdatedAt, &protected)
	if errors.Is(err, pgx.ErrNoRows) { // unless it is a row of an attached table, to which nothing refers
		found, err := s.read.Get(ctx, name)
		if err != nil {
			return nil, err
		}
		e.State = found.State
		return e, nil
	}
	if err != nil {
		return nil, fmt.Errorf("explain %s: %w", name, err)
	}
	if e.WaitsFor, err = db.WaitsFor(ctx, s.Pool, id, e.UID); err != nil {
		return nil, err
	}
	conditions, err := s.read.Conditions(ctx, name)
	if err != nil {
		return nil, err
	}
	for _, c := range conditions {
		e.Reasons = append(e.Reasons, ExplainedReason{Type: c.Type, Message: c.Message, Since: e.UpdatedAt})
	}
	if protected && e.State == peer.Active {
		e.Reasons = append(e.Reasons, ExplainedReason{
			Type:    "PROTECTED",
			Message: "block_deletion is set: it cannot be deleted until an operator clears that (db-controller block-deletion --off)",
		})
	}
	for _, part := range []func(context.Context, int64) error{
		func(ctx context.Context, id int64) error { return e.halted(ctx, s, id) },
		func(ctx context.Context, id int64) error { return e.tentative(ctx, s, id) },
		func(ctx context.Context, id int64) error { return e.frozen(ctx, s, id) },
		func(ctx context.Context, id int64) error { return e.rights(ctx, s, id) },
		func(ctx context.Context, id int64) error { return e.dangling(ctx, s, id) },
		func(ctx context.Context, id int64) error { return e.owners(ctx, s, id) },
		func(ctx context.Context, id int64) error { return e.work(ctx, s, id) },
	} {
		if err := part(ctx, id); err != nil {
			return nil, fmt.Errorf("explain %s: %w", name, err)
		}
	}
	return e, nil
}

// frozen adds the atomic deletions that keep writers away from the resource.
func (e *Explanation) frozen(ctx context.Context, s *Operations, id int64) error {
	rows, err := s.Pool.Query(ctx, explainFrozenSQL, id)
	if err != nil {
		return err
	}
	var deletion uuid.UUID
	var root, failed string
	var committed bool
	var deleted, purge *time.Time
	_, err = pgx.ForEachRow(rows, []any{&deletion, &root, &committed, &deleted, &purge, &failed}, func() error {
		if purge != nil && !committed {
			r := ExplainedReason{
				Type: "SCHEDULED", Since: *deleted, Error: failed,
				Message: fmt.Sprintf("it is hidden, and is removed at %s with %s, unless that is undeleted",
					purge.UTC().Format(time.RFC3339), root),
			}
			e.Reasons = append(e.Reasons, r)
			return nil
		}
		until := "is not decided yet"
		if committed {
			until = "is decided, and has not marked it yet"
		}
		e.Reasons = append(e.Reasons, ExplainedReason{
			Type: "FROZEN", Message: fmt.Sprintf("it cannot change, since the atomic deletion of %s %s", root, until),
			Since: peer.AttemptTime(deletion),
		})
		return nil
	})
	return err
}

// Deployments that deletions of resources of the kinds $1 wait for.
const explainAwaitedSQL = `
SELECT ARRAY(SELECT service || '/' || region FROM dbcontroller.deployment d WHERE ` + gate.AwaitedOfSQL + ` ORDER BY 1)`

// halted adds the reason why the resource is not marked or removed: a comparison after a failover, or an
// operator's pause.
func (e *Explanation) halted(ctx context.Context, s *Operations, id int64) error {
	add := func(waits []schema.DeploymentID, why error) {
		halts := &peer.UnavailableError{Deployments: waits, Err: why}
		e.Reasons = append(e.Reasons, ExplainedReason{Type: "HALTED", Message: halts.Error()})
	}
	var paused bool
	if err := s.Pool.QueryRow(ctx, explainPausedSQL, s.SelfID).Scan(&paused); err != nil {
		return err
	}
	if paused {
		add([]schema.DeploymentID{s.Self}, peer.ErrPaused)
	}
	switch epoch, err := s.Epoch(ctx); {
	case errors.Is(err, pgx.ErrNoRows): // not noticed yet
		add([]schema.DeploymentID{s.Self}, peer.ErrRecovering)
	case err != nil:
		return err
	case len(epoch.Unconfirmed) > 0:
		return e.awaited(ctx, s, id, add)
	case epoch.Awaiting:
		add([]schema.DeploymentID{s.Self}, peer.ErrRecovering)
	}
	return nil
}

// awaited adds the deployments that the resource waits for because of its kind.
func (e *Explanation) awaited(ctx context.Context, s *Operations, id int64,
	add func([]schema.DeploymentID, error),
) error {
	var kinds []int32
	if err := s.Pool.QueryRow(ctx, `SELECT ARRAY(SELECT kind_id FROM dbcontroller.shadow WHERE id = $1)`, id).
		Scan(&kinds); err != nil {
		return err
	}
	var names []string
	if err := s.Pool.QueryRow(ctx, explainAwaitedSQL, kinds).Scan(&names); err != nil {
		return err
	}
	var waits []schema.DeploymentID
	for _, name := range names {
		of, err := schema.ParseDeploymentID(name)
		if err != nil {
			return err
		}
		waits = append(waits, of)
	}
	if len(waits) > 0 {
		add(waits, peer.ErrRecovering)
	}
	return nil
}

func (e *Explanation) tentative(ctx context.Context, s *Operations, id int64) error {
	rows, err := s.Pool.Query(ctx, explainTentativeSQL, id, s.Tuning.Load().TentativeTTL)
	if err != nil {
		return err
	}
	var holder, path string
	var expires time.Time
	var expired bool
	var attempt uuid.UUID
	_, err = pgx.ForEachRow(rows, []any{&holder, &path, &expires, &expired, &attempt}, func() error {
		message := fmt.Sprintf(
			"%s (%s) may be about to refer to it: attempt %s is undecided; its deployment is asked from %s on", holder,
			path, attempt, expires.UTC().Format(time.TimeOnly))
		if expired {
			message = fmt.Sprintf("%s (%s) may refer to it: its deployment has not answered about attempt %s yet",
				holder, path, attempt)
		}
		e.Reasons = append(e.Reasons, ExplainedReason{
			Type: "TENTATIVE", Message: message,
			Since: peer.AttemptTime(attempt),
		})
		return nil
	})
	return err
}

// rights adds the deployments that may block the resource without asking.
func (e *Explanation) rights(ctx context.Context, s *Operations, id int64) error {
	rows, err := s.Pool.Query(ctx, explainRightsSQL, id)
	if err != nil {
		return err
	}
	var holder string
	_, err = pgx.ForEachRow(rows, []any{&holder}, func() error {
		e.Reasons = append(e.Reasons, ExplainedReason{
			Type: "DELEGATED",
			Message: holder +
				" may block it without asking, so that its references are stored there alone: a delete asks for them, and plan and referrers show them",
		})
		return nil
	})
	return err
}

const explainDanglingSQL = `
SELECT f.path, '//' || d.service || '/' || d.region || '/' || t.name
FROM dbcontroller.reference r JOIN dbcontroller.field f ON f.id = r.field_id
JOIN dbcontroller.foreign_target t ON t.id = r.target_id JOIN dbcontroller.deployment d ON d.id = t.deployment_id
WHERE r.holder_id = $1 AND r.dangling ORDER BY 1, 2`

func (e *Explanation) dangling(ctx context.Context, s *Operations, id int64) error {
	rows, err := s.Pool.Query(ctx, explainDanglingSQL, id)
	if err != nil {
		return err
	}
	var path, target string
	_, err = pgx.ForEachRow(rows, []any{&path, &target}, func() error {
		e.Reasons = append(e.Reasons, ExplainedReason{
			Type: "DANGLING",
			Message: fmt.Sprintf(
				"%s refers to %s, which was deleted without this reference when a database lost commits: change the reference to an existing resource, or delete this resource", path, target),
		})
		return nil
	})
	return err
}

func (e *Explanation) owners(ctx context.Context, s *Operations, id int64) error {
	rows, err := s.Pool.Query(ctx, explainOwnersSQL, id, s.Tuning.Load().OwnerGrace)
	if err != nil {
		return err
	}
	var owner, kind string
	var flags int16
	var created time.Time
	var over bool
	var uid uuid.UUID
	_, err = pgx.ForEachRow(rows, []any{&owner, &kind, &flags, &created, &over, &uid}, func() error {
		if full, err := schema.ParseFullName(owner); err == nil {
			kind = s.Names.Canonical(schema.KindID{Service: full.Deployment.Service, Kind: kind}).Kind
		}
		message := fmt.Sprintf("%s %s has not been found yet", kind, owner)
		if flags&peer.FlagRequires != 0 {
			message += ", or does not refer to this resource as it has to"
		}
		switch {
		case over || uid != uuid.Nil:
			message += "; it is dropped as an owner as soon as its deployment reports that"
		default:
			message += fmt.Sprintf("; it can still be created until %s",
				created.Add(s.Tuning.Load().OwnerGrace).UTC().Format(time.TimeOnly))
		}
		e.Reasons = append(e.Reasons, ExplainedReason{Type: "OWNER", Message: message, Since: created})
		return nil
	})
	return err
}

var workMessages = map[schema.Action]string{
	schema.Confirm:               "%s does not know yet that references to it were committed",
	schema.Release:               "%s does not know yet that references to it were dropped",
	schema.Finalise:              "%s is about to check whether it can be removed",
	schema.CheckOwners:           "%s has not confirmed all of its owners yet",
	schema.DropOwners:            "%s has not dropped it as an owner yet",
	schema.ReleaseOwner:          "%s does not know yet that it dropped its references to resources that it owns",
	schema.CleanUpDecommissioned: "rows of %s are being removed: it was decommissioned",
	schema.Derive:                "its references could not be derived anew by %s after a switch of the version",
}

func (e *Explanation) work(ctx context.Context, s *Operations, id int64) error {
	rows, err := s.Pool.Query(ctx, explainOwnedWorkSQL, id, e.UID)
	if err != nil {
		return err
	}
	var action schema.Action
	var r ExplainedReason
	var attempt *uuid.UUID
	_, err = pgx.ForEachRow(rows, []any{
		&action, &r.Deployment.Service, &r.Deployment.Region, &r.Since, &r.Error,
		&attempt,
	}, func() error {
		e.Pending = true
		r.Type, r.Message = action.String(), fmt.Sprintf(workMessages[action], r.Deployment)
		if attempt != nil {
			r.Message += fmt.Sprintf(" (attempt %s)", attempt)
		}
		e.Reasons = append(e.Reasons, r)
		return nil
	})
	return err
}

// Derivation is the progress of deriving the references of a kind anew: resources done, of all.
type Derivation struct {
	Kind        string
	Done, Total int64
	// SetAside is the number of resources that cannot be derived now.
	SetAside int64
}

var selectDerivationsSQL = db.Codes(`
SELECT k.kind,
    COALESCE(max(w.progress) FILTER (WHERE w.target_id IS NULL), (SELECT count(*) FROM dbcontroller.shadow s WHERE s.kind_id = w.kind_id)),
    (SELECT count(*) FROM dbcontroller.shadow s WHERE s.kind_id = w.kind_id),
    count(*) FILTER (WHERE w.target_id IS NOT NULL)
FROM dbcontroller.work w JOIN dbcontroller.kind k ON k.id = w.kind_id
WHERE w.action = {derive} GROUP BY w.kind_id, k.kind ORDER BY k.kind`)

// Status returns the deployment's version, its switch generation, and the derivations in progress.
func (s *Operations) Status(ctx context.Context) (version string, generation int64, derivations []Derivation,
	err error,
) {
	if err := s.Pool.QueryRow(ctx, gate.SelectVersionSQL).Scan(&version, &generation); err != nil {
		return "", 0, nil, fmt.Errorf("read the version: %w", err)
	}
	rows, err := s.Pool.Query(ctx, selectDerivationsSQL)
	if err != nil {
		return "", 0, nil, fmt.Errorf("read derivations: %w", err)
	}
	derivations, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Derivation])
	if err != nil {
		return "", 0, nil, fmt.Errorf("read derivations: %w", err)
	}
	for i := range derivations {
		derivations[i].Kind = s.KindNow(derivations[i].Kind)
	}
	return version, generation, derivations, nil
}
