// Command sbom writes the software bill of materials of a Go binary to standard output, in the JSON form of
// CycloneDX 1.6: the Go toolchain and the modules that the binary was linked from, as the linker has recorded
// them.
package main

import (
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
)

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

type component struct {
	Type    string `json:"type"`
	Name    string `json:"name"`
	Version string `json:"version"`
	PURL    string `json:"purl,omitempty"`
	Hashes  []hash `json:"hashes,omitempty"`
}

type metadata struct {
	Component component `json:"component"`
}

type document struct {
	Format      string      `json:"bomFormat"`
	SpecVersion string      `json:"specVersion"`
	Version     int         `json:"version"`
	Metadata    metadata    `json:"metadata"`
	Components  []component `json:"components"`
}

func main() {
	if len(os.Args) != 2 {
		fail(fmt.Errorf("usage: sbom BINARY"))
	}
	info, err := buildinfo.ReadFile(os.Args[1])
	if err != nil {
		fail(err)
	}
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", "  ")
	if err := out.Encode(describe(info)); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "error:", err)
	os.Exit(1)
}

func describe(info *buildinfo.BuildInfo) document {
	d := document{
		Format: "CycloneDX", SpecVersion: "1.6", Version: 1,
		Metadata: metadata{Component: module(&info.Main)},
	}
	d.Metadata.Component.Type = "application"
	d.Components = []component{{
		Type: "platform", Name: "go", Version: strings.TrimPrefix(info.GoVersion, "go"),
		PURL: "pkg:golang/std@" + strings.TrimPrefix(info.GoVersion, "go"),
	}}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		d.Components = append(d.Components, module(m))
	}
	return d
}

// module has the hash of go.sum: SHA-256 over the names and hashes of the module's files.
func module(m *debug.Module) component {
	c := component{Type: "library", Name: m.Path, Version: m.Version}
	if m.Version != "(devel)" {
		c.PURL = "pkg:golang/" + m.Path + "@" + m.Version
	}
	if sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(m.Sum, "h1:")); err == nil && len(sum) > 0 {
		c.Hashes = []hash{{Algorithm: "SHA-256", Content: hex.EncodeToString(sum)}}
	}
	return c
}
