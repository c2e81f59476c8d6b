package verify

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"

	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

const (
	// One page of all owner references in the order of their primary key. Unchecked ones, about which the
	// ownee's controller is still asking, are included: stillOwnedSQL leaves them out afterwards.
	ownersPageSQL = `
SELECT o.ownee_id, o.deployment_id, o.kind_id, o.name, o.uid, o.flags, o.generation, s.uid, s.name
FROM (
    SELECT * FROM dbcontroller.owner_reference WHERE (ownee_id, deployment_id, kind_id, name, uid) > (@ownee, @deployment, @kind, @name, @uid)
    ORDER BY ownee_id, deployment_id, kind_id, name, uid LIMIT @at_most
) AS o JOIN dbcontroller.shadow s ON s.id = o.ownee_id
ORDER BY o.ownee_id, o.deployment_id, o.kind_id, o.name, o.uid`

	stillOwnedSQL = `
SELECT i.n - 1
FROM unnest($1::bigint[], $2::int[], $3::int[], $4::text[], $5::uuid[]) WITH ORDINALITY AS i (ownee_id, deployment_id, kind_id, name, uid, n)
JOIN dbcontroller.owner_reference o USING (ownee_id, deployment_id, kind_id, name, uid) WHERE o.checked`
)

var recheckOwnersSQL = db.Codes(`
INSERT INTO dbcontroller.work (action, shard, deployment_id, target_id)
SELECT {check_owners}, s.shard, $2::int, s.id FROM dbcontroller.shadow s WHERE s.id = ANY ($1) AND s.state = {active}`)

// ownedRow is an owner reference with its ownee. The exported fields are its primary key, and the cursor of
// the pass.
type ownedRow struct {
	Ownee      int64
	Deployment int32
	Kind       int32
	Name       string
	UID        uuid.UUID
	Flags      int16
	Generation int64
	OwneeUID   uuid.UUID
	OwneeName  string
	At         schema.DeploymentID
	Differs    DifferenceKind
}

func scanOwnedRow(row pgx.CollectableRow) (*ownedRow, error) {
	r := &ownedRow{}
	return r, row.Scan(&r.Ownee, &r.Deployment, &r.Kind, &r.Name, &r.UID, &r.Flags, &r.Generation, &r.OwneeUID,
		&r.OwneeName)
}

// owners compares owner references with the owners and the ownee entries in the owners' deployments.
func (v *verifying) owners(ctx context.Context, cursor string, save func(string) error) error {
	var last ownedRow
	if cursor != "" {
		if err := json.Unmarshal([]byte(cursor), &last); err != nil {
			return fmt.Errorf("cursor %q: %w", cursor, err)
		}
	}
	for {
		rows, err := v.store.Pool.Query(ctx, ownersPageSQL, db.Named{
			"ownee": last.Ownee, "deployment": last.Deployment, "kind": last.Kind, "name": last.Name, "uid": last.UID,
			"at_most": pageRows,
		})
		if err != nil {
			return err
		}
		page, err := pgx.CollectRows(rows, scanOwnedRow)
		if err != nil || len(page) == 0 {
			return err
		}
		by := map[schema.DeploymentID][]*ownedRow{}
		for _, r := range page {
			if r.At, err = v.store.Names.DeploymentOf(ctx, v.store.Pool, r.Deployment); err != nil {
				return err
			}
			if v.concerns(r.At) {
				by[r.At] = append(by[r.At], r)
			}
		}
		for at, owned := range by {
			v.out.Owners += int64(len(owned))
			if err := v.compareOwners(ctx, at, owned); err != nil {
				return err
			}
		}
		last = *page[len(page)-1]
		raw, err := json.Marshal(last)
		if err != nil {
			return err
		}
		if err := save(string(raw)); err != nil {
			return err
		}
		if err := v.how.Progress(ctx, v.out); err != nil {
			return err
		}
	}
}

