package cli

import (
	"io"
	"log/slog"
	"os"

	"github.com/spf13/pflag"

	"github.com/moorebus/moorebus/internal/terminal"
)

// LogFlags are --log-format and --log-level.
type LogFlags struct {
	format string
	level  string
}

// AddLogFlags adds --log-format and --log-level, with the level that is the
// command's default: info for what runs for long, warn for what prints data.
func AddLogFlags(flags *pflag.FlagSet, level slog.Level) *LogFlags {
	f := &LogFlags{}
	flags.StringVar(&f.format, "log-format", "text", "format of the log on stderr: text or json")
	flags.StringVar(&f.level, "log-level", level.String(), "least level that is logged: debug, info, warn or error")
	return f
}

// Logger returns the logger that the flags describe, writing to stderr, and
// makes it slog's default. On a terminal text is brief, and coloured
// unless NO_COLOR is set. It fails with a usage error.
func (f *LogFlags) Logger() (*slog.Logger, error) {
	logger, err := f.logger(terminal.Stderr, terminal.Stderr.IsTerminal(), terminal.Stderr.Color(os.Getenv))
	if err == nil {
		slog.SetDefault(logger)
	}
	return logger, err
}

func (f *LogFlags) logger(w io.Writer, brief, color bool) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.level)); err != nil {
		return nil, Usage("--log-level: %q is not a level; use debug, info, warn or error", f.level)
	}
	options := &slog.HandlerOptions{Level: level}
	switch {
	case f.format == "json":
		return slog.New(slog.NewJSONHandler(w, options)), nil
	case f.format != "text":
		return nil, Usage("--log-format: %q is not a format; use text or json", f.format)
	case brief:
		return slog.New(newBriefHandler(w, options, color)), nil
	}
	return slog.New(slog.NewTextHandler(w, options)), nil
}
