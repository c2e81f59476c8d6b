package constraint

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/db-controller/db-controller/schema"
)

// While a deployment is away, a handler fails every few seconds: the log has one line when that begins, and
// one when it ends.
func TestFailuresOfAHandlerAreTwoLinesOfTheLog(t *testing.T) {
	t.Parallel()
	core, lines := observer.New(zap.DebugLevel)
	l := &loop{cfg: Config{Logger: zap.New(core)}}
	handler, away := &task{}, errors.New("away (request 1)")
	parts := &schema.PartError{Failed: []int64{1}, Cause: away}
	l.report(handler, result{items: 3}, nil)
	l.report(handler, result{items: 3, err: away}, nil)
	l.report(handler, result{items: 3, err: errors.New("away (request 2)")}, nil)
	l.report(handler, result{items: 3, err: parts}, parts)
	l.report(handler, result{}, nil) // nothing to do
	l.report(handler, result{items: 3, err: away}, nil)
	l.report(handler, result{items: 3}, nil)
	l.report(handler, result{items: 3}, nil)
	l.report(handler, result{items: 3, err: parts}, parts)
	var shown []string
	for _, line := range lines.All() {
		if line.Level > zap.DebugLevel {
			shown = append(shown, line.Level.String()+" "+line.Message)
		}
	}
	require.Equal(t, []string{
		"warn a handler failed, it is tried again", "info a handler works again",
		"warn pieces of work failed, they are tried again",
	}, shown)
	require.Equal(t, 6, lines.Len(), "the others are for debugging")
}
