package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"
)

var outputs = []string{"table", "json", "yaml"}

// OutputFlag adds the flag of every command that prints a result.
func OutputFlag(cmd *cobra.Command) {
	cmd.Flags().StringP("output", "o", "table", "table, json or yaml")
	_ = cmd.RegisterFlagCompletionFunc("output",
		func(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			return formatsOf(cmd.Flags().Lookup("output")), cobra.ShellCompDirectiveNoFileComp
		}) // the flag exists
}

// nameFormat is the output of names alone, one in each line, as other commands take them.
const nameFormat = "name"

// NamesToo adds the output of names to a command that lists something, and prints it with Printer.Names.
func NamesToo(cmd *cobra.Command) {
	OutputIn(cmd, append(outputs[:len(outputs):len(outputs)], nameFormat)...)
}

// formatsOf returns the formats of an output flag.
func formatsOf(flag *pflag.Flag) []string {
	if own := flag.Annotations[formatsKey]; len(own) > 0 {
		return own
	}
	return outputs
}

// formatsKey is the annotation of an output flag with formats of its own.
const formatsKey = "formats"

// OutputIn replaces the formats of a command by others; the first one is the default.
func OutputIn(cmd *cobra.Command, formats ...string) {
	flag := cmd.Flags().Lookup("output")
	flag.DefValue, flag.Usage, flag.Annotations = formats[0], strings.Join(formats[:len(formats)-1], ", ")+" or "+
		formats[len(formats)-1], map[string][]string{formatsKey: formats}
	_ = flag.Value.Set(formats[0]) // a string
}

// CheckOutput is called before a command does anything.
func CheckOutput(cmd *cobra.Command) error {
	flag := cmd.Flags().Lookup("output")
	if flag == nil {
		return nil
	}
	if slices.Contains(formatsOf(flag), flag.Value.String()) {
		return nil
	}
	// A format that the environment or a file sets for all commands is none that this command has been given.
	origin := originOf(flag)
	if len(flag.Annotations[formatsKey]) > 0 && origin != "flag" && origin != "default" &&
		slices.Contains(outputs, flag.Value.String()) {
		return flag.Value.Set(flag.DefValue)
	}
	return Usage("--output %s: want %s", flag.Value, flag.Usage)
}

// Printer prints the result of a command: lines for people while it runs, or one document for programs at its
// end. Notes and errors go to the standard error in both cases.
type Printer struct {
	Out    io.Writer
	Format string // one of outputs, or name; empty: table
}

// PrinterOf returns the printer for the --output of a command.
func PrinterOf(cmd *cobra.Command) Printer {
	format, _ := cmd.Flags().GetString("output")
	return Printer{cmd.OutOrStdout(), format}
}

// People reports whether the result is read by people.
func (r Printer) People() bool { return r.Format == "table" || r.Format == "" }

// Line prints a line for people.
func (r Printer) Line(format string, args ...any) {
	if r.People() {
		_, _ = fmt.Fprintln(r.Out, Legible(fmt.Sprintf(format, args...)))
	}
}

// Table prints rows for people, with their columns aligned.
func (r Printer) Table(header string, rows [][]any) {
	if !r.People() {
		return
	}
	w := tabwriter.NewWriter(r.Out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, strings.ReplaceAll(header, " ", "\t"))
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = strings.NewReplacer("\n", " ", "\t", " ").Replace(Legible(fmt.Sprint(cell)))
		}
		_, _ = fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	_ = w.Flush()
}

// Legible returns a text in which nothing controls a terminal: reasons, causes and errors are texts of other
// people and deployments. Lines and tabs stay, and any other character that is not printed becomes U+FFFD.
func Legible(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) || r == '\n' || r == '\t' {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}

// Names prints names for -o name, and nothing for other formats.
func (r Printer) Names(names ...string) error {
	if r.Format != nameFormat {
		return nil
	}
	for _, name := range names {
		if _, err := fmt.Fprintln(r.Out, name); err != nil {
			return err
		}
	}
	return nil
}

// Document prints the result for programs: a message, a slice of messages, or a value for encoding/json.
func (r Printer) Document(v any) error {
	if r.People() || r.Format == nameFormat {
		return nil
	}
	return r.Write(v, "  ")
}

// Write prints a document; JSON with an empty indent is one line.
func (r Printer) Write(v any, indent string) error {
	raw, err := toJSON(v)
	if err != nil {
		return err
	}
	if r.Format == "yaml" {
		return WriteYAML(r.Out, raw)
	}
	var text bytes.Buffer
	if indent == "" {
		err = json.Compact(&text, raw) // protojson's spaces differ between builds
	} else {
		err = json.Indent(&text, bytes.TrimSpace(raw), "", indent)
	}
	if err == nil {
		_, err = fmt.Fprintln(r.Out, text.String())
	}
	return err
}

// toJSON returns the JSON of a message, of a slice of messages as an array, or of another value.
func toJSON(v any) (json.RawMessage, error) {
	if m, ok := v.(proto.Message); ok {
		return messageJSON(m)
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(v)
	return text.Bytes(), err
}

// Messages are encoded as an array, which is empty for nil.
func Messages[M proto.Message](of []M) []json.RawMessage {
	out := make([]json.RawMessage, 0, len(of))
	for _, m := range of {
		out = append(out, Message(m))
	}
	return out
}

// Message is the JSON of a message inside another document.
func Message(m proto.Message) json.RawMessage {
	raw, err := toJSON(m)
	if err != nil {
		raw, _ = json.Marshal(err.Error()) // a message that the server has sent can be encoded
	}
	return raw
}

// WriteYAML prints JSON as a YAML document, with the order of its fields.
func WriteYAML(out io.Writer, raw []byte) error {
	var node yaml.Node
	if err := yaml.Unmarshal(raw, &node); err != nil {
		return err
	}
	blockStyle(&node)
	if _, err := fmt.Fprintln(out, "---"); err != nil {
		return err
	}
	encoder := yaml.NewEncoder(out)
	encoder.SetIndent(2)
	return errors.Join(encoder.Encode(&node), encoder.Close())
}

// blockStyle makes YAML of JSON readable. Quotes are kept where YAML needs them.
func blockStyle(n *yaml.Node) {
	if len(n.Content) > 0 || n.Kind == yaml.ScalarNode {
		n.Style = 0
	}
	for _, c := range n.Content {
		blockStyle(c)
	}
}

// At is how every command prints a time: in UTC, with seconds.
func At(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// Plural returns a count with its noun, such as "1 problem" and "2 problems".
func Plural[N int | int64](n N, noun string) string {
	switch {
	case n == 1:
		return fmt.Sprintf("%d %s", n, noun)
	case strings.HasSuffix(noun, "s"):
		return fmt.Sprintf("%d %ses", n, noun)
	default:
		return fmt.Sprintf("%d %ss", n, noun)
	}
}

// Since is the time since a moment at another machine, whose clock may be ahead: it is never negative.
func Since(t time.Time) time.Duration { return max(0, time.Since(t)) }

// Ago is the age of a moment for people, such as 3m or 5d.
func Ago(t time.Time) string {
	d := Since(t)
	switch {
	case d < time.Minute:
		return d.Round(time.Second).String()
	case d < 48*time.Hour:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}
