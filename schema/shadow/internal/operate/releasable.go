package operate

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
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

// Releasable is a row that ties a resource of this deployment to another resource or deployment.
type Releasable struct {
	Key   string // for ForceRelease
	What  string
	Name  string    // of the resource here
	Other string    // full name of the holder, the owner or the target; the deployment of an entry
	Path  string    // of a blockade, or a kept reference
	Since time.Time // zero: unknown
	// Breaks describes the loss by the release.
	Breaks string
	// Refused is the reason why it cannot be released now; empty: it can.
	Refused string

	at []string // its place in its list
}

// releasables is a list of rows of one kind, in an order of its own: the rows behind a place (empty: all), at
// most limit.
type releasables func(ctx context.Context, r resource, after []string, limit int) ([]Releasable, error)

// releasableCursor is a page token: the resource, and the last row of the page before.
type releasableCursor struct {
	UID   uuid.UUID  `json:"u"`
	State peer.State `json:"s"`
	List  int        `json:"l"`
	After []string   `json:"a,omitempty"`
}

func (c releasableCursor) token() string {
	raw, _ := json.Marshal(c)
	return base64.RawURLEncoding.EncodeToString(raw)
}

var errToken = &peer.InvalidError{
	Resource: "page_token",
	Err:      errors.New("want the next_page_token of an earlier answer about the same resource"),
}

// codeNoValue is the SQLSTATE of a text that is no value of a type.
const codeNoValue = "22P02"

