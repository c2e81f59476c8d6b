package verify

import (
	"context"
	"errors"
	"fmt"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// verifying is a verification under way: it reads its own database in pages, and asks the other deployments
// about each page.
type verifying struct {
	*run
	store *Verifier
	// refused are the references that could not be established again for reasons that can pass; nil without
	// any.
	refused *peer.RefusedError
	// cause of the removals by how.Dangling, by the deployment of the lost targets.
	causes map[schema.DeploymentID]*schema.Cause
}

func (s *Verifier) verifying(how Verification) *verifying {
	return &verifying{run: newRun(s.gate, how), store: s}
}

// Verify compares the references, blockades and owner references of this database with the other deployments'
// records, and the references derived from bodies with the stored ones. Each difference is looked at twice,
// so that messages under way are not reported. It reads in pages; its memory does not grow with the database.
func (s *Verifier) Verify(ctx context.Context, how Verification) (Verified, error) {
	v := s.verifying(how)
	if d := how.Dangling; d != nil && (!how.Repair || d.Reason == "" || len(d.Reason) > 1000) {
		return v.out, &peer.InvalidError{
			Resource: "dangling",
			Err: errors.New(
				"acting upon dangling references is a repair and needs a reason of 1 to 1000 characters, which is stored with the decision"),
		}
	}
	for _, pass := range []func(context.Context, string, func(string) error) error{
		v.references, v.blockades,
		v.owners,
	} {
		if err := pass(ctx, "", func(string) error { return nil }); err != nil {
			return v.out, fmt.Errorf("verify: %w", err)
		}
	}
	for _, pass := range []func(context.Context) error{v.bodies, v.tables} {
		if err := pass(ctx); err != nil {
			return v.out, fmt.Errorf("verify: %w", err)
		}
	}
	return v.out, nil
}

// unreachable records that a deployment did not answer, and lets the verification go on with the others. A
// deployment that With names has to answer: then the error is returned.
func (v *verifying) unreachable(ctx context.Context, d schema.DeploymentID, err error) error {
	if ctx.Err() != nil || v.how.With != nil {
		return fmt.Errorf("ask %s: %w", d, err)
	}
	v.out.Unreachable[d] = err
	return nil
}
