package operate

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/grant"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
	"github.com/db-controller/db-controller/schema/shadow/internal/rows"
	"github.com/db-controller/db-controller/schema/shadow/internal/standby"
)

// Referrer is a resource of this deployment that refers to a resource, or that it owns.
type Referrer struct {
	Kind, Name string
	// Path of the field; OwnerPath for an owned resource, which has no behaviour.
	Path      string
	Behaviour schema.Behaviour
}

// ownerPath takes the place of a field path for owned resources. No field can have this path.
const ownerPath = "@owner"

// ReferrersRequest asks for a page of the resources here that refer to a resource of any deployment.
type ReferrersRequest struct {
	Target schema.FullName
	UID    uuid.UUID // needed when the target belongs to another deployment
	Limit  int
	Token  string // of the page before; the other fields are the same as in its request
	// Within are the names that the caller may read. A page has the readable ones of Limit referrers.
	Within grant.Within
}

// Referrers is a page.
type Referrers struct {
	List []Referrer
	Next string // empty after the last page
	// Of the first page, when the target belongs to this deployment: its uid, and the other deployments with
	// referrers.
	UID         uuid.UUID
	Deployments []schema.DeploymentID
}

var (
	// Also of a hidden target: the question is which holders keep it, and the row of an attached table is
	// gone before its resource.
	selectReferredSQL = `SELECT id, uid FROM dbcontroller.shadow WHERE kind_id = $1 AND name = $2`

	selectForeignSQL = `
SELECT f.id FROM dbcontroller.foreign_target f JOIN dbcontroller.deployment d ON d.id = f.deployment_id
WHERE f.uid = $1 AND d.service = $2 AND d.region = $3`

	// In the order of an index: each page reads its own rows. A resource of a scheduled deletion refers, too.
	selectReferrersSQL = db.Codes(`
SELECT r.behaviour, r.holder_id, r.field_id, s.kind_id, s.name, f.path
FROM dbcontroller.reference r JOIN dbcontroller.shadow s ON s.id = r.holder_id JOIN dbcontroller.field f ON f.id = r.field_id
WHERE r.target_id = $1 AND (r.behaviour, r.holder_id, r.field_id) > ($2::smallint, $3::bigint, $4::int) AND (NOT s.hidden OR s.state = {active})
ORDER BY r.behaviour, r.holder_id, r.field_id LIMIT $5`)

	selectOwneesSQL = db.Codes(`
SELECT o.ownee_id, s.kind_id, s.name
FROM dbcontroller.owner_reference o JOIN dbcontroller.deployment d ON d.id = o.deployment_id JOIN dbcontroller.shadow s ON s.id = o.ownee_id
WHERE d.service = $1 AND d.region = $2 AND o.uid = $3 AND o.ownee_id > $4 AND (NOT s.hidden OR s.state = {active})
ORDER BY o.ownee_id LIMIT $5`)

	selectReferringSQL = `
SELECT service, region FROM dbcontroller.deployment WHERE id <> $2 AND id IN (
    SELECT deployment_id FROM dbcontroller.blockade WHERE target_id = $1
    UNION SELECT deployment_id FROM dbcontroller.holder_entry WHERE target_id = $1
    UNION SELECT deployment_id FROM dbcontroller.ownee_entry WHERE owner_id = $1
) ORDER BY service, region`
)

// referrersCursor is a page token: the target, and the last row of the page before.
type referrersCursor struct {
	Target    uuid.UUID `json:"t"`
	Owned     bool      `json:"o,omitempty"` // the references are read
	Behaviour int16     `json:"b,omitempty"`
	Holder    int64     `json:"h,omitempty"`
	Field     int32     `json:"f,omitempty"`
	// Rows: the owned resources are read; Row is the last one of the rows that refer without a stored
	// reference.
	Rows bool       `json:"r,omitempty"`
	Row  rows.Place `json:"p"`
}

