package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"

	"github.com/moorebus/moorebus/internal/terminal"
)

// LogFlags are --log-format and --log-level.
type LogFlags struct {
	format string
	level  string
}

// AddLogFlags adds --log-format and --log-level. level is the command's default: info for
// commands that run for long, warn for commands that print data.
func AddLogFlags(flags *pflag.FlagSet, level slog.Level) *LogFlags {
	f := &LogFlags{}
	flags.StringVar(&f.format, "log-format", "text", "format of the log on stderr: text or json")
	flags.StringVar(&f.level, "log-level", level.String(), "minimum level: debug, info, warn or error")
	return f
}

// Mute turns off the log.
func (f *LogFlags) Mute() { f.level = (slog.LevelError + 1).String() }

// Logger returns the logger that the flags describe, writing to stderr, and
// makes it slog's default. On a terminal text is brief, and coloured
// unless NO_COLOR is set. It fails with a usage error.
func (f *LogFlags) Logger() (*slog.Logger, error) {
	logger, err := f.logger(terminal.Stderr, terminal.Stderr.IsTerminal(), terminal.Stderr.Color(os.Getenv))
	if err == nil {
		slog.SetDefault(logger)
		inJSON.Store(f.format == "json")
	}
	return logger, err
}

// inJSON reports whether stderr has only JSON, see [Say].
var inJSON atomic.Bool

// Say shows a message to the user at every --log-level: as a line on stderr, or with
// --log-format json as a record of the log.
func Say(format string, args ...any) {
	say(terminal.Stderr, slog.LevelInfo, "", fmt.Sprintf(format, args...))
}

// say writes a message. A line, but no record, begins with prefix.
func say(w io.Writer, level slog.Level, prefix, message string) {
	message = AsStarted(message)
	if inJSON.Load() {
		slog.New(slog.NewJSONHandler(w, nil)).Log(context.Background(), level, message)
		return
	}
	_, _ = fmt.Fprintln(w, prefix+message)
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

// briefHandler writes a log for people: the time of day, the level in three letters, the
// message, and the attributes as slog's text handler writes them.
type briefHandler struct {
	*briefOutput
	// attributes writes the attributes of a record and of the handler.
	attributes slog.Handler
}

// briefOutput is shared by the handlers that come from one.
type briefOutput struct {
	mu    sync.Mutex
	w     io.Writer
	line  bytes.Buffer
	color bool
}

func newBriefHandler(w io.Writer, o *slog.HandlerOptions, color bool) slog.Handler {
	out := &briefOutput{w: w, color: color}
	return &briefHandler{out, slog.NewTextHandler(&out.line, &slog.HandlerOptions{Level: o.Level, ReplaceAttr: attributesOnly})}
}

// attributesOnly removes everything but the attributes from a line.
func attributesOnly(groups []string, a slog.Attr) slog.Attr {
	_, level := a.Value.Any().(slog.Level)
	if len(groups) == 0 && (a.Key == slog.LevelKey && level || a.Key == slog.MessageKey && a.Value.String() == "") {
		return slog.Attr{}
	}
	return a
}

// Enabled reports whether records of the level are written.
func (h *briefHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.attributes.Enabled(ctx, level)
}

// Handle writes a record on one line.
func (h *briefHandler) Handle(ctx context.Context, r slog.Record) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.line.Reset()
	h.line.WriteString(h.style("2", r.Time.Format(time.TimeOnly)) + " " + h.level(r.Level) + " " + r.Message + " ")
	rest := slog.NewRecord(time.Time{}, r.Level, "", 0)
	r.Attrs(func(a slog.Attr) bool { rest.AddAttrs(a); return true })
	if err := h.attributes.Handle(ctx, rest); err != nil {
		return err
	}
	_, err := h.w.Write(append(bytes.TrimRight(h.line.Bytes(), " \n"), '\n'))
	return err
}

func (o *briefOutput) style(parameters, text string) string {
	if !o.color {
		return text
	}
	return terminal.Style(parameters, text)
}

func (o *briefOutput) level(l slog.Level) string {
	switch {
	case l >= slog.LevelError:
		return o.style("91", "ERR")
	case l >= slog.LevelWarn:
		return o.style("93", "WRN")
	case l >= slog.LevelInfo:
		return o.style("92", "INF")
	}
	return "DBG"
}

// WithAttrs returns a handler whose records have the attributes too.
func (h *briefHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &briefHandler{h.briefOutput, h.attributes.WithAttrs(attrs)}
}

// WithGroup returns a handler whose records' attributes are in a group.
func (h *briefHandler) WithGroup(name string) slog.Handler {
	return &briefHandler{h.briefOutput, h.attributes.WithGroup(name)}
}
