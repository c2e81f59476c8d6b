package feed

import (
	"encoding/base64"
	"testing"

	"github.com/stretchr/testify/require"
)

// No forged text is a token: not with another payload, nor of another filter, epoch or key.
func FuzzTokens(f *testing.F) {
	// The witness of a token is the greatest number on disk; a database with a smaller present number has lost commits.
	l := NewLog(Config{Witness: func() string { return "7" }, Lost: func(witness, present string) bool { return witness > present }})
	st := state{at: "95:100:96", epoch: "e", key: []byte("k"), present: "7"}
	p, err := parsePosition("95:100:96,98")
	require.NoError(f, err)
	good := l.token(st, p, "filter")
	_, err = l.read(state{at: "95:99:96", epoch: "e", key: []byte("k"), present: "7"}, good, "filter")
	require.ErrorIs(f, err, errAhead, "an older copy")
	_, err = l.read(state{at: "95:200:", epoch: "e", key: []byte("k"), present: "6"}, good, "filter")
	require.ErrorIs(f, err, errAhead, "an older copy beside a busy database")
	f.Add(good, "filter")
	f.Add(good[:len(good)-1], "filter")
	f.Add(good, "another")
	f.Add("", "")
	f.Add(base64.RawURLEncoding.EncodeToString([]byte("0123456789abcdef2|e|filter|95:100:|7")), "filter")
	f.Add(base64.StdEncoding.EncodeToString([]byte("0123456789abcdef2|e|filter|95:100:|7")), "filter")
	f.Fuzz(func(t *testing.T, token, filter string) {
		opened, err := l.read(st, token, filter)
		if err == nil && (token != good || filter != "filter" || opened.Text != p.Text) {
			// A filter with the separator in it could be another one's.
			t.Fatalf("%q of %q was opened", token, filter)
		}
		if err != nil {
			require.ErrorIs(t, err, ErrReset)
		}
		other := state{at: "95:100:96", epoch: "e", key: []byte("another")}
		if _, err := l.read(other, token, filter); err == nil {
			t.Fatalf("%q was opened by another database", token)
		}
	})
}

func FuzzPositions(f *testing.F) {
	for _, seed := range []string{"95:100:96,98", "1:1:", "::", "5:4:", "1:2:9", "18446744073709551615:18446744073709551615:", "1:3:2,2", "-1:2:"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if p, err := parsePosition(text); err == nil {
			require.Equal(t, text, p.Text)
			require.False(t, p.after(p))
		}
	})
}
