package wire

import (
	"errors"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/db-controller/db-controller/schema/peer"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
)

// MaxAttempts bounds the attempts of one call.
const MaxAttempts = 200

// EstablishedProto returns the message of the answer to an attempt.
func EstablishedProto(e *peer.Established) *schemav1.EstablishReferencesResponse_Established {
	out := &schemav1.EstablishReferencesResponse_Established{Epoch: e.Epoch[:]}
	for _, uid := range e.UIDs {
		out.Targets = append(out.Targets, &schemav1.EstablishReferencesResponse_Target{Uid: uid[:], Version: e.Version})
	}
	return out
}

// Established reads the answer to an attempt.
func Established(m *schemav1.EstablishReferencesResponse_Established) (*peer.Established, error) {
	out := &peer.Established{}
	for _, t := range m.GetTargets() {
		uid, err := UID(t.GetUid())
		if err != nil {
			return nil, err
		}
		out.UIDs = append(out.UIDs, uid)
	}
	var err error
	out.Epoch, err = OptionalUID(m.GetEpoch())
	return out, err
}

// EstablishOutcomeProto returns the message of the outcome of an attempt; an error other than ErrLeftOut is a
// status.
func EstablishOutcomeProto(o peer.EstablishOutcome) *schemav1.EstablishReferencesResponse_Outcome {
	switch {
	case errors.Is(o.Err, peer.ErrLeftOut):
		return &schemav1.EstablishReferencesResponse_Outcome{
			Outcome: &schemav1.EstablishReferencesResponse_Outcome_LeftOut{LeftOut: &emptypb.Empty{}},
		}
	case o.Err != nil:
		st := status.Convert(o.Err).Proto()
		failure := &schemav1.EstablishReferencesResponse_Failure{
			Code: st.GetCode(), Message: st.GetMessage(),
			Details: st.GetDetails(),
		}
		return &schemav1.EstablishReferencesResponse_Outcome{
			Outcome: &schemav1.EstablishReferencesResponse_Outcome_Failure{Failure: failure},
		}
	}
	return &schemav1.EstablishReferencesResponse_Outcome{
		Outcome: &schemav1.EstablishReferencesResponse_Outcome_Established{
			Established: EstablishedProto(o.Established),
		},
	}
}

// errNoOutcome reports an outcome of a newer version.
var errNoOutcome = errors.New("the answer has no known outcome")

// EstablishOutcome reads the outcome of an attempt. A failure is an error with a status.
func EstablishOutcome(m *schemav1.EstablishReferencesResponse_Outcome) (out peer.EstablishOutcome) {
	switch o := m.GetOutcome().(type) {
	case *schemav1.EstablishReferencesResponse_Outcome_Established:
		out.Established, out.Err = Established(o.Established)
	case *schemav1.EstablishReferencesResponse_Outcome_Failure:
		out.Err = status.ErrorProto(&spb.Status{
			Code: o.Failure.GetCode(), Message: o.Failure.GetMessage(),
			Details: o.Failure.GetDetails(),
		})
	case *schemav1.EstablishReferencesResponse_Outcome_LeftOut:
		out.Err = peer.ErrLeftOut
	}
	if out.Err == nil && out.Established == nil { // a failure with the code OK, too
		out.Err = errNoOutcome
	}
	return out
}

// TargetKinds returns the message of the kinds that a deployment refers to; nil: they are not known.
func TargetKinds(k peer.TargetKinds) *schemav1.TargetKinds {
	if !k.Known {
		return nil
	}
	return &schemav1.TargetKinds{Kinds: k.Names}
}

// KnownTargetKinds is the inverse of TargetKinds.
func KnownTargetKinds(m *schemav1.TargetKinds) peer.TargetKinds {
	return peer.TargetKinds{Known: m != nil, Names: m.GetKinds()}
}
