package cli

import (
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// NewLogger writes to stderr: text when it is a terminal, else JSON. FollowReloads changes the level.
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
		return zap.New(zapcore.NewCore(zapcore.NewConsoleEncoder(encoding), out, level),
			append(options, zap.Development())...)
	}
	encoding := zap.NewProductionEncoderConfig()
	encoding.EncodeTime = func(t time.Time, to zapcore.PrimitiveArrayEncoder) {
		zapcore.RFC3339NanoTimeEncoder(t.UTC(), to)
	}
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

// OnTerminal reports whether a command writes to a terminal.
func OnTerminal(to io.Writer) bool {
	file, ok := to.(*os.File)
	return ok && isTerminal(file)
}

func isTerminal(file *os.File) bool {
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
