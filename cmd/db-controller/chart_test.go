package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

const (
	helmFolder  = "../../deploy/helm"
	chartFolder = helmFolder + "/db-controller"
	chartSchema = chartFolder + "/values.schema.json"
)

// renderedFiles are the output of make packages, beside the values that it renders.
func renderedFiles(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"*.rendered.yaml", "*/*.rendered.yaml"} {
		files, err := filepath.Glob(filepath.Join(helmFolder, pattern))
		require.NoError(t, err)
		all = append(all, files...)
	}
	require.Len(t, all, 3)
	return all
}

// rendered is a part of an object of Kubernetes.
type rendered struct {
	Kind     string
	Metadata struct {
		Name        string
		Annotations map[string]string
	}
	Data map[string]string // of a ConfigMap
	Spec yaml.Node
}

// podSpec is a part of the pods of a Deployment or of a Job.
type podSpec struct {
	Template struct {
		Spec struct {
			Token           *bool `yaml:"automountServiceAccountToken"`
			SecurityContext struct {
				RunAsNonRoot   bool                  `yaml:"runAsNonRoot"`
				SeccompProfile struct{ Type string } `yaml:"seccompProfile"`
			} `yaml:"securityContext"`
			Containers []struct {
				Image           string
				Args            []string
				SecurityContext struct {
					ReadOnly     bool  `yaml:"readOnlyRootFilesystem"`
					MayEscalate  *bool `yaml:"allowPrivilegeEscalation"`
					Capabilities struct{ Drop []string }
				} `yaml:"securityContext"`
				VolumeMounts []struct {
					Name string
					Path string `yaml:"mountPath"`
				} `yaml:"volumeMounts"`
			}
			Volumes []struct {
				Name   string
				Secret struct {
					Name string `yaml:"secretName"`
				}
				CSI struct{ Driver string }
			}
		}
	}
}

// secret returns the name of the Secret of a volume.
func (p podSpec) secret(volume string) string {
	for _, v := range p.Template.Spec.Volumes {
		if v.Name == volume {
			return v.Secret.Name
		}
	}
	return ""
}

// serviceSpec is a part of a Service.
type serviceSpec struct {
	Type  string
	Ports []struct{ Port int }
}

// objectsOf returns the objects of a rendered file by their kinds and names.
func objectsOf(t *testing.T, file string) map[string]rendered {
	t.Helper()
	raw, err := os.Open(file)
	require.NoError(t, err)
	defer func() { _ = raw.Close() }()
	all := map[string]rendered{}
	for objects := yaml.NewDecoder(raw); ; {
		var o rendered
		if err := objects.Decode(&o); errors.Is(err, io.EOF) {
			return all
		} else {
			require.NoError(t, err, file)
		}
		id := o.Kind + "/" + o.Metadata.Name
		require.NotContains(t, all, id, file)
		all[id] = o
	}
}

func decodeSpec[T any](t *testing.T, o rendered) (spec T) {
	t.Helper()
	require.NotEmpty(t, o.Kind)
	require.NoError(t, o.Spec.Decode(&spec), o.Metadata.Name)
	return spec
}

// settingsIn returns the settings of the processes of a rendered Deployment, with the name of their command.
func settingsIn(t *testing.T, all map[string]rendered, name string) (command string, settings map[string]any) {
	t.Helper()
	var sections map[string]map[string]any
	require.NoError(t, yaml.Unmarshal([]byte(all["ConfigMap/"+name].Data["db-controller.yaml"]), &sections))
	require.Len(t, sections, 1)
	for command, settings = range sections {
	}
	return command, settings
}

