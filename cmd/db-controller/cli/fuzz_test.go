package cli

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// The password that the driver finds in a connection string is not shown.
func FuzzConnectionStrings(f *testing.F) {
	for _, seed := range []string{
		"postgres://u:s3cr3t-s3cr3t@h:5432/d", "postgres://u@h/d?password=s3cr3t-s3cr3t",
		"host=h password=s3cr3t-s3cr3t user=u", `password = 's3cr3t \' s3cr3t' host=h`,
		"PASSWORD=s3cr3t-s3cr3t", "postgresql://u:s3cr3t%20s3cr3t@h,h2:1/d",
		"postgres:///d?passfile=/x&password=s3cr3t-s3cr3t", "password=s3cr3t\\ s3cr3t",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, dsn string) {
		c, err := pgconn.ParseConfig(dsn)
		said := withoutPassword(dsn)
		if err != nil || len(c.Password) < 8 || strings.Count(dsn, c.Password) > 1 {
			return
		}
		if strings.Contains(said, c.Password) {
			t.Fatalf("%q, with the password %q, is shown as %q", dsn, c.Password, said)
		}
	})
}
