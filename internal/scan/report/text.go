package report

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"
)

// Text writes the report for people.
func (r *Report) Text(w io.Writer) error {
	out := bufio.NewWriter(w)
	print := func(format string, args ...any) { _, _ = fmt.Fprintf(out, format+"\n", args...) }
	if r.Partial != "" {
		print("PARTIAL: %s; this is the part that was read.\n", Plain(r.Partial))
	}
	print("%s\n", r.Summary())
	r.table(out)
	for i := range r.References {
		r.References[i].text(print)
	}
	for i, c := range r.Cascades {
		if i == 0 {
			print("\nA DELETE OF THE TARGET WITH THE MOST HOLDERS, if the references between databases cascaded")
		}
		c.text(print)
	}
	for i, n := range r.Notes {
		if i == 0 {
			print("\nNOTES")
		}
		print("  %s", Plain(n))
	}
	return out.Flush()
}

// Summary returns the report in a sentence.
func (r *Report) Summary() string {
	tables, between := 0, 0
	for _, d := range r.Databases {
		tables += d.Tables
	}
	for _, ref := range r.References {
		if !ref.Within {
			between++
		}
	}
	return fmt.Sprintf("%s, %s, %s read in %s: %s between databases, %s; %s to look at.",
		Several(int64(len(r.Databases)), "database"), Several(int64(tables), "table"), Several(r.Read(), "row"),
		r.Ended.Sub(r.Started).Round(100*time.Millisecond),
		Several(int64(between), "reference"), Several(r.Orphaned(), "orphan"),
		Several(int64(r.Findings()), "reference"))
}

// table writes the numbers, a line for each reference.
func (r *Report) table(out io.Writer) {
	if len(r.References) == 0 {
		return
	}
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprintln(w, "REFERENCE\tTARGET\tROWS\tORPHANS\tMEDIAN\tLARGEST FAN-OUT")
	for i := range r.References {
		ref := &r.References[i]
		rows, orphans, median, largest := Count(ref.Rows), Count(ref.Orphans.Rows), "-", "-"
		if ref.State == Unscanned {
			rows, orphans = "-", "-"
		}
		if len(ref.FanOut.Largest) > 0 {
			median, largest = Count(ref.FanOut.Median), ref.FanOut.Largest[0].Rows.String()
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", ref.Holder, places(ref.Targets), rows, orphans,
			median, largest)
	}
	_ = w.Flush()
}

func (r *Reference) text(print func(string, ...any)) {
	print("\n%s -> %s", r.Holder, places(r.Targets))
	if r.Guess != "" {
		print("  guessed: %s", Plain(r.Guess))
	}
	if r.State != Complete {
		print("  ! %s: %s", r.State, Plain(r.Reason))
	}
	if r.Orphans.Rows > 0 {
		verb := "refer"
		if r.Orphans.Rows == 1 {
			verb = "refers"
		}
		print("  ! %s of %s %s to %s", Several(r.Orphans.Rows, "row"), Count(r.Rows), verb, r.Missing())
		for _, s := range r.Orphans.Samples {
			print("      %s %s -> %s", Plain(r.Holder.Table), Values(s.Key), Values(s.Value))
		}
	}
	if f := r.FanOut; len(f.Largest) > 0 {
		var top []string
		for _, h := range f.Largest {
			top = append(top, Values(h.Target)+" has "+h.Rows.String())
		}
		print(
			"  holders of a target: median %s, 90 %% of the targets up to %s, 99 %% up to %s; targets with holders: %s",
			Count(f.Median), Count(f.P90), Count(f.P99), f.Targets)
		if f.Largest[0].Rows.N > f.P99 {
			print("      %s", strings.Join(top, ", "))
		}
	}
	for _, a := range r.Advice {
		mark := "-"
		if a.Finding {
			mark = "!"
		}
		print("  %s %s", mark, Plain(a.Text))
		if a.SQL != "" {
			print("      %s", Plain(a.SQL))
		}
	}
}

// Missing returns the number of missing targets in words.
func (r *Reference) Missing() string {
	if r.Orphans.Targets.About {
		return r.Orphans.Targets.String() + " targets that do not exist"
	}
	if r.Orphans.Targets.N == 1 {
		return "1 target that does not exist"
	}
	return Count(r.Orphans.Targets.N) + " targets that do not exist"
}

func (c *Cascade) text(print func(string, ...any)) {
	print("  %s %s", c.Target, Values(c.Key))
	for _, s := range c.Steps {
		print("  %s%s", strings.Repeat("  ", s.Level), s)
	}
}

func (s Step) String() string {
	if s.Effect == Unknown {
		return fmt.Sprintf("%s: %s", s.Place, Plain(s.Reason))
	}
	rows := Several(s.Rows, "row")
	if s.More {
		rows += " or more"
	}
	return fmt.Sprintf("%s of %s: %s (%s)", rows, s.Place, s.Effect, Plain(s.Reason))
}

func (p Place) String() string {
	return Plain(p.Database + " " + p.Table + " (" + strings.Join(p.Columns, ", ") + ")")
}

func places(all []Place) string {
	if len(all) == 0 {
		return "?"
	}
	out := make([]string, len(all))
	for i, p := range all {
		out[i] = p.String()
	}
	return strings.Join(out, " or ")
}

func (n Number) String() string {
	if n.About {
		return "about " + Count(n.N)
	}
	return Count(n.N)
}

// Count writes a number with its thousands apart.
func Count(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Several writes a number with its noun, in the plural unless it is one.
func Several(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return Count(n) + " " + noun + "s"
}

// Values writes the values of a key: quoted where they are no plain words, and short.
func Values(values []string) string {
	out := make([]string, len(values))
	for i, v := range values {
		if utf8.RuneCountInString(v) > 60 {
			v = string([]rune(v)[:59]) + "…"
		}
		if out[i] = v; v == "" || strings.ContainsFunc(v, func(r rune) bool {
			return !unicode.IsPrint(r) || unicode.IsSpace(r) || r == '"' || r == ','
		}) {
			out[i] = strconv.Quote(v)
		}
	}
	if len(out) == 1 {
		return out[0]
	}
	return "(" + strings.Join(out, ", ") + ")"
}

// Plain replaces the characters with which a name or a message could control a terminal.
func Plain(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '�'
	}, s)
}