func (c *referrersCursor) token() string {
	raw, _ := json.Marshal(c)
	return base64.RawURLEncoding.EncodeToString(raw)
}

// Referrers reads a page of the resources of this deployment that refer to a resource, or that it owns.
func (s *Operations) Referrers(ctx context.Context, req ReferrersRequest) (*Referrers, error) {
	return standby.Read(ctx, s.Cfg.Standby, func(ctx context.Context) (*Referrers, error) {
		return gate.UnlessSkewed(ctx, s.gate, s.Pool, func() (*Referrers, error) { return s.referrers(ctx, req) })
	})
}

func (s *Operations) referrers(ctx context.Context, req ReferrersRequest) (*Referrers, error) {
	id, uid, err := s.referred(ctx, req)
	if err != nil {
		return nil, err
	}
	at := referrersCursor{Target: uid}
	if req.Token != "" {
		raw, err := base64.RawURLEncoding.DecodeString(req.Token)
		if err != nil || json.Unmarshal(raw, &at) != nil || at.Target != uid {
			return nil, &peer.InvalidError{
				Resource: "page_token",
				Err:      errors.New("want the next_page_token of an earlier answer about the same resource"),
			}
		}
	}
	page := &Referrers{}
	if req.Token == "" && req.Target.Deployment == s.Self {
		page.UID = uid
		if page.Deployments, err = s.referringDeployments(ctx, id); err != nil {
			return nil, err
		}
	}
	left := req.Limit
	if !at.Owned {
		if left, err = s.holdersOf(ctx, page, id, &at, left, req.Within); err != nil {
			return nil, err
		}
	}
	if left > 0 && !at.Rows {
		at = referrersCursor{Target: uid, Owned: true, Holder: ownedAfter(at)}
		if left, err = s.owneesOf(ctx, page, req.Target.Deployment, &at, left, req.Within); err != nil {
			return nil, err
		}
	}
	if left > 0 && id != 0 && req.Target.Deployment != s.Self {
		at = referrersCursor{Target: uid, Owned: true, Rows: true, Row: at.Row}
		if left, err = s.rowsOf(ctx, page, id, &at, left, req.Within); err != nil {
			return nil, err
		}
	}
	if left == 0 {
		page.Next = at.token()
	}
	return page, nil
}

// ownedAfter is the last owned resource of the page before.
func ownedAfter(at referrersCursor) int64 {
	if at.Owned {
		return at.Holder
	}
	return 0
}

// referred returns the number and the uid of the target; the number is 0 when nothing here refers to a
// foreign one.
func (s *Operations) referred(ctx context.Context, req ReferrersRequest) (id int64, uid uuid.UUID, err error) {
	if req.Target.Deployment != s.Self {
		if req.UID == uuid.Nil {
			return 0, uid, &peer.InvalidError{
				Resource: "target_uid",
				Err: fmt.Errorf("is missing: %s belongs to another deployment, whose answer contains the uid",
					req.Target),
			}
		}
		d := req.Target.Deployment
		if err = s.Pool.QueryRow(ctx, selectForeignSQL, req.UID, d.Service, d.Region).Scan(&id); errors.Is(err,
			pgx.ErrNoRows) {
			err = nil
		}
		return id, req.UID, err
	}
	kindID, err := s.KindOfName(ctx, req.Target.Name)
	if err != nil {
		return 0, uid, err
	}
	err = s.Pool.QueryRow(ctx, selectReferredSQL, kindID, req.Target.Name).Scan(&id, &uid)
	// a row that nothing refers to has no uid
	if t := s.rows.Of(kindID); errors.Is(err, pgx.ErrNoRows) && t != nil && req.UID == uuid.Nil {
		there, err := t.Existing(ctx, s.Pool, []string{req.Target.Name})
		if err != nil || len(there) > 0 {
			return 0, uid, err
		}
	}
	if errors.Is(err, pgx.ErrNoRows) || err == nil && req.UID != uuid.Nil && req.UID != uid {
		err = fmt.Errorf("%s: %w", req.Target, peer.ErrNotFound)
	}
	return id, uid, err
}

