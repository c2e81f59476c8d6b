package operate

import (
	"context"
	_ "embed" // the JSON Schema of descriptors
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/lint"
)

//go:embed descriptor.schema.json
var descriptorSchema []byte

// TablesOf is the part of validate that compares declared tables with databases.
type TablesOf interface {
	// Add adds its flags to the command.
	Add(cmd *cobra.Command)
	// Compare returns the reasons why attach would refuse, as problems, and its advice; both are empty when
	// no database was named.
	Compare(ctx context.Context, files *schema.File) (schema.Problems, []lint.Finding, error)
}

// NewValidate returns the command validate.
func NewValidate(tables TablesOf) *cobra.Command {
	var strict, printSchema bool
	cmd := &cobra.Command{
		Use:   "validate FILE... | validate --print-schema",
		Short: "Check service descriptors, all files together: problems with their lines, and deletions that can get stuck",
		Long: `Check service descriptors, all files together: problems with their lines, and deletions that can get stuck.

A warning ends with its id in brackets. A descriptor acknowledges an intended one, with the reason:

  acknowledge:
    - { warning: blocked-cascade, at: "kinds[Device].references[account]", reason: a device outlives its account }

With --dsn the declared tables are compared with those of databases, as attach does, by the catalogue alone.

The exit code is 1 when a file cannot be applied, or a table cannot be attached.`,
		Example: `  db-controller validate services/*.yaml --strict -o json
  db-controller validate references.yaml --dsn shop=postgres://reader@db1/shop`,
		Args: func(cmd *cobra.Command, args []string) error {
			if printSchema {
				return cobra.NoArgs(cmd, args)
			}
			return cobra.MinimumNArgs(1)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if printSchema {
				_, err := cmd.OutOrStdout().Write(descriptorSchema)
				return err
			}
			v, err := validate(args)
			if err == nil && len(v.problems) == 0 {
				err = v.compare(cmd.Context(), tables)
			}
			if err != nil {
				return err
			}
			if out := cli.PrinterOf(cmd); out.People() {
				v.print(cmd)
			} else if err := out.Document(v.document()); err != nil {
				return err
			}
			switch n := v.unacknowledged(); {
			case len(v.problems) > 0:
				return errors.New(cli.Plural(len(v.problems), "problem"))
			case strict && n > 0:
				return cli.WithCode(cli.Findings, fmt.Errorf("%s not acknowledged", cli.Plural(n, "warning")))
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&printSchema, "print-schema", false, "print the JSON Schema of the files, for editors")
	cmd.Flags().BoolVar(&strict, "strict", false, "fail with exit code 3 when a warning is not acknowledged")
	tables.Add(cmd)
	cli.OutputFlag(cmd)
	return cmd
}

// validated is the result for some files.
type validated struct {
	files    *schema.File
	problems schema.Problems
	findings []lint.Finding
}

// Valid reads files that can be applied together. It returns their problems as its error.
func Valid(paths []string) (*schema.File, error) {
	v, err := validate(paths)
	if err == nil && len(v.problems) > 0 {
		err = v.problems
	}
	return v.files, err
}

func validate(paths []string) (v validated, err error) {
	v.files, err = schema.ReadFiles(paths)
	if err == nil {
		err = schema.Check(v.files.Services)
	}
	if err == nil {
		err = v.files.Rights.CheckKinds(v.files.Services)
	}
	if errors.As(err, &v.problems) {
		return v, nil
	}
	if err == nil {
		v.findings = append(lint.Services(v.files.Services, v.files.Deployments...), lint.Deployments(v.files)...)
	}
	return v, err
}

func (v *validated) compare(ctx context.Context, tables TablesOf) error {
	problems, advice, err := tables.Compare(ctx, v.files)
	v.problems, v.findings = problems, append(v.findings, advice...)
	return err
}

func (v validated) unacknowledged() (n int) {
	for _, f := range v.findings {
		if f.Level == lint.Warning && f.Acknowledged == "" {
			n++
		}
	}
	return n
}

func (v validated) print(cmd *cobra.Command) {
	for _, p := range v.problems {
		cmd.PrintErrln(p)
	}
	for _, s := range v.services() {
		cmd.Printf("%s@%s: %s, %s, ok\n", s.Service, s.Version, cli.Plural(s.Kinds, "kind"),
			cli.Plural(s.References, "reference"))
	}
	if v.files != nil && len(v.files.Deployments) > 0 && len(v.problems) == 0 {
		cmd.Printf("%s\n", cli.Plural(len(v.files.Deployments), "deployment"))
	}
	v.printRights(cmd)
	for _, f := range v.findings {
		cmd.Printf("%s [%s]\n", f, f.ID)
	}
}

func (v validated) printRights(cmd *cobra.Command) {
	if v.files == nil || v.files.Rights == nil || len(v.problems) > 0 {
		return
	}
	cmd.Printf("rights: %s, ok\n", cli.Plural(len(v.files.Rights.Grants), "grant"))
	if v.files.Rights.Allow && !v.files.Rights.Deny && len(v.files.Rights.Grants) > 0 {
		cmd.Println("rights: with `default: allow` the grants only add the right to operate")
	}
}

type serviceSummary struct {
	Service    string `json:"service"`
	Version    string `json:"version"`
	Kinds      int    `json:"kinds"`
	References int    `json:"references"`
}

// services returns a summary of each service, none when there are problems.
func (v validated) services() []serviceSummary {
	out := []serviceSummary{}
	if len(v.problems) > 0 {
		return out
	}
	for _, d := range v.files.Services {
		s := serviceSummary{Service: d.Service, Version: d.Version, Kinds: len(d.Kinds)}
		for _, k := range d.Kinds {
			s.References += len(k.References) + len(k.Parents)
		}
		out = append(out, s)
	}
	return out
}

type findingJSON struct {
	Level        string `json:"level"` // problem, warning or note
	ID           string `json:"id,omitempty"`
	Of           string `json:"of,omitempty"` // service@version
	File         string `json:"file,omitempty"`
	Line         int    `json:"line,omitempty"`
	Path         string `json:"path,omitempty"`
	Message      string `json:"message"`
	Remedy       string `json:"remedy,omitempty"`
	Acknowledged string `json:"acknowledged,omitempty"`
}

func (v validated) document() any {
	convert := func(p schema.Problem) findingJSON {
		return findingJSON{
			Level: "problem", File: p.Pos.File, Line: p.Pos.Line, Path: p.Pos.Path, Message: p.Message,
			Remedy: p.Remedy,
		}
	}
	findings := []findingJSON{}
	for _, p := range v.problems {
		findings = append(findings, convert(p))
	}
	for _, f := range v.findings {
		one := convert(f.Problem)
		one.Level, one.ID, one.Of, one.Acknowledged = string(f.Level), f.ID, f.Of.String(), f.Acknowledged
		findings = append(findings, one)
	}
	return map[string]any{"services": v.services(), "findings": findings}
}
