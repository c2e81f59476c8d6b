package serve

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/internal/auditlog"
	"github.com/db-controller/db-controller/internal/auditlog/otlp"
)

// auditLogConfig is the record of calls that a server writes.
type auditLogConfig struct {
	sink     string
	classes  []string
	required bool
}

func (c *auditLogConfig) flags(f *pflag.FlagSet) {
	f.StringVar(&c.sink, "audit-log", "",
		"where the record of calls is written: a `FILE`, syslog, syslog:udp://HOST:PORT, syslog:tcp://HOST:PORT, or otlp (default: deletes, operations and denials in the log of the process alone)")
	f.StringSliceVar(&c.classes, "audit-log-classes", []string{"writes", "deletes", "operate", "registry"},
		"what it records: reads, writes, references, deletes, operate, registry")
	f.BoolVar(&c.required, "audit-log-required", false,
		"carry out no call whose line in the audit log is not written: callers get UNAVAILABLE")
}

func (c *auditLogConfig) check() error {
	_, err := auditlog.ParseClasses(c.classes)
	if err != nil {
		err = fmt.Errorf("--audit-log-classes: %w", err)
	}
	if c.required && c.sink == "" {
		err = errors.Join(err, errors.New("--audit-log-required: name the log with --audit-log"))
	}
	return err
}

// open opens the audit log of a source, a deployment or the registry; nil without --audit-log.
func (c *auditLogConfig) open(ctx context.Context, source string, log *zap.Logger) (*auditlog.Log, error) {
	if c.sink == "" {
		return nil, nil //nolint:nilnil // a nil log records nothing
	}
	classes, err := auditlog.ParseClasses(c.classes)
	if err != nil {
		return nil, err
	}
	open := func() (auditlog.Sink, error) { return auditlog.OpenSink(c.sink) }
	if c.sink == "otlp" {
		open = func() (auditlog.Sink, error) { return otlp.Open(ctx, cli.ThisBuild().Version, source) }
	}
	sink, err := open()
	if err != nil {
		return nil, fmt.Errorf("--audit-log: %w", err)
	}
	cfg := auditlog.Config{Source: source, Sink: sink, Classes: classes, Required: c.required, Logger: log}
	return auditlog.Open(cfg) //nolint:contextcheck // it ends when it is closed
}

// auditLogFailing is whether the audit log of the process cannot be written.
func auditLogFailing(log *auditlog.Log) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "dbcontroller_audit_log_failing",
		Help: "Whether the sink of --audit-log does not take lines: they are kept in memory and tried again.",
	}, func() float64 { return truth(log.Failing()) })
}
