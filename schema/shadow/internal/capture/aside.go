package capture

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/rows"
)

// setAside prepares the refused rows of a group to be stored without the refused references, so that their other references are kept
// true meanwhile and deletions can reach them; or acts as declared on rows whose targets do not exist. It returns the rows to write.
func (s *Capturer) setAside(ctx context.Context, t *rows.Table, kind *schema.KindModel, group []*changed, refused *peer.RefusedError) (left []*changed, err error) {
	reasons := map[string][]peer.Refusal{}
	for _, r := range refused.Refusals {
		reasons[r.Holder] = append(reasons[r.Holder], r)
	}
	if len(reasons) == 0 {
		return nil, s.postpone(ctx, seqsOf(group), refused.Error())
	}
	for _, c := range group {
		done, aerr := s.missing(ctx, t, kind, c, reasons[c.name])
		if err = errors.Join(err, aerr); done || aerr != nil {
			continue
		}
		for _, r := range reasons[c.name] {
			c.cut(r.Path, strings.TrimPrefix(r.String(), r.Holder+": "), r.Reason != peer.TargetMissing)
		}
		left = append(left, c)
	}
	return left, err
}

// cutUnnamed treats the values of a row that are no names as references to targets that do not exist. It reports whether the row was deleted
// or changed, as declared.
func (s *Capturer) cutUnnamed(ctx context.Context, t *rows.Table, kind *schema.KindModel, c *changed) (done bool, err error) {
	if len(c.unnamed) == 0 {
		return false, nil
	}
	refusals := make([]peer.Refusal, 0, len(c.unnamed))
	for path, problem := range c.unnamed {
		c.without = append(c.without, fmt.Sprintf("%s: %v", path, problem))
		refusals = append(refusals, peer.Refusal{Holder: c.name, Path: path, Reason: peer.TargetMissing})
	}
	slices.Sort(c.without)
	return s.missing(ctx, t, kind, c, refusals)
}

// setApart is setAside for deployments that could not be asked.
func (s *Capturer) setApart(ctx context.Context, group []*changed, unavailable *peer.UnavailableError) (left []*changed, err error) {
	for _, c := range group {
		before := len(c.body)
		for path, value := range c.body {
			target, perr := schema.ParseFullName(value.(string))
			if perr == nil && slices.Contains(unavailable.Deployments, target.Deployment) {
				c.cut(path, fmt.Sprintf("%s: %s: %v", path, target, unavailable), true)
			}
		}
		if len(c.body) < before {
			left = append(left, c)
			continue
		}
		err = errors.Join(err, s.postpone(ctx, c.seqs, unavailable.Error()))
	}
	return left, err
}

// cut takes a reference out of the body of a row.
func (c *changed) cut(path, problem string, soon bool) {
	delete(c.body, path)
	c.without, c.soon = append(c.without, problem), c.soon || soon
}

// missing deletes a row, or sets its columns to NULL, if that is declared for all of its refusals and all are of targets that do not
// exist, and were not lost. It reports whether it did: then the triggers have captured the row again.
func (s *Capturer) missing(ctx context.Context, t *rows.Table, kind *schema.KindModel, c *changed, refusals []peer.Refusal) (done bool, err error) {
	if c.lost {
		return false, nil
	}
	var unset []string
	deletes := false
	for _, r := range refusals {
		i := slices.IndexFunc(kind.Table.References, func(ref schema.ColumnReference) bool { return ref.Path == r.Path })
		switch {
		case i < 0 || r.Reason != peer.TargetMissing:
			return false, nil
		case kind.Table.References[i].Missing == schema.MissingDelete:
			deletes = true
		case kind.Table.References[i].Missing == schema.MissingUnset:
			unset = append(unset, r.Path)
		}
	}
	if !deletes && len(unset) == 0 {
		return false, nil
	}
	err = s.InTx(ctx, db.NoFeed, func(tx pgx.Tx) error {
		if err := unchanged(ctx, tx, t, []*changed{c}); err != nil {
			return err
		}
		if deletes {
			return s.rows.Delete(ctx, tx, []rows.Key{{Kind: t.KindID, Name: c.name}})
		}
		for _, path := range unset {
			if err := s.rows.Unset(ctx, tx, t.KindID, path, []string{c.name}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil && !wholesale(ctx, err) {
		err = s.postpone(ctx, c.seqs, err.Error())
	}
	return true, err
}
