package cli

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

const (
	environmentPrefix = "DBCONTROLLER_"
	// originKey and secretKey are annotations of flags: where the value comes from, and that it must not be
	// shown.
	originKey, secretKey = "origin", "secret"
)

// setting is a value for a flag from outside the command line.
type setting struct {
	value  any // nil: the default
	origin string
}

// Configure sets the flags that the command line does not set: from the environment, else from the command's
// section of the file, else from the top of the file. It records where each value comes from.
func Configure(cmd *cobra.Command) error {
	settings, err := fileSettings(cmd)
	if err != nil {
		return err
	}
	given, err := environmentSettings(cmd)
	if err != nil {
		return err
	}
	maps.Copy(settings, given)
	var wrong error
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		s, ok := settings[f.Name]
		switch {
		case f.Changed && originOf(f) == "default":
			setAnnotation(f, originKey, "flag")
		case f.Changed:
		case ok && s.value != nil:
			setAnnotation(f, originKey, s.origin)
			if err := setFlag(f, s.value); err != nil {
				wrong = errors.Join(wrong, fmt.Errorf("%s: %w", s.origin, err))
			}
		}
	})
	return errors.Join(wrong, readSecrets(cmd.Flags()))
}

func setAnnotation(f *pflag.Flag, key, value string) {
	if f.Annotations == nil {
		f.Annotations = map[string][]string{}
	}
	f.Annotations[key] = []string{value}
}

// setFlag sets a flag to a value of YAML or of the environment.
func setFlag(f *pflag.Flag, value any) (err error) {
	list, isList := value.([]any)
	slice, takesList := f.Value.(pflag.SliceValue)
	switch {
	case isList && takesList:
		texts := make([]string, len(list))
		for i, v := range list {
			texts[i] = fmt.Sprint(v)
		}
		err = slice.Replace(texts)
	case isList:
		err = errors.New("want one value, not a list")
	default:
		if _, nested := fields(value); nested {
			return errors.New("want a value, not fields")
		}
		text := fmt.Sprint(value)
		if err = f.Value.Set(text); err != nil {
			err = fmt.Errorf("%q: %w", text, wanted(f, err))
		}
	}
	if err != nil {
		return err
	}
	f.Changed = true
	return nil
}