// The chart, rendered with its examples, starts commands that exist, with settings that they accept.
func TestTheChartStartsCommandsThatExist(t *testing.T) {
	t.Parallel()
	started := 0
	for _, file := range renderedFiles(t) {
		all := objectsOf(t, file)
		for _, o := range all {
			switch o.Kind {
			case "Job":
				cmd, flags, err := newRoot().Find(decodeSpec[podSpec](t, o).Template.Spec.Containers[0].Args)
				require.NoError(t, err)
				require.NoError(t, cmd.ParseFlags(flags))
				require.Equal(t, "up", cmd.Name())
			case "Deployment":
				started++
				args := decodeSpec[podSpec](t, o).Template.Spec.Containers[0].Args
				name, settings := settingsIn(t, all, o.Metadata.Name)
				require.Equal(t, []string{name, "--config=/etc/db-controller/db-controller.yaml"}, args)
				// The file of the secret exists only in a pod.
				settings["postgres-file"] = write(t, "postgres://localhost/x")
				config, err := yaml.Marshal(map[string]any{name: settings})
				require.NoError(t, err)
				got := command(t, "config", "print", args[0], "--config", write(t, string(config)))
				require.Zero(t, got.code, "%s: %s", o.Metadata.Name, got.errOut)
			}
		}
	}
	require.Equal(t, 6, started)
}

// No pod of the chart has a right that its program does not need.
func TestThePodsOfTheChartHaveTheLeastRights(t *testing.T) {
	t.Parallel()
	pods := 0
	for _, file := range renderedFiles(t) {
		all := objectsOf(t, file)
		for id, o := range all {
			if o.Kind != "Deployment" && o.Kind != "Job" {
				continue
			}
			pods++
			of := decodeSpec[podSpec](t, o)
			pod := of.Template.Spec
			require.True(t, pod.Token != nil && !*pod.Token, id)
			require.True(t, pod.SecurityContext.RunAsNonRoot, id)
			require.Equal(t, "RuntimeDefault", pod.SecurityContext.SeccompProfile.Type, id)
			require.Len(t, pod.Containers, 1)
			c := pod.Containers[0].SecurityContext
			require.True(t, c.ReadOnly, id)
			require.True(t, c.MayEscalate != nil && !*c.MayEscalate, id)
			require.Equal(t, []string{"ALL"}, c.Capabilities.Drop, id)
			if o.Kind == "Deployment" {
				require.Contains(t, all, "PodDisruptionBudget/"+o.Metadata.Name)
				require.Contains(t, all, "NetworkPolicy/"+o.Metadata.Name)
			}
		}
	}
	require.Equal(t, 9, pods)
}

// By default a Job migrates as the owner of the database, before the processes start, which have another
// user.
func TestTheProcessesOfTheChartDoNotMigrate(t *testing.T) {
	t.Parallel()
	jobs := 0
	for _, file := range renderedFiles(t) {
		all := objectsOf(t, file)
		for _, o := range all {
			if o.Kind != "Deployment" {
				continue
			}
			_, settings := settingsIn(t, all, o.Metadata.Name)
			job, exists := all["Job/"+o.Metadata.Name+"-migrate"]
			require.NotEqual(t, exists, settings["migrate"] == true, o.Metadata.Name)
			if !exists {
				require.Equal(t, "example.rendered.yaml", filepath.Base(file))
				continue
			}
			jobs++
			require.Equal(t, "pre-install,pre-upgrade", job.Metadata.Annotations["helm.sh/hook"])
			owner, user := decodeSpec[podSpec](t, job).secret("postgres"), decodeSpec[podSpec](t, o).secret("postgres")
			require.NotEmpty(t, owner)
			require.NotEmpty(t, user)
			require.NotEqual(t, owner, user)
		}
	}
	require.Equal(t, 3, jobs)
}

