package db

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema/peer"
)

// A page token is a place that PostgreSQL can compare with, or is refused as the mistake of the caller.
func FuzzPageTokens(f *testing.F) {
	for _, p := range []Page{
		{},
		{At: time.UnixMicro(1_700_000_000_000_000), ID: uuid.New()},
		{At: time.UnixMicro(-1 << 63)},
		{At: time.UnixMicro(1<<63 - 1)},
	} {
		f.Add(p.Token())
	}
	f.Add("x")
	f.Fuzz(func(t *testing.T, token string) {
		p, err := ParsePage(token)
		if err != nil {
			if !errors.As(err, new(*peer.InvalidError)) {
				t.Fatalf("%q: %v", token, err)
			}
			return
		}
		if year := p.At.UTC().Year(); year < 1 || year > 9999 {
			t.Fatalf("%q is a page of the year %d", token, year)
		}
		if again, err := ParsePage(p.Token()); token != "" && (err != nil || !again.At.Equal(p.At) ||
			again.ID != p.ID) {
			t.Fatalf("%q is %v, which is read as %v, %v", token, p, again, err)
		}
	})
}
