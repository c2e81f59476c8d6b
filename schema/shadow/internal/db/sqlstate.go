package db

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

const (
	codeUniqueViolation      = "23505"
	codeNotNullViolation     = "23502"
	codeSerializationFailure = "40001"
	codeDeadlockDetected     = "40P01"
	CodeLockNotAvailable     = "55P03"
	CodeInFailedTransaction  = "25P02"
	CodeUndefinedTable       = "42P01"
	CodeInvalidSchema        = "3F000"
	CodeDivisionByZero       = "22012"
	CodeNotSupported         = "0A000"
)

func HasCode(err error, codes ...string) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return false
	}
	for _, code := range codes {
		if pg.Code == code {
			return true
		}
	}
	return false
}

// again reports whether the transaction had no effect and can simply be run again.
func again(err error) bool {
	return HasCode(err, codeSerializationFailure, codeDeadlockDetected)
}

// OfData reports whether PostgreSQL refused a statement because of its values, or of a lock or a conflict with another transaction. The
// transaction had no effect.
func OfData(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (strings.HasPrefix(pg.Code, "22") || strings.HasPrefix(pg.Code, "23") || pg.Code == CodeLockNotAvailable || again(err))
}

func Violates(err error, constraint string) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == codeUniqueViolation && pg.ConstraintName == constraint
}

// LacksValue reports whether a statement failed because a row of a table would have no value in a column.
func LacksValue(err error, table, column string) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == codeNotNullViolation && pg.TableName == table && pg.ColumnName == column
}

// GaveUp reports whether the deadline ended a try, which then has changed nothing: in a statement, or in the last
// question to another deployment.
func GaveUp(err error) bool {
	var unavailable *peer.UnavailableError
	if errors.As(err, &unavailable) {
		another := func(u peer.Unasked) bool { return u.Why != peer.TimedOut }
		return len(unavailable.Unasked) > 0 && !slices.ContainsFunc(unavailable.Unasked, another)
	}
	return errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, peer.ErrUnknown)
}

// failsWholeBatch reports whether every part of a batch would fail with the error, so that halving the batch is useless.
func failsWholeBatch(err error) bool {
	return errors.Is(err, peer.ErrRecovering) || errors.Is(err, peer.ErrPaused) || errors.Is(err, peer.ErrStaleEpoch) || errors.Is(err, schema.ErrFenced) || postgres.Unavailable(err)
}
