package harness

import (
	"context"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/sha256"
	"encoding/base64"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// cheapPassword stores the superuser's password of a server of the harness with one SCRAM iteration instead
// of 4,096 (RFC 5802): tests connect thousands of times, and with the race detector the iterations took much
// of their time. They would add nothing to a random password.
func cheapPassword(ctx context.Context, dsn string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return fmt.Errorf("store the test server's password: %w", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	secret, err := scramSecret(conn.Config().Password)
	if err == nil {
		// The statement takes no parameters; the secret contains only base64 and punctuation.
		_, err = conn.Exec(ctx, "ALTER ROLE CURRENT_USER PASSWORD '"+secret+"'")
	}
	if err != nil {
		return fmt.Errorf("store the test server's password: %w", err)
	}
	return nil
}

func scramSecret(password string) (string, error) {
	salt := []byte("db-controller's tests")
	salted, err := pbkdf2.Key(sha256.New, password, salt, 1, sha256.Size)
	if err != nil {
		return "", err
	}
	mac := func(message string) []byte {
		h := hmac.New(sha256.New, salted)
		h.Write([]byte(message))
		return h.Sum(nil)
	}
	stored := sha256.Sum256(mac("Client Key"))
	encode := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("SCRAM-SHA-256$1:%s$%s:%s", encode(salt), encode(stored[:]), encode(mac("Server Key"))), nil
}
