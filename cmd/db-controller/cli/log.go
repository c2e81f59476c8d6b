package cli

import (
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// NewLogger writes to stderr: text when it is a terminal, else JSON.
func NewLogger(cmd *cobra.Command) (*zap.Logger, error) {
	text, _ := cmd.Flags().GetString("log-level")
	level, err := zapcore.ParseLevel(text)
	if err != nil {
		return nil, Usage("--log-level: %w", err)
	}
	stderr := cmd.ErrOrStderr()
	out := zapcore.Lock(zapcore.AddSync(stderr))
	options := []zap.Option{zap.AddCaller(), zap.ErrorOutput(out)}
	if file, ok := stderr.(*os.File); ok && isTerminal(file) {
		encoding := zap.NewDevelopmentEncoderConfig()
		return zap.New(zapcore.NewCore(zapcore.NewConsoleEncoder(encoding), out, level), append(options, zap.Development())...), nil
	}
	encoding := zap.NewProductionEncoderConfig()
	encoding.EncodeTime = func(t time.Time, to zapcore.PrimitiveArrayEncoder) { zapcore.RFC3339NanoTimeEncoder(t.UTC(), to) }
	core := zapcore.NewCore(zapcore.NewJSONEncoder(encoding), out, level)
	// As zap's production configuration: of equal lines, the first 100 a second and then every hundredth.
	return zap.New(zapcore.NewSamplerWithOptions(core, time.Second, 100, 100), options...), nil
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
