package wire

import (
	"regexp"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/db-controller/db-controller/schema"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
)

// maxCauseBytes bounds the texts of a cause: a full name at most.
const maxCauseBytes = schema.MaxNameBytes + 400

// traceParent is the form of a span's name. It bounds the text of another deployment that is stored.
var traceParent = regexp.MustCompile(`^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

// CausesProto returns the causes of deletions, each once, and for each deletion the number of its cause: from
// 1, or 0 for none.
func CausesProto(deletions []schema.Deletion) (causes []*schemav1.Cause, of []int32) {
	at := map[uuid.UUID]int32{}
	of = make([]int32, len(deletions))
	for i, d := range deletions {
		if d.Cause == nil {
			continue
		}
		n := at[d.Cause.ID]
		if n == 0 {
			causes = append(causes, causeProto(d.Cause))
			n = int32(len(causes)) //nolint:gosec // not more than deletions of one message
			at[d.Cause.ID] = n
		}
		of[i] = n
	}
	return causes, of
}

func causeProto(c *schema.Cause) *schemav1.Cause {
	p := &schemav1.Cause{
		Id: c.ID[:], Root: c.Root, RootUid: c.RootUID[:], Actor: c.Actor, Time: timestamppb.New(c.At),
		TraceParent: c.TraceParent,
	}
	if c.RequestID != uuid.Nil {
		p.RequestId = c.RequestID[:]
	}
	return p
}

// SetCauses sets the causes of deletions from the results of CausesProto. A cause that is invalid counts as
// unknown, because a deletion must not fail for its cause.
func SetCauses(deletions []schema.Deletion, causes []*schemav1.Cause, of []int32) {
	if len(of) != len(deletions) {
		return
	}
	read := make([]*schema.Cause, len(causes))
	for i, p := range causes {
		read[i] = cause(p)
	}
	for i := range deletions {
		if n := of[i]; n > 0 && int(n) <= len(read) {
			deletions[i].Cause = read[n-1]
		}
	}
}

func cause(p *schemav1.Cause) *schema.Cause {
	id, err := UID(p.GetId())
	if err != nil || id == uuid.Nil || len(p.GetRoot())+len(p.GetActor()) > maxCauseBytes {
		return nil
	}
	root, err := OptionalUID(p.GetRootUid())
	if err != nil {
		return nil
	}
	request, err := OptionalUID(p.GetRequestId())
	if err != nil || p.GetTime().CheckValid() != nil {
		return nil
	}
	if at := p.GetTime().AsTime(); at.Year() < 1970 || at.After(time.Now().AddDate(1, 0, 0)) {
		return nil // a time that the database cannot store, or that is certainly wrong
	}
	// An actor may have spaces: user/ann by way of us-east1.
	if !printable(p.GetRoot()) || !printable(strings.ReplaceAll(p.GetActor(), " ", "")) {
		return nil
	}
	out := &schema.Cause{
		ID: id, Root: p.GetRoot(), RootUID: root, Actor: p.GetActor(), RequestID: request,
		At: p.GetTime().AsTime(),
	}
	if traceParent.MatchString(p.GetTraceParent()) {
		out.TraceParent = p.GetTraceParent()
	}
	return out
}

// printable reports whether a text is of printable ASCII without spaces, as names and identities are. Other
// characters could end a line or a string where an auditor reads it.
func printable(s string) bool {
	for _, r := range s {
		if r <= ' ' || r > '~' {
			return false
		}
	}
	return true
}
