package operate

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/read"
)

// ResourceView is a resource with its references and entries, for tools and audits.
type ResourceView struct {
	Kind, Name string
	UID        uuid.UUID
	State      peer.State
	Revision   peer.Revision
	References []ReferenceView
	// Holders are the deployments with acting references to it, Ownees the deployments with resources that it
	// owns.
	Holders, Ownees []schema.DeploymentID
}

// ReferenceView is one reference of a resource. Attempt is zero for a target of the same deployment.
type ReferenceView struct {
	Path      string
	Target    schema.FullName
	TargetUID uuid.UUID
	Behaviour schema.Behaviour
	Attempt   uuid.UUID
}

// BlockadeView is a blockade of a resource of this deployment.
type BlockadeView struct {
	Kind, Name string
	Key        peer.BlockadeKey
	Holder     schema.FullName
	Behaviour  schema.Behaviour
	ExpiresAt  time.Time // zero: confirmed
}

const (
	viewShadowsSQL = `
SELECT s.id, s.kind_id, s.name, s.uid, s.state, s.revision,
    ARRAY (SELECT deployment_id FROM dbcontroller.holder_entry e WHERE e.target_id = s.id ORDER BY 1),
    ARRAY (SELECT deployment_id FROM dbcontroller.ownee_entry e WHERE e.owner_id = s.id ORDER BY 1)
FROM dbcontroller.shadow s WHERE s.id > $1 AND ($2 = 0 OR s.kind_id = $2) ORDER BY s.id LIMIT $3`

	// First the remaining rows of one target, which can have most of all blockades, then the following
	// targets: both by the key.
	viewBlockadesSQL = `
WITH page AS (
    (SELECT * FROM dbcontroller.blockade
    WHERE target_id = @target AND (holder_uid, field_id, attempt) > (@holder, @field, @attempt) AND (@deployment = 0 OR deployment_id = @deployment)
    ORDER BY holder_uid, field_id, attempt LIMIT @at_most)
    UNION ALL
    (SELECT * FROM dbcontroller.blockade
    WHERE target_id > @target AND (@deployment = 0 OR deployment_id = @deployment)
    ORDER BY target_id, holder_uid, field_id, attempt LIMIT @at_most)
)
SELECT b.target_id, k.kind, t.name, t.uid, b.attempt, b.holder_uid, f.path, d.service, d.region, b.holder_name, b.behaviour, b.expires_at
FROM (SELECT * FROM page ORDER BY target_id, holder_uid, field_id, attempt LIMIT @at_most) b JOIN dbcontroller.shadow t ON t.id = b.target_id JOIN dbcontroller.kind k ON k.id = t.kind_id
JOIN dbcontroller.field f ON f.id = b.field_id JOIN dbcontroller.deployment d ON d.id = b.deployment_id
ORDER BY b.target_id, b.holder_uid, b.field_id, b.attempt`
)

// ListShadows reads a page of shadows, of one kind or of all; the token is empty at the beginning and after
// the end.
func (s *Operations) ListShadows(ctx context.Context, kindName, token string,
	limit int,
) ([]ResourceView, string, error) {
	after, err := idToken(token)
	if err != nil {
		return nil, "", err
	}
	var kindID int32
	if kindName != "" {
		if kindID, err = s.Names.Kind(ctx, schema.KindID{Service: s.Self.Service, Kind: kindName}); err != nil {
			return nil, "", err
		}
	}
	rows, err := s.Pool.Query(ctx, viewShadowsSQL, after, kindID, limit)
	if err != nil {
		return nil, "", fmt.Errorf("list shadows: %w", err)
	}
	type row struct {
		ID, Kind int64
		ResourceView
		holders, ownees []int32
	}
	found, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (x row, err error) {
		err = r.Scan(&x.ID, &x.Kind, &x.Name, &x.UID, &x.State, &x.Revision, &x.holders, &x.ownees)
		return x, err
	})
	if err != nil {
		return nil, "", fmt.Errorf("list shadows: %w", err)
	}
	ids := make([]int64, len(found))
	for i, x := range found {
		ids[i] = x.ID
	}
	held, err := read.Held(ctx, s.Pool, ids)
	if err != nil {
		return nil, "", err
	}
	out := make([]ResourceView, len(found))
	for i, x := range found {
		v := x.ResourceView
		kind, err := s.Names.KindOf(ctx, s.Pool, int32(x.Kind))
		if err != nil {
			return nil, "", err
		}
		v.Kind = kind.Kind
		if v.Holders, err = s.DeploymentsOf(ctx, s.Pool, x.holders); err != nil {
			return nil, "", err
		}
		if v.Ownees, err = s.DeploymentsOf(ctx, s.Pool, x.ownees); err != nil {
			return nil, "", err
		}
		if v.References, err = s.views(ctx, held[x.ID]); err != nil {
			return nil, "", err
		}
		out[i] = v
	}
	if len(found) < limit {
		return out, "", nil
	}
	return out, base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(found[len(found)-1].ID, 10))), nil
}

