package operate

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/lint"
)

// noTables compares nothing.
type noTables struct{}

func (noTables) Add(*cobra.Command) {}

func (noTables) Compare(context.Context, *schema.File) (schema.Problems, []lint.Finding, error) {
	return nil, nil, nil
}

const unknownKind = `rights:
  grants: [{ group: a, verbs: [read], kind: a.example.com/B }]
---
service: a.example.com
version: v1
kinds: [{ kind: A, patterns: ['as/{a}'] }]
`

func TestValidateKnowsRights(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"rights: { default: allow, grants: [{ group: a, verbs: [read] }] }\n":      "rights: 1 grant, ok\nrights: with `default: allow` the grants only add the right to operate\n",
		"rights:\n  default: deny\n  grants:\n    - { group: a, verbs: [read] }\n": "rights: 1 grant, ok\n",
		"rights:\n  default: deny\n  grants:\n    - { group: a, verbs: [reed] }\n": ":4: rights.grants[0]: unknown verb \"reed\"; the verbs are read, write, delete, refer, operate\n",
		unknownKind: ":2: rights.grants[0]: a.example.com has no kind B in any version; its kinds are A\n",
	} {
		file := filepath.Join(t.TempDir(), "rights.yaml")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		v, err := validate([]string{file})
		require.NoError(t, err)
		cmd := NewValidate(noTables{})
		var out strings.Builder
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		v.print(cmd)
		require.Contains(t, out.String(), want)
	}
}
