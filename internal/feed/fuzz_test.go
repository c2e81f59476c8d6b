package feed

import (
	"encoding/base64"
	"testing"

	"github.com/stretchr/testify/require"
)

// No forged text is a token: not with another payload, nor of another filter, epoch or key.
func FuzzTokens(f *testing.F) {
	// The witness of a token is the greatest number on disk; a database with a smaller present number has
	// lost commits.
	l := NewLog(Config{Witness: func() string {
		return "7"
	}, Lost: func(witness, present string) bool { return witness > present }})
	st := state{at: "95:100:96", epoch: "e", keys: [][]byte{[]byte("k")}, present: "7"}
	p, err := parsePosition("95:100:96,98")
	require.NoError(f, err)
	good := l.token(st, p, "filter")
	_, err = l.read(state{at: "95:99:96", epoch: "e", keys: [][]byte{[]byte("k")}, present: "7"}, good, "filter")
	require.ErrorIs(f, err, errAhead, "an older copy")
	_, err = l.read(state{at: "95:200:", epoch: "e", keys: [][]byte{[]byte("k")}, present: "6"}, good, "filter")
	require.ErrorIs(f, err, errAhead, "an older copy beside a busy database")
	f.Add(good, "filter")
	f.Add(good[:len(good)-1], "filter")
	f.Add(good, "another")
	f.Add("", "")
	f.Add(base64.RawURLEncoding.EncodeToString([]byte("0123456789abcdef3|"+keyID([]byte("k"))+"|e|filter|95:100:|7")),
		"filter")
	f.Add(base64.StdEncoding.EncodeToString([]byte("0123456789abcdef3|"+keyID([]byte("k"))+"|e|filter|95:100:|7")),
		"filter")
	f.Fuzz(func(t *testing.T, token, filter string) {
		opened, err := l.read(st, token, filter)
		if err == nil && (token != good || filter != "filter" || opened.Text != p.Text) {
			// A filter with the separator in it could be another one's.
			t.Fatalf("%q of %q was opened", token, filter)
		}
		if err != nil {
			require.ErrorIs(t, err, ErrReset)
		}
		other := state{at: "95:100:96", epoch: "e", keys: [][]byte{[]byte("another")}}
		if _, err := l.read(other, token, filter); err == nil {
			t.Fatalf("%q was opened by another database", token)
		}
	})
}

// A token of the key before stays valid after a rotation, and one of an older key names a key that is not
// here.
func TestTokensStayValidOverOneRotationOfTheKeys(t *testing.T) {
	t.Parallel()
	l := NewLog(Config{Witness: func() string { return "7" }, Lost: func(string, string) bool { return false }})
	p, err := parsePosition("95:100:96")
	require.NoError(t, err)
	with := func(keys ...string) state {
		st := state{at: "95:100:96", epoch: "e"}
		for _, key := range keys {
			st.keys = append(st.keys, []byte(key))
		}
		return st
	}
	first := l.token(with("1"), p, "f")
	for _, st := range []state{with("1"), with("2", "1")} {
		opened, err := l.read(st, first, "f")
		require.NoError(t, err)
		require.Equal(t, p.Text, opened.Text)
	}
	_, err = l.read(with("3", "2"), first, "f")
	require.ErrorIs(t, err, ErrUnknownKey)
	require.ErrorIs(t, err, ErrReset)
	_, err = l.read(with("1"), l.token(with("2", "1"), p, "f"), "f")
	require.ErrorIs(t, err, ErrUnknownKey, "a copy from before the rotation")
}

func FuzzPositions(f *testing.F) {
	for _, seed := range []string{
		"95:100:96,98", "1:1:", "::", "5:4:", "1:2:9",
		"18446744073709551615:18446744073709551615:", "1:3:2,2", "-1:2:",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if p, err := parsePosition(text); err == nil {
			require.Equal(t, text, p.Text)
			require.False(t, p.after(p))
		}
	})
}
