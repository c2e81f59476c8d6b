package main

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow"
)

// followEpochs notices when the database was restored or failed over: at once when a transaction met it, and else within a
// second. Who may refer to resources here is asked from the registry, and what was kept of it counts as well: what an
// answer lacks may be there all the same.
//
// What the nodes know is of the database as it was: renewed gets an entry with each new epoch.
//
// Who appears later may have been there all the time, and the registry may have lost it: latest is the environment as it is
// known now, and what is new in it is recovered from as well.
func followEpochs(ctx context.Context, store *shadow.Store, renewed chan<- struct{}, ask, kept func(context.Context) (*schema.Environment, error), latest func() *schema.Environment, log *zap.Logger) error {
	told, last := false, store.PresentEpoch()
	var seen *schema.Environment
	for {
		awaiting, err := store.NoticeEpoch(ctx)
		if now := store.PresentEpoch(); now != last {
			last = now
			select {
			case renewed <- struct{}{}:
			default: // the one before was not taken yet
			}
		}
		if err == nil && awaiting {
			err = recoverEpoch(ctx, store, ask, kept)
		}
		if env := latest(); err == nil && !awaiting && env != seen {
			if err = store.Recover(ctx, env); err == nil {
				seen = env
			}
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			told = false
		case !told:
			told = true
			log.Warn("the database's epoch is not settled, it is tried again every second", zap.Error(err))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-store.EpochMoved():
		case <-time.After(time.Second):
		}
	}
}

func recoverEpoch(ctx context.Context, store *shadow.Store, ask, kept func(context.Context) (*schema.Environment, error)) error {
	env, err := ask(ctx)
	if err != nil {
		return err
	}
	if _, listed := env.Deployment(store.Deployment()); env.Incomplete || !listed {
		return errors.New("who may refer to resources here is not known: the registry's database was restored or failed over, or is empty, " +
			"and may lack deployments: db-controller apply the files that describe all of them, or remove those that are not there any more")
	}
	before, err := kept(ctx)
	if err != nil {
		return err
	}
	if before != nil {
		env = env.With(before)
	}
	return store.Recover(ctx, env)
}
