package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/db-controller/db-controller/internal/postgres"
)

// OfDatabase returns an error of a command that works with a database itself, with its exit code.
func OfDatabase(err error) error {
	switch {
	case err == nil || errors.As(err, new(*exitError)):
		return err
	case postgres.Refused(err), postgres.Denied(err):
		return WithCode(Refused, err)
	case postgres.Unavailable(err), postgres.Busy(err):
		return WithCode(Unavailable, err)
	}
	return err
}

// PlaintextFlag is for trusted networks.
func PlaintextFlag(f *pflag.FlagSet, to *bool) {
	f.BoolVar(to, "postgres-plaintext", false,
		"allow a database on another host without verified TLS (sslmode=verify-full)")
}

// CheckDSN returns an error for a connection that others could read or impersonate.
func CheckDSN(dsn string, plaintext bool) error {
	if plaintext {
		return nil
	}
	err := postgres.CheckTLS(dsn)
	switch {
	case errors.Is(err, postgres.ErrNotADSN):
		return fmt.Errorf("--postgres: %w: want postgres://user@host/database, or host=… dbname=…", err)
	case errors.Is(err, postgres.ErrNoService):
		return fmt.Errorf("--postgres: %w", err)
	case err != nil:
		return fmt.Errorf("--postgres: %w; on a trusted network, add --postgres-plaintext", err)
	}
	return nil
}
