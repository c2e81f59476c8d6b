// Command report prints, from files of go test -json, the time of each package, the tests that were skipped,
// each with its reason, the tests that failed and passed when they were run again, and, last, the failed
// tests, each with the outputs of all its runs. It writes the flaky ones also to flaky.txt beside the first
// file.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// event is a line of go test -json (cmd/test2json).
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64 // seconds
}

// run is one run of a test.
type run struct {
	result string // pass, fail or skip
	output []string
}

type report struct {
	packages map[string]float64 // seconds, of all runs
	tests    map[string][]run   // by package and test
	open     map[string][]string
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: report FILE...")
		os.Exit(2)
	}
	r := report{packages: map[string]float64{}, tests: map[string][]run{}, open: map[string][]string{}}
	for _, path := range os.Args[1:] {
		if err := r.read(path); err != nil {
			fmt.Fprintln(os.Stderr, "report:", err)
			os.Exit(1)
		}
	}
	r.printPackages()
	r.printSkipped()
	flaky := r.outputs("FLAKY %s failed, and passed when it was run again", isFlaky)
	fmt.Print(flaky, r.outputs("FAILED %s", failed))
	if flaky != "" {
		if err := os.WriteFile(filepath.Join(filepath.Dir(os.Args[1]), "flaky.txt"), []byte(flaky), 0o600); err != nil {
			fmt.Fprintln(os.Stderr, "report:", err)
			os.Exit(1)
		}
	}
}

func (r *report) read(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		r.add(e)
	}
	return lines.Err()
}

func (r *report) add(e event) {
	name := short(e.Package) + " " + e.Test
	switch e.Action {
	case "output":
		r.open[name] = append(r.open[name], e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.packages[short(e.Package)] += e.Elapsed
			if e.Action == "fail" {
				r.endOpen(short(e.Package))
			}
			return
		}
		r.tests[name] = append(r.tests[name], run{e.Action, r.open[name]})
		delete(r.open, name)
	}
}

// endOpen counts the tests of a package that ended with its process as failed: they have no event of their
// own.
func (r *report) endOpen(packageName string) {
	for name, output := range r.open {
		if test, ours := strings.CutPrefix(name, packageName+" "); ours && test != "" {
			r.tests[name] = append(r.tests[name], run{"fail", output})
			delete(r.open, name)
		}
	}
}

func short(path string) string {
	_, rest, found := strings.Cut(strings.TrimPrefix(path, "github.com/"), "/")
	_, rest, below := strings.Cut(rest, "/")
	if !found || !below {
		return path
	}
	return rest
}

func (r *report) printPackages() {
	var names []string
	for name := range r.packages {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(r.packages[b], r.packages[a]) })
	fmt.Println("\nTime of each package:")
	for _, name := range names {
		if took := time.Duration(r.packages[name] * float64(time.Second)); took >= time.Second {
			fmt.Printf("%8s  %s\n", took.Round(time.Second), name)
		}
	}
}

func (r *report) sorted() (names []string) {
	for name := range r.tests {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (r *report) printSkipped() {
	var lines []string
	for _, name := range r.sorted() {
		runs := r.tests[name]
		if last := runs[len(runs)-1]; last.result == "skip" {
			lines = append(lines, fmt.Sprintf("  %s: %s\n", name, reason(last.output)))
		}
	}
	if len(lines) > 0 {
		fmt.Printf("\nSkipped (%d):\n%s", len(lines), strings.Join(lines, ""))
	}
}

// reason returns the text that a test logged when it was skipped.
func reason(output []string) string {
	var out []string
	for _, line := range output {
		text := strings.TrimSpace(line)
		if text != "" && !strings.HasPrefix(text, "===") && !strings.HasPrefix(text, "---") {
			out = append(out, text)
		}
	}
	return strings.Join(out, " ")
}

// isFlaky reports whether a test failed in one run and passed in the last.
func isFlaky(runs []run) bool {
	return runs[len(runs)-1].result == "pass" && slices.ContainsFunc(runs, func(one run) bool {
		return one.result == "fail"
	})
}

func failed(runs []run) bool { return runs[len(runs)-1].result == "fail" }

// maxOutput is the number of lines of a test that are printed: the last ones, without the JSON lines of its
// processes, because a failure stands at the end. The files have all lines.
const maxOutput = 60

// outputs describes the tests whose runs are of one kind.
func (r *report) outputs(title string, is func([]run) bool) string {
	var out strings.Builder
	for _, name := range r.sorted() {
		runs := r.tests[name]
		if !is(runs) {
			continue
		}
		fmt.Fprintf(&out, "\n"+title+"\n", name)
		for i, one := range runs {
			lines := slices.DeleteFunc(slices.Clone(one.output), func(line string) bool {
				return strings.HasPrefix(strings.TrimSpace(line), "{")
			})
			if left := len(lines) - maxOutput; left > 0 {
				lines = append([]string{fmt.Sprintf("(%d lines before)\n", left)}, lines[left:]...)
			}
			fmt.Fprintf(&out, "run %d: %s\n%s", i+1, one.result, strings.Join(lines, ""))
		}
	}
	return out.String()
}
