package resources

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The holders of one resource are found page by page, so that little is left at any time: that is no estimate of the end.
func TestAnEstimateOfNothingIsNone(t *testing.T) {
	t.Parallel()
	began := time.Now().Add(-10 * time.Second)
	require.Empty(t, totals{Found: 40202, Removed: 40201, began: began}.left())
	require.Equal(t, ", about 10s left", totals{Found: 2000, Removed: 1000, began: began}.left())
	require.Empty(t, totals{Found: 5, Removed: 5, began: began}.left())
	require.Empty(t, totals{Found: 5, began: began}.left())
}
