package cli

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
)

// NextTry says when failed work is tried again; nothing when that is unknown, or now.
func NextTry(at *timestamppb.Timestamp) string {
	left := time.Until(at.AsTime()).Round(time.Second)
	if at == nil || left <= 0 {
		return ""
	}
	return "; again in " + left.String()
}
