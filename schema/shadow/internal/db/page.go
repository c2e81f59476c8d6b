package db

import (
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema/peer"
)

// Page is the place of a row in a list that is ordered by a time and a UUID. The zero value is before the
// first row.
type Page struct {
	At time.Time // microseconds, as PostgreSQL keeps them
	ID uuid.UUID
}

// Token returns the page token that continues behind the row (AIP-158).
func (p Page) Token() string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d %s", p.At.UnixMicro(), p.ID))
}

// After returns the time for statements: nil before the first row.
func (p Page) After() *time.Time {
	if p.At.IsZero() {
		return nil
	}
	return &p.At
}

// ParsePage parses a page token; the empty one is before the first row. It fails with *peer.InvalidError.
func ParsePage(token string) (p Page, err error) {
	if token == "" {
		return p, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err == nil {
		var at int64
		var id string
		if _, err = fmt.Sscanf(string(raw), "%d %s", &at, &id); err == nil {
			p.At = time.UnixMicro(at)
			p.ID, err = uuid.Parse(id)
		}
		if year := p.At.UTC().Year(); err == nil && (year < 1 || year > 9999) {
			err = errors.New("no row is of that time, which PostgreSQL may not know")
		}
	}
	if err != nil {
		return Page{}, &peer.InvalidError{
			Resource: "page_token",
			Err:      errors.New("want the next_page_token of an earlier answer"),
		}
	}
	return p, nil
}
