package main

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/db-controller/db-controller/schema/shadow"
)

type auditConfig struct {
	Interval time.Duration // 0: none
	Rate     int           // rows a second
	// Leads tells whether this process does what one of the deployment has to.
	Leads    func() bool
	Verify   func(context.Context, shadow.Verification) (shadow.Verified, error)
	Observer *metrics
	Log      *zap.Logger
}

// auditBodies is the number of bodies from which one audit derives references: reading all bodies each time would cost more
// than the rest of the audit.
const auditBodies = 10_000

// audit compares with the other deployments, again and again, slowly, and repairs nothing.
func audit(ctx context.Context, cfg auditConfig) error {
	for cfg.Interval > 0 {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(cfg.Interval):
		}
		if !cfg.Leads() {
			continue
		}
		began, found := time.Now(), map[shadow.DifferenceKind]int{}
		done, err := cfg.Verify(ctx, shadow.Verification{
			Bodies: auditBodies,
			Report: func(d shadow.Difference) error {
				found[d.Kind]++
				cfg.Log.Warn("an audit found a difference", zap.String("kind", string(d.Kind)), zap.Stringer("holder", d.Holder),
					zap.Stringer("target", d.Target), zap.String("path", d.Path), zap.String("cause", d.Cause()), zap.String("remedy", d.Remedy()))
				return nil
			},
			Progress: func(ctx context.Context, so shadow.Verified) error {
				due := began.Add(time.Duration(so.Rows()) * time.Second / time.Duration(cfg.Rate))
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(time.Until(due)):
					return nil
				}
			},
		})
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			cfg.Log.Warn("an audit could not be finished, it begins anew", zap.Error(err))
			continue
		}
		cfg.Observer.audited(done, found)
	}
	<-ctx.Done()
	return nil
}
