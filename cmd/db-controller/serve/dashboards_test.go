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

// exported returns the names of the metrics that a process of a deployment exports, those without a series yet included.
func exported() map[string]bool {
	registry := newPrometheus()
	newMetrics(nil).register(registry)
	newStarted(registry, nil)
	newRefused(registry)
	newDeletes(registry)
	newDeletionEnded(registry)
	newMeasuredPeers(registry, nil)
	registry.MustRegister(poolCollector{}, registryCollector{}, environmentCollector{}, readiness{}, auditLogFailing(nil), certificateExpiry(nil),
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
	expressions := append(alertExpressions(t), dashboardExpressions(t)...)
	require.Greater(t, len(expressions), 25)
	for _, expression := range expressions {
		for _, name := range metricName.FindAllString(withoutLabels.ReplaceAllString(expression, ""), -1) {
			require.True(t, names[name], "%s is not exported: %s", name, expression)
		}
	}
}

// withoutLabels matches text in braces, whose names are names of labels.
var withoutLabels = regexp.MustCompile(`\{[^}]*\}|by \([^)]*\)`)

func alertExpressions(t *testing.T) (out []string) {
	t.Helper()
	raw, err := os.ReadFile("../../../deploy/prometheus/alerts.yaml")
	require.NoError(t, err)
	var alerts struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				Annotations map[string]string
			}
		}
	}
	require.NoError(t, yaml.Unmarshal(raw, &alerts))
	runbooks, err := os.ReadFile("../../../docs/runbooks.md")
	require.NoError(t, err)
	require.Equal(t, len(alerts.Groups[0].Rules), strings.Count(string(runbooks), "\n## "))
	played, err := os.ReadFile("testdata/alerts_test.yaml")
	require.NoError(t, err)
	for _, rule := range alerts.Groups[0].Rules {
		require.NotEmpty(t, rule.Annotations["summary"], rule.Alert)
		require.Equal(t, "docs/runbooks.md#"+strings.ToLower(rule.Alert), rule.Annotations["runbook"], "the page has a section for each alert")
		require.Contains(t, string(runbooks), "\n## "+rule.Alert+"\n")
		require.Contains(t, string(played), `alertname="`+rule.Alert+`"`, "a test makes it fire")
		out = append(out, rule.Expr)
	}
	return out
}

func dashboardExpressions(t *testing.T) (out []string) {
	t.Helper()
	raw, err := os.ReadFile("../../../deploy/grafana/db-controller.json")
	require.NoError(t, err)
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	require.NoError(t, json.Unmarshal(raw, &dashboard))
	for _, panel := range dashboard.Panels {
		require.NotEmpty(t, panel.Targets, panel.Title)
		for _, target := range panel.Targets {
			out = append(out, target.Expr)
		}
	}
	return out
}

// Prometheus accepts the rules, and they fire when they should, where promtool is installed.
func TestPromtoolAcceptsTheAlerts(t *testing.T) {
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip(err)
	}
	for _, args := range [][]string{{"check", "rules", "../../../deploy/prometheus/alerts.yaml"}, {"test", "rules", "testdata/alerts_test.yaml"}} {
		out, err := exec.CommandContext(t.Context(), promtool, args...).CombinedOutput() //nolint:gosec // a program of the system
		require.NoError(t, err, string(out))
	}
}