// The deployments of two clusters reach the registry, and one another, by Services that reach out of their
// clusters.
func TestTheTwoClustersReachOneAnother(t *testing.T) {
	t.Parallel()
	const dns = "external-dns.alpha.kubernetes.io/hostname"
	reached := map[string]bool{}
	registries := map[string]bool{}
	for _, region := range []string{"us-west2", "eastus2"} {
		all := objectsOf(t, filepath.Join(helmFolder, "two-clusters", region+".rendered.yaml"))
		for _, o := range all {
			if o.Kind != "Deployment" {
				continue
			}
			command, settings := settingsIn(t, all, o.Metadata.Name)
			service := all["Service/"+o.Metadata.Name]
			spec := decodeSpec[serviceSpec](t, service)
			require.Equal(t, "LoadBalancer", spec.Type)
			require.Len(t, spec.Ports, 1)
			if command == "registry" {
				reached[fmt.Sprintf("%s:%d", service.Metadata.Annotations[dns], spec.Ports[0].Port)] = true
				continue
			}
			require.Regexp(t, `/`+region+`$`, settings["deployment"])
			require.Regexp(t, fmt.Sprintf(`^[a-z]+\.%s\.example\.net:%d$`, region, spec.Ports[0].Port),
				settings["advertise"])
			if region != "us-west2" {
				registries[fmt.Sprint(settings["registry"])] = true
			}
		}
	}
	require.Len(t, registries, 1)
	require.Equal(t, reached, registries)
}

// The page about two clusters has the Secrets of their values, and commands that exist.
func TestThePageAboutTwoClustersHasTheirNames(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(helmFolder + "/two-clusters/README.md")
	require.NoError(t, err)
	for _, region := range []string{"us-west2", "eastus2"} {
		require.Contains(t, string(page), " -f deploy/helm/two-clusters/"+region+".yaml\n")
		values, err := os.ReadFile(helmFolder + "/two-clusters/" + region + ".yaml")
		require.NoError(t, err)
		names := regexp.MustCompile(`(?m)(?:Secret|hostname|advertise): ([\w.-]+)`).
			FindAllStringSubmatch(string(values), -1)
		require.GreaterOrEqual(t, len(names), 4)
		for _, name := range names {
			require.Contains(t, string(page), name[1])
		}
	}
	commands := regexp.MustCompile(`(?m)^db-controller .*$`).FindAllString(string(page), -1)
	require.Len(t, commands, 6)
	for _, line := range commands {
		cmd, flags, err := newRoot().Find(strings.Fields(line)[1:])
		require.NoError(t, err, line)
		require.NotEqual(t, "db-controller", cmd.Name(), line)
		require.NoError(t, cmd.ParseFlags(flags), line)
	}
}

// One example takes its certificates from the SPIFFE Workload API.
func TestTheChartMountsTheWorkloadAPI(t *testing.T) {
	t.Parallel()
	all := objectsOf(t, filepath.Join(helmFolder, "example.rendered.yaml"))
	_, settings := settingsIn(t, all, "eu-devices")
	pod := decodeSpec[podSpec](t, all["Deployment/eu-devices"]).Template.Spec
	for _, v := range pod.Volumes {
		if v.CSI.Driver == "" {
			continue
		}
		for _, m := range pod.Containers[0].VolumeMounts {
			if m.Name == v.Name {
				require.Regexp(t, "^unix://"+m.Path+"/[a-z-]+[.]sock$", settings["certs"])
				return
			}
		}
	}
	require.Fail(t, "no volume of CSI is mounted")
}

// The chart has the alerts of every installation, without a copy; make packages renders them.
func TestTheChartHasTheAlerts(t *testing.T) {
	t.Parallel()
	of, err := os.Readlink(chartFolder + "/alerts.yaml")
	require.NoError(t, err)
	require.Equal(t, "../../prometheus/alerts.yaml", of)
	template, err := os.ReadFile(chartFolder + "/templates/monitoring.yaml")
	require.NoError(t, err)
	require.Contains(t, string(template), `.Files.Get "alerts.yaml"`)
	all := objectsOf(t, filepath.Join(helmFolder, "example.rendered.yaml"))
	require.Contains(t, all, "ServiceMonitor/eu-db-controller")
	require.Contains(t, all, "Service/eu-metrics")
}