// fileSettings reads the file of --config. Its sections are named after commands; the keys beside them are
// for every command that has such a flag.
func fileSettings(cmd *cobra.Command) (map[string]setting, error) {
	path, _ := cmd.Flags().GetString("config")
	if path == "" {
		path = os.Getenv(environmentPrefix + "CONFIG")
	}
	if path == "" {
		return map[string]setting{}, nil
	}
	var content map[string]any
	raw, err := os.ReadFile(path) //nolint:gosec // the operator names it
	if err == nil {
		err = yaml.Unmarshal(raw, &content)
	}
	if err != nil {
		return nil, fmt.Errorf("configuration %s: %w", path, err)
	}
	found := map[string]setting{}
	for _, key := range slices.Sorted(maps.Keys(content)) {
		value := content[key]
		section, isSection := fields(value)
		if !isSection {
			name, err := knownKey(path, "", key, allFlags(cmd.Root()), cmd)
			if err != nil {
				return nil, err
			}
			if _, exists := found[name]; !exists {
				found[name] = setting{value, fmt.Sprintf("configuration %s: %s", path, key)}
			}
			continue
		}
		if err := sectionSettings(cmd, path, key, section, found); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// fields returns the fields of a value of YAML, if it has any. The type differs if a key is no text, such as
// a number.
func fields(value any) (map[string]any, bool) {
	if of, ok := value.(map[any]any); ok {
		texts := make(map[string]any, len(of))
		for key, v := range of {
			texts[fmt.Sprint(key)] = v
		}
		return texts, true
	}
	of, ok := value.(map[string]any)
	return of, ok
}

// sectionSettings adds the settings of the section of cmd or of its parent. It checks the keys of every
// section.
func sectionSettings(cmd *cobra.Command, path, name string, section map[string]any, found map[string]setting) error {
	owner, _, err := cmd.Root().Find(strings.Fields(name))
	if err != nil || owner == cmd.Root() {
		return fmt.Errorf("configuration %s: unknown section %q%s", path, name,
			DidYouMean(name, subcommands(cmd.Root())))
	}
	for _, key := range slices.Sorted(maps.Keys(section)) {
		flag, err := knownKey(path, name+": ", key, FlagsBelow(owner), owner)
		if err != nil {
			return err
		}
		if owner == cmd || owner == cmd.Parent() {
			found[flag] = setting{section[key], fmt.Sprintf("configuration %s: %s.%s", path, name, key)}
		}
	}
	return nil
}

// knownKey returns the flag of a key; a key may be written with underscores.
func knownKey(path, section, key string, known []string, of *cobra.Command) (string, error) {
	name := strings.ReplaceAll(key, "_", "-")
	if slices.Contains(known, name) {
		return name, nil
	}
	text := fmt.Sprintf("configuration %s: %sunknown key %q", path, section, key)
	for _, flags := range [][]string{FlagsBelow(of), known} { // the command's own are likelier
		if near := DidYouMean(name, flags); near != "" {
			return "", errors.New(text + near)
		}
	}
	return "", fmt.Errorf("%s: known are %s", text, strings.Join(FlagsBelow(of), ", "))
}

// environmentSettings reads the variables of flags. A variable that looks like a misspelt one is an error;
// others with the prefix are left alone, because supervisors set some, such as Kubernetes for a service that
// is called dbcontroller.
func environmentSettings(cmd *cobra.Command) (map[string]setting, error) {
	variables := map[string]string{}
	for _, entry := range os.Environ() {
		if variable, ours := strings.CutPrefix(entry, environmentPrefix); ours {
			name, value, _ := strings.Cut(variable, "=")
			variables[strings.ToLower(strings.ReplaceAll(name, "_", "-"))] = value
		}
	}
	known := allFlags(cmd.Root())
	found := map[string]setting{}
	var wrong error
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		variable := variableOf(name)
		if slices.Contains(known, name) {
			found[name] = setting{variables[name], "environment " + variable}
			continue
		}
		if flag := withoutCommand(name, cmd.Root()); flag != "" {
			wrong = errors.Join(wrong,
				fmt.Errorf(
					"environment: unknown variable %s: did you mean %s? A variable is for every command that has the flag", variable, variableOf(flag)))
			continue
		}
		if near := nearest(name, known); near != "" && !serviceLink.MatchString(name) {
			wrong = errors.Join(wrong, fmt.Errorf("environment: unknown variable %s: did you mean %s?", variable,
				variableOf(near)))
		}
	}
	return found, wrong
}

// withoutCommand returns the flag in a name such as serve-listen, as the section of a file would lead to;
// empty if it is none.
func withoutCommand(name string, root *cobra.Command) string {
	for _, c := range root.Commands() {
		if flag, below := strings.CutPrefix(name, c.Name()+"-"); below && slices.Contains(FlagsBelow(c), flag) {
			return flag
		}
	}
	return ""
}

// serviceLink matches the variables that Kubernetes sets in each container for a service named dbcontroller,
// such as DBCONTROLLER_PORT.
var serviceLink = regexp.MustCompile(`^(port|service)(-|$)`)

func variableOf(flag string) string {
	return environmentPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// FlagsBelow returns the names of the flags of a command and its subcommands.
func FlagsBelow(cmd *cobra.Command) []string {
	names := map[string]bool{}
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		c.Flags().VisitAll(func(f *pflag.Flag) { names[f.Name] = true })
		c.PersistentFlags().VisitAll(func(f *pflag.Flag) { names[f.Name] = true })
		c.InheritedFlags().VisitAll(func(f *pflag.Flag) { names[f.Name] = true })
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(cmd)
	delete(names, "help")
	delete(names, helpAll)
	delete(names, "version")
	return slices.Sorted(maps.Keys(names))
}

func allFlags(root *cobra.Command) []string { return FlagsBelow(root) }

// SecretFlag adds a flag with a value that may contain a secret, and a flag that names a file with the value;
// it returns a pointer to the file's name.
func SecretFlag(f *pflag.FlagSet, to *string, name, usage string) (file *string) {
	f.StringVar(to, name, "", usage)
	setAnnotation(f.Lookup(name), secretKey, "")
	return f.String(name+"-file", "", "`FILE` with the value of --"+name+", which the list of processes does not show")
}

// readSecrets reads the files of secret flags.
func readSecrets(flags *pflag.FlagSet) (wrong error) {
	flags.VisitAll(func(f *pflag.Flag) {
		from := flags.Lookup(f.Name + "-file")
		if _, secret := f.Annotations[secretKey]; !secret || from == nil || from.Value.String() == "" {
			return
		}
		if f.Changed {
			wrong = errors.Join(wrong, fmt.Errorf("--%s and --%s-file are both given, by %s and by %s: give one",
				f.Name, f.Name, originOf(f), originOf(from)))
			return
		}
		raw, err := os.ReadFile(from.Value.String())
		if err == nil {
			err = setFlag(f, strings.TrimRight(string(raw), "\r\n"))
		}
		setAnnotation(f, originKey, "file "+from.Value.String())
		if err != nil {
			wrong = errors.Join(wrong, fmt.Errorf("--%s-file: %w", f.Name, err))
		}
	})
	return wrong
}

func originOf(f *pflag.Flag) string {
	if origin := f.Annotations[originKey]; len(origin) > 0 {
		return origin[0]
	}
	return "default"
}

// shown returns the value of a flag for people: without passwords.
func shown(f *pflag.Flag) string {
	if _, secret := f.Annotations[secretKey]; secret {
		return withoutPassword(f.Value.String())
	}
	return f.Value.String()
}

// Given returns the values of the flags of a command that are set, for people: without passwords.
func Given(cmd *cobra.Command) map[string]string {
	given := map[string]string{}
	cmd.Flags().VisitAll(func(f *pflag.Flag) { // Visit has only the flags of the command line
		if f.Changed {
			given[f.Name] = shown(f)
		}
	})
	return given
}

// RequireFlags returns an error that names all of these flags that are empty.
func RequireFlags(cmd *cobra.Command, flags ...string) error {
	var missing []string
	for _, name := range flags {
		if f := cmd.Flags().Lookup(name); f.Value.String() == "" {
			missing = append(missing, "--"+name+" ("+f.Usage+")")
		}
	}
	if len(missing) > 0 {
		return Usage("missing: %s", strings.Join(missing, ", "))
	}
	return nil
}
