package wire

import (
	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
)

// MaxMessages bounds the keys, attempts or references of one call.
const MaxMessages = 10_000

// CheckPath refuses a text that is neither a field path, nor schema.ParentPath, nor peer.RightPath.
func CheckPath(path string) error {
	if path == schema.ParentPath || path == peer.RightPath {
		return nil
	}
	_, err := schema.ParsePath(path)
	return err
}

// Verdicts are the messages of verdicts on blockades.
var Verdicts = map[peer.Verdict]schemav1.ResolveBlockadesResponse_Verdict{
	peer.Held:        schemav1.ResolveBlockadesResponse_VERDICT_HELD,
	peer.GoneVerdict: schemav1.ResolveBlockadesResponse_VERDICT_GONE,
	peer.Undecided:   schemav1.ResolveBlockadesResponse_VERDICT_UNDECIDED,
	peer.Leaving:     schemav1.ResolveBlockadesResponse_VERDICT_LEAVING,
}

// KnownVerdicts are the messages of verdicts on compared references.
var KnownVerdicts = map[peer.Known]schemav1.CheckReferencesResponse_Verdict{
	peer.KnownHeld:     schemav1.CheckReferencesResponse_VERDICT_KNOWN,
	peer.KnownMissing:  schemav1.CheckReferencesResponse_VERDICT_UNKNOWN,
	peer.KnownDeleting: schemav1.CheckReferencesResponse_VERDICT_DELETING,
	peer.KnownAbsent:   schemav1.CheckReferencesResponse_VERDICT_ABSENT,
}

// BlockadeKey reads and checks a key.
func BlockadeKey(k *schemav1.BlockadeKey) (out peer.BlockadeKey, err error) {
	if out.Attempt, err = UID(k.GetAttempt()); err != nil {
		return out, err
	}
	if out.HolderUID, err = UID(k.GetHolderUid()); err != nil {
		return out, err
	}
	out.Path = k.GetPath()
	switch out.Path {
	case peer.EntryPath, peer.DeletionPath, peer.FrozenPath:
	default:
		err = CheckPath(out.Path)
	}
	if err != nil {
		return out, err
	}
	out.TargetUID, err = UID(k.GetTargetUid())
	return out, err
}

// BlockadeKeyProto returns the message of a key.
func BlockadeKeyProto(k peer.BlockadeKey) *schemav1.BlockadeKey {
	return &schemav1.BlockadeKey{
		Attempt: k.Attempt[:], HolderUid: k.HolderUID[:], Path: k.Path,
		TargetUid: k.TargetUID[:],
	}
}

// Verdict reads a verdict. Undecided also stands for a verdict of a newer version.
func Verdict(v schemav1.ResolveBlockadesResponse_Verdict) peer.Verdict {
	switch v {
	case schemav1.ResolveBlockadesResponse_VERDICT_HELD:
		return peer.Held
	case schemav1.ResolveBlockadesResponse_VERDICT_GONE:
		return peer.GoneVerdict
	case schemav1.ResolveBlockadesResponse_VERDICT_LEAVING:
		return peer.Leaving
	default:
		return peer.Undecided
	}
}

// OwnerVerdicts are the messages of verdicts on owners.
var OwnerVerdicts = map[peer.OwnerVerdict]schemav1.CheckOwnersResponse_Verdict{
	peer.OwnerExists:       schemav1.CheckOwnersResponse_VERDICT_EXISTS,
	peer.OwnerAbsent:       schemav1.CheckOwnersResponse_VERDICT_ABSENT,
	peer.OwnerNotReferring: schemav1.CheckOwnersResponse_VERDICT_NOT_REFERRING,
	peer.OwnerCannotOwn:    schemav1.CheckOwnersResponse_VERDICT_CANNOT_OWN,
}

// OptionalBytes returns the bytes of a uid, none for the zero uid.
func OptionalBytes(uid uuid.UUID) []byte {
	if uid == uuid.Nil {
		return nil
	}
	return uid[:]
}

// PlanTarget reads a target of a plan.
func PlanTarget(deployment string, uid []byte) (out peer.PlanTarget, err error) {
	if out.Deployment, err = schema.ParseDeploymentID(deployment); err != nil {
		return out, err
	}
	out.UID, err = UID(uid)
	return out, err
}

// ResourceRef returns the message that names a resource.
func ResourceRef(kind, name string, uid uuid.UUID) *schemav1.ResourceRef {
	return &schemav1.ResourceRef{Kind: kind, Name: name, Uid: uid[:]}
}

// PlanTargetProto returns the message of a target of a plan.
func PlanTargetProto(t peer.PlanTarget) *schemav1.PlanDeletionResponse_Target {
	return &schemav1.PlanDeletionResponse_Target{Deployment: t.Deployment.String(), Uid: t.UID[:]}
}