// cursorOf reads a token; empty: of the first page.
func cursorOf(token string, r resource) (at releasableCursor, err error) {
	at = releasableCursor{UID: r.uid, State: r.state}
	if token == "" {
		return at, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || json.Unmarshal(raw, &at) != nil || at.UID != r.uid || at.List < 0 {
		return at, errToken
	}
	if at.State != r.state {
		return at, fmt.Errorf("%w: %s is being deleted since the page before: list again", peer.ErrAborted, r.name)
	}
	return at, nil
}

// place returns the values of a place, as many as want; empty texts stand before all rows.
func place(after []string, want int) []string {
	out := make([]string, want)
	copy(out, after)
	return out
}

const (
	// afterSQL is a condition: behind the place of a page, in the order of the key.
	afterSQL = `(($4::text[])[1] = '' OR (b.target_id, b.holder_uid, b.field_id, b.attempt)
    > (NULLIF(($4::text[])[1], '')::bigint, NULLIF(($4::text[])[2], '')::uuid, NULLIF(($4::text[])[3], '')::int, NULLIF(($4::text[])[4], '')::uuid))
ORDER BY b.target_id, b.holder_uid, b.field_id, b.attempt LIMIT $3`

	blockadesSQL = `
SELECT t.uid, t.name, d.service, d.region, b.holder_name, b.holder_uid, b.attempt, f.path, b.expires_at IS NOT NULL, COALESCE(` + db.ExpiredSQL + `$2::interval), false),
    b.target_id::text, b.field_id::text
FROM dbcontroller.blockade b JOIN dbcontroller.deployment d ON d.id = b.deployment_id JOIN dbcontroller.field f ON f.id = b.field_id
JOIN dbcontroller.shadow t ON t.id = b.target_id
WHERE `

	listBlockadesSQL = blockadesSQL + `b.target_id = $1 AND ` + afterSQL

	// The expired blockades that a deployment has never confirmed.
	listUnconfirmedSQL = blockadesSQL + `b.deployment_id = $1 AND b.expires_at IS NOT NULL AND ` + db.ExpiredSQL +
		`$2::interval) AND ` + afterSQL

	listNoticesSQL = `
SELECT d.service, d.region, max(n.seq) FROM dbcontroller.notice n JOIN dbcontroller.deployment d ON d.id = n.deployment_id
WHERE n.target_id = $1 AND (d.service, d.region) > (($3::text[])[1], ($3::text[])[2]) GROUP BY d.service, d.region ORDER BY d.service, d.region LIMIT $2`

	listHolderEntriesSQL = `
SELECT d.service, d.region FROM dbcontroller.holder_entry e JOIN dbcontroller.deployment d ON d.id = e.deployment_id
WHERE e.target_id = $1 AND (d.service, d.region) > (($3::text[])[1], ($3::text[])[2]) ORDER BY d.service, d.region LIMIT $2`

	listOwneeEntriesSQL = `
SELECT d.service, d.region FROM dbcontroller.ownee_entry e JOIN dbcontroller.deployment d ON d.id = e.deployment_id
WHERE e.owner_id = $1 AND (d.service, d.region) > (($3::text[])[1], ($3::text[])[2]) ORDER BY d.service, d.region LIMIT $2`

	listOwnersSQL = `
SELECT d.service, d.region, k.kind, o.name, o.uid, o.created_at
FROM dbcontroller.owner_reference o JOIN dbcontroller.deployment d ON d.id = o.deployment_id JOIN dbcontroller.kind k ON k.id = o.kind_id
WHERE o.ownee_id = $1 AND (($3::text[])[1] = '' OR (d.service, d.region, k.kind, o.name, o.uid) > (($3::text[])[1], ($3::text[])[2], ($3::text[])[3], ($3::text[])[4], NULLIF(($3::text[])[5], '')::uuid))
ORDER BY d.service, d.region, k.kind, o.name, o.uid LIMIT $2`

	listKeptSQL = `
SELECT COALESCE(d.service, $4), COALESCE(d.region, $5), COALESCE(f.name, t.name), COALESCE(f.uid, t.uid), p.path, r.field_id::text, r.target_id::text
FROM dbcontroller.reference r JOIN dbcontroller.field p ON p.id = r.field_id
LEFT JOIN dbcontroller.shadow t ON t.id = r.target_id
LEFT JOIN dbcontroller.foreign_target f ON f.id = r.target_id LEFT JOIN dbcontroller.deployment d ON d.id = f.deployment_id
WHERE r.holder_id = $1 AND COALESCE(f.uid, t.uid) IS NOT NULL
    AND (($3::text[])[1] = '' OR (r.field_id, r.target_id) > (NULLIF(($3::text[])[1], '')::int, NULLIF(($3::text[])[2], '')::bigint))
ORDER BY r.field_id, r.target_id LIMIT $2`
)

// resource is a resource here.
type resource struct {
	id    int64
	name  string
	uid   uuid.UUID
	state peer.State
}

func (s *Operations) find(ctx context.Context, name string) (resource, error) {
	return gate.UnlessSkewed(ctx, s.gate, s.Pool, func() (resource, error) { return s.lookUp(ctx, name) })
}

func (s *Operations) lookUp(ctx context.Context, name string) (r resource, err error) {
	kind, err := s.KindOfName(ctx, name)
	if err != nil {
		return r, err
	}
	r.name = name
	err = s.Pool.QueryRow(ctx, selectShadowSQL, kind, name).Scan(&r.id, &r.uid, &r.state)
	if errors.Is(err, pgx.ErrNoRows) {
		err = peer.ErrNotFound
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return r, err
}

// Releasable lists the ties of a resource to others: blockades; entries of deployments, for which a resource
// in DELETING waits, and which stay while it is ACTIVE; references that one in DELETING keeps; owners of an
// ACTIVE one, and the rights that it has given. A page has at most limit rows, and the token of the next one;
// empty after the last page. It fails with ErrNotFound, *InvalidError, and ErrAborted when the resource is
// being deleted since the page before.
func (s *Operations) Releasable(ctx context.Context, name string, limit int,
	token string,
) (out []Releasable, next string, err error) {
	r, err := s.find(ctx, name)
	if err != nil {
		return nil, "", err
	}
	lists := []releasables{s.blockades, s.idle(s.holderEntries), s.idle(s.owneeEntries), s.owners, s.grantedRights}
	if r.state == peer.Deleting {
		lists = []releasables{s.blockades, s.entries, s.owneeEntries, s.keptReferences}
	}
	at, err := cursorOf(token, r)
	if err != nil {
		return nil, "", err
	}
	for ; at.List < len(lists); at.List, at.After = at.List+1, nil {
		found, err := lists[at.List](ctx, r, at.After, limit-len(out))
		if db.HasCode(err, codeNoValue) { // of a place that this deployment has not given
			return nil, "", errToken
		}
		if err != nil {
			return nil, "", fmt.Errorf("read the releasable rows of %s: %w", name, err)
		}
		if out = append(out, found...); len(out) == limit {
			at.After = out[len(out)-1].at
			return out, at.token(), nil
		}
	}
	return out, "", nil
}

func (s *Operations) blockades(ctx context.Context, r resource, after []string, limit int) ([]Releasable, error) {
	return s.listBlockades(ctx, listBlockadesSQL, r.id, after, limit)
}

// listBlockades lists the blockades of a target, or of a deployment, by its number.
func (s *Operations) listBlockades(ctx context.Context, sql string, of any, after []string,
	limit int,
) ([]Releasable, error) {
	rows, err := s.Pool.Query(ctx, sql, of, s.Tuning.Load().TentativeTTL, limit, place(after, 4))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (Releasable, error) {
		k := key{what: blockade}
		var name, holder, target, field string
		var tentative, expired bool
		if err := row.Scan(&k.uid, &name, &k.deployment.Service, &k.deployment.Region, &holder, &k.holder, &k.attempt,
			&k.path, &tentative, &expired, &target, &field); err != nil {
			return Releasable{}, err
		}
		out := Releasable{
			Key: k.String(), What: blockade, Name: name, Path: k.path, Since: peer.AttemptTime(k.attempt),
			Other: schema.FullName{Deployment: k.deployment, Name: holder}.String(),
			at:    []string{target, k.holder.String(), field, k.attempt.String()},
		}
		switch {
		case k.ofRight():
			out.Other = k.deployment.String()
			out.Breaks = out.Other +
				" ends its right to refer to this resource, which it has not been known to use: a reference that it has written under the right dangles once this resource is deleted, and is reported there"
		default:
			out.Breaks = out.Other +
				" no longer keeps this resource: if it refers to it, the reference dangles once this resource is deleted, and only verify reports it"
			if tentative {
				out.Breaks += "; its write may still be committed"
			}
		}
		out.Refused = refusal(k, tentative, expired)
		return out, nil
	})
}

// ofRight reports whether a blockade stands for a right: it belongs to a proxy.
func (k key) ofRight() bool { return k.path == peer.RightPath || k.holder == k.uid }

// refusal returns the reason why a blockade stays.
func refusal(k key, tentative, expired bool) string {
	switch {
	case k.ofRight() && !tentative:
		return "it stands for a right of " + k.deployment.String() +
			", which has references under it: end the right there (serve --delegations=false)"
	case tentative && !expired:
		return "its write may be under way: its deployment is asked about it within seconds"
	}
	return ""
}

// Unconfirmed lists the expired blockades here that a deployment has never confirmed: of writes of which it
// has not said whether they have committed, and of rights that nothing there has been known to use. It is as
// Releasable otherwise, for a deployment that does not answer.
func (s *Operations) Unconfirmed(ctx context.Context, of schema.DeploymentID, limit int,
	token string,
) (out []Releasable, next string, err error) {
	id, err := s.Names.Deployment(ctx, of)
	if err != nil {
		return nil, "", err
	}
	at, err := cursorOf(token, resource{})
	if err != nil {
		return nil, "", err
	}
	if out, err = s.listBlockades(ctx, listUnconfirmedSQL, id, at.After, limit); db.HasCode(err, codeNoValue) {
		return nil, "", errToken
	}
	if err != nil {
		return nil, "", fmt.Errorf("read the blockades of %s: %w", of, err)
	}
	if len(out) == limit {
		at.After = out[len(out)-1].at
		next = at.token()
	}
	return out, next, nil
}

func (s *Operations) entries(ctx context.Context, r resource, after []string, limit int) ([]Releasable, error) {
	rows, err := s.Pool.Query(ctx, listNoticesSQL, r.id, limit, place(after, 2))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (Releasable, error) {
		k := key{what: holderEntry, uid: r.uid}
		if err := row.Scan(&k.deployment.Service, &k.deployment.Region, &k.notice); err != nil {
			return Releasable{}, err
		}
		return Releasable{
			Key: k.String(), What: holderEntry, Name: r.name, Other: k.deployment.String(), Refused: s.entryRefusal(k),
			at: placeOf(k.deployment),
			Breaks: "this resource does not wait for " + k.deployment.String() +
				", which writes no more references to it: those that are there are neither unset nor deleted along, and dangle; only verify reports them",
		}, nil
	})
}

