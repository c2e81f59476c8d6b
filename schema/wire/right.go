package wire

import (
	"github.com/db-controller/db-controller/schema/peer"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
)

// RecallModes by their values.
var RecallModes = map[peer.RecallMode]schemav1.RecallDelegationsRequest_Mode{
	peer.RecallLooks:    schemav1.RecallDelegationsRequest_MODE_LOOK,
	peer.RecallIfFree:   schemav1.RecallDelegationsRequest_MODE_END_IF_FREE,
	peer.RecallEnds:     schemav1.RecallDelegationsRequest_MODE_END,
	peer.RecallCloses:   schemav1.RecallDelegationsRequest_MODE_CLOSE,
	peer.RecallIfUnused: schemav1.RecallDelegationsRequest_MODE_END_IF_UNUSED,
}

// RecallMode of a question. One that is not known changes nothing.
func RecallMode(mode schemav1.RecallDelegationsRequest_Mode) peer.RecallMode {
	for m, p := range RecallModes {
		if p == mode {
			return m
		}
	}
	return peer.RecallLooks
}

// RecallAnswer of another deployment.
func RecallAnswer(a *schemav1.RecallDelegationsResponse_Answer) (out peer.RecallAnswer, err error) {
	out.Verdict, out.More, out.Closed = Verdict(a.GetVerdict()), a.GetMore(), a.GetClosed()
	for _, h := range a.GetHolders() {
		uid, err := UID(h.GetUid())
		if err != nil {
			return out, err
		}
		out.Holders = append(out.Holders, peer.RecalledHolder{
			UID: uid, Name: h.GetName(), Path: h.GetPath(),
			Leaving: h.GetLeaving(),
		})
	}
	return out, nil
}

// RecallAnswerProto is the opposite of RecallAnswer.
func RecallAnswerProto(a peer.RecallAnswer) *schemav1.RecallDelegationsResponse_Answer {
	out := &schemav1.RecallDelegationsResponse_Answer{Verdict: Verdicts[a.Verdict], More: a.More, Closed: a.Closed}
	for _, h := range a.Holders {
		out.Holders = append(out.Holders, &schemav1.RecallDelegationsResponse_Holder{
			Uid: h.UID[:], Name: h.Name,
			Path: h.Path, Leaving: h.Leaving,
		})
	}
	return out
}