func (s *Operations) views(ctx context.Context, held []read.HeldReference) ([]ReferenceView, error) {
	var out []ReferenceView
	for _, h := range held {
		path, err := s.Names.FieldOf(ctx, s.Pool, h.FieldID)
		if err != nil {
			return nil, err
		}
		v := ReferenceView{Path: path, Behaviour: h.Behaviour, Target: schema.FullName{Deployment: s.Self}}
		if h.Deployment != nil {
			if v.Target.Deployment, err = s.Names.DeploymentOf(ctx, s.Pool, *h.Deployment); err != nil {
				return nil, err
			}
		}
		if h.Name != nil {
			v.Target.Name, v.TargetUID = *h.Name, *h.UID
		}
		if h.Attempt != nil {
			v.Attempt = *h.Attempt
		}
		out = append(out, v)
	}
	return out, nil
}

func idToken(token string) (int64, error) {
	if token == "" {
		return 0, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err == nil {
		var id int64
		if id, err = strconv.ParseInt(string(raw), 10, 64); err == nil {
			return id, nil
		}
	}
	return 0, &peer.InvalidError{
		Resource: "page_token",
		Err:      errors.New("want the next_page_token of an earlier answer"),
	}
}

// ListBlockades reads a page of the blockades that holders of a deployment have here, or of all.
func (s *Operations) ListBlockades(ctx context.Context, of schema.DeploymentID, token string,
	limit int,
) ([]BlockadeView, string, error) {
	after, err := blockadeToken(token)
	if err != nil {
		return nil, "", err
	}
	var deployment int32
	if !of.IsZero() {
		if deployment, err = s.Names.Deployment(ctx, of); err != nil {
			return nil, "", err
		}
	}
	field, err := s.Names.KnownField(ctx, after.path)
	if err != nil {
		return nil, "", err
	}
	rows, err := s.Pool.Query(ctx, viewBlockadesSQL, db.Named{
		"target": after.target, "holder": after.holder, "field": field, "attempt": after.attempt,
		"deployment": deployment, "at_most": limit,
	})
	if err != nil {
		return nil, "", fmt.Errorf("list blockades: %w", err)
	}
	var last blockadeAt
	found, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (v BlockadeView, err error) {
		var expires *time.Time
		if err := r.Scan(&last.target, &v.Kind, &v.Name, &v.Key.TargetUID, &v.Key.Attempt, &v.Key.HolderUID,
			&v.Key.Path,
			&v.Holder.Deployment.Service, &v.Holder.Deployment.Region, &v.Holder.Name, &v.Behaviour,
			&expires); err != nil {
			return v, err
		}
		if expires != nil {
			v.ExpiresAt = *expires
		}
		v.Kind = s.KindNow(v.Kind)
		last.holder, last.path, last.attempt = v.Key.HolderUID, v.Key.Path, v.Key.Attempt
		return v, nil
	})
	if err != nil {
		return nil, "", fmt.Errorf("list blockades: %w", err)
	}
	if len(found) < limit {
		return found, "", nil
	}
	return found, last.token(), nil
}

// blockadeAt is the last blockade of a page.
type blockadeAt struct {
	target          int64
	holder, attempt uuid.UUID
	path            string
}

func (b blockadeAt) token() string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d %s %s %s", b.target, b.holder, b.attempt, b.path))
}

func blockadeToken(token string) (b blockadeAt, err error) {
	if token == "" {
		return b, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err == nil {
		var holder, attempt string
		if _, err = fmt.Sscanf(string(raw), "%d %s %s %s", &b.target, &holder, &attempt, &b.path); err == nil {
			if b.holder, err = uuid.Parse(holder); err == nil {
				b.attempt, err = uuid.Parse(attempt)
			}
		}
	}
	if err != nil {
		return b, &peer.InvalidError{
			Resource: "page_token",
			Err:      errors.New("want the next_page_token of an earlier answer"),
		}
	}
	return b, nil
}