func placeOf(d schema.DeploymentID) []string { return []string{d.Service, d.Region} }

// holderEntries lists the holder entries of a resource that is not being deleted: there are no notices.
func (s *Operations) holderEntries(ctx context.Context, r resource, after []string, limit int) ([]Releasable, error) {
	rows, err := s.Pool.Query(ctx, listHolderEntriesSQL, r.id, limit, place(after, 2))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (Releasable, error) {
		k := key{what: holderEntry, uid: r.uid}
		err := row.Scan(&k.deployment.Service, &k.deployment.Region)
		return Releasable{
			Key: k.String(), What: holderEntry, Name: r.name, Other: k.deployment.String(),
			at: placeOf(k.deployment),
		}, err
	})
}

// idle lists entries of a resource that is not being deleted.
func (s *Operations) idle(list releasables) releasables {
	return func(ctx context.Context, r resource, after []string, limit int) ([]Releasable, error) {
		found, err := list(ctx, r, after, limit)
		for i := range found {
			found[i].Refused = "a deletion needs it to reach " + found[i].Other +
				": while the resource is being deleted and waits for that deployment, it can be released"
			if found[i].What == holderEntry {
				found[i].Refused += ". It goes within seconds after the last reference from there that would be unset or deleted along; until then the key of an attached row does not change"
			}
		}
		return found, err
	}
}

