package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// NewLogger writes to stderr: text when it is a terminal, else JSON. FollowLogLevel changes the level.
func NewLogger(cmd *cobra.Command) (*zap.Logger, zap.AtomicLevel, error) {
	text, _ := cmd.Flags().GetString("log-level")
	level, err := zap.ParseAtomicLevel(text)
	if err != nil {
		return nil, level, Usage("--log-level: %w", err)
	}
	return newLogger(cmd, level), level, nil
}

func newLogger(cmd *cobra.Command, level zap.AtomicLevel) *zap.Logger {
	stderr := cmd.ErrOrStderr()
	out := zapcore.Lock(zapcore.AddSync(stderr))
	options := []zap.Option{zap.AddCaller(), zap.ErrorOutput(out)}
	if file, ok := stderr.(*os.File); ok && isTerminal(file) {
		encoding := zap.NewDevelopmentEncoderConfig()
		return zap.New(zapcore.NewCore(zapcore.NewConsoleEncoder(encoding), out, level), append(options, zap.Development())...)
	}
	encoding := zap.NewProductionEncoderConfig()
	encoding.EncodeTime = func(t time.Time, to zapcore.PrimitiveArrayEncoder) { zapcore.RFC3339NanoTimeEncoder(t.UTC(), to) }
	core := zapcore.NewCore(zapcore.NewJSONEncoder(encoding), out, level)
	// As zap's production configuration: of equal lines, the first 100 a second and then every hundredth.
	return zap.New(audited{zapcore.NewSamplerWithOptions(core, time.Second, 100, 100), core}, options...)
}

// audited leaves out no line of the logger audit: a caller could hide one among many.
type audited struct {
	zapcore.Core // all other lines
	audit        zapcore.Core
}

func (c audited) With(fields []zap.Field) zapcore.Core {
	return audited{c.Core.With(fields), c.audit.With(fields)}
}

func (c audited) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if entry.LoggerName == "audit" || strings.HasSuffix(entry.LoggerName, ".audit") {
		return c.audit.Check(entry, checked)
	}
	return c.Core.Check(entry, checked)
}

// FollowLogLevel reads the log level again with each SIGHUP, from where it came: the configuration file. A level from the command line or
// the environment cannot change. It returns nil when ctx ends.
func FollowLogLevel(ctx context.Context, cmd *cobra.Command, level zap.AtomicLevel, log *zap.Logger) error {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-hangup:
		}
		now, err := levelAgain(cmd)
		switch {
		case err != nil:
			log.Warn("the log level could not be read again, it stays", zap.Stringer("level", level), zap.Error(err))
		case now != level.Level():
			log.Warn("the log level is changed", zap.Stringer("from", level), zap.Stringer("to", now))
			level.SetLevel(now)
		}
	}
}

// levelAgain returns the log level that a process would have that started now with the same command line and environment.
func levelAgain(cmd *cobra.Command) (zapcore.Level, error) {
	f := cmd.Flags().Lookup("log-level")
	text := f.Value.String()
	if origin := originOf(f); origin != "flag" {
		settings, err := fileSettings(cmd)
		if err != nil {
			return 0, err
		}
		given, err := environmentSettings(cmd)
		if err != nil {
			return 0, err
		}
		maps.Copy(settings, given)
		text = f.DefValue
		if s := settings[f.Name]; s.value != nil {
			text = fmt.Sprint(s.value)
		}
	}
	return zapcore.ParseLevel(text)
}

// OnTerminal reports whether a command writes to a terminal.
func OnTerminal(to io.Writer) bool {
	file, ok := to.(*os.File)
	return ok && isTerminal(file)
}

func isTerminal(file *os.File) bool {
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