// Helm, which is not here, has rendered the examples with this chart: go test -run TestTheChartIsRendered
// -write keeps the sums of the files by which it does, and of its output.
func TestTheChartIsRendered(t *testing.T) {
	t.Parallel()
	var sums bytes.Buffer
	require.NoError(t, filepath.WalkDir(helmFolder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || !slices.Contains([]string{".yaml", ".tpl"}, filepath.Ext(path)) {
			return err
		}
		name, err := filepath.Rel(helmFolder, path)
		if err != nil {
			return err
		}
		content, err := os.ReadFile(path) //nolint:gosec // a file of the chart
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(content), filepath.ToSlash(name))
		return err
	}))
	file := filepath.Join(helmFolder, "rendered.sha256")
	if *writeReference {
		require.NoError(t, os.WriteFile(file, sums.Bytes(), 0o644)) //nolint:gosec // sums of public files
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), sums.String(),
		"the chart, its examples and the rendered files differ: run make packages")
}

// valuesOf returns values of the chart as JSON has them.
func valuesOf(t *testing.T, text string) any {
	t.Helper()
	var values any
	require.NoError(t, yaml.Unmarshal([]byte(text), &values))
	asJSON, err := json.Marshal(values)
	require.NoError(t, err)
	out, err := jsonschema.UnmarshalJSON(bytes.NewReader(asJSON))
	require.NoError(t, err)
	return out
}

// Helm refuses values that the chart does not know, and names them.
func TestTheSchemaOfTheChartIsStrict(t *testing.T) {
	t.Parallel()
	schema, err := jsonschema.NewCompiler().Compile(chartSchema)
	require.NoError(t, err)
	defaults, err := os.ReadFile(chartFolder + "/values.yaml")
	require.NoError(t, err)
	require.NoError(t, schema.Validate(valuesOf(t, string(defaults))))
	for _, file := range renderedFiles(t) {
		values, err := os.ReadFile(strings.Replace(file, ".rendered", "", 1))
		require.NoError(t, err)
		require.NoError(t, schema.Validate(valuesOf(t, string(values))), file)
	}

	const deployment = "deployments: [{ name: iam, deployment: iam.example.com/us-west2, postgresSecret: p, "
	require.NoError(t, schema.Validate(valuesOf(t, deployment+"advertise: '[2001:db8::1]:7001' }]")))
	for values, names := range map[string]string{
		"unknown: 1":                                   "unknown",
		"migrate: true":                                "migrate",
		"image: { repository: x, unknown: 1 }":         "unknown",
		"image: { repository: x, digest: 'sha256:x' }": "digest",
		"registry: { unknown: 1 }":                     "unknown",
		"registry: { settings: { nodes: 4 } }":         "nodes",
		"registry: { settings: { listen: ':1' } }":     "listen",
		"service: { type: NodePort }":                  "type",
		"service: { unknown: 1 }":                      "unknown",
		"topologySpreadConstraints: [{ maxSkew: 1, topologyKey: x, whenUnsatisfiable: y, labelSelector: {} }]": "labelSelector",
		"podLabels: { a: 1 }":                                      "podLabels",
		"spiffe: { unknown: 1 }":                                   "unknown",
		"serviceAccount: { unknown: 1 }":                           "unknown",
		"networkPolicy: { unknown: 1 }":                            "unknown",
		"serviceMonitor: { unknown: 1 }":                           "unknown",
		"prometheusRule: { unknown: 1 }":                           "unknown",
		"deployments: [{ name: iam, deployment: a/b }]":            "postgresSecret",
		deployment + "unknown: 1 }]":                               "unknown",
		deployment + "service: { unknown: 1 } }]":                  "unknown",
		deployment + "settings: { nodez: 4 } }]":                   "nodez",
		deployment + "settings: { nodes: many } }]":                "nodes",
		deployment + "settings: { migrate: true } }]":              "migrate",
		deployment + "advertise: iam }]":                           "advertise",
		strings.Replace(deployment, "iam,", "registry,", 1) + "}]": "name",
	} {
		require.ErrorContains(t, schema.Validate(valuesOf(t, values)), names, values)
	}
}