func (v *verifying) compareOwners(ctx context.Context, at schema.DeploymentID, owned []*ownedRow) error {
	differing, err := v.wronglyOwned(ctx, at, owned)
	if err == nil && len(differing) > 0 { // a DropOwners may be under way
		if err = v.wait(ctx); err == nil {
			differing, err = v.wronglyOwned(ctx, at, differing)
		}
	}
	if err != nil {
		return v.unreachable(ctx, at, err)
	}
	if v.how.Repair && len(differing) > 0 {
		// The usual owner check repairs both sides: the question writes the ownee entry, the answer settles
		// the reference.
		var ownees []int64
		for _, r := range differing {
			ownees = append(ownees, r.Ownee)
		}
		err := v.store.InTx(ctx, db.WorkFeed, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, recheckOwnersSQL, ownees, differing[0].Deployment)
			return err
		})
		if err != nil {
			return err
		}
	}
	for _, r := range differing {
		if r.Differs == "" {
			continue
		}
		d := Difference{
			Kind: r.Differs, Holder: v.store.FullName(r.OwneeName), Target: schema.FullName{
				Deployment: at,
				Name:       r.Name,
			}, Path: "@owner", Repaired: v.how.Repair,
		}
		if err := v.found(d); err != nil {
			return err
		}
	}
	return nil
}

// wronglyOwned returns the owner references that differ from the answers of the owners' deployment, and that
// are still stored and checked after the answer.
func (v *verifying) wronglyOwned(ctx context.Context, at schema.DeploymentID, owned []*ownedRow) ([]*ownedRow, error) {
	questions := make([]peer.OwnerQuestion, len(owned))
	for i, r := range owned {
		kind, err := v.store.Names.KindOf(ctx, v.store.Pool, r.Kind)
		if err != nil {
			return nil, err
		}
		questions[i] = peer.OwnerQuestion{Kind: kind.Kind, Name: r.Name, UID: r.UID}
		if r.Flags&peer.FlagRequires != 0 {
			questions[i].RequiredBy = r.OwneeUID
		}
	}
	answers, err := v.store.Peers.WouldCheckOwners(ctx, at, questions)
	if err != nil {
		return nil, err
	}
	if len(answers.Answers) != len(questions) {
		return nil, fmt.Errorf("%d answers to %d questions", len(answers.Answers), len(questions))
	}
	var suspicious []*ownedRow
	for i, a := range answers.Answers {
		r := owned[i]
		switch {
		case a.Verdict == peer.OwnerExists && !a.Noted:
			r.Differs = OwneeNotNoted
		case a.Verdict == peer.OwnerAbsent && r.UID != uuid.Nil:
			r.Differs = OwnerGone
		case a.Verdict == peer.OwnerNotReferring:
			r.Differs = OwnerReleased
		case a.Verdict == peer.OwnerExists && r.Generation < answers.Generation && v.how.Repair:
			r.Differs = "" // the message about a switch is under way, or was lost: repaired, not reported
		case a.Verdict == peer.OwnerUnknown && v.how.Repair:
			r.Differs = "" // repeated until the answer is definite; not reported
		default:
			continue
		}
		suspicious = append(suspicious, r)
	}
	if len(suspicious) == 0 {
		return nil, nil
	}
	var ownees []int64
	var deployments, kinds []int32
	var names []string
	var uids []uuid.UUID
	for _, r := range suspicious {
		ownees, deployments, kinds = append(ownees, r.Ownee), append(deployments, r.Deployment), append(kinds, r.Kind)
		names, uids = append(names, r.Name), append(uids, r.UID)
	}
	rows, err := v.store.Pool.Query(ctx, stillOwnedSQL, ownees, deployments, kinds, names, uids)
	if err != nil {
		return nil, err
	}
	there, err := pgx.CollectRows(rows, pgx.RowTo[int])
	out := make([]*ownedRow, len(there))
	for i, n := range there {
		out[i] = suspicious[n]
	}
	return out, err
}
