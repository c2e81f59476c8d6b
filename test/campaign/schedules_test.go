package campaign

import (
	"os"
	"testing"
)

// Schedules of rights to block resources of other deployments, step by step.
func TestSchedulesOfRights_I2_I3_I4_I15_I31(t *testing.T) {
	if testing.Short() {
		t.Skip("starts five processes")
	}
	w := worldOfSchedules(t, os.Getenv("DBCONTROLLER_CAMPAIGN_BINARY"))
	for _, s := range ofRights {
		t.Run(s.name, func(t *testing.T) { w.perform(t, s) })
	}
}
