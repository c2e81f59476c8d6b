package operate

import (
	"errors"
	"testing"

	"github.com/db-controller/db-controller/schema/peer"
)

// A key that an operator gives is a key of a row, written the same, or is refused as the mistake of the
// caller.
func FuzzReleasableKeys(f *testing.F) {
	const uid = "0198c0de-0000-7000-8000-000000000001"
	for _, what := range []string{
		blockade + "|" + uid + "|a.example.com/eu|" + uid + "|" + uid + "|spec.account",
		holderEntry + "|" + uid + "|a.example.com/eu|7", owneeEntry + "|" + uid + "|a.example.com/eu",
		rights + "|" + uid + "|a.example.com/eu",
		ownerReference + "|" + uid + "|a.example.com/eu|Kind|" + uid + "|1700000000000000|as/a", "", "|||", "x|y|z",
	} {
		f.Add(what)
	}
	f.Fuzz(func(t *testing.T, text string) {
		k, err := parseKey(text)
		if err != nil {
			if !errors.As(err, new(*peer.InvalidError)) {
				t.Fatalf("%q: %v", text, err)
			}
			return
		}
		again, err := parseKey(k.String())
		if err != nil || !again.since.Equal(k.since) {
			t.Fatalf("%q is %+v, which is read as %+v, %v", text, k, again, err)
		}
		again.since = k.since
		if again != k {
			t.Fatalf("%q is %+v, which is read as %+v", text, k, again)
		}
	})
}
