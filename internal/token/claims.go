package token

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// tokenTypes are the types of tokens that prove a caller: an ID token (OpenID Connect), and an access token
// (RFC 9068). Others that an issuer signs with the same keys, such as logout tokens and events, prove nothing
// of their bearer.
var tokenTypes = []string{"", "jwt", "at+jwt", "application/at+jwt"}

// checkType checks the header typ.
func checkType(token string) error {
	raw, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[0])
	var header struct {
		Type string `json:"typ"`
	}
	if err != nil || json.Unmarshal(raw, &header) != nil {
		return errors.New("its header cannot be read")
	}
	if !slices.Contains(tokenTypes, strings.ToLower(header.Type)) {
		return fmt.Errorf("its type is %q: send an ID token or an access token", header.Type)
	}
	return nil
}

// maxDate is the greatest number of seconds that a date of a claim can have: every whole number below it is
// exact.
const maxDate = 1 << 53

// date returns the date of a claim, a number of seconds since 1970 (RFC 7519, NumericDate); zero without the
// claim.
func date(claims map[string]any, name string) (time.Time, error) {
	claim, there := claims[name]
	if !there {
		return time.Time{}, nil
	}
	seconds, ok := claim.(float64)
	if !ok || seconds < 0 || seconds > maxDate {
		return time.Time{}, fmt.Errorf("its claim %s is not a number of seconds since 1970", name)
	}
	return time.Unix(int64(seconds), 0), nil
}

// checkDates checks the claims exp, iat and nbf more strictly than OpenID Connect asks for: a token that is
// valid for years is a password that cannot be changed.
func (i *issuer) checkDates(claims map[string]any) error {
	now := time.Now()
	expires, err := date(claims, "exp")
	if err != nil {
		return err
	}
	issued, err := date(claims, "iat")
	if err != nil {
		return err
	}
	from, err := date(claims, "nbf")
	if err != nil {
		return err
	}
	latest := now.Add(i.ClockSkew)
	switch {
	case issued.After(latest):
		return fmt.Errorf("it was issued at %s, which is later than now: compare the clocks",
			issued.UTC().Format(time.RFC3339))
	case from.After(latest):
		return fmt.Errorf("it is valid from %s", from.UTC().Format(time.RFC3339))
	}
	if issued.IsZero() {
		issued = now
	}
	if lifetime := expires.Sub(issued); lifetime > i.MaxLifetime+i.ClockSkew {
		return fmt.Errorf("it is valid for %s, at most %s are allowed (max_lifetime)", lifetime.Round(time.Second),
			i.MaxLifetime)
	}
	return nil
}

// checkParty checks the claim azp, the client that the token was issued to.
func (i *issuer) checkParty(claims map[string]any, audiences int) error {
	party, _ := claims["azp"].(string)
	switch {
	case len(i.AuthorizedParties) > 0 && !slices.Contains(i.AuthorizedParties, party):
		return fmt.Errorf("its claim azp is %q: the client is none of authorized_parties", party)
	case audiences > 1 && party == "":
		return errors.New("it is for several audiences, and has no claim azp that names its client")
	}
	return nil
}
