package service

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/schema/peer"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/schema/service/outcome"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/schema/wire"
)

// RemoveFinalizer checks nothing about the caller: package access has found that it is the holder, or has the
// right to operate.
func (r *resources) RemoveFinalizer(ctx context.Context,
	req *resourcev1.RemoveFinalizerRequest,
) (*resourcev1.Resource, error) {
	out, err := r.removeFinalizer(ctx, req)
	return out, outcome.Status(r.log, err)
}

func (r *resources) removeFinalizer(ctx context.Context,
	req *resourcev1.RemoveFinalizerRequest,
) (*resourcev1.Resource, error) {
	name, err := ownName(r.self, req.GetName())
	if err != nil {
		return nil, err
	}
	if req.GetUid() == "" {
		return nil, outcome.Invalid("uid",
			errors.New("is missing: a late call must not remove the finalizer of another resource of this name"))
	}
	uid, err := optionalUUID("uid", req.GetUid())
	if err != nil {
		return nil, err
	}
	found, err := r.controls.RemoveFinalizer(ctx, name, uid, req.GetFinalizer())
	if err != nil {
		return nil, err
	}
	return r.answer(ctx, found, nil)
}

func (r *resources) UpdateResourceStatus(ctx context.Context,
	req *resourcev1.UpdateResourceStatusRequest,
) (*resourcev1.Resource, error) {
	out, err := r.updateStatus(ctx, req)
	return out, outcome.Status(r.log, err)
}

func (r *resources) updateStatus(ctx context.Context,
	req *resourcev1.UpdateResourceStatusRequest,
) (*resourcev1.Resource, error) {
	name, err := ownName(r.self, req.GetName())
	if err != nil {
		return nil, err
	}
	uid, err := optionalUUID("uid", req.GetUid())
	if err != nil {
		return nil, err
	}
	status, err := statusText(req.GetStatus())
	if err != nil {
		return nil, outcome.Invalid("status", err)
	}
	found, err := r.controls.UpdateStatus(ctx, name, uid, status, req.StatusGeneration) //nolint:protogetter // absent is not 0
	if err != nil {
		return nil, err
	}
	return r.answer(ctx, found, nil)
}

// statusText returns a status as JSON; nil for none.
func statusText(in *structpb.Struct) ([]byte, error) {
	if in == nil {
		return nil, nil
	}
	if err := wire.CheckObject("status", in, wire.Bounds{
		Bytes:  shadow.MaxStatusBytes,
		Levels: shadow.MaxBodyDepth,
	}); err != nil {
		return nil, err
	}
	return json.Marshal(in.AsMap())
}

// finalizerHolder returns the identity that may remove a finalizer here by the running version; empty for
// none. A process that has not adopted the running version decides nothing: the holder may be another one by
// now. It fails with peer.ErrAborted then.
func finalizerHolder(s *shadow.Store) func(ctx context.Context, name, finalizer string) (string, error) {
	return func(ctx context.Context, name, finalizer string) (string, error) {
		m := s.Model()
		if m == nil {
			return "", fmt.Errorf("%w: no version runs yet", peer.ErrAborted)
		}
		if same, err := s.Gate.Runs(ctx, m); err != nil {
			return "", err
		} else if !same {
			return "", fmt.Errorf("%w: the deployment switched its version", peer.ErrAborted)
		}
		if kind, err := m.KindOf(name); err == nil {
			return kind.FinalizerHolder(finalizer), nil
		}
		return "", nil // a kind that the version lacks has no holder
	}
}

// setStatus adds the stored status to a message.
func setStatus(out *resourcev1.Resource, in *peer.Resource) error {
	if out.StatusGeneration = in.StatusGeneration; in.Status == nil {
		return nil
	}
	out.Status = &structpb.Struct{}
	return out.GetStatus().UnmarshalJSON(in.Status)
}
