package catalogue

import (
	"slices"
	"strings"
)

// Scores of guesses whose column does not name the table.
const (
	byRole = 62
	byKey  = 88
)

// people are the nouns of tables with people, the likeliest first.
var people = []string{"user", "account", "person", "employee", "member", "staff", "agent", "profile", "contact"}

// personal are the roles of people: creator_id, owner_id. A name that ends in by is one as well: approved_by.
var personal = []string{
	"creator", "owner", "author", "editor", "reviewer", "approver", "assignee", "assigner", "assigned", "manager",
	"supervisor", "reporter", "requester", "requestor", "sender", "recipient",
	"receiver", "submitter", "uploader", "publisher", "moderator", "organiser", "inviter", "invitee", "follower",
	"followee", "mentor", "leader", "lead", "seller", "buyer", "operator", "actor",
	"responsible", "updater", "modifier", "signer", "inspector", "teacher", "student", "doctor", "patient", "driver",
	"salesperson",
}

// tree are the roles of rows of the same table: parent_id, reports_to.
var tree = []string{
	"parent", "root", "ancestor", "child", "previous", "prev", "next", "predecessor", "successor", "original", "master",
	"primary", "template", "duplicate", "sibling", "replacement", "base", "superior",
}

// treePhrases end the names of columns without the word of a key.
var treePhrases = [][]string{
	{"reports", "to"},
	{"replaced", "by"},
	{"superseded", "by"},
	{"duplicate", "of"},
	{"copy", "of"},
	{"reply", "to"},
	{"in", "reply", "to"},
	{"child", "of"},
	{"part", "of"},
	{"belongs", "to"},
}

// byRoleOf guesses the table of a column that is named after a role: the holder's own table, or a table of
// people.
func (g *guesser) byRoleOf(holder place, c *Column, base []string, word string) (candidate, bool) {
	own := singlePrimary(holder.table)
	alike := func(key *Column) bool {
		return key != nil && key != c && key.Type.class() == c.Type.class() &&
			(key.Type.class() == integer || key.Type.class() == identifier)
	}
	last := base[len(base)-1]
	isPerson := last == "by" || word != "" && slices.Contains(personal, last)
	inTree := word != "" && slices.Contains(tree, last) || slices.ContainsFunc(treePhrases, func(phrase []string) bool {
		return hasSuffix(g.words(c.Name), phrase) || hasSuffix(base, phrase)
	})
	if inTree && strings.HasSuffix(strings.Join(noun(holder.table.Name.Name), ""), last) {
		return candidate{}, false // template_id of host_templates: of another table
	}
	switch {
	case inTree && alike(own):
		return candidate{
			place: holder, key: []string{own.Name}, columns: []string{c.Name}, score: byRole,
			why: "its name is the role of another row of the table",
		}, true
	case !isPerson:
		return candidate{}, false
	case alike(own) && g.ofPeople(holder) >= 0 && (last == "manager" || last == "supervisor" || last == "lead"):
		return candidate{
			place: holder, key: []string{own.Name}, columns: []string{c.Name}, score: byRole,
			why: "its name is the role of a person, as the rows are",
		}, true
	}
	var best []candidate
	rank := len(people)
	for _, p := range g.tables {
		key, r := singlePrimary(p.table), g.ofPeople(p)
		if r < 0 || r > rank || !alike(key) || p.db != holder.db && slices.ContainsFunc(best, func(b candidate) bool {
			return b.db == holder.db && r == rank
		}) {
			continue
		}
		if r < rank || p.db == holder.db && slices.ContainsFunc(best, func(b candidate) bool {
			return b.db != holder.db
		}) {
			best, rank = nil, r
		}
		best = append(best, candidate{
			place: p, key: []string{key.Name}, columns: []string{c.Name}, score: byRole,
			why: "its name is the role of a person",
		})
	}
	switch len(best) {
	case 0:
		return candidate{}, false
	case 1:
		return best[0], true
	}
	g.noted = append(g.noted, c)
	g.note("%s (%s) is named after a person, and may refer to %s or to %s: declare one of them", holder, c.Name,
		best[0].place, best[1].place)
	return candidate{}, false
}

// ofPeople returns the rank of a table with people, or a negative number.
func (g *guesser) ofPeople(p place) int {
	for _, f := range g.forms[p.table] {
		if len(f.words) == 1 {
			if i := slices.Index(people, f.words[0]); i >= 0 {
				return i
			}
		}
	}
	return -1
}

func singlePrimary(t *Table) *Column {
	if key := t.Key(); len(key) == 1 {
		return t.Column(key[0])
	}
	return nil
}

// relative returns the names under which columns of a holder may refer to a table whose name begins with the
// same words: dhcp4_server is server for dhcp4_pool.
func relative(holder, target []string) (forms []form) {
	for n := 1; n < len(target) && n <= len(holder) && holder[n-1] == target[n-1]; n++ {
		forms = append(forms, form{target[n:], 95})
	}
	return forms
}

// common is the number of words with which two names begin.
func common(a, b []string) (n int) {
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// saysMore reports whether the name of a key also names its table: hostid, account_no; and not id or code.
func (g *guesser) saysMore(key string) bool {
	base, word := stem(key)
	return word != "" && len(base) > 0 && !slices.Contains(keyWords, strings.ToLower(key))
}

// beginsWithKey reports whether a column has the name of a key before a role or a number: triggerid_up,
// elementid2.
func beginsWithKey(column, key string) bool {
	column, key = strings.ToLower(column), strings.ToLower(key)
	rest, ok := strings.CutPrefix(column, key)
	return ok && rest != "" && (rest[0] == '_' || strings.Trim(rest, "0123456789") == "")
}

// abbreviates reports whether the name of a table ends with the consonants of a noun: hstgrp for group.
func abbreviates(table string, base []string) bool {
	consonants := strings.Map(func(r rune) rune {
		if strings.ContainsRune("aeiou", r) {
			return -1
		}
		return r
	}, strings.Join(base, ""))
	return len(consonants) > 2 && strings.HasSuffix(strings.ToLower(table), consonants)
}

// endsWithKey reports whether a column has the name of a key after a role: proxy_hostid.
func endsWithKey(column, key string) bool {
	column, key = strings.ToLower(column), strings.ToLower(key)
	return strings.HasSuffix(column, "_"+key) && len(column) > len(key)+1
}