// entryRefusal returns the reason why an entry stays.
func (s *Operations) entryRefusal(k key) string {
	if k.deployment == s.Self {
		return "its work is done here: it waits for nobody else"
	}
	return ""
}

func (s *Operations) owneeEntries(ctx context.Context, r resource, after []string, limit int) ([]Releasable, error) {
	rows, err := s.Pool.Query(ctx, listOwneeEntriesSQL, r.id, limit, place(after, 2))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (Releasable, error) {
		k := key{what: owneeEntry, uid: r.uid}
		if err := row.Scan(&k.deployment.Service, &k.deployment.Region); err != nil {
			return Releasable{}, err
		}
		return Releasable{
			Key: k.String(), What: owneeEntry, Name: r.name, Other: k.deployment.String(), Refused: s.entryRefusal(k),
			at: placeOf(k.deployment),
			Breaks: "this resource does not wait for " + k.deployment.String() +
				": its ownees there stay and name an owner that is gone, until verify --repair there",
		}, nil
	})
}

// keptReferences lists the references of a resource in DELETING: it keeps them until it is removed.
func (s *Operations) keptReferences(ctx context.Context, r resource, after []string, limit int) ([]Releasable, error) {
	rows, err := s.Pool.Query(ctx, listKeptSQL, r.id, limit, place(after, 2), s.Self.Service, s.Self.Region)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (Releasable, error) {
		k := key{what: keptReference, uid: r.uid}
		var name, field, target string
		if err := row.Scan(&k.deployment.Service, &k.deployment.Region, &name, &k.target, &k.path, &field,
			&target); err != nil {
			return Releasable{}, err
		}
		full := schema.FullName{Deployment: k.deployment, Name: name}.String()
		return Releasable{
			Key: k.String(), What: keptReference, Name: r.name, Other: full, Path: k.path, at: []string{field, target},
			Breaks: full + " does not wait for the clean-up of this resource, which may find it gone",
		}, nil
	})
}

func (s *Operations) owners(ctx context.Context, r resource, after []string, limit int) ([]Releasable, error) {
	rows, err := s.Pool.Query(ctx, listOwnersSQL, r.id, limit, place(after, 5))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (Releasable, error) {
		k := key{what: ownerReference, uid: r.uid}
		if err := row.Scan(&k.deployment.Service, &k.deployment.Region, &k.kind, &k.name, &k.owner,
			&k.since); err != nil {
			return Releasable{}, err
		}
		owner := cmp.Or(k.kind, "owner") + " " + schema.FullName{Deployment: k.deployment, Name: k.name}.String()
		return Releasable{
			Key: k.String(), What: ownerReference, Name: r.name, Other: schema.FullName{
				Deployment: k.deployment,
				Name:       k.name,
			}.String(), Since: k.since,
			at: append(placeOf(k.deployment), k.kind, k.name, k.owner.String()),
			Breaks: "this resource is not deleted with " + owner +
				"; without any owner it stays until somebody deletes it",
		}, nil
	})
}