func (s *Operations) referringDeployments(ctx context.Context, id int64) ([]schema.DeploymentID, error) {
	rows, err := s.Pool.Query(ctx, selectReferringSQL, id, s.SelfID)
	if err != nil {
		return nil, fmt.Errorf("read the deployments of referrers: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[schema.DeploymentID])
}

// holdersOf adds the holders after a row, and returns the number of rows that are still wanted.
func (s *Operations) holdersOf(ctx context.Context, page *Referrers, id int64, at *referrersCursor, left int,
	within grant.Within,
) (int, error) {
	rows, err := s.Pool.Query(ctx, selectReferrersSQL, id, at.Behaviour, at.Holder, at.Field, left)
	if err != nil {
		return 0, fmt.Errorf("read referrers: %w", err)
	}
	var kinds []int32
	var found []Referrer
	var kindID int32
	var name, path string
	_, err = pgx.ForEachRow(rows, []any{&at.Behaviour, &at.Holder, &at.Field, &kindID, &name, &path}, func() error {
		kinds, found = append(kinds, kindID),
			append(found, Referrer{Name: name, Path: path, Behaviour: schema.Behaviour(at.Behaviour)})
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("read referrers: %w", err)
	}
	return left - len(found), s.addReferrers(ctx, page, kinds, found, within)
}

// owneesOf is holdersOf for owned resources.
func (s *Operations) owneesOf(ctx context.Context, page *Referrers, owner schema.DeploymentID, at *referrersCursor,
	left int, within grant.Within,
) (int, error) {
	rows, err := s.Pool.Query(ctx, selectOwneesSQL, owner.Service, owner.Region, at.Target, at.Holder, left)
	if err != nil {
		return 0, fmt.Errorf("read owned resources: %w", err)
	}
	var kinds []int32
	var found []Referrer
	var kindID int32
	var name string
	_, err = pgx.ForEachRow(rows, []any{&at.Holder, &kindID, &name}, func() error {
		kinds, found = append(kinds, kindID), append(found, Referrer{Name: name, Path: ownerPath})
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("read owned resources: %w", err)
	}
	return left - len(found), s.addReferrers(ctx, page, kinds, found, within)
}

// rowsOf is holdersOf for rows of tables.
func (s *Operations) rowsOf(ctx context.Context, page *Referrers, id int64, at *referrersCursor, left int,
	within grant.Within,
) (int, error) {
	targets, err := s.rows.Targets(ctx, s.Pool, []int64{id})
	if err != nil || len(targets) == 0 {
		return left, err
	}
	holders, last, err := s.rows.HoldersPage(ctx, s.Pool, targets[0], at.Row, left)
	if err != nil {
		return 0, fmt.Errorf("read referrers: %w", err)
	}
	at.Row = last
	var kinds []int32
	var found []Referrer
	for _, h := range holders {
		kinds, found = append(kinds, h.Table.KindID),
			append(found, Referrer{Name: h.Name, Path: h.Path, Behaviour: h.Behaviour})
	}
	return left - len(holders), s.addReferrers(ctx, page, kinds, found, within)
}

// addReferrers adds the referrers that the caller may read, with the present names of their kinds.
func (s *Operations) addReferrers(ctx context.Context, page *Referrers, kinds []int32, found []Referrer,
	within grant.Within,
) error {
	for i, r := range found {
		kind, err := s.Names.KindOf(ctx, s.Pool, kinds[i])
		if err != nil {
			return err
		}
		r.Kind = kind.Kind
		if slices.ContainsFunc(within.Of(r.Kind), func(n grant.NameRange) bool { return n.Has(r.Name) }) {
			page.List = append(page.List, r)
		}
	}
	return nil
}
