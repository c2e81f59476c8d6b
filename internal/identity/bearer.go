package identity

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"google.golang.org/grpc/credentials"
)

// TokenFile is the path of a file with a token, which is read again for each call: programs that renew it
// replace the file. It is credentials.PerRPCCredentials, and never sent without TLS.
type TokenFile string

var _ credentials.PerRPCCredentials = TokenFile("")

// GetRequestMetadata returns the header with the token.
func (f TokenFile) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	raw, err := os.ReadFile(string(f))
	if err != nil {
		return nil, fmt.Errorf("read the token: %w", err)
	}
	token := strings.TrimSpace(string(raw))
	if token == "" || strings.ContainsAny(token, " \t\r\n") {
		return nil, errors.New("the file " + string(f) + " does not contain one token: write the token alone into it")
	}
	return map[string]string{Bearer: "Bearer " + token}, nil
}

// RequireTransportSecurity is true.
func (TokenFile) RequireTransportSecurity() bool { return true }
