package catalogue

import (
	"slices"
	"strings"
	"unicode"
)

// words splits an identifier at underscores, other signs and changes of case, in lower case: customerOrder_ID
// is customer, order, id.
func words(identifier string) (out []string) {
	var word []rune
	end := func() {
		if len(word) > 0 {
			out = append(out, strings.ToLower(string(word)))
		}
		word = word[:0]
	}
	runes := []rune(identifier)
	for i, r := range runes {
		switch {
		case !unicode.IsLetter(r) && !unicode.IsDigit(r):
			end()
			continue
		case unicode.IsUpper(r) && i > 0 && (unicode.IsLower(runes[i-1]) || unicode.IsDigit(runes[i-1])),
			unicode.IsUpper(r) && i+1 < len(runes) && unicode.IsLower(runes[i+1]):
			end()
		}
		word = append(word, r)
	}
	end()
	return out
}

var irregular = map[string]string{
	"people": "person", "children": "child", "men": "man", "women": "woman", "mice": "mouse", "indices": "index",
	"vertices": "vertex",
	"matrices": "matrix", "criteria": "criterion", "data": "datum", "media": "medium", "analyses": "analysis",
	"movies": "movie",
	"series": "series", "species": "species", "news": "news", "addresses": "address", "statuses": "status",
	"caches": "cache",
}

// singular returns the singular of an English noun, by its ending.
func singular(word string) string {
	if s, ok := irregular[word]; ok {
		return s
	}
	for _, ending := range []struct{ plural, singular string }{
		{"ies", "y"}, {"sses", "ss"}, {"shes", "sh"}, {"ches", "ch"}, {"xes", "x"}, {"zzes", "zz"}, {"uses", "us"},
	} {
		if stem, ok := strings.CutSuffix(word, ending.plural); ok && len(stem) > 1 {
			if ending.plural == "uses" && !slices.Contains([]string{"stat", "b", "vir", "bon", "camp", "cens"}, stem) {
				return word[:len(word)-1] // houses, causes
			}
			return stem + ending.singular
		}
	}
	if strings.HasSuffix(word, "ss") || strings.HasSuffix(word, "us") || strings.HasSuffix(word, "is") ||
		len(word) < 3 {
		return word
	}
	return strings.TrimSuffix(word, "s")
}

// plural returns the plural of an English noun.
func plural(word string) string {
	for p, s := range irregular {
		if s == word {
			return p
		}
	}
	switch {
	case strings.HasSuffix(word, "y") && len(word) > 1 && !strings.ContainsRune("aeiou", rune(word[len(word)-2])):
		return word[:len(word)-1] + "ies"
	case strings.HasSuffix(word, "s"), strings.HasSuffix(word, "x"), strings.HasSuffix(word, "ch"),
		strings.HasSuffix(word, "sh"):
		return word + "es"
	}
	return word + "s"
}

// noun returns the words of a table's name with the last in the singular.
func noun(identifier string) []string {
	w := words(identifier)
	if len(w) > 0 {
		w[len(w)-1] = singular(w[len(w)-1])
	}
	return w
}

// keyWords end the name of a column that refers: customer_id, or begin it: id_customer.
var keyWords = []string{"id", "uuid", "guid", "key", "code", "no", "number", "ref", "fk", "uid", "oid"}

// stem returns the words of a column's name without the word of a key, and that word; "" if there is none.
func stem(column string) (of []string, key string) {
	w := words(column)
	switch {
	case len(w) > 1 && slices.Contains(keyWords, w[len(w)-1]):
		of, key = w[:len(w)-1], w[len(w)-1]
	case len(w) > 1 && (w[0] == "id" || w[0] == "fk"):
		of, key = w[1:], w[0]
	default:
		of = w
		if last := len(w) - 1; last >= 0 && len(w[last]) > 4 && strings.HasSuffix(w[last], "id") { // eventid
			of, key = append(slices.Clone(w[:last]), strings.TrimSuffix(w[last], "id")), "id"
		}
	}
	if len(of) > 0 {
		of = slices.Clone(of)
		of[len(of)-1] = singular(of[len(of)-1])
	}
	return of, key
}

func hasSuffix(words, suffix []string) bool {
	return len(words) >= len(suffix) && slices.Equal(words[len(words)-len(suffix):], suffix)
}

// hasPrefix reports whether the words of a name begin with a noun, or its plural.
func hasPrefix(words, prefix []string) bool {
	if len(words) < len(prefix) || len(prefix) == 0 {
		return false
	}
	last := len(prefix) - 1
	return slices.Equal(words[:last], prefix[:last]) && singular(words[last]) == prefix[last]
}

func camel(words []string) string {
	var b strings.Builder
	for _, w := range words {
		b.WriteString(strings.ToUpper(w[:1]) + w[1:])
	}
	return b.String()
}

// ascii drops the characters that a kind's name cannot contain.
func ascii(words []string) (out []string) {
	for _, w := range words {
		w = strings.Map(func(r rune) rune {
			if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
				return r
			}
			return -1
		}, w)
		if w != "" {
			out = append(out, w)
		}
	}
	if len(out) == 0 || out[0][0] <= '9' {
		out = append([]string{"table"}, out...)
	}
	return out
}
