package serve

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

var (
	metricName = regexp.MustCompile(`\b(?:dbcontroller|grpc_server|go|process)_[a-z_]+`)
	describes  = regexp.MustCompile(`fqName: "([^"]+)"`)
)

// exported returns the names of the metrics that a process of a deployment exports, those without a series
// yet included.
func exported() map[string]bool {
	registry := newPrometheus()
	newMetrics(nil).register(registry)
	newStarted(registry, nil)
	newRefused(registry)
	newDeletes(registry)
	newDeletionEnded(registry)
	newMeasuredPeers(registry, nil)
	registry.MustRegister(poolCollector{}, standbyCollector{}, registryCollector{}, environmentCollector{}, readiness{},
		auditLogFailing(nil), certificateExpiry(nil),
		grpcprom.NewServerMetrics(grpcprom.WithServerHandlingTimeHistogram()))
	descriptions := make(chan *prometheus.Desc)
	go func() {
		defer close(descriptions)
		registry.Describe(descriptions)
	}()
	names := map[string]bool{}
	for d := range descriptions {
		name := describes.FindStringSubmatch(d.String())[1]
		names[name] = true
		for _, part := range []string{"_bucket", "_sum", "_count"} {
			names[name+part] = strings.HasSuffix(name, "_seconds")
		}
	}
	return names
}

// Alerts and dashboards ask for metrics that exist.
func TestAlertsAndDashboardsNameMetricsThatAreExported(t *testing.T) {
	t.Parallel()
	names := exported()
	dashboard := readDashboard(t)
	expressions := alertExpressions(t)
	for _, p := range dashboard.all() {
		expressions = append(expressions, p.expressions(t)...)
	}
	require.Greater(t, len(expressions), 25)
	for _, expression := range expressions {
		for _, name := range metricName.FindAllString(withoutLabels.ReplaceAllString(expression, ""), -1) {
			require.True(t, names[name], "%s is not exported: %s", name, expression)
		}
	}
}

// withoutLabels matches text in braces, whose names are names of labels.
var withoutLabels = regexp.MustCompile(`\{[^}]*\}|by \([^)]*\)`)

// alert is a rule of deploy/prometheus/alerts.yaml.
type alert struct {
	Alert, Expr         string
	Labels, Annotations map[string]string
}

func readAlerts(t *testing.T) []alert {
	t.Helper()
	raw, err := os.ReadFile("../../../deploy/prometheus/alerts.yaml")
	require.NoError(t, err)
	var alerts struct{ Groups []struct{ Rules []alert } }
	require.NoError(t, yaml.Unmarshal(raw, &alerts))
	return alerts.Groups[0].Rules
}

func alertExpressions(t *testing.T) (out []string) {
	t.Helper()
	rules := readAlerts(t)
	runbooks, err := os.ReadFile("../../../docs/runbooks.md")
	require.NoError(t, err)
	require.Equal(t, len(rules), strings.Count(string(runbooks), "\n## "))
	played, err := os.ReadFile("testdata/alerts_test.yaml")
	require.NoError(t, err)
	for _, rule := range rules {
		require.NotEmpty(t, rule.Annotations["summary"], rule.Alert)
		require.Equal(t, "docs/runbooks.md#"+strings.ToLower(rule.Alert), rule.Annotations["runbook"],
			"the page has a section for each alert")
		require.Contains(t, string(runbooks), "\n## "+rule.Alert+"\n")
		require.Contains(t, string(played), `alertname="`+rule.Alert+`"`, "a test makes it fire")
		out = append(out, rule.Expr)
	}
	return out
}

// panel of the dashboard; one of the type row has further ones, which are hidden until somebody opens it.
type panel struct {
	Title, Type string
	GridPos     struct{ X, Y, W, H int }
	Targets     []struct{ Expr string }
	Panels      []panel
}

type dashboard struct{ Panels []panel }

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	raw, err := os.ReadFile("../../../deploy/grafana/db-controller.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &d))
	return d
}

// all returns the panels with queries.
func (d dashboard) all() (out []panel) {
	for _, p := range d.Panels {
		if out = append(out, p.Panels...); p.Type != "row" {
			out = append(out, p)
		}
	}
	return out
}

func (p panel) expressions(t *testing.T) (out []string) {
	t.Helper()
	require.NotEmpty(t, p.Targets, p.Title)
	for _, target := range p.Targets {
		out = append(out, target.Expr)
	}
	return out
}

// The first screen of the dashboard shows the metrics of each alert that calls somebody, and its panels fill
// it without overlapping.
func TestTheFirstScreenAnswersWhetherItIsUs(t *testing.T) {
	t.Parallel()
	shown, taken := map[string]bool{}, map[[2]int]string{}
	for _, p := range readDashboard(t).Panels {
		if p.Type == "row" {
			require.GreaterOrEqual(t, p.GridPos.Y, 20)
			continue
		}
		for _, expression := range p.expressions(t) {
			for _, name := range metricName.FindAllString(expression, -1) {
				shown[name] = true
			}
		}
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				require.Empty(t, taken[at], "%s lies over another panel", p.Title)
				require.Less(t, at[0], 24)
				require.Less(t, at[1], 20)
				taken[at] = p.Title
			}
		}
	}
	require.Len(t, taken, 24*20)
	for name, expression := range pages(t) {
		for _, metric := range metricName.FindAllString(withoutLabels.ReplaceAllString(expression, ""), -1) {
			require.True(t, shown[metric], "%s calls somebody for %s, which the first screen does not show",
				name, metric)
		}
	}
}

// pages returns the expressions of the alerts that call somebody.
func pages(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, rule := range readAlerts(t) {
		if rule.Labels["severity"] == "page" {
			out[rule.Alert] = rule.Expr
		}
	}
	require.NotEmpty(t, out)
	return out
}

// Prometheus accepts the rules, and they fire when they should, where promtool is installed.
func TestPromtoolAcceptsTheAlerts(t *testing.T) {
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip(err)
	}
	for _, args := range [][]string{
		{"check", "rules", "../../../deploy/prometheus/alerts.yaml"},
		{"test", "rules", "testdata/alerts_test.yaml"},
	} {
		out, err := exec.CommandContext(t.Context(), promtool, args...).CombinedOutput() //nolint:gosec // a program of the system
		require.NoError(t, err, string(out))
	}
}
