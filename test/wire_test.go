package test

import (
	flags "flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

var writeWire = flags.Bool("write", false, "add what is new to the list of what is on the wire")

// wireFile lists the names, numbers and types that programs of earlier versions, in any language, send and
// read.
var wireFile = filepath.Join("testdata", "wire.txt")

// onTheWire returns a line for each method, field and value of an enum.
func onTheWire(file protoreflect.FileDescriptor) (lines []string) {
	for i := range file.Services().Len() {
		methods := file.Services().Get(i).Methods()
		for j := range methods.Len() {
			m := methods.Get(j)
			lines = append(lines, fmt.Sprintf("%s takes %s (stream %t), returns %s (stream %t)", m.FullName(),
				m.Input().FullName(), m.IsStreamingClient(), m.Output().FullName(), m.IsStreamingServer()))
		}
	}
	lines = append(lines, valuesOnTheWire(file.Enums())...)
	for i := range file.Messages().Len() {
		lines = append(lines, fieldsOnTheWire(file.Messages().Get(i))...)
	}
	return lines
}

func valuesOnTheWire(enums protoreflect.EnumDescriptors) (lines []string) {
	for i := range enums.Len() {
		for j := range enums.Get(i).Values().Len() {
			v := enums.Get(i).Values().Get(j)
			lines = append(lines, fmt.Sprintf("%s.%s is %d", enums.Get(i).FullName(), v.Name(), v.Number()))
		}
	}
	return lines
}

func fieldsOnTheWire(m protoreflect.MessageDescriptor) (lines []string) {
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		of := f.Kind().String()
		switch {
		case f.Enum() != nil:
			of = string(f.Enum().FullName())
		case f.Message() != nil:
			of = string(f.Message().FullName())
		}
		if f.HasPresence() && f.Message() == nil {
			of = "optional " + of
		}
		lines = append(lines, fmt.Sprintf("%s is %d: %s %s, %s in JSON", f.FullName(), f.Number(), f.Cardinality(), of,
			f.JSONName()))
	}
	for i := range m.Messages().Len() {
		lines = append(lines, fieldsOnTheWire(m.Messages().Get(i))...)
	}
	return append(lines, valuesOnTheWire(m.Enums())...)
}

// Programs of earlier versions go on to work: their messages stay as they are, and new fields and methods are
// added to the list. It is the part of buf breaking that needs neither the program nor the commit before.
func TestNothingBreaksTheWire(t *testing.T) {
	t.Parallel()
	var now []string
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		if strings.HasPrefix(string(file.Package()), "dbcontroller.") {
			now = append(now, onTheWire(file)...)
		}
		return true
	})
	slices.Sort(now)
	raw, err := os.ReadFile(wireFile)
	if !*writeWire {
		require.NoError(t, err)
	}
	before := strings.FieldsFunc(string(raw), func(r rune) bool { return r == '\n' })
	for _, line := range before {
		_, found := slices.BinarySearch(now, line)
		require.True(t, found, "%s: this is no more, and programs of earlier versions break: keep it", line)
	}
	if *writeWire {
		require.NoError(t, os.WriteFile(wireFile, []byte(strings.Join(now, "\n")+"\n"), 0o644)) //nolint:gosec // no secret
		return
	}
	require.Equal(t, now, before, "make generate adds what is new to %s", wireFile)
}
