package migrations

import (
	"context"
	"crypto/rand"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// keyBytes is the length of a key of tokens.
const keyBytes = 32

// RotateKeys gives the resume tokens of a database a new key; the one before still authenticates tokens, and
// an older one no longer does. Processes that serve the database use the new key with their next statement.
// It needs the owner of the schema.
func RotateKeys(ctx context.Context, conn *pgx.Conn, set Set) error {
	key := make([]byte, keyBytes)
	_, _ = rand.Read(key) // it never fails
	schema := map[Set]string{Deployment: "dbcontroller", Registry: "dbcontroller_registry"}[set]
	if _, err := conn.Exec(ctx, "UPDATE "+schema+".meta SET token_keys = $1::bytea || token_keys[1:1]",
		key); err != nil {
		return fmt.Errorf("rotate the keys of tokens: %w", err)
	}
	return nil
}
