package test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	_ "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/authorization/v1"
)

var (
	protoComment = regexp.MustCompile(`//.*`)
	protoNumber  = regexp.MustCompile(`(\w+)\s*=\s*(-?\d+)\s*[;\[]`)
	protoNamed   = regexp.MustCompile(`(?m)^\s*(?:message|enum|service|rpc|oneof)\s+(\w+)`)
)

// declaredIn returns the names of a .proto file with their numbers, sorted.
func declaredIn(text string) (out []string) {
	text = protoComment.ReplaceAllString(text, "")
	for _, m := range protoNumber.FindAllStringSubmatch(text, -1) {
		out = append(out, m[1]+" = "+m[2])
	}
	for _, m := range protoNamed.FindAllStringSubmatch(text, -1) {
		out = append(out, m[1])
	}
	slices.Sort(out)
	return out
}

// described adds the same of a message in the generated code.
func described(m protoreflect.MessageDescriptor) (out []string) {
	if m.IsMapEntry() {
		return nil
	}
	out = append(out, string(m.Name()))
	for i := range m.Fields().Len() {
		out = append(out, fmt.Sprintf("%s = %d", m.Fields().Get(i).Name(), m.Fields().Get(i).Number()))
	}
	for i := range m.Oneofs().Len() {
		if !m.Oneofs().Get(i).IsSynthetic() {
			out = append(out, string(m.Oneofs().Get(i).Name()))
		}
	}
	for i := range m.Messages().Len() {
		out = append(out, described(m.Messages().Get(i))...)
	}
	return append(out, enumerated(m.Enums())...)
}

func enumerated(all protoreflect.EnumDescriptors) (out []string) {
	for i := range all.Len() {
		out = append(out, string(all.Get(i).Name()))
		for j := range all.Get(i).Values().Len() {
			v := all.Get(i).Values().Get(j)
			out = append(out, fmt.Sprintf("%s = %d", v.Name(), v.Number()))
		}
	}
	return out
}

// The generated code has the messages, fields, numbers and methods of the .proto files. make verify generates
// it again and compares all of it, which needs minutes to compile the generator.
func TestTheGeneratedCodeIsThatOfTheProtoFiles(t *testing.T) {
	t.Parallel()
	root, n := filepath.Join("..", "schema", "schemapb"), 0
	require.NoError(t, filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".proto" {
			return err
		}
		n++
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		name, err := filepath.Rel(root, path)
		require.NoError(t, err)
		file, err := protoregistry.GlobalFiles.FindFileByPath(filepath.ToSlash(name))
		require.NoError(t, err)
		var want []string
		for i := range file.Messages().Len() {
			want = append(want, described(file.Messages().Get(i))...)
		}
		want = append(want, enumerated(file.Enums())...)
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			want = append(want, string(service.Name()))
			for j := range service.Methods().Len() {
				want = append(want, string(service.Methods().Get(j).Name()))
			}
		}
		slices.Sort(want)
		require.Equal(t, declaredIn(string(text)), want, "%s: make generate", name)
		return nil
	}))
	require.Equal(t, 6, n)
}