// Each value is in values.yaml: with its default, or in the comment that shows an entry of deployments.
func TestTheValuesOfTheChartAreDescribed(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(chartFolder + "/values.yaml")
	require.NoError(t, err)
	var values map[string]any
	require.NoError(t, yaml.Unmarshal(regexp.MustCompile(`(?m)^#  |^deployments: \[\]`).ReplaceAllFunc(text,
		func(found []byte) []byte {
			return bytes.TrimSuffix(bytes.ReplaceAll(found, []byte("#"), []byte(" ")), []byte(" []"))
		}), &values))
	raw, err := os.ReadFile(chartSchema)
	require.NoError(t, err)
	type properties map[string]struct {
		Properties map[string]any
		Items      struct{ Properties map[string]any }
	}
	var schema struct{ Properties properties }
	require.NoError(t, json.Unmarshal(raw, &schema))
	delete(schema.Properties, "global") // Helm's own
	require.ElementsMatch(t, slices.Collect(maps.Keys(schema.Properties)), slices.Collect(maps.Keys(values)))
	entries, ok := values["deployments"].([]any)
	require.True(t, ok)
	for component, given := range map[string]any{"registry": values["registry"], "deployments": entries[0]} {
		described, ok := given.(map[string]any)
		require.True(t, ok)
		known := schema.Properties[component].Properties
		if component == "deployments" {
			known = schema.Properties[component].Items.Properties
		}
		for name := range known {
			if _, common := values[name]; !common {
				require.Contains(t, described, name, component)
			}
		}
	}
}

// givenByTheChart are the settings that values have no say in.
var givenByTheChart = []string{
	"deployment", "registry", "listen", "advertise", "http", "http-api", "certs", "tokens", "postgres", "postgres-file",
	"migrate", "name", "config",
}

// The schema of the chart has the settings of the commands: go test ./cmd/db-controller -run TestTheReference
// -write.
func TestTheReferenceOfSettingsInTheChartIsThatOfTheCommands(t *testing.T) {
	t.Parallel()
	type section struct {
		Properties map[string]struct{ Type any }
		AnyOf      []section
	}
	var all section
	var configuration struct{ Properties map[string]section }
	got := command(t, "config", "schema")
	require.NoError(t, json.Unmarshal([]byte(got.out), &configuration))
	for definition, of := range map[string]string{"serveSettings": "serve", "registrySettings": "registry"} {
		if all = configuration.Properties[of]; len(all.AnyOf) > 0 {
			all = all.AnyOf[1] // the first one is the flag of this name
		}
		var lines []string
		for _, name := range slices.Sorted(maps.Keys(all.Properties)) {
			if !slices.Contains(givenByTheChart, name) {
				kinds, err := json.Marshal(all.Properties[name].Type)
				require.NoError(t, err)
				lines = append(lines, fmt.Sprintf(`        %q: { "type": %s }`, name, kinds))
			}
		}
		want := fmt.Sprintf(
			"    %q: {\n      \"type\": \"object\",\n      \"additionalProperties\": false,\n      \"properties\": {\n%s\n      }\n    },\n", definition, strings.Join(lines, ",\n"))
		file, err := os.ReadFile(chartSchema)
		require.NoError(t, err)
		if *writeReference {
			file = regexp.MustCompile(`(?ms)^    "`+definition+`": \{.*?^    \},\n`).ReplaceAllLiteral(file,
				[]byte(want))
			require.NoError(t, os.WriteFile(chartSchema, file, 0o644)) //nolint:gosec // a part of the chart
		}
		require.Contains(t, string(file), want, "%s is out of date: run make generate", chartSchema)
	}
}
