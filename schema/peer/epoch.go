package peer

import (
	"time"

	"github.com/google/uuid"
)

const (
	// MaxEpochAhead is the time by which an epoch of another deployment may be ahead of the clock here. An
	// epoch further ahead is refused.
	MaxEpochAhead = 2 * time.Hour

	// betweenEpochs is the time between two epochs if the clock has gone back.
	betweenEpochs = 10 * time.Second
)

// ComparedEpochs are the epochs of two databases in which references of one to the other were compared.
type ComparedEpochs struct {
	Own   uuid.UUID // of the database with the references
	There uuid.UUID // of the database with their targets; zero before it has announced one
}

// Announcement is an epoch of which another deployment is told.
type Announcement struct {
	Epoch    uuid.UUID
	Database *uuid.UUID // of the other deployment, as it was known before the call; nil: it was not met
}

// TargetKinds are the kinds of a deployment's resources that another one refers to. Zero: they are not known,
// and may be any.
type TargetKinds struct {
	Known bool
	Names []string
}

// EpochAfter returns the id of a new epoch: its time is the clock's, or later than the times of known epochs
// if the clock has gone back. Known epochs so far ahead that other deployments refuse them do not count.
func EpochAfter(now time.Time, known ...*uuid.UUID) uuid.UUID {
	id, at := uuid.Must(uuid.NewV7()), now
	for _, k := range known {
		if k != nil && !at.After(AttemptTime(*k)) && !AttemptTime(*k).After(now.Add(MaxEpochAhead)) {
			at = AttemptTime(*k).Add(betweenEpochs)
		}
	}
	for i, ms := 5, at.UnixMilli(); i >= 0; i, ms = i-1, ms>>8 {
		id[i] = byte(ms)
	}
	return id
}

// FirstNumber returns the number from which the sequences of an epoch count: the microseconds of its time,
// which is in milliseconds. No database takes a million numbers a second for long, so that an earlier epoch,
// which this database may have lost, ended below it.
func FirstNumber(epoch uuid.UUID) int64 { return AttemptTime(epoch).UnixMicro() }
