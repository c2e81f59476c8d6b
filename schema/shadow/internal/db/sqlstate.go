package db

import (
	"errors"

	"github.com/jackc/pgx/v5/pgconn"
)

const (
	codeUniqueViolation      = "23505"
	codeSerializationFailure = "40001"
	codeDeadlockDetected     = "40P01"
	CodeLockNotAvailable     = "55P03"
	CodeInFailedTransaction  = "25P02"
	CodeUndefinedTable       = "42P01"
	CodeInvalidSchema        = "3F000"
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

// again tells whether the transaction did nothing and can simply be run again.
func again(err error) bool {
	return HasCode(err, codeSerializationFailure, codeDeadlockDetected)
}

func Violates(err error, constraint string) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == codeUniqueViolation && pg.ConstraintName == constraint
}
