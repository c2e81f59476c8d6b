package schema

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// An id stands for any bytes except none, "." and ".." (programs that handle paths remove these). Each has
// one spelling: the characters that RFC 3986 allows in a path segment stand for themselves, all other bytes
// are percent-encoded with upper-case digits. Names can therefore be compared, sorted and stored as they are
// written, and every slash separates segments. The same grammar is in SQL (constraint shadow_name_grammar)
// and in docs/protocol.md.
const plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~!$&'()*+,;=:@"

// isPlain is a table, because each name of each message is checked.
var isPlain = func() (table [256]bool) {
	for i := range len(plain) {
		table[plain[i]] = true
	}
	return table
}()

// EscapeID returns the id of a text, such as o%2F1 for o/1. CheckName refuses the results for the empty text,
// "." and "..".
func EscapeID(text string) string {
	var b strings.Builder
	for i := range len(text) {
		if isPlain[text[i]] {
			b.WriteByte(text[i])
		} else {
			fmt.Fprintf(&b, "%%%02X", text[i])
		}
	}
	return b.String()
}

// UnescapeID returns the text of an id.
func UnescapeID(id string) (string, error) {
	if err := checkID(id); err != nil {
		return "", err
	}
	return unescape(id), nil
}

// unescape keeps percent signs that do not begin an encoded byte.
func unescape(id string) string {
	var b strings.Builder
	for i := 0; i < len(id); i++ {
		if id[i] == '%' && i+2 < len(id) {
			if c, err := hex.DecodeString(id[i+1 : i+3]); err == nil {
				b.Write(c)
				i += 2
				continue
			}
		}
		b.WriteByte(id[i])
	}
	return b.String()
}

func checkID(id string) error {
	const want = "want letters, digits and any of - . _ ~ ! $ & ' ( ) * + , ; = : @, with other bytes percent-encoded"
	switch {
	case id == "":
		return fmt.Errorf("an id is empty: %s", want)
	case id == "." || id == "..":
		return fmt.Errorf("id %q: not allowed, because programs that handle paths remove it", id)
	case !spelt(id):
		return fmt.Errorf("id %q: %s; write %s", clip(id), want, clip(EscapeID(unescape(id))))
	}
	return nil
}

// spelt reports whether an id is in its one spelling.
func spelt(id string) bool {
	const digits = "0123456789ABCDEF"
	for i := 0; i < len(id); i++ {
		if isPlain[id[i]] {
			continue
		}
		if id[i] != '%' || i+2 >= len(id) {
			return false
		}
		high, low := strings.IndexByte(digits, id[i+1]), strings.IndexByte(digits, id[i+2])
		if high < 0 || low < 0 || isPlain[high<<4|low] {
			return false
		}
		i += 2
	}
	return true
}

// isCollection reports whether a segment is lower camel case; ParsePattern bounds its length.
func isCollection(s string) bool {
	for i := range len(s) {
		lower, other := s[i] >= 'a' && s[i] <= 'z', s[i] >= 'A' && s[i] <= 'Z' || s[i] >= '0' && s[i] <= '9'
		if !lower && (i == 0 || !other) {
			return false
		}
	}
	return s != ""
}
