package operate

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/schema"
)

// NewSupportBundle returns the command support-bundle.
func NewSupportBundle() *cobra.Command {
	var file string
	var names bool
	cmd := cli.NewDeploymentCommand("support-bundle", "Write the state of all deployments to a file for support, without names of resources and people", `  db-controller support-bundle
  db-controller support-bundle --file /tmp/bundle.tar.gz`, cobra.NoArgs,
		func(cmd *cobra.Command, c *client.Client, _ []string) error {
			if file == "" {
				file = "db-controller-" + time.Now().UTC().Format("20060102-150405") + ".tar.gz"
			}
			hide, err := newRedactor(names)
			if err != nil {
				return err
			}
			parts, err := bundleParts(cmd, c)
			if err != nil {
				return err
			}
			if err := writeBundle(file, parts, hide); err != nil {
				return err
			}
			out := cli.PrinterOf(cmd)
			out.Line("%s contains the versions, the status and the stuck resources and work of all deployments", file)
			return out.Document(map[string]string{"file": file})
		})
	cmd.Long = `Write the state of all deployments to a file for support.

It has the version of this program, and of each deployment the version, the status, and the resources and work that are stuck. Names of
resources and of people are replaced by hashes: the same name has the same hash within one file. Kinds, services, regions and reasons stay
readable, without passwords, tokens and private keys as far as they can be told from other text: look through the file before you send it.`
	cmd.Flags().StringVar(&file, "file", "", "file to write (default: db-controller-TIME.tar.gz)")
	cmd.Flags().BoolVar(&names, "names", false, "keep the names of resources and people")
	return cmd
}

// bundlePart is one file of a bundle.
type bundlePart struct {
	name    string
	content any
}

func bundleParts(cmd *cobra.Command, c *client.Client) ([]bundlePart, error) {
	env, err := c.Environment(cmd.Context())
	if err != nil {
		return nil, err
	}
	var versions []map[string]any
	for _, d := range env.Deployments {
		versions = append(versions, map[string]any{
			"deployment": d.String(), "version": d.Version,
			"disabled": d.Disabled,
		})
	}
	return []bundlePart{
		{"program.json", cli.ThisBuild()},
		{"deployments.json", versions},
		{"status.json", statusesOf(cmd.Context(), c, env)},
		{"stuck.json", stuckIn(cmd.Context(), c, deploymentsOf(env, nil), time.Minute, stuckListed)},
	}, nil
}

func writeBundle(file string, parts []bundlePart, hide *redactor) (err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := f.Close(); err == nil {
			err = cerr
		}
	}()
	return packBundle(f, parts, hide)
}

func packBundle(to io.Writer, parts []bundlePart, hide *redactor) error {
	zipped := gzip.NewWriter(to)
	out := tar.NewWriter(zipped)
	for _, p := range parts {
		raw, err := withoutSecrets(p.content)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		text := hide.text(string(raw))
		if err := out.WriteHeader(&tar.Header{
			Name: p.name, Mode: 0o600, Size: int64(len(text)),
			ModTime: time.Now(),
		}); err != nil {
			return err
		}
		if _, err := io.WriteString(out, text); err != nil {
			return err
		}
	}
	if err := out.Close(); err != nil {
		return err
	}
	return zipped.Close()
}

// withoutSecrets returns a document without secrets in its texts. They are searched in the texts themselves,
// because JSON has escapes where they have quotes; the document has none where names have signs of HTML.
func withoutSecrets(content any) ([]byte, error) {
	raw, err := json.Marshal(content)
	if err != nil {
		return nil, err
	}
	var v any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err = e.Encode(textsOf(v))
	return out.Bytes(), err
}

func textsOf(v any) any {
	switch v := v.(type) {
	case string:
		return cli.WithoutSecrets(v)
	case []any:
		for i := range v {
			v[i] = textsOf(v[i])
		}
	case map[string]any:
		for key := range v {
			v[key] = textsOf(v[key])
		}
	}
	return v
}

// redactor replaces names by keyed hashes.
type redactor struct {
	key  []byte
	keep bool
}

func newRedactor(keep bool) (*redactor, error) {
	key := make([]byte, 32)
	_, err := rand.Read(key)
	return &redactor{key, keep}, err
}

var (
	// resourceNames finds full names, and relative ones that follow "name" or "sample" in JSON.
	resourceNames = regexp.MustCompile(
		`//[a-z][a-z0-9.-]*/[a-z][a-z0-9-]*/[^\s"\\]+|"(?:name|sample)": "[^/"][^"]*/[^"]*"`)
	people = regexp.MustCompile(`\b(user|operator)/[^\s"\\]+`)
)

func (r *redactor) text(s string) string {
	if r.keep {
		return s
	}
	s = resourceNames.ReplaceAllStringFunc(s, r.resource)
	return people.ReplaceAllStringFunc(s, func(who string) string {
		role, _, _ := strings.Cut(who, "/")
		return role + "/" + r.hash(who)
	})
}

// resource keeps the deployment and the collections of a name, which are part of the schema.
func (r *redactor) resource(found string) string {
	if !strings.HasPrefix(found, "//") {
		field, name, _ := strings.Cut(strings.TrimSuffix(found, `"`), `": "`)
		return field + `": "` + r.segments(name) + `"`
	}
	name := strings.TrimRight(found, `.,;:)`)
	full, err := schema.ParseFullName(name)
	if err != nil {
		return r.hash(found)
	}
	return "//" + full.Deployment.String() + "/" + r.segments(full.Name) + found[len(name):]
}

// segments replaces every second segment, which are the ids.
func (r *redactor) segments(name string) string {
	parts := strings.Split(name, "/")
	for i := 1; i < len(parts); i += 2 {
		parts[i] = r.hash(strings.Join(parts[:i+1], "/"))
	}
	return strings.Join(parts, "/")
}

func (r *redactor) hash(s string) string {
	sum := sha256.Sum256(append(r.key[:len(r.key):len(r.key)], s...))
	return "x" + hex.EncodeToString(sum[:6])
}
